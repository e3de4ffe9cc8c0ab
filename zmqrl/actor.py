"""The actor: look for Shutdown, take the newest policy, pause if asked, act, step, record, send.

One process or thread, N environments, one copy of the policy; inference only. See `learner.py` for the other end.
"""

from __future__ import annotations

import os
import platform
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from zmqrl.chunks import ChunkRecorder
from zmqrl.config import PolicyConfig
from zmqrl.envs.vector import VectorEnvironment
from zmqrl.errors import Refused
from zmqrl.messages import PROTOCOL_VERSION, ActorStats, Hello, Terms
from zmqrl.policies import Policy, make_policy
from zmqrl.spaces import Tree, map_tree
from zmqrl.throttle import ActorThrottle
from zmqrl.transport.bus import ActorBus

SETTLE_TIMEOUT = 10.0
"""Seconds an ending actor waits for the learner to have received all it sent. A learner that goes on longer
without answering is gone, and so is what it did not get."""


@dataclass
class _Ledger:
    """What the loop counts; times in seconds."""

    agent_id: int
    began: float
    policies_loaded: int = 0
    waiting: float = 0.0
    acting: float = 0.0
    stepping: float = 0.0
    lost: Counter[str] = field(default_factory=Counter)


def actor_loop(
    bus: ActorBus,
    envs: VectorEnvironment,
    policy: Policy,
    throttle: ActorThrottle,
    *,
    leave: threading.Event | None = None,
) -> ActorStats:
    """Act until the learner says Shutdown, or until `leave` is set: then what was recorded is sent first.

    An exception of an environment is told to the learner and raised again.
    """
    welcome, session = bus.welcome, bus.session
    ledger = _Ledger(welcome.slot, time.monotonic())
    recorder = _recorder(welcome.terms, policy)
    environment_seed, action_seed = np.random.SeedSequence(welcome.seed).generate_state(2, np.uint64)
    generator = torch.Generator().manual_seed(int(action_seed))
    try:
        observations = envs.reset(int(environment_seed))
        while not bus.shutdown and not (leave is not None and leave.is_set()):
            if bus.session != session:
                session = bus.session
                ledger.lost["stale_epoch"] += recorder.discard()
                recorder = _recorder(bus.welcome.terms, policy)
                throttle.restart()
            _load_newest(bus, policy, throttle, ledger)
            throttle.credit(bus.credit.consumed_seq * recorder.chunk_steps, bus.credit.version)
            if not throttle.may_act():
                _wait(bus, ledger)
                continue
            observations = _step(bus, envs, policy, recorder, observations, generator, ledger)
            throttle.step()
            if recorder.full:
                bus.send(recorder.take(bus.welcome.slot, observations))
        if recorder.env_steps and not bus.shutdown:
            bus.send(recorder.take(bus.welcome.slot, observations))
    except Exception as error:
        bus.activity.error = f"{type(error).__name__}: {error}"
        _depart(bus, recorder, ledger, bus.activity.error)
        raise
    return _depart(bus, recorder, ledger, bus.shutdown.reason if bus.shutdown else "asked to leave")


def _recorder(terms: Terms, policy: Policy) -> ChunkRecorder:
    return ChunkRecorder(policy.observation_space, policy.sampled_action_space(), terms.num_envs, terms.chunk_steps)


def _load_newest(bus: ActorBus, policy: Policy, throttle: ActorThrottle, ledger: _Ledger) -> None:
    broadcast = bus.take_policy()
    if broadcast is not None:
        policy.flat.load(broadcast.parameters)
        throttle.loaded(broadcast.version)
        bus.activity.version = broadcast.version
        ledger.policies_loaded += 1


def _wait(bus: ActorBus, ledger: _Ledger) -> None:
    began = time.monotonic()
    bus.activity.waiting_for_credit = True
    bus.wait(1.0)
    bus.activity.waiting_for_credit = False
    ledger.waiting += time.monotonic() - began


