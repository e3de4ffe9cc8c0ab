"""Pendulum-v1, with continuous actions, is learned by the command with its preset."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GOAL = -250.0
MOST_ENV_STEPS = 300_000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("actors", [[], ["--num-actors", "2"]], ids=["default actors", "2 actors"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_command_swings_the_pendulum_up(tmp_path: Path, seed: int, actors: list[str]) -> None:
    flags = ["--env", "Pendulum-v1", "--seed", str(seed), *actors, "--stop-at-return", str(GOAL)]
    flags += ["--total-env-steps", str(MOST_ENV_STEPS), "--run-dir", str(tmp_path / "run")]
    subprocess.run([sys.executable, "-m", "zmqrl", "train", *flags], check=True, stdout=subprocess.DEVNULL, timeout=280)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["reached"] and report["mean_episode_return"] >= GOAL, report["stopped_because"]
    assert report["reached"][0]["env_steps"] <= MOST_ENV_STEPS
