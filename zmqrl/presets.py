"""Settings that were measured for an environment; they stand between the defaults and what is typed.

Names are those of the configuration classes, flat. Only what differs from the defaults stands here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Env steps to a mean return over 100 episodes, medians with 2 actors; docs/benchmarks.md has the spread.
    # 475 after 62,000. Short rollouts and a quick discount suit episodes of 500 steps; with clip and rate that decay a
    # policy that is good already stays so.
    "CartPole-v1": {
        "num_steps": 32,
        "total_env_steps": 150_000,
        "batch_size": 256,
        "n_epochs": 8,
        "learning_rate": 2.5e-3,
        "learning_rate_schedule": "linear",
        "clip_range_schedule": "linear",
        "gamma": 0.98,
        "gae_lambda": 0.9,
        "ent_coef": 0.0,
    },
    # -100 after 78,000. Rewards are -1 until the goal: nothing is learned before the first success, so exploration is
    # kept up.
    "Acrobot-v1": {
        "num_steps": 64,
        "total_env_steps": 300_000,
        "batch_size": 256,
        "learning_rate": 1e-3,
        "learning_rate_schedule": "linear",
        "gae_lambda": 0.94,
        "ent_coef": 0.005,
        "normalize_observations": True,
    },
    # 200 after 518,000. Long flights, and a reward for landing at their end: a discount near 1.
    "LunarLander-v3": {
        "total_env_steps": 800_000,
        "batch_size": 256,
        "learning_rate": 1e-3,
        "learning_rate_schedule": "linear",
        "gamma": 0.999,
        "gae_lambda": 0.98,
    },
    # -250 after 82,000. Every step is paid at once, down to -16: a horizon of 10 steps is enough, and learned faster.
    "Pendulum-v1": {
        "num_envs": 4,
        "num_steps": 256,
        "total_env_steps": 300_000,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "gamma": 0.9,
        "ent_coef": 0.0,
    },
}


def preset_for(env: str, fields: Collection[str]) -> dict[str, Any]:
    """What the preset of this environment sets among `fields`; {} where there is none."""
    return {name: value for name, value in PRESETS.get(env, {}).items() if name in fields}


def preset_line(env: str, applied: Mapping[str, Any]) -> str:
    """What is said when a preset is used: the values that nothing else has overridden."""
    return f"preset {env}: " + " ".join(f"{name}={value}" for name, value in applied.items())
