"""What an actor builds from a Welcome is what the learner has, or it is refused in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from zmqrl.config import AsyncActorLearnerConfig, PolicyConfig
from zmqrl.errors import Refused
from zmqrl.policies import Policy, make_policy
from zmqrl.session import Terms
from zmqrl.spaces import BoxSpec, DiscreteSpec
from zmqrl.terms import check_policy, policy_of, terms_of
from zmqrl.transport import memory_buses

PIXELS = BoxSpec("uint8", (3,), 0.0, 255.0)


def learners_policy(space: BoxSpec = PIXELS, **settings: object) -> Policy:
    return make_policy(space, DiscreteSpec(2), PolicyConfig(hidden_sizes=(8,), **settings), seed=5)


def terms(policy: Policy) -> Terms:
    with memory_buses() as bus:
        return terms_of(AsyncActorLearnerConfig(num_actors=1, num_envs=1, num_steps=8).validate(), policy, bus)


def test_the_actors_copy_computes_what_the_learners_does() -> None:
    learners = learners_policy(activation="relu", normalize_observations=True)
    copy = policy_of(terms(learners), "")
    copy.flat.load(learners.flat.dump())
    observations = torch.tensor([[0, 128, 255]], dtype=torch.uint8)
    assert torch.equal(copy.value(observations), learners.value(observations))


def test_inputs_are_scaled_by_the_learners_bounds() -> None:
    """An actor whose environment declares other bounds for the same bytes would see another picture."""
    copy = policy_of(terms(learners_policy()), "")
    assert copy.observation_space == PIXELS


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (learners_policy(BoxSpec("float32", (4,), -math.inf, math.inf)), r"has actor\.0\.weight \(8, 4\) float32"),
        (learners_policy(normalize_observations=True), "tensors"),
        (learners_policy(activation="relu"), "another policy"),
    ],
    ids=["another shape", "more tensors", "another activation"],
)
def test_a_learner_that_came_back_with_another_policy_is_left(other: Policy, text: str) -> None:
    mine = policy_of(terms(learners_policy()), "")
    check_policy(mine, terms(learners_policy()))
    with pytest.raises(Refused, match=text) as caught:
        check_policy(mine, terms(other))
    assert caught.value.exit_code == 78


@pytest.mark.parametrize("change", [{"recurrent": True}, {"hidden_sizes": None}], ids=["unknown", "missing"])
def test_a_description_in_other_words_is_refused(change: dict[str, object]) -> None:
    said = terms(learners_policy())
    policy = {name: value for name, value in {**said.policy, **change}.items() if value is not None}
    with pytest.raises(Refused, match="in other words"):
        policy_of(replace(said, policy=policy), "")
