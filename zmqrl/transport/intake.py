"""The learner's front half, the same for every transport: what was heard, what is answered, and what the loop gets.

Two sides call it. The learner's loop takes experience and gives credit; whoever moves the messages (an I/O thread, or
the actors themselves where there is no socket) hands in what was heard, through the methods `hear_...` and `tick`.
Who may join is in `admission.py`, what became of each chunk in `stock.py`, commands in `commands.py`; here are the
lock that guards them and the answers, which go out through `deliver`, never while the lock is held.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from zmqrl.accounts import ActorActivity, ActorStats, SlotAccount, SlotStatus
from zmqrl.codec import (
    ExperienceHeader,
    ExperienceLayout,
    Message,
    chunk_length,
    decode_experience_body,
    decode_experience_header,
)
from zmqrl.config import TransportConfig
from zmqrl.errors import ConfigError, DecodeError
from zmqrl.messages import ControlMessage, Experience, PolicyBroadcast, Shutdown
from zmqrl.session import (
    Command,
    CommandResult,
    Farewell,
    GetPolicy,
    Goodbye,
    Heartbeat,
    Hello,
    LearnerState,
    Refuse,
    Rejected,
    Terms,
    Welcome,
)
from zmqrl.spaces import SpaceSpec, sampled
from zmqrl.transport.admission import Admission, Arrival, Sender
from zmqrl.transport.commands import CommandQueue
from zmqrl.transport.line import Line, Session
from zmqrl.transport.quietlog import QuietLog
from zmqrl.transport.roster import Slot
from zmqrl.transport.stock import Answers, Stock, Verdict

log = logging.getLogger(__name__)

LINK_GRACE = 3.0
"""Heartbeats that an actor whose connection ended may miss until its slot is free. It reconnects within one if it
lives; a slot held for the whole lease would keep out the actor that was started in place of a dead one."""

SHUTDOWN_INTERVAL = 0.2
"""Seconds between two Shutdowns: any of them may be lost, and nobody should wait long for the next."""


class Intake(ABC):
    """Base of the learner's buses; `zmqrl.transport.bus.LearnerBus` documents what the loop calls."""

    experience_port = 0
    policy_port = 0

    def __init__(self, transport: TransportConfig, run_id: str, epoch: int, env: str) -> None:
        self.transport, self.run_id, self.epoch, self.env = transport, run_id, epoch, env
        self._changed = threading.Condition()
        self._admission = Admission()
        self._stock = Stock(transport.reorder_chunks, transport.hole_timeout)
        self._commands = CommandQueue()
        self._layout: ExperienceLayout | None = None
        self._policy: PolicyBroadcast | None = None
        self._progress = (0, 0)
        self._rejected: Counter[str] = Counter()
        self._quiet = QuietLog(log)

    # --- to be given by each transport -------------------------------------------------------------------

    @abstractmethod
    def deliver(self, sender: Sender, message: Message) -> None:
        """Send a message to one peer; a peer that is gone is no error. Called from any thread."""

    @abstractmethod
    def broadcast(self, message: PolicyBroadcast | Shutdown) -> None:
        """Send a message to all actors. Called from the loop's thread."""

    @abstractmethod
    def close(self) -> None:
        """Give back threads, sockets and ports."""

    # --- the learner's loop ------------------------------------------------------------------------------

    def wait_for_hello(self, timeout: float) -> Hello | None:
        """The first Hello of an actor, also before `open`; None after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._admission.first_hello is not None, timeout)
            return self._admission.first_hello

    def chunk_steps(self, num_steps: int, num_envs: int, observation_space: SpaceSpec, action_space: SpaceSpec) -> int:
        """T for these shapes."""
        wanted = self.transport.chunk_steps
        if wanted and num_steps % wanted:
            divisors = [steps for steps in range(1, num_steps + 1) if num_steps % steps == 0]
            text = ", ".join(map(str, divisors[-12:]))
            raise ConfigError("chunk_steps", wanted, f"must divide num_steps ({num_steps}); possible are {text}, or 0")
        if wanted:
            return wanted
        layout = ExperienceLayout(observation_space, sampled(action_space), num_envs, 1)
        return chunk_length(num_steps, layout.bytes_per_step, self.transport.max_chunk_bytes)

    def open(self, terms: Terms) -> None:
        """Admit actors on these terms. Terms of a later epoch end all sessions; what was queued is rolled back."""
        layout = ExperienceLayout.of(terms)
        with self._changed:
            self._stock.open(terms)
            self.run_id, self.epoch, self.env = terms.run_id, terms.epoch, terms.env
            self._layout, self._policy = layout, None
            early = self._admission.open(terms)
        for arrival in early:
            self._answer_hello(arrival, time.monotonic())

    def receive(self, slots: Collection[int] | None, timeout: float) -> Experience | None:
        """The next chunk of any of these slots, actors in turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._stock.whose_turn(slots) is not None, timeout)
            line = self._stock.whose_turn(slots)
            return line.take() if line is not None else None

    def mark_consumed(self) -> None:
        """All that was handed out has been used by an update."""
        with self._changed:
            self._stock.mark_consumed()

    def give_credit(self, version: int) -> None:
        """Credit the actors with all that was handed out, and tell each on its own."""
        with self._changed:
            credits = self._stock.give_credit(version)
        self._deliver_all(credits)

    def publish(self, broadcast: PolicyBroadcast) -> None:
        """Send a policy to all, and to everyone who joins from now on."""
        stamped = replace(broadcast, epoch=self.epoch)
        with self._changed:
            self._policy = stamped
        self.broadcast(stamped)

    def announce(self, update: int, env_steps: int) -> None:
        """Progress for the state heartbeat."""
        self._progress = (update, env_steps)

    def slots(self) -> list[SlotStatus]:
        """All slots that were ever taken, by number."""
        now, port = time.monotonic(), self.experience_port
        with self._changed:
            taken = [(slot, self._stock.line(slot.number)) for slot in self._admission.roster]
            return [line.status(slot, port, now) for slot, line in taken if line is not None]

    def accounts(self) -> dict[int, SlotAccount]:
        """By slot; a copy."""
        with self._changed:
            return self._stock.accounts()

    def rejected(self) -> dict[str, int]:
        """Messages refused that no slot sent, by reason."""
        with self._changed:
            return dict(self._rejected)

    def actor_stats(self) -> list[ActorStats]:
        """Of the actors that said goodbye, in the order of their slots."""
        with self._changed:
            return self._stock.stats()

    def commands(self) -> list[Command]:
        """Control messages that came since the last call, under numbers of this bus."""
        return self._commands.take()

    def post(self, message: ControlMessage) -> None:
        """A control message of this process itself; takes no lock, so a signal handler may call it at any moment."""
        self._commands.post(message)

    def answer(self, request: int, ok: bool, text: str) -> None:
        """Tell the admin what became of its command."""
        if origin := self._commands.answered(request):
            sender, number = origin
            self.deliver(sender, CommandResult(number, ok, text))

    def shutdown(self, reason: str) -> None:
        """Tell every actor; returns when each said goodbye, or none did for `shutdown_timeout` seconds."""
        with self._changed:
            early = self._admission.finish(Shutdown(reason))
        for arrival in early:
            self._answer_hello(arrival, time.monotonic())
        self._tell_shutdown()
        patience = self.transport.shutdown_timeout
        until = time.monotonic() + patience
        while living := self._living():
            with self._changed:
                fewer = self._changed.wait_for(partial(self._fewer_than, len(living)), min(SHUTDOWN_INTERVAL, patience))
            if fewer:
                until = time.monotonic() + patience  # each goodbye shows that the others are on their way too
            elif time.monotonic() >= until:
                slots = ", ".join(str(session.slot.number) for session in living)
                log.warning("no goodbye from slots %s within %g s", slots, patience)
                return
            self._tell_shutdown()

    def _tell_shutdown(self) -> None:
        """Over both ways that lead to an actor, since either may be blocked: to all at once, and to each on its own."""
        shutdown = self._admission.finishing
        if shutdown is not None:
            self.broadcast(shutdown)
            self._deliver_all((session.sender, shutdown) for session in self._living())

    def _living(self) -> list[Session]:
        """The sessions of actors that are here."""
        with self._changed:
            return [session for session in self._stock.sessions if session.slot.alive]

    def _fewer_than(self, count: int) -> bool:
        return len(self._living()) < count

    def state(self) -> LearnerState:
        """What the state heartbeat says."""
        with self._changed:
            finishing, living = self._admission.finishing is not None, bool(self._living())
            version = self._policy.version if self._policy else -1
            return LearnerState(
                self.run_id,
                self.epoch,
                "finishing" if finishing else "running" if living and self._policy else "waiting",
                version,
                *self._progress,
            )

    # --- what was heard: joining and leaving -------------------------------------------------------------

    def hear_hello(self, hello: Hello, sender: Sender, now: float, activity: ActorActivity | None = None) -> None:
        """Answer with Welcome or Refuse; before `open`, remember it until then."""
        self._answer_hello(Arrival(hello, sender, activity), now)

    def _answer_hello(self, arrival: Arrival, now: float) -> None:
        hello = arrival.hello
        with self._changed:
            answer = self._admission.admit(arrival, now)
            reply = answer if answer is None or isinstance(answer, Refuse) else self._welcome(arrival, answer)
            self._changed.notify_all()
        if isinstance(reply, Refuse):
            self._quiet.refused(f"host {hello.host!r} (pid {hello.pid})", reply.code, reply.text, now)
        if reply is not None:
            self.deliver(arrival.sender, reply)

    def _welcome(self, arrival: Arrival, slot: Slot) -> Welcome:
        terms, hello = self._admission.terms, arrival.hello
        assert terms is not None  # without them nobody is admitted
        if slot.number >= 0 and self._stock.begin_session(arrival, slot):
            log.info("slot %d: %s (pid %d) joined", slot.number, hello.host, hello.pid)
        return Welcome(slot.number, slot.seed, self.experience_port, self.policy_port, terms)

    def hear_link_lost(self, number: int, incarnation: int, now: float) -> None:
        """An actor's subscription ended. A process that died ends it at once; one that lives beats soon again."""
        with self._changed:
            slot = self._admission.roster.find(number, incarnation)
            if slot is not None and slot.alive:
                self._admission.roster.link_lost(slot, now + LINK_GRACE * self.transport.heartbeat_interval)

    def hear_goodbye(self, goodbye: Goodbye, sender: Sender, now: float) -> None:
        """Free the slot; said twice it is answered twice."""
        with self._changed:
            try:
                line, session = self._find(goodbye.epoch, goodbye.slot, goodbye.incarnation, now)
            except DecodeError:
                pass
            else:
                line.end_stay()
                line.stats.append(goodbye.stats)
                self._admission.roster.leave(session.slot)
                log.info("slot %d: left (%s)", goodbye.slot, goodbye.reason or "no reason given")
                self._changed.notify_all()
        self.deliver(sender, Farewell(goodbye.incarnation))

    # --- what was heard: experience ----------------------------------------------------------------------

    def hear_experience(self, frames: Any, now: float) -> None:
        """Put a chunk in its place, or refuse it under a name."""
        try:
            header = decode_experience_header(frames)
            with self._changed:
                line, session = self._find(header.epoch, header.slot, header.incarnation, now)
                verdict = self._stock.judge(session, header.seq)
                if verdict == "duplicate":
                    line.account.duplicates += 1
                    return
        except DecodeError as error:
            self._refuse_unknown(error, now)
            return
        checked = self._check(header, frames[2], verdict)
        with self._changed:
            if line.session is not session:
                self._rejected["stale_epoch"] += 1  # the epoch ended while the chunk was being checked
                return
            if verdict != "early":
                self._stock.put(header, line, checked, now)
                self._changed.notify_all()
            answers = self._answers(header, line, session, checked, now)
        if isinstance(checked, DecodeError):
            self._quiet.refused(f"slot {header.slot}", checked.reason, str(checked), now)
        self._deliver_all(answers)

    def _find(self, epoch: int, number: int, incarnation: int, now: float) -> tuple[Line, Session]:
        """Who says something; DecodeError if it is nobody of this epoch."""
        if self._admission.terms is None or epoch != self.epoch:
            raise DecodeError("stale_epoch", f"epoch {epoch}; this learner is in epoch {self.epoch}")
        slot, line = self._admission.roster.find(number, incarnation), self._stock.line(number)
        if slot is None or line is None or line.session is None:
            raise DecodeError("unknown_actor", f"slot {number} belongs to another actor, or to none")
        self._admission.roster.heard(slot, now)
        return line, line.session

    def _check(self, header: ExperienceHeader, body: Any, verdict: Verdict) -> Experience | DecodeError:
        """The experience, or why it is refused. Without the lock, since it takes longest."""
        layout, newest = self._layout, self._policy.version if self._policy else -1
        assert layout is not None  # there is no session before `open`
        try:
            if verdict == "early":
                raise DecodeError("early", f"chunk {header.seq} is more than {self.transport.reorder_chunks} ahead")
            if verdict == "beyond_credit":
                raise DecodeError("beyond_credit", f"chunk {header.seq} is beyond what max_lead_steps allows")
            return decode_experience_body(header, body, layout, newest)
        except DecodeError as error:
            return error

    def _answers(
        self, header: ExperienceHeader, line: Line, session: Session, checked: Experience | DecodeError, now: float
    ) -> Answers:
        answers = self._stock.resends(session, now)
        if isinstance(checked, DecodeError):
            line.refused_messages[checked.reason] += 1
            answers.append((session.sender, Rejected(checked.reason, str(checked), header.seq)))
            answers.append((session.sender, self._stock.credit(session)))
        return answers

    # --- what was heard: everything else -----------------------------------------------------------------

    def hear_heartbeat(self, beat: Heartbeat, sender: Sender, now: float) -> None:
        """Note what the actor does; answer with its credit, and ask for what has not arrived."""
        answers: Answers
        with self._changed:
            try:
                _, session = self._find(beat.epoch, beat.slot, beat.incarnation, now)
            except DecodeError as error:
                self._rejected[error.reason] += 1
                answers = [(sender, Rejected(error.reason, str(error)))]
            else:
                self._stock.hear_beat(session, beat, sender, now)
                answers = [(sender, self._stock.credit(session)), *self._stock.resends(session, now)]
                if self._admission.finishing is not None:
                    answers.append((sender, self._admission.finishing))
        self._deliver_all(answers)

    def hear_get_policy(self, request: GetPolicy, sender: Sender) -> None:
        """Answer with the current policy, if there is one that the actor does not have."""
        with self._changed:
            policy = self._policy
        if policy is not None and (policy.epoch, policy.version) > (request.epoch, request.have_version):
            self.deliver(sender, policy)

    def hear_command(self, command: Command, sender: Sender) -> None:
        """Queue it for the loop."""
        if not self._commands.hear(command, sender):
            self.deliver(sender, CommandResult(command.request, False, "too many commands are waiting; try again"))

    def refuse_message(self, error: DecodeError, sender: Sender, now: float) -> None:
        """A control message that is none: counted for the actor that sent it, if it is one, which is told."""
        with self._changed:
            line = self._stock.line_of(sender)
            if line is not None:
                line.account.malformed += 1
                line.refused_messages[error.reason] += 1
        if line is None:
            self._refuse_unknown(error, now)
        else:
            self._quiet.refused("an actor", error.reason, str(error), now)
            self.deliver(sender, Rejected(error.reason, str(error)))

    def _refuse_unknown(self, error: DecodeError, now: float) -> None:
        with self._changed:
            self._rejected[error.reason] += 1
        self._quiet.refused("an unknown sender", error.reason, str(error), now)

    def tick(self, now: float) -> None:
        """Whatever time alone decides: leases, holes asked for again, holes given up."""
        with self._changed:
            for slot in self._admission.roster.expire(now):
                silent = now - slot.last_heard
                place = (slot.number, slot.host, slot.pid)
                log.warning("slot %d (%s, pid %d): silent for %.1f s, so it is free now", *place, silent)
            answers = self._stock.repair(now)
            self._changed.notify_all()
        self._deliver_all(answers)

    def _deliver_all(self, messages: Iterable[tuple[Sender, Message]]) -> None:
        for sender, message in messages:
            self.deliver(sender, message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
