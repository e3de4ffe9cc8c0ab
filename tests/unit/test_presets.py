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
def test_a_preset_is_a_possible_configuration(env: str) -> None:
    preset = dict(PRESETS[env])
    for kind in CLASSES:
        own = {name: preset.pop(name) for name in fields_of(kind) & preset.keys()}
        config = kind(**own)
        config.validate()
        for name, value in own.items():
            assert type(value) is type(getattr(kind(), name)), name
    assert not preset, "no such fields"


@pytest.mark.parametrize("env", PRESETS)
def test_minibatches_divide_the_rollout_of_two_actors(env: str) -> None:
    preset = PRESETS[env]
    assert (2 * preset["num_envs"] * preset["num_steps"]) % preset["batch_size"] == 0


@pytest.mark.parametrize("env", PRESETS)
def test_the_environment_exists(env: str) -> None:
    assert gymnasium.spec(env).id == env


def test_a_preset_is_cut_to_the_fields_that_are_asked_for() -> None:
    assert preset_for("CartPole-v1", {"num_steps", "lease"}) == {"num_steps": 32}
    assert preset_for("Unknown-v0", {"num_steps"}) == {}


def test_the_line_says_what_was_set() -> None:
    assert preset_line("A-v0", {"gamma": 0.9, "num_steps": 32}) == "preset A-v0: gamma=0.9 num_steps=32"
