"""Whom one says it to: the two protocols through which the loops see the transport.

    actor                                                 learner
    send(experience)            ── PUSH ── PULL ──▶       receive(slots, timeout)
    take_policy(), credit,      ◀── SUB ── XPUB ──        publish(broadcast), shutdown(reason)
    shutdown, settle()          ◀─ DEALER ─ ROUTER ─▶     give_credit(version), slots()

Every implementation (memory, inproc, ipc, tcp) behaves the same; one set of tests runs over all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Protocol

from zmqrl.accounts import ActorActivity, ActorStats, Settlement, SlotAccount, SlotStatus
from zmqrl.config import TransportConfig
from zmqrl.messages import ControlMessage, Experience, PolicyBroadcast, Shutdown
from zmqrl.session import Command, Credit, Hello, Terms, Welcome
from zmqrl.spaces import SpaceSpec


class ActorBus(AbstractContextManager["ActorBus"], Protocol):
    """The actor's side. The loop that uses it:

    while not bus.shutdown:
        if broadcast := bus.take_policy(): ...load it
        if not throttle.may_act(): bus.wait(1.0); continue
        ...act, step, record; bus.send(chunk) when full
    stats = ...bus.settle()
    bus.goodbye(stats)
    """

    activity: ActorActivity

    @property
    def welcome(self) -> Welcome:
        """Slot, seed and terms of the current session."""

    @property
    def session(self) -> int:
        """Grows when the learner began a new epoch: the welcome is new, and all counting starts from 0."""

    @property
    def credit(self) -> Credit:
        """The newest credit of this session; zeros before the first."""

    @property
    def shutdown(self) -> Shutdown | None:
        """The Shutdown that was heard, if any. It never goes away again."""

    def send(self, experience: Experience) -> None:
        """Hand over a full chunk; the bus owns its arrays from here on. Never blocks: the throttle bounds what is
        under way, and the bus keeps each chunk until it is done with. Raises NoLearner once the learner is lost, and
        Refused if it came back and has no place for this actor; but neither once Shutdown was heard.
        """

    def take_policy(self) -> PolicyBroadcast | None:
        """The newest policy, if it is newer than the one taken before."""

    def wait(self, timeout: float) -> None:
        """Return when a policy, credit, Shutdown or new session came since the last call, or after `timeout` s.
        Raises as `send` does.
        """

    def settle(self, timeout: float) -> Settlement:
        """Wait until everything sent has been received, at most `timeout` seconds, and give the account. It does not
        wait for a learner that is gone.
        """

    def goodbye(self, stats: ActorStats, reason: str = "") -> None:
        """Leave for good; returns when the learner heard it, or after a second or two."""

    def close(self) -> None:
        """Give back threads and sockets; what was not acknowledged is lost."""


class LearnerBus(AbstractContextManager["LearnerBus"], Protocol):
    """The learner's side. The loop that uses it:

    bus.open(terms); bus.publish(first_policy)
    while ...:
        while experience := bus.receive(slots_still_needed, timeout): ...place it
        ...train; bus.mark_consumed(); bus.publish(policy); bus.give_credit(version)
    bus.shutdown("done")
    """

    transport: TransportConfig
    run_id: str
    epoch: int
    env: str
    """Environment id for people to read, part of the terms."""

    @property
    def join_string(self) -> str:
        """What an actor on this host joins with."""

    def connect(self, hello: Hello) -> ActorBus:
        """An actor of this program, over the same bus. Blocks until the Welcome; raises Refused or NoLearner."""

    def wait_for_hello(self, timeout: float) -> Hello | None:
        """The first Hello heard, also before `open`: it can define the spaces. None after `timeout` seconds."""

    def chunk_steps(self, num_steps: int, num_envs: int, observation_space: SpaceSpec, action_space: SpaceSpec) -> int:
        """T for these shapes: `transport.chunk_steps`, or what keeps a message below `transport.max_chunk_bytes`.
        ConfigError if the one asked for does not divide `num_steps`.
        """

    def open(self, terms: Terms) -> None:
        """Admit actors on these terms from now on; those who said Hello before are answered now."""

    def receive(self, slots: Collection[int] | None, timeout: float) -> Experience | None:
        """The next chunk of any of these slots (None: of any), each actor's in order and actors in turn;
        None after `timeout` seconds. What it hands out is queued no more, and not consumed yet.
        """

    def mark_consumed(self) -> None:
        """All that was handed out has been used by an update."""

    def give_credit(self, version: int) -> None:
        """Credit the actors with all that was handed out; the policy `version` came out of it."""

    def publish(self, broadcast: PolicyBroadcast) -> None:
        """Send a policy to all, and hand it to everyone who joins from now on."""

    def announce(self, update: int, env_steps: int) -> None:
        """Progress for the state heartbeat."""

    def slots(self) -> list[SlotStatus]:
        """All slots that were ever taken, by number."""

    def accounts(self) -> dict[int, SlotAccount]:
        """By slot; a copy."""

    def actor_stats(self) -> list[ActorStats]:
        """Of the actors that said goodbye, in the order of their slots."""

    def commands(self) -> list[Command]:
        """Control messages of admins that came since the last call."""

    def post(self, message: ControlMessage) -> None:
        """A control message of this process itself; from any thread, and from a signal handler that interrupts the
        loop at any moment, also while it takes commands.
        """

    def answer(self, request: int, ok: bool, text: str) -> None:
        """Tell the admin what became of its command."""

    def shutdown(self, reason: str) -> None:
        """Tell every actor until each said goodbye, or `shutdown_timeout` passed. Later Hellos hear "finished"."""

    def close(self) -> None:
        """Give back threads, sockets and ports."""