def _step(
    bus: ActorBus,
    envs: VectorEnvironment,
    policy: Policy,
    recorder: ChunkRecorder,
    observations: Tree,
    generator: torch.Generator,
    ledger: _Ledger,
) -> Tree:
    """Act once in every environment and record it; returns the observations to act on next."""
    activity = bus.activity
    began = time.monotonic()
    with torch.inference_mode():
        actions, log_probs = policy.act(map_tree(torch.from_numpy, observations), generator)
        recorder.acted(observations, map_tree(_numpy, actions), log_probs.numpy(), activity.version)
        commands = policy.environment_actions(actions)
    activity.step_began = acted = time.monotonic()
    transition = envs.step(commands)
    activity.step_began = None
    recorder.stepped(transition)
    activity.steps_taken += int(np.count_nonzero(transition.valid))
    activity.episodes += len(transition.episode_index)
    ledger.acting += acted - began
    ledger.stepping += time.monotonic() - acted
    return transition.observations


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.numpy()
    return array


def _depart(bus: ActorBus, recorder: ChunkRecorder, ledger: _Ledger, reason: str) -> ActorStats:
    """Settle the account with the learner and say goodbye."""
    activity = bus.activity
    activity.step_began = None
    ledger.lost["unsent_at_shutdown"] += recorder.discard()
    settlement = bus.settle(SETTLE_TIMEOUT)
    ledger.lost.update(settlement.steps_lost)
    stats = ActorStats(
        agent_id=bus.welcome.slot,
        host=platform.node(),
        steps_taken=activity.steps_taken,
        steps_received=settlement.steps_received,
        steps_lost={name: steps for name, steps in sorted(ledger.lost.items()) if steps},
        episodes=activity.episodes,
        chunks_sent=settlement.chunks_sent,
        policies_loaded=ledger.policies_loaded,
        last_version=activity.version,
        seconds=time.monotonic() - ledger.began,
        seconds_waiting=ledger.waiting,
        seconds_acting=ledger.acting,
        seconds_stepping=ledger.stepping,
    )
    bus.goodbye(stats, reason)
    return stats


def run_actor(
    connect: Callable[[Hello], ActorBus],
    make_environments: Callable[[], VectorEnvironment],
    *,
    policy_class: str = "",
    leave: threading.Event | None = None,
) -> ActorStats:
    """A whole actor: make the environments, join, build the policy that the learner describes, and act.

    `policy_class` (package.module:Class) is named by this host's user; it is never taken from the wire. The
    environments come first, since their spaces are part of the Hello, and since worker processes are best
    started before any ZeroMQ thread. Raises Refused, NoLearner, EnvironmentFault or what an environment raises.
    """
    with make_environments() as envs:
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            package=_package_version(),
            role="actor",
            incarnation=secrets.randbits(63),
            host=platform.node(),
            pid=os.getpid(),
            num_envs=envs.num_envs,
            observation_space=envs.observation_space,
            action_space=envs.action_space,
        )
        with connect(hello) as bus:
            terms = bus.welcome.terms
            policy = _agreed_policy(envs, terms, policy_class)
            return actor_loop(bus, envs, policy, ActorThrottle(terms.max_lead_steps), leave=leave)


def _agreed_policy(envs: VectorEnvironment, terms: Terms, policy_class: str) -> Policy:
    """The policy of the terms, checked to hold the same parameters as the learner's."""
    described = {**terms.policy, "policy": policy_class, "hidden_sizes": tuple(terms.policy["hidden_sizes"])}
    policy = make_policy(envs.observation_space, envs.action_space, PolicyConfig(**described).validate(), seed=0)
    ours, theirs = policy.flat.manifest(), terms.manifest
    if ours != theirs:
        for mine, other in zip(ours, theirs, strict=False):
            if mine != other:
                raise Refused(
                    "policy",
                    f"the learner's policy has {other.name} {other.shape} {other.dtype}, this actor's {mine.name} "
                    f"{mine.shape} {mine.dtype}; start both with the same --policy",
                )
        counts = f"the learner's policy has {len(theirs)} tensors, this actor's {len(ours)}"
        raise Refused("policy", f"{counts}; start both with the same --policy")
    return policy


def _package_version() -> str:
    from zmqrl import __version__

    return __version__
