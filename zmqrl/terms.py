"""The terms on which a learner admits actors: its configuration and policy, in words that travel."""

from __future__ import annotations

from zmqrl.config import AsyncActorLearnerConfig
from zmqrl.policies import Policy
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
