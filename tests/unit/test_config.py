"""Defaults are possible; each impossible value is refused by the name of its field."""

from __future__ import annotations

import dataclasses
import math

import pytest

from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PolicyConfig, PPOConfig, RunConfig, TransportConfig
from zmqrl.errors import ConfigError

DEFAULTS = (
    AsyncActorLearnerConfig(),
    PPOConfig(),
    PolicyConfig(),
    EnvConfig(env="CartPole-v1"),
    TransportConfig(),
    RunConfig(),
)

NAN, INF = math.nan, math.inf

IMPOSSIBLE = [
    *[(AsyncActorLearnerConfig, name, value)
      for name in ("num_actors", "num_envs", "num_steps") for value in (0, -1, 65_537)],
    *[(AsyncActorLearnerConfig, name, 0) for name in ("total_env_steps", "broadcast_every")],
    *[(AsyncActorLearnerConfig, "max_lead_steps", value) for value in (-1, 1, 127)],
    *[(AsyncActorLearnerConfig, "seed", value) for value in (-1, 2**63)],
    *[(AsyncActorLearnerConfig, name, value) for name in ("gamma", "gae_lambda") for value in (-0.1, 1.1, NAN)],
    *[(AsyncActorLearnerConfig, name, value)
      for name in ("vtrace_rho_bar", "vtrace_c_bar", "starvation_timeout") for value in (0.0, -1.0, NAN, INF)],
    (AsyncActorLearnerConfig, "fill", "rows"),
    *[(PPOConfig, name, value)
      for name in ("learning_rate", "clip_range", "max_grad_norm", "adam_epsilon", "clip_range_vf", "target_kl")
      for value in (0.0, -1.0, NAN, INF)],
    (PPOConfig, "learning_rate", 1.5),
    (PPOConfig, "n_epochs", 0),
    (PPOConfig, "batch_size", 1),
    *[(PPOConfig, name, value) for name in ("vf_coef", "ent_coef") for value in (-0.1, NAN, INF)],
    *[(PPOConfig, name, "cosine") for name in ("learning_rate_schedule", "clip_range_schedule")],
    *[(PolicyConfig, "hidden_sizes", value) for value in ((0,), (64, -1), (70_000,))],
    (PolicyConfig, "activation", "gelu"),
    *[(PolicyConfig, "log_std_init", value) for value in (21.0, -21.0, NAN)],
    (EnvConfig, "env", ""),
    *[(TransportConfig, name, value)
      for name in ("heartbeat_interval", "lease", "connect_timeout", "rejoin_timeout", "env_step_timeout")
      for value in (0.0, -1.0, NAN, INF)],
    *[(TransportConfig, name, -1) for name in ("wait_for_actors", "hole_timeout", "shutdown_timeout", "chunk_steps")],
    (TransportConfig, "reorder_chunks", 0),
    (TransportConfig, "max_chunk_bytes", 1023),
    (TransportConfig, "lease", 1.9),
    *[(RunConfig, "device", value) for value in ("gpu", "cuda:", "cuda:x", "cpu:0", "")],
    *[(RunConfig, name, 0) for name in ("learner_threads", "keep_checkpoints", "log_interval")],
    (RunConfig, "checkpoint_every", -1),
    *[(RunConfig, "stop_at_return", value) for value in (NAN, INF)],
]  # fmt: skip


@pytest.mark.parametrize("config", DEFAULTS, ids=lambda config: type(config).__name__)
def test_defaults_are_possible_and_validate_returns_self(config) -> None:
    assert config.validate() is config


@pytest.mark.parametrize(("kind", "name", "value"), IMPOSSIBLE)
def test_an_impossible_value_is_refused_by_name(kind: type, name: str, value: object) -> None:
    config = dataclasses.replace(next(config for config in DEFAULTS if type(config) is kind), **{name: value})
    with pytest.raises(ConfigError) as caught:
        config.validate()
    assert caught.value.field == name
    assert str(caught.value).startswith(f"{name} = {value!r}: ")


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (AsyncActorLearnerConfig, "max_lead_steps", 128),
        (AsyncActorLearnerConfig, "gamma", 1.0),
        (AsyncActorLearnerConfig, "gae_lambda", 0.0),
        (PPOConfig, "batch_size", 2),
        (PPOConfig, "clip_range_vf", 0.2),
        (PolicyConfig, "hidden_sizes", ()),
        (TransportConfig, "lease", 2.0),
        (RunConfig, "device", "cuda:1"),
        (RunConfig, "stop_at_return", -200.0),
        (RunConfig, "checkpoint_every", 0),
    ],
)
def test_a_value_at_the_edge_is_possible(kind: type, name: str, value: object) -> None:
    config = dataclasses.replace(next(config for config in DEFAULTS if type(config) is kind), **{name: value})
    assert config.validate() is config


def test_configurations_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().n_epochs = 3  # type: ignore[misc]


def test_the_size_of_a_run() -> None:
    config = AsyncActorLearnerConfig(num_actors=2, num_envs=3, num_steps=10, total_env_steps=179)
    assert (config.columns, config.rows_per_update, config.total_updates) == (6, 60, 2)
    assert dataclasses.replace(config, total_env_steps=1).total_updates == 1


@pytest.mark.parametrize(
    ("fill", "max_lead_steps", "lead_steps", "lockstep"),
    [
        ("columns", 0, 80, False),
        ("columns", 40, 40, True),
        ("columns", 41, 41, False),
        ("quota", 40, 40, False),
    ],
)
def test_how_far_an_actor_may_be_ahead(fill, max_lead_steps: int, lead_steps: int, lockstep: bool) -> None:
    config = AsyncActorLearnerConfig(num_steps=20, broadcast_every=2, max_lead_steps=max_lead_steps, fill=fill)
    assert (config.validate().lead_steps, config.lockstep) == (lead_steps, lockstep)


def test_a_lead_that_would_deadlock_is_explained() -> None:
    config = AsyncActorLearnerConfig(num_steps=20, broadcast_every=2, max_lead_steps=39)
    with pytest.raises(ConfigError, match=r"would deadlock.*40 \(lockstep\)"):
        config.validate()
