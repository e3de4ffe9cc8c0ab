"""docs/metrics.md lists exactly the metrics and report keys that exist."""

from __future__ import annotations

import re
from pathlib import Path

from zmqrl.runs.metrics import METRICS
from zmqrl.runs.report import REPORT_KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    rows = [f"| `{metric.name}` | {metric.unit} | {metric.meaning.replace('|', chr(92) + '|')} |" for metric in METRICS]
    assert re.findall(r"^\| `\w+/.*$", PAGE, re.MULTILINE) == rows


def test_every_key_of_the_report_is_explained() -> None:
    report = PAGE.partition("## report.json")[2]
    first_cells = re.findall(r"^\| (`.*?) \|", report, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(REPORT_KEYS)
