"""The terms on which a learner admits actors, and the policy that an actor builds from them."""

from __future__ import annotations

from typing import Any

from zmqrl.config import AsyncActorLearnerConfig, PolicyConfig
from zmqrl.errors import Refused
from zmqrl.policies import Policy, make_policy
from zmqrl.session import Terms
from zmqrl.transport.bus import LearnerBus


def terms_of(config: AsyncActorLearnerConfig, policy: Policy, bus: LearnerBus) -> Terms:
    """What each Welcome of this bus says."""
    spaces = (policy.observation_space, policy.action_space)
    return Terms(
        run_id=bus.run_id,
        epoch=bus.epoch,
        num_actors=config.num_actors,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        chunk_steps=bus.chunk_steps(config.num_steps, config.num_envs, *spaces),
        max_lead_steps=config.lead_steps,
        fill=config.fill,
        seed=config.seed,
        observation_space=policy.observation_space,
        action_space=policy.action_space,
        policy=policy.described(),
        manifest=policy.flat.manifest(),
        heartbeat_interval=bus.transport.heartbeat_interval,
        lease=bus.transport.lease,
        rejoin_timeout=bus.transport.rejoin_timeout,
        env=bus.env,
    )


def policy_of(terms: Terms, policy_class: str) -> Policy:
    """The actor's copy of the policy: of the learner's spaces, so that both scale their inputs alike.

    `policy_class` (package.module:Class) is named by this host's user. Raises Refused if the learner has another.
    """
    config = _policy_config(terms, policy_class)
    policy = make_policy(terms.observation_space, terms.action_space, config, seed=0)
    check_policy(policy, terms)
    return policy


def check_policy(policy: Policy, terms: Terms) -> None:
    """Raise Refused unless this policy computes what the terms describe; asked again when a learner came back."""
    ours, theirs = policy.flat.manifest(), terms.manifest
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            raise Refused(
                "policy",
                f"the learner's policy has {other.name} {other.shape} {other.dtype}, this actor's {mine.name} "
                f"{mine.shape} {mine.dtype}; {_SAME}",
            )
    if len(ours) != len(theirs):
        raise Refused("policy", f"the learner's policy has {len(theirs)} tensors, this actor's {len(ours)}; {_SAME}")
    same_spaces = (policy.observation_space, policy.action_space) == (terms.observation_space, terms.action_space)
    if not same_spaces or policy.config != _policy_config(terms, policy.config.policy):
        raise Refused("policy", "the learner came back with another policy or other spaces; start this actor again")


_SAME = "install the same zmqrl on both, and start both with the same --policy"


def _policy_config(terms: Terms, policy_class: str) -> PolicyConfig:
    try:
        described: dict[str, Any] = {**terms.policy, "hidden_sizes": tuple(terms.policy["hidden_sizes"])}
        return PolicyConfig(**{**described, "policy": policy_class}).validate()
    except (TypeError, KeyError) as error:
        raise Refused("policy", f"the learner describes its policy in other words ({error}); {_SAME}") from None
