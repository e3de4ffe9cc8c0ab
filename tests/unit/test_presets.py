"""Presets set fields that exist, to values that are possible and not the defaults anyway."""

from __future__ import annotations

import dataclasses

import gymnasium
import pytest

from zmqrl.config import AsyncActorLearnerConfig, PolicyConfig, PPOConfig
from zmqrl.presets import PRESETS, preset_for, preset_line

CLASSES = (AsyncActorLearnerConfig, PPOConfig, PolicyConfig)
"""Presets set what is learned and how, never where a run computes or who takes part."""


def fields_of(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)} - {"num_actors", "seed", "policy"}


@pytest.mark.parametrize("env", PRESETS)
def test_a_preset_is_a_possible_configuration_of_other_values_than_the_defaults(env: str) -> None:
    preset = dict(PRESETS[env])
    for kind in CLASSES:
        own = {name: preset.pop(name) for name in fields_of(kind) & preset.keys()}
        kind(**own).validate()
        for name, value in own.items():
            default = getattr(kind(), name)
            assert type(value) is type(default) and value != default, name
    assert not preset, "no such fields"


@pytest.mark.parametrize("env", PRESETS)
def test_minibatches_divide_the_rollout_of_two_actors(env: str) -> None:
    run = AsyncActorLearnerConfig(num_actors=2, **preset_for(env, fields_of(AsyncActorLearnerConfig)))
    ppo = PPOConfig(**preset_for(env, fields_of(PPOConfig)))
    assert run.rows_per_update % ppo.batch_size == 0


@pytest.mark.parametrize("env", PRESETS)
def test_the_environment_exists(env: str) -> None:
    assert gymnasium.spec(env).id == env


def test_a_preset_is_cut_to_the_fields_that_are_asked_for() -> None:
    assert preset_for("CartPole-v1", {"num_steps", "lease"}) == {"num_steps": 32}
    assert preset_for("Unknown-v0", {"num_steps"}) == {}


def test_the_line_says_what_was_set() -> None:
    assert preset_line("A-v0", {"gamma": 0.9, "num_steps": 32}) == "preset A-v0: gamma=0.9 num_steps=32"
