"""report.json is whole and strict; lags are summed up as defined."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqrl.runs import RunFolder
from zmqrl.runs.report import REPORT_KEYS, summarize_lag, write_report


def test_the_report_is_strict_json_in_a_fixed_order(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path / "run"), "A-v0")
    facts = {"extra": 1, **dict.fromkeys(reversed(REPORT_KEYS), 0.5), "mean_episode_return": math.nan}
    write_report(folder, facts)
    report = json.loads(folder.report_file.read_text(), parse_constant=pytest.fail)
    assert list(report) == [*REPORT_KEYS, "extra"]
    assert report["mean_episode_return"] is None


def test_half_a_report_is_not_written(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path / "run"), "A-v0")
    facts = dict.fromkeys(REPORT_KEYS, 0)
    del facts["transport"], facts["reached"]
    with pytest.raises(ValueError, match="lacks reached, transport"):
        write_report(folder, facts)
    assert not folder.report_file.exists()


def test_lags_of_nothing_are_none() -> None:
    assert summarize_lag(Counter()) == {"mean": None, "p50": None, "p99": None, "max": None}


def test_known_lags() -> None:
    assert summarize_lag(Counter({0: 50, 1: 49, 7: 1})) == {"mean": 0.56, "p50": 0, "p99": 1, "max": 7}
    assert summarize_lag(Counter({0: 49, 1: 49, 7: 2})) == {"mean": 0.63, "p50": 1, "p99": 7, "max": 7}


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 20), min_size=1))
def test_the_summary_is_that_of_all_env_steps_written_out(histogram: dict[int, int]) -> None:
    lags = np.repeat(list(histogram), list(histogram.values()))
    summary = summarize_lag(histogram)
    assert summary["mean"] == pytest.approx(lags.mean(), rel=1e-12)
    assert summary["max"] == lags.max()
    for key, percent in (("p50", 50), ("p99", 99)):
        assert summary[key] == np.percentile(lags, percent, method="inverted_cdf")
