"""CartPole-v1 is learned: in a fixed small budget in this program, and by the command with its preset."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from running import run_training

from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PPOConfig
from zmqrl.envs import make_envs
from zmqrl.transport.bus import LearnerBus

SEEDS = range(1, 6)
MOST_ENV_STEPS = 100_000
"""For a mean return of 475 over 100 episodes: the median over the seeds."""


@pytest.mark.parametrize("seed", SEEDS)
def test_ten_thousand_steps_are_enough_for_a_return_of_one_hundred(
    make_bus: Callable[..., LearnerBus], seed: int
) -> None:
    config = AsyncActorLearnerConfig(num_actors=2, num_envs=1, num_steps=64, total_env_steps=10_240, seed=seed)
    ppo = PPOConfig(learning_rate=1e-3, n_epochs=10, batch_size=32)
    outcome = run_training(make_bus("memory"), config, partial(make_envs, EnvConfig(env="CartPole-v1"), 1), ppo=ppo)
    assert outcome.report.updates_completed == 80
    assert outcome.report.env_steps_consumed == 10_240
    mean = outcome.report.mean_recent_episode_reward(30)
    assert mean is not None and mean >= 100.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_reaches_475_with_two_actors_on_every_seed(tmp_path: Path) -> None:
    reports = [train(tmp_path / str(seed), seed) for seed in SEEDS]
    for report in reports:
        assert report["reached"] and report["reached"][0]["return"] == 475, report["stopped_because"]
        assert report["mean_episode_return"] >= 475
        assert report["transport"]["sum"]["consumed"] == report["env_steps_consumed"]
    assert statistics.median(report["reached"][0]["env_steps"] for report in reports) <= MOST_ENV_STEPS


def train(run_dir: Path, seed: int) -> dict[str, Any]:
    """report.json of a run by the command, which has to end by itself with 0."""
    flags = ["--env", "CartPole-v1", "--num-actors", "2", "--stop-at-return", "475", "--seed", str(seed)]
    command = [sys.executable, "-m", "zmqrl", "train", *flags, "--run-dir", str(run_dir)]
    subprocess.run(command, check=True, env=os.environ, stdout=subprocess.DEVNULL, timeout=120)
    report: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
    return report
