"""What the benchmarks share: runs of the real command, and medians with their spread."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def trained(*flags: str) -> Iterator[Path]:
    """The folder of a `zmqrl train` that has just ended; deleted afterwards. CalledProcessError if it failed."""
    with tempfile.TemporaryDirectory(prefix="zmqrl-bench-") as parent:
        folder = Path(parent) / "run"
        call(sys.executable, "-m", "zmqrl", "train", "--run-dir", str(folder), *flags)
        yield folder


def call(*command: str) -> str:
    """Run a command to its end; its standard output. What it says on standard error is shown if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
    done.check_returncode()
    return done.stdout


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """One dict per update."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(values: Sequence[float], digits: int = 3) -> dict[str, Any]:
    """Median, least and greatest of the repeats."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "repeats": len(values),
    }


def show(name: str, value: float | dict[str, Any], **more: Any) -> None:
    """One JSON line."""
    print(json.dumps({"name": name, "value": value, **more}), flush=True)
