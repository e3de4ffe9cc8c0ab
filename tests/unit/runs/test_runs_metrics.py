"""Each metric has a value for an update; what does not exist yet is None."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from zmqrl.ppo import TrainingStats
from zmqrl.progress import UpdateRecord
from zmqrl.runs.metrics import METRICS, metrics_of

TRAINING = TrainingStats(
    policy_loss=-0.25,
    value_loss=2.0,
    entropy=0.5,
    approx_kl=0.01,
    clip_fraction=0.125,
    explained_variance=0.75,
    grad_norm=1.5,
    learning_rate=1e-3,
    clip_range=0.2,
    ratio_error=1e-7,
    epochs=4,
    minibatches=32,
)

RECORD = UpdateRecord(
    update=3,
    total_updates=10,
    version=3,
    env_steps=3_072,
    episodes=7,
    training=TRAINING,
    episode_returns=np.array([1.0]),
    episode_lengths=np.array([5]),
    mean_episode_return=21.5,
    mean_episode_length=20.0,
    recent_episodes=7,
    lag_mean=0.5,
    lag_max=2,
    seconds={"waiting": 1.0, "placing": 0.1, "estimating": 0.2, "updating": 2.0, "publishing": 0.1},
    wall_seconds=4.0,
    actors_alive=2,
)


def test_values_come_in_the_order_of_the_table() -> None:
    assert list(metrics_of(RECORD)) == [metric.name for metric in METRICS]


def test_known_values() -> None:
    before = dataclasses.replace(RECORD, update=2, env_steps=2_048, wall_seconds=3.5)
    assert metrics_of(RECORD, before) == {
        "rollout/ep_rew_mean": 21.5,
        "rollout/ep_len_mean": 20.0,
        "rollout/episodes": 7,
        "time/total_timesteps": 3_072,
        "time/fps": 2_048.0,
        "time/time_elapsed": 4.0,
        "train/n_updates": 3,
        "train/epochs": 4,
        "train/minibatches": 32,
        "train/policy_gradient_loss": -0.25,
        "train/value_loss": 2.0,
        "train/entropy_loss": -0.5,
        "train/approx_kl": 0.01,
        "train/clip_fraction": 0.125,
        "train/explained_variance": 0.75,
        "train/grad_norm": 1.5,
        "train/learning_rate": 1e-3,
        "train/clip_range": 0.2,
        "train/ratio_error": 1e-7,
        "policy_lag/mean": 0.5,
        "policy_lag/max": 2,
        "wait/learner_for_experience": 0.25,
        "actors/alive": 2,
    }


def test_what_does_not_exist_yet_is_none() -> None:
    first = dataclasses.replace(RECORD, mean_episode_return=None, mean_episode_length=None, wall_seconds=0.0)
    metrics = metrics_of(first)
    assert {name for name, value in metrics.items() if value is None} == {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "time/fps",
        "wait/learner_for_experience",
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_none(value: float) -> None:
    training = dataclasses.replace(TRAINING, explained_variance=value)
    assert metrics_of(dataclasses.replace(RECORD, training=training))["train/explained_variance"] is None
