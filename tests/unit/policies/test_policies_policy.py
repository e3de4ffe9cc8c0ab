"""Policies as a whole: construction, seeds, statistics, and classes of one's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from zmqrl.config import PolicyConfig
from zmqrl.errors import UnsupportedSpace, UsageError
from zmqrl.policies import ActorCriticPolicy, Policy, load_policy_class, make_policy
from zmqrl.spaces import BoxSpec, DiscreteSpec, SpaceSpec, TupleSpec, sampled

OBSERVATIONS = BoxSpec("float32", (4,), -np.inf, np.inf)
BOX = BoxSpec("float32", (3,), -1.0, 1.0)


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("action_space", [DiscreteSpec(3), BOX])
@pytest.mark.parametrize("normalize", [False, True])
def test_act_evaluate_and_value_agree(action_space: SpaceSpec, normalize: bool) -> None:
    policy = make_policy(OBSERVATIONS, action_space, PolicyConfig(normalize_observations=normalize), seed=0)
    policy.update_statistics(rows(50, 1) * 3 + 2)
    observations = rows(8)
    with torch.inference_mode():
        actions, log_probs = policy.act(observations, torch.Generator().manual_seed(0))
    evaluated, entropy, values = policy.evaluate_actions(observations, actions.clone())
    torch.testing.assert_close(evaluated, log_probs.clone(), rtol=0, atol=1e-6)
    torch.testing.assert_close(policy.value(observations), values)
    assert log_probs.shape == evaluated.shape == entropy.shape == values.shape == (8,)
    space = sampled(policy.action_space)
    assert isinstance(space, (BoxSpec, DiscreteSpec))
    assert actions.shape == (8, *space.shape)
    assert str(actions.dtype) == f"torch.{space.dtype}"


def test_the_same_seed_gives_the_same_bits_and_leaves_torchs_random_state_alone() -> None:
    before = torch.get_rng_state()
    digests = [make_policy(OBSERVATIONS, BOX, PolicyConfig(), seed=seed).flat.sha256() for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_actions_start_almost_uniform() -> None:
    policy = make_policy(OBSERVATIONS, DiscreteSpec(3), PolicyConfig(), seed=0)
    _, entropy, _ = policy.evaluate_actions(rows(100), torch.zeros(100, dtype=torch.int64))
    torch.testing.assert_close(entropy, torch.full((100,), np.log(3.0), dtype=torch.float32), rtol=0, atol=1e-3)


def test_every_field_of_the_configuration_acts() -> None:
    def make(**fields: object) -> ActorCriticPolicy:
        policy = make_policy(OBSERVATIONS, BOX, PolicyConfig(**fields), seed=0)
        assert isinstance(policy, ActorCriticPolicy)
        return policy

    default = make()
    assert [tuple(p.shape) for p in make(hidden_sizes=(5, 7, 9)).actor.parameters()][::2] == [
        (5, 4),
        (7, 5),
        (9, 7),
        (3, 9),
    ]
    assert [tuple(p.shape) for p in make(hidden_sizes=()).critic.parameters()] == [(1, 4), (1,)]
    assert not torch.equal(make(activation="relu").value(rows(5)), default.value(rows(5)))
    assert make(log_std_init=-1.0).flat.tensors()["distribution.log_std"].tolist() == [-1.0] * 3
    normalized = make(normalize_observations=True)
    normalized.update_statistics(rows(100) * 10 + 5)
    assert not torch.equal(normalized.value(rows(5)), default.value(rows(5)))


def test_statistics_count_rows_and_travel_with_the_weights() -> None:
    config = PolicyConfig(normalize_observations=True)
    learner, actor = (make_policy(OBSERVATIONS, BOX, config, seed=seed) for seed in (0, 1))
    learner.update_statistics(rows(100) * 10 + 5)
    actor.flat.load(learner.flat.dump())
    assert int(actor.flat.tensors()["normalizer.count"]) == 100
    assert torch.equal(actor.value(rows(5)), learner.value(rows(5)))
    plain = make_policy(OBSERVATIONS, BOX, PolicyConfig(), seed=0)
    before = plain.flat.dump()
    plain.update_statistics(rows(100))
    assert plain.flat.dump() == before


def test_a_description_rebuilds_the_same_network() -> None:
    config = PolicyConfig(hidden_sizes=(5, 6), activation="relu", normalize_observations=True)
    policy = make_policy(OBSERVATIONS, BOX, config, seed=0)
    described = json.loads(json.dumps(policy.described()))
    assert "policy" not in described  # the name of a class never travels
    assert PolicyConfig(**{**described, "hidden_sizes": tuple(described["hidden_sizes"])}) == config


def test_actor_and_critic_share_nothing() -> None:
    policy = make_policy(OBSERVATIONS, DiscreteSpec(2), PolicyConfig(), seed=0)
    _ = policy.flat.gradients
    policy.value(rows(5)).sum().backward()
    touched = {name.split(".")[0] for name, p in policy.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert touched == {"critic"}


def test_unsupported_spaces_are_refused_at_construction() -> None:
    with pytest.raises(UnsupportedSpace, match=r"observation space Tuple\(Discrete\(2\)\)"):
        make_policy(TupleSpec((DiscreteSpec(2),)), BOX, PolicyConfig(), seed=0)
    with pytest.raises(UnsupportedSpace, match="action space Tuple"):
        make_policy(OBSERVATIONS, TupleSpec((BOX,)), PolicyConfig(), seed=0)


# --- a class of one's own ------------------------------------------------------------------------------

OWN = """
import torch
from zmqrl.policies import Policy

