"""The benchmarks run, and their last line is the figure they are named for; figures themselves are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SHORT = {
    "pipeline": ("pipeline_efficiency.cartpole", "--repeats 1 --steps 20000 --seconds 0.2"),
    "wire": ("wire_efficiency", "--repeats 1 --sizes 16 --seconds 0.2"),
    "startup": ("startup.help", "--repeats 1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_benchmark_prints_its_figure(name: str) -> None:
    figure, flags = SHORT[name]
    command = [sys.executable, "-m", f"benchmarks.{name}", *flags.split()]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=100).stdout
    last = [json.loads(line) for line in lines.splitlines()][-1]
    assert last["name"] == figure
    assert last["value"]
