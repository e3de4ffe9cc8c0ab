"""The actor: look for Shutdown, take the newest policy, pause if asked, act, step, record, send.

One process or thread, N environments, one copy of the policy; inference only. See `learner.py` for the other end.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter

import numpy as np
import torch

from zmqrl.accounts import ActorStats
from zmqrl.chunks import ChunkRecorder
from zmqrl.envs.vector import VectorEnvironment
from zmqrl.errors import ZmqrlError
from zmqrl.policies import Policy
from zmqrl.spaces import map_tree, sampled
from zmqrl.terms import check_policy
from zmqrl.throttle import ActorThrottle
from zmqrl.transport.bus import ActorBus

WAKE_INTERVAL = 1.0
"""Seconds between two looks at `leave` while paused; a policy, credit or Shutdown wakes at once."""

SETTLE_TIMEOUT = 10.0
"""Seconds an ending actor waits for the learner to have received all it sent. A learner that goes on longer
without answering is gone, and so is what it did not get."""


def actor_loop(
    bus: ActorBus,
    envs: VectorEnvironment,
    policy: Policy,
    throttle: ActorThrottle,
    *,
    leave: threading.Event | None = None,
) -> ActorStats:
    """Act until the learner says Shutdown, or until `leave` is set: then what was recorded is sent first.

    An exception of an environment is told to the learner, and raised again.
    """
    actor = _Actor(bus, envs, policy, throttle)
    try:
        actor.reset()
        while not bus.shutdown and not (leave is not None and leave.is_set()):
            actor.follow_session()
            actor.load_newest_policy()
            actor.count_credit()
            if not throttle.may_act():
                actor.pause()
                continue
            actor.step()
            if actor.recorder.full:
                actor.send()
        if not bus.shutdown and actor.recorder.env_steps:
            actor.send()
    except Exception as error:
        actor.depart(f"{type(error).__name__}: {error}", failed=True)
        raise
    return actor.depart(bus.shutdown.reason if bus.shutdown else "asked to leave")


class _Actor:
    """The loop's locals, and the sentences it is made of."""

    def __init__(self, bus: ActorBus, envs: VectorEnvironment, policy: Policy, throttle: ActorThrottle) -> None:
        self.bus, self.envs, self.policy, self.throttle = bus, envs, policy, throttle
        self.session = bus.session
        self.recorder = self._new_recorder()
        self.policies_loaded = 0
        self.began = time.monotonic()
        self.seconds = dict.fromkeys(("waiting", "acting", "stepping"), 0.0)
        self.lost: Counter[str] = Counter()

    def _new_recorder(self) -> ChunkRecorder:
        terms, policy = self.bus.welcome.terms, self.policy
        spaces = policy.observation_space, sampled(policy.action_space)
        return ChunkRecorder(*spaces, terms.num_envs, terms.chunk_steps)

    def reset(self) -> None:
        """Begin the environments and the sampling, each from a seed of its own, derived from the slot's."""
        environments, sampling = np.random.SeedSequence(self.bus.welcome.seed).generate_state(2, np.uint64)
        self.generator = torch.Generator().manual_seed(int(sampling))
        self.bus.activity.step_began = time.monotonic()  # a reset may take as long as a step: slow is not dead
        self.observations = self.envs.reset(int(environments))
        self.bus.activity.step_began = None

    def follow_session(self) -> None:
        """A learner that came back counts from 0; what was being recorded belongs to the epoch before."""
        if self.session == self.bus.session:
            return
        self.session = self.bus.session
        self.lost["stale_epoch"] += self.recorder.discard()
        check_policy(self.policy, self.bus.welcome.terms)
        self.recorder = self._new_recorder()
        self.throttle.restart(self.bus.welcome.terms.max_lead_steps)

    def load_newest_policy(self) -> None:
        """If one came since the last step; those between are never looked at."""
        broadcast = self.bus.take_policy()
        if broadcast is None:
            return
        self.policy.flat.load(broadcast.parameters)
        self.throttle.loaded(broadcast.version)
        self.bus.activity.version = broadcast.version
        self.policies_loaded += 1

    def count_credit(self) -> None:
        """What the learner has consumed, in steps of each environment."""
        credit = self.bus.credit
        self.throttle.credit(credit.credited_chunks * self.recorder.chunk_steps, credit.version)

    def pause(self) -> None:
        """Until a policy, credit or Shutdown comes."""
        began = time.monotonic()
        self.bus.activity.waiting_for_credit = True
        self.bus.wait(WAKE_INTERVAL)
        self.bus.activity.waiting_for_credit = False
        self.seconds["waiting"] += time.monotonic() - began

    def step(self) -> None:
        """Act once in every environment, and record it."""
        activity, began = self.bus.activity, time.monotonic()
        with torch.inference_mode():
            seen = map_tree(torch.from_numpy, self.observations)
            actions, log_probs = self.policy.act(seen, self.generator)
            sampled = map_tree(torch.Tensor.numpy, actions)
            commands = self.policy.environment_actions(actions)
        # environments may reuse their arrays: what was seen is recorded before they step
        self.recorder.acted(self.observations, sampled, log_probs.numpy(), activity.version)
        activity.step_began = acted = time.monotonic()
        transition = self.envs.step(commands)
        activity.step_began = None
        self.recorder.stepped(transition)
        self.observations = transition.observations
        activity.steps_taken += int(np.count_nonzero(transition.valid))
        activity.episodes += len(transition.episode_index)
        self.throttle.step()
        self.seconds["acting"] += acted - began
        self.seconds["stepping"] += time.monotonic() - acted

    def send(self) -> None:
        """Hand over the chunk; one that is not full is padded."""
        chunk = self.recorder.take(self.bus.welcome.slot, self.observations)
        try:
            self.bus.send(chunk)
        except ZmqrlError:
            self.lost["unsent_at_shutdown"] += chunk.env_steps
            raise

    def depart(self, reason: str, *, failed: bool = False) -> ActorStats:
        """Settle the account with the learner and say goodbye."""
        bus, activity = self.bus, self.bus.activity
        activity.step_began = None
        activity.error = reason if failed else ""
        self.lost["unsent_at_shutdown"] += self.recorder.discard()
        settlement = bus.settle(SETTLE_TIMEOUT)
        self.lost.update(settlement.steps_lost)
        stats = ActorStats(
            agent_id=bus.welcome.slot,
            host=platform.node(),
            steps_taken=activity.steps_taken,
            steps_received=settlement.steps_received,
            steps_lost={cause: steps for cause, steps in sorted(self.lost.items()) if steps},
            episodes=activity.episodes,
            chunks_sent=settlement.chunks_sent,
            policies_loaded=self.policies_loaded,
            last_version=activity.version,
            seconds=time.monotonic() - self.began,
            seconds_waiting=self.seconds["waiting"],
            seconds_acting=self.seconds["acting"],
            seconds_stepping=self.seconds["stepping"],
        )
        bus.goodbye(stats, reason)
        return stats
