"""report.json: what came of a run, in one strict JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zmqrl.runs.folder import RunFolder, write_json

REPORT_KEYS = (
    "updates_completed",
    "env_steps_consumed",
    "episodes_completed",
    "broadcasts_sent",
    "last_policy_version",
    "mean_episode_return",
    "wall_seconds",
    "env_steps_per_second",
    "reached",
    "stopped_because",
    "parameters_sha256",
    "transport",
    "policy_lag",
    "learner",
    "actors",
)
"""What every report holds, in this order; docs/metrics.md says what each is."""


def write_report(folder: RunFolder, facts: Mapping[str, Any]) -> None:
    """Write report.json: REPORT_KEYS first, then whatever else `facts` has. Non-finite numbers become null.

    ValueError if a key is missing: half a report would be read as a whole one.
    """
    missing = [key for key in REPORT_KEYS if key not in facts]
    if missing:
        raise ValueError(f"the report lacks {', '.join(missing)}")
    write_json(folder.report_file, {key: facts[key] for key in REPORT_KEYS} | dict(facts))


def amend_report(folder: RunFolder, stopped_because: str) -> None:
    """Say why the run ended, where its learner could not know; no report is no error."""
    if folder.report_file.exists():
        write_json(
            folder.report_file, json.loads(folder.report_file.read_text()) | {"stopped_because": stopped_because}
        )


def summarize_lag(histogram: Mapping[int, int]) -> dict[str, float | int | None]:
    """`mean, p50, p99, max` of lags given as {lag: env steps}; None each if there is no env step.

    pX is the smallest lag that at least X % of the env steps do not exceed.
    """
    total = sum(histogram.values())
    if total == 0:
        return dict.fromkeys(("mean", "p50", "p99", "max"))
    return {
        "mean": sum(lag * steps for lag, steps in histogram.items()) / total,
        "p50": _percentile(histogram, 50),
        "p99": _percentile(histogram, 99),
        "max": max(lag for lag, steps in histogram.items() if steps),
    }


def _percentile(histogram: Mapping[int, int], percent: int) -> int:
    total, below = sum(histogram.values()), 0
    for lag, steps in sorted(histogram.items()):
        below += steps
        if 100 * below >= percent * total:
            return lag
    raise ValueError("an empty histogram has no percentile")
