"""A whole actor: make the environments, say Hello, build the policy that the learner describes, and act."""

from __future__ import annotations

import os
import platform
import secrets
import threading
from collections.abc import Callable

import zmqrl
from zmqrl.accounts import ActorStats
from zmqrl.actor import actor_loop
from zmqrl.envs.vector import VectorEnvironment
from zmqrl.errors import Refused
from zmqrl.session import PROTOCOL_VERSION, Hello
from zmqrl.terms import policy_of
from zmqrl.throttle import ActorThrottle
from zmqrl.transport.bus import ActorBus


def run_actor(
    connect: Callable[[Hello], ActorBus],
    make_environments: Callable[[], VectorEnvironment],
    *,
    policy_class: str = "",
    slot: int = -1,
    leave: threading.Event | None = None,
) -> ActorStats:
    """A whole actor: make the environments, join, build the policy that the learner describes, and act.

    `policy_class` (package.module:Class) is named by this host's user; it is never taken from the wire. `slot` is
    the one it would like to have. The
    environments come first, since their spaces are part of the Hello, and since worker processes are best
    started before any ZeroMQ thread. Raises Refused, NoLearner, EnvironmentFault or what an environment raises.
    """
    with make_environments() as envs:
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            package=zmqrl.__version__,
            role="actor",
            incarnation=secrets.randbits(63),
            host=platform.node(),
            pid=os.getpid(),
            num_envs=envs.num_envs,
            observation_space=envs.observation_space,
            action_space=envs.action_space,
            held_slot=slot,
        )
        with connect(hello) as bus:
            terms = bus.welcome.terms
            try:
                policy = policy_of(terms, policy_class)
            except Refused as refused:
                bus.goodbye(ActorStats(bus.welcome.slot, hello.host), str(refused))
                raise
            return actor_loop(bus, envs, policy, ActorThrottle(terms.max_lead_steps), leave=leave)
