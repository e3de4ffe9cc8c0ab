"""Both sides of the bus in one process, without sockets and without a thread: each side calls the other.

Everything else is as over the network: the same joining, checks, order, credit and accounts, and chunks travel as
encoded frames, so that what cannot be sent is found here too.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from zmqrl.accounts import ActorStats
from zmqrl.codec import Message
from zmqrl.config import TransportConfig
from zmqrl.errors import NoLearner, UsageError
from zmqrl.messages import PolicyBroadcast, Shutdown
from zmqrl.session import Credit, Goodbye, Heartbeat, Hello, Refuse, Rejected, Terms, Welcome
from zmqrl.transport.admission import Sender
from zmqrl.transport.inbox import Inbox
from zmqrl.transport.intake import Intake
from zmqrl.transport.sequence import SentChunk


def memory_buses(
    transport: TransportConfig | None = None, *, run_id: str = "", epoch: int = 1, env: str = ""
) -> MemoryLearnerBus:
    """A learner's bus for threads of this process; its `connect` gives the actors' side."""
    return MemoryLearnerBus(transport or TransportConfig(), run_id or secrets.token_hex(16), epoch, env)


class MemoryLearnerBus(Intake):
    """The learner's side."""

    def __init__(self, transport: TransportConfig, run_id: str, epoch: int, env: str) -> None:
        super().__init__(transport, run_id, epoch, env)
        self._actors: list[MemoryActorBus] = []

    @property
    def join_string(self) -> str:
        """There is none: nobody outside of this process can join."""
        raise UsageError("a bus in memory has no address; use `connect`, or bind_learner for actors in other processes")

    def connect(self, hello: Hello) -> MemoryActorBus:
        """An actor in another thread of this process."""
        actor = MemoryActorBus(self, hello)
        with self._changed:
            self._actors.append(actor)
        actor.join(self.transport.connect_timeout)
        return actor

    def deliver(self, sender: Sender, message: Message) -> None:
        """Call the actor."""
        sender.hear(message)

    def broadcast(self, message: PolicyBroadcast | Shutdown) -> None:
        """Call all actors."""
        with self._changed:
            actors = list(self._actors)
        for actor in actors:
            actor.hear(message)

    def newest_policy(self) -> PolicyBroadcast | None:
        """What an actor that joins now begins with."""
        with self._changed:
            return self._policy

    def open(self, terms: Terms) -> None:
        """Actors of an earlier epoch join again by themselves."""
        before = self._living()
        super().open(terms)
        for session in before:
            session.sender.say_hello()

    def forget(self, actor: MemoryActorBus) -> None:
        """It is closed; without a link there is no silence to wait for."""
        with self._changed:
            if actor in self._actors:
                self._actors.remove(actor)
            for session in self._living():
                if session.sender is actor:
                    session.slot.alive = False
            self._changed.notify_all()

    def close(self) -> None:
        """Actors that are still there hear that the learner is gone."""
        with self._changed:
            actors, self._actors = self._actors, []
        for actor in actors:
            actor.fail(NoLearner("the learner closed its bus"))


class MemoryActorBus(Inbox):
    """An actor's side."""

    def __init__(self, learner: MemoryLearnerBus, hello: Hello) -> None:
        super().__init__(hello)
        self._learner = learner

    def join(self, timeout: float) -> None:
        """Say Hello and wait for the Welcome. Raises Refused or NoLearner."""
        self.say_hello()
        try:
            if not self.wait_for_answer(timeout):
                raise NoLearner(f"the learner in this process did not open its bus within {timeout:g} s")
        except BaseException:
            self.close()
            raise

    def say_hello(self) -> None:
        """At first, and when a new epoch begins."""
        self._learner.hear_hello(self._hello_now(), self, time.monotonic(), self.activity)

    def hear(self, message: Message) -> None:
        """Whatever the learner says."""
        match message:
            case Welcome():
                self.hear_welcome(message)
                if policy := self._learner.newest_policy():
                    self.hear_policy(policy)
            case Refuse():
                self.hear_refuse(message)
            case PolicyBroadcast():
                self.hear_policy(message)
            case Credit():
                self.hear_credit(message)
            case Rejected():
                self.hear_rejected(message)  # the learner's side logs it
            case Shutdown():
                self.hear_shutdown(message)
            case _:
                pass  # answers to what was called directly

    def _transmit(self, chunk: SentChunk, session: int) -> None:
        self._learner.hear_experience(chunk.frames, time.monotonic())

    def _leave(self) -> None:
        activity, welcome = self.activity, self.welcome
        beat = Heartbeat(
            epoch=welcome.terms.epoch,
            slot=welcome.slot,
            incarnation=self._hello.incarnation,
            next_seq=self._window.next_seq,
            steps_taken=activity.steps_taken,
            episodes=activity.episodes,
            version=activity.version,
            in_step_seconds=0.0,
            waiting_for_credit=False,
            leaving=True,
        )
        self._learner.hear_heartbeat(beat, self, time.monotonic())

    def goodbye(self, stats: ActorStats, reason: str = "") -> None:
        """Leave for good; heard at once."""
        welcome = self.welcome
        goodbye = Goodbye(welcome.terms.epoch, welcome.slot, self._hello.incarnation, reason, replace(stats))
        self._learner.hear_goodbye(goodbye, self, time.monotonic())

    def close(self) -> None:
        """Nothing is heard any more."""
        self._learner.forget(self)
