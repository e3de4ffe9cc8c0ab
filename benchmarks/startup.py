"""Start-up: seconds from the command to the first update, to the end of a run of one update, and of --help.

    python -m benchmarks.startup [--env CartPole-v1] [--num-actors 2] [--repeats 5]

The first update is over when its line stands in metrics.jsonl. One round before is not counted: it warms the caches.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import show, spread

ZMQRL = [sys.executable, "-m", "zmqrl"]


def main() -> None:
    parser = argparse.ArgumentParser(description="start-up time of zmqrl")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--num-actors", default="2")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    flags = ["--env", args.env, "--num-actors", args.num_actors, "--total-env-steps", "1"]
    rounds = [(*one_update(flags), seconds_of([*ZMQRL, "--help"])) for _ in range(args.repeats + 1)][1:]
    for name, values in zip(("first_update", "whole_run", "help"), zip(*rounds, strict=True), strict=True):
        show(f"startup.{name}", spread(values), unit="s")


def one_update(flags: list[str]) -> tuple[float, float]:
    """Seconds until the first update is recorded, and until the command has ended."""
    with tempfile.TemporaryDirectory(prefix="zmqrl-bench-") as parent:
        metrics = Path(parent) / "run" / "metrics.jsonl"
        began = time.monotonic()
        command = [*ZMQRL, "train", *flags, "--run-dir", str(metrics.parent)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not (metrics.exists() and metrics.stat().st_size):
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended with {process.returncode} before an update")
                time.sleep(0.002)
            updated = time.monotonic() - began
        return updated, time.monotonic() - began


def seconds_of(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