class Linear(Policy):
    def __init__(self, observation_space, action_space, config):
        super().__init__()
        self.actions = action_space.n
        self.scores = torch.nn.Linear(4, action_space.n + 1)

    def act(self, observations, generator, deterministic=False):
        actions = torch.randint(0, self.actions, (len(observations),), generator=generator)
        return actions, self.evaluate_actions(observations, actions)[0]

    def evaluate_actions(self, observations, actions):
        log_probs = self.scores(observations)[:, :-1].log_softmax(-1)
        chosen = log_probs.gather(-1, actions[:, None]).squeeze(-1)
        return chosen, -(log_probs.exp() * log_probs).sum(-1), self.value(observations)

    def value(self, observations):
        return self.scores(observations)[:, -1]

class Unfinished(Policy):
    def act(self, observations, generator, deterministic=False): ...

class Plain(torch.nn.Module):
    act, evaluate_actions, value = Linear.act, Linear.evaluate_actions, Linear.value

    def __init__(self, observation_space, action_space, config):
        super().__init__()
        self.actions = action_space.n
        self.scores = torch.nn.Linear(4, action_space.n + 1)

class Foreign(torch.nn.Module):
    def value(self, observations): ...

class NoModule: ...
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_policies.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_policies", raising=False)
    return "own_policies"


@pytest.mark.parametrize("name", ["Linear", "Plain"])
def test_a_class_of_ones_own(own_module: str, name: str) -> None:
    config = PolicyConfig(policy=f"{own_module}:{name}")
    policy, twin = (make_policy(OBSERVATIONS, DiscreteSpec(3, 5), config, seed=3) for _ in range(2))
    assert policy.flat.sha256() == twin.flat.sha256()
    assert {entry.name for entry in policy.flat.manifest()} == {"scores.weight", "scores.bias"}
    actions, log_probs = policy.act(rows(6), torch.Generator().manual_seed(0))
    assert policy.environment_actions(actions).min() >= 5
    assert sampled(policy.action_space) == DiscreteSpec(3)
    assert log_probs.shape == (6,)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("Linear", "name it as package.module:Class"),
        ("own_policies:", "name it as package.module:Class"),
        ("no_such_module_here:Linear", "there is no module 'no_such_module_here' here"),
        ("own_policies:Missing", "has no Missing"),
        ("own_policies:NoModule", "not a subclass of torch.nn.Module"),
        ("own_policies:Unfinished", "lacks evaluate_actions, value;"),
        ("own_policies:Foreign", "lacks act, evaluate_actions;"),
    ],
)
def test_impossible_classes_are_named(own_module: str, path: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        load_policy_class(path)


def test_the_base_class_says_what_is_missing() -> None:
    policy = Policy()
    with pytest.raises(NotImplementedError, match="Policy has no method value"):
        policy.value(rows(1))
    policy.update_statistics(rows(1))
