"""The learner's front half, the same for every transport: who may join, what is accepted, queued, credited and owed.

Two sides call it. The learner's loop takes experience and gives credit; whoever moves the messages (an I/O thread, or
the actors themselves where there is no socket) hands in what was heard, through the methods `hear_...` and `tick`.
Answers go out through `deliver`, never while the lock is held.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from zmqrl.accounts import ActorActivity, ActorStats, SlotAccount, SlotStatus
from zmqrl.codec import (
    ExperienceLayout,
    Message,
    chunk_length,
    decode_experience_body,
    decode_experience_header,
    sampled,
)
from zmqrl.config import TransportConfig
from zmqrl.errors import ConfigError, DecodeError
from zmqrl.messages import ControlMessage, Experience, PolicyBroadcast, Shutdown
from zmqrl.session import (
    Command,
    CommandResult,
    Credit,
    Farewell,
    GetPolicy,
    Goodbye,
    Heartbeat,
    Hello,
    LearnerState,
    Refuse,
    Rejected,
    Resend,
    Terms,
    Welcome,
)
from zmqrl.spaces import SpaceSpec
from zmqrl.transport.quietlog import QuietLog
from zmqrl.transport.roster import MAX_SLOTS, Roster, Slot, refusal, refusal_of_protocol
from zmqrl.transport.sequence import ReceiveWindow

log = logging.getLogger(__name__)

Sender = Any
"""Where answers to a peer go: a routing id, or the peer itself where there is no socket."""

MAX_STATS = 1000
"""Goodbyes of one slot that are kept for the report: actors that come and go must not fill the memory."""

MAX_COMMANDS = 64
"""Admin commands that wait for the loop, which looks between two chunks; a person types fewer."""

LINK_GRACE = 3.0
"""Heartbeats that an actor whose connection ended may miss until its slot is free. It reconnects within one if it
lives; a slot held for the whole lease would keep out the actor that was started in place of a dead one."""

RESEND_INTERVAL = 0.25
"""Seconds before the same hole is asked for again: well above a round trip, well below `hole_timeout`."""


@dataclass(frozen=True)
class _Placed:
    """A chunk in its place of the sequence; without experience if it was refused."""

    seq: int
    env_steps: int
    experience: Experience | None


@dataclass(eq=False)
class _Session:
    """The stay of one incarnation in a slot."""

    slot: Slot
    incarnation: int
    seed: int
    """Of no other stay in this slot."""
    window: ReceiveWindow[_Placed]
    sender: Sender
    received_steps: int = 0
    """Of the chunks below `window.next_seq`."""
    uncredited: deque[int] = field(default_factory=deque)
    """Chunks that were queued and not credited yet, in order."""
    handed_out: int = 0
    """How many of these, from the front, the loop has taken."""
    announced: int = 0
    """`next_seq` of the heartbeat before."""
    beat: Heartbeat | None = None
    beat_at: float = 0.0
    activity: ActorActivity | None = None
    """Of an actor without a socket, read directly."""

    @property
    def consumed_seq(self) -> int:
        """The lowest chunk that still waits for credit; whatever was refused or given up below it is done with."""
        return self.uncredited[0] if self.uncredited else self.window.next_seq


@dataclass(eq=False)
class _Line:
    """All that came through one slot."""

    account: SlotAccount = field(default_factory=SlotAccount)
    queue: deque[tuple[_Session, _Placed]] = field(default_factory=deque)
    unconsumed: int = 0
    """Env steps handed out and not used by an update yet."""
    received_chunks: int = 0
    refused_messages: Counter[str] = field(default_factory=Counter)
    session: _Session | None = None
    stats: deque[ActorStats] = field(default_factory=lambda: deque(maxlen=MAX_STATS))

    @property
    def queued(self) -> int:
        """Env steps, counted from what is really there."""
        held = self.session.window.held if self.session else []
        waiting = sum(placed.env_steps for _, placed in self.queue)
        return waiting + self.unconsumed + sum(placed.env_steps for placed in held if placed.experience)


class Intake(ABC):
    """Base of the learner's buses; `zmqrl.transport.bus.LearnerBus` documents what the loop calls."""

    experience_port = 0
    policy_port = 0

    def __init__(self, transport: TransportConfig, run_id: str, epoch: int, env: str) -> None:
        self.transport, self.run_id, self.epoch, self.env = transport, run_id, epoch, env
        self._changed = threading.Condition()
        self._terms: Terms | None = None
        self._layout: ExperienceLayout | None = None
        self._roster = Roster(0, "columns", 0, epoch, transport.lease)
        self._lines: dict[int, _Line] = {}
        self._ready: dict[int, None] = {}  # slots with something queued, in the order of their turns
        self._first_hello: Hello | None = None
        self._early: dict[int, tuple[Hello, Sender, ActorActivity | None]] = {}
        self._policy: PolicyBroadcast | None = None
        self._credit_version = -1
        self._progress = (0, 0)
        self._finishing: Shutdown | None = None
        self._commands: deque[Command] = deque()
        self._requests: dict[int, tuple[Sender, int] | None] = {}
        self._next_request = 0
        self._rejected: Counter[str] = Counter()
        self._quiet = QuietLog(log)

    # --- to be given by each transport -------------------------------------------------------------------

    @abstractmethod
    def deliver(self, sender: Sender, message: Message) -> None:
        """Send a message to one peer; a peer that is gone is no error. Called from any thread."""

    @abstractmethod
    def _broadcast(self, broadcast: PolicyBroadcast) -> None:
        """Send a policy to all actors."""

    @abstractmethod
    def close(self) -> None:
        """Give back threads, sockets and ports."""

    # --- the learner's loop ------------------------------------------------------------------------------

    def wait_for_hello(self, timeout: float) -> Hello | None:
        """The first Hello of an actor, also before `open`; None after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._first_hello is not None, timeout)
            return self._first_hello

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
        layout = ExperienceLayout(
            terms.observation_space, sampled(terms.action_space), terms.num_envs, terms.chunk_steps
        )
        with self._changed:
            if self._terms is not None:
                self._roll_back()
            self.run_id, self.epoch, self.env = terms.run_id, terms.epoch, terms.env
            self._terms, self._layout, self._policy, self._credit_version = terms, layout, None, -1
            self._roster = Roster(terms.num_actors, terms.fill, terms.seed, terms.epoch, terms.lease)
            early, self._early = list(self._early.values()), {}
        for hello, sender, activity in early:
            self.hear_hello(hello, sender, time.monotonic(), activity)

    def _roll_back(self) -> None:
        self._ready.clear()
        for line in self._lines.values():
            line.account.rolled_back += line.queued
            line.queue.clear()
            line.unconsumed, line.session = 0, None

    def receive(self, slots: Collection[int] | None, timeout: float) -> Experience | None:
        """The next chunk of any of these slots, actors in turn."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._turn(slots) is not None, timeout)
            slot = self._turn(slots)
            if not found or slot is None:
                return None
            line = self._lines[slot]
            session, placed = line.queue.popleft()
            del self._ready[slot]
            if line.queue:
                self._ready[slot] = None
            line.unconsumed += placed.env_steps
            session.handed_out += 1
            return placed.experience

    def _turn(self, slots: Collection[int] | None) -> int | None:
        return next((slot for slot in self._ready if slots is None or slot in slots), None)

    def mark_consumed(self) -> None:
        """All that was handed out has been used by an update."""
        with self._changed:
            for line in self._lines.values():
                line.account.consumed += line.unconsumed
                line.unconsumed = 0

    def give_credit(self, version: int) -> None:
        """Credit the actors with all that was handed out, and tell each on its own."""
        with self._changed:
            self._credit_version = max(version, self._credit_version)
            sessions = [line.session for line in self._lines.values() if line.session]
            for session in sessions:
                for _ in range(session.handed_out):
                    session.uncredited.popleft()
                session.handed_out = 0
            credits = [(session.sender, self._credit(session)) for session in sessions if session.slot.alive]
        self._deliver_all(credits)

    def _credit(self, session: _Session) -> Credit:
        return Credit(
            self.epoch,
            session.incarnation,
            session.consumed_seq,
            self._credit_version,
            session.window.next_seq,
            session.received_steps,
        )

    def publish(self, broadcast: PolicyBroadcast) -> None:
        """Send a policy to all, and to everyone who joins from now on."""
        stamped = replace(broadcast, epoch=self.epoch)
        with self._changed:
            self._policy = stamped
        self._broadcast(stamped)

    def announce(self, update: int, env_steps: int) -> None:
        """Progress for the state heartbeat."""
        self._progress = (update, env_steps)

    def slots(self) -> list[SlotStatus]:
        """All slots that were ever taken, by number."""
        now = time.monotonic()
        with self._changed:
            return [
                self._status(slot, self._lines[slot.number], now) for slot in self._roster if slot.number in self._lines
            ]

    def _status(self, slot: Slot, line: _Line, now: float) -> SlotStatus:
        session = line.session
        activity = session.activity if session else None
        beat = session.beat if session else None
        taken, in_step, waits, error = 0, 0.0, False, ""
        if activity is not None:
            began = activity.step_began
            taken, waits, error = activity.steps_taken, activity.waiting_for_credit, activity.error
            in_step = 0.0 if began is None else max(now - began, 1e-9)
        elif beat is not None and session is not None:
            taken, waits, error = beat.steps_taken, beat.waiting_for_credit, beat.error
            in_step = beat.in_step_seconds + (now - session.beat_at) if beat.in_step_seconds > 0 else 0.0
        return SlotStatus(
            agent_id=slot.number,
            alive=slot.alive,
            host=slot.host,
            pid=slot.pid,
            silent_seconds=0.0 if activity is not None and slot.alive else now - slot.last_heard,
            steps_taken=taken,
            in_step_seconds=in_step,
            waiting_for_credit=waits,
            received_chunks=line.received_chunks,
            refused=dict(line.refused_messages),
            last_error=error,
        )

    def accounts(self) -> dict[int, SlotAccount]:
        """By slot; a copy."""
        with self._changed:
            return {
                number: replace(line.account, queued=line.queued, refused=dict(line.account.refused))
                for number, line in sorted(self._lines.items())
            }

    def rejected(self) -> dict[str, int]:
        """Messages refused that no slot sent, by reason."""
        with self._changed:
            return dict(self._rejected)

    def actor_stats(self) -> list[ActorStats]:
        """Of the actors that said goodbye, in the order of their slots."""
        with self._changed:
            return [stats for _, line in sorted(self._lines.items()) for stats in line.stats]

    def commands(self) -> list[Command]:
        """Control messages that came since the last call, under numbers of this bus."""
        with self._changed:
            commands = list(self._commands)
            self._commands.clear()
            return commands

    def post(self, message: ControlMessage) -> None:
        """A control message of this process itself; safe from any thread."""
        with self._changed:
            self._enqueue(message, None)

    def answer(self, request: int, ok: bool, text: str) -> None:
        """Tell the admin what became of its command."""
        with self._changed:
            origin = self._requests.pop(request, None)
        if origin is not None:
            sender, number = origin
            self.deliver(sender, CommandResult(number, ok, text))

    def shutdown(self, reason: str) -> None:
        """Tell every actor; returns when each said goodbye, or none did for `shutdown_timeout` seconds."""
        with self._changed:
            self._finishing = Shutdown(reason)
            early, self._early = list(self._early.values()), {}
        for _, sender, _ in early:
            self.deliver(sender, self._finished())
        self._tell_shutdown()
        with self._changed:
            # each goodbye shows that the others are on their way too, so the time begins anew
            while living := self._roster.living:
                if not self._changed.wait_for(partial(self._fewer_than, len(living)), self.transport.shutdown_timeout):
                    slots = ", ".join(str(slot.number) for slot in living)
                    log.warning("no goodbye from slots %s within %g s", slots, self.transport.shutdown_timeout)
                    return

    def _fewer_than(self, count: int) -> bool:
        return len(self._roster.living) < count

    def _tell_shutdown(self) -> None:
        with self._changed:
            finishing = self._finishing
            senders = [line.session.sender for line in self._lines.values() if line.session and line.session.slot.alive]
        if finishing is not None:
            self._deliver_all((sender, finishing) for sender in senders)

    def _finished(self) -> Refuse:
        reason = self._finishing.reason if self._finishing else ""
        return Refuse("finished", f"the run is over: {reason}")

    def state(self) -> LearnerState:
        """What the state heartbeat says."""
        with self._changed:
            finishing, living = self._finishing is not None, bool(self._roster.living)
            version = self._policy.version if self._policy else -1
            return LearnerState(
                self.run_id,
                self.epoch,
                "finishing" if finishing else "running" if living and self._policy else "waiting",
                version,
                *self._progress,
            )

    # --- what was heard ----------------------------------------------------------------------------------

    def hear_hello(self, hello: Hello, sender: Sender, now: float, activity: ActorActivity | None = None) -> None:
        """Answer with Welcome or Refuse; before `open`, remember it until then."""
        with self._changed:
            if hello.role == "actor" and self._first_hello is None and refusal_of_protocol(hello) is None:
                self._first_hello = hello
                self._changed.notify_all()
            reply = self._judge(hello, sender, now, activity)
        if isinstance(reply, Refuse):
            self._quiet.refused(f"host {hello.host!r} (pid {hello.pid})", reply.code, reply.text, now)
        if reply is not None:
            self.deliver(sender, reply)

    def _judge(
        self, hello: Hello, sender: Sender, now: float, activity: ActorActivity | None
    ) -> Welcome | Refuse | None:
        if mismatch := refusal_of_protocol(hello):
            return mismatch
        if self._finishing is not None:
            return self._finished()
        terms = self._terms
        if terms is None:
            if len(self._early) < MAX_SLOTS:
                self._early[hello.incarnation] = hello, sender, activity
            return None
        if hello.role != "actor":
            return Welcome(-1, 0, self.experience_port, self.policy_port, terms)
        slot = refusal(hello, terms) or self._roster.join(hello, now)
        if isinstance(slot, Refuse):
            return slot
        line = self._lines.setdefault(slot.number, _Line())
        if line.session is None or (line.session.incarnation, line.session.seed) != (hello.incarnation, slot.seed):
            if line.session is not None:
                self._flush(line, line.session)
            window = ReceiveWindow[_Placed](self.transport.reorder_chunks, self.transport.hole_timeout)
            line.session = _Session(slot, hello.incarnation, slot.seed, window, sender, activity=activity)
            log.info("slot %d: %s (pid %d) joined", slot.number, hello.host, hello.pid)
        line.session.sender = sender
        return Welcome(slot.number, slot.seed, self.experience_port, self.policy_port, terms)

    def _flush(self, line: _Line, session: _Session) -> None:
        """The session is over: what waits for an earlier chunk waits no longer."""
        cuts, ready = session.window.flush()
        line.account.cuts += cuts
        self._queue(line, session, ready)

    def hear_experience(self, frames: Any, now: float) -> None:
        """Put a chunk in its place, or refuse it under a name."""
        try:
            header = decode_experience_header(frames)
        except DecodeError as error:
            self._refuse_unknown(error, now)
            return
        with self._changed:
            try:
                line, session = self._find(header.epoch, header.slot, header.incarnation)
            except DecodeError as error:
                self._refuse_unknown(error, now)
                return
            self._roster.heard(session.slot, now)
            verdict = session.window.judge(header.seq)
            if verdict == "duplicate":
                line.account.duplicates += 1
                return
            layout, newest = self._layout, self._policy.version if self._policy else -1
            beyond = header.seq >= session.consumed_seq + self._lead_chunks()
        assert layout is not None  # there is no session before `open`
        experience: Experience | None = None
        refused: DecodeError | None = None
        try:
            if beyond:
                raise DecodeError("beyond_credit", f"chunk {header.seq} is beyond what max_lead_steps allows")
            if verdict == "early":
                raise DecodeError("early", f"chunk {header.seq} is more than {self.transport.reorder_chunks} ahead")
            experience = decode_experience_body(header, frames[2], layout, newest)
        except DecodeError as error:
            refused = error
        with self._changed:
            if line.session is not session:
                self._rejected["stale_epoch"] += 1  # the epoch ended while the chunk was being checked
                return
            if verdict == "fresh":
                env_steps = min(header.env_steps, layout.chunk_steps * layout.num_envs)
                line.account.received += env_steps
                line.received_chunks += 1
                if refused is not None:
                    reasons = line.account.refused
                    reasons[refused.reason] = reasons.get(refused.reason, 0) + env_steps
                placed = _Placed(header.seq, env_steps, experience)
                self._queue(line, session, session.window.put(header.seq, placed, now))
            answers = self._resends(session, now)
            if refused is not None:
                line.refused_messages[refused.reason] += 1
                answers.append((session.sender, Rejected(refused.reason, str(refused), header.seq)))
                answers.append((session.sender, self._credit(session)))
        if refused is not None:
            self._quiet.refused(f"slot {header.slot}", refused.reason, str(refused), now)
        self._deliver_all(answers)

    def _lead_chunks(self) -> int:
        """Chunks an actor may begin ahead of its credit; the last one may be padded, so it is rounded up."""
        terms = self._terms
        return -(-terms.max_lead_steps // terms.chunk_steps) if terms else 0

    def _find(self, epoch: int, number: int, incarnation: int) -> tuple[_Line, _Session]:
        if self._terms is None or epoch != self.epoch:
            raise DecodeError("stale_epoch", f"epoch {epoch}; this learner is in epoch {self.epoch}")
        slot = self._roster.find(number, incarnation)
        line = self._lines.get(number)
        if slot is None or line is None or line.session is None:
            raise DecodeError("unknown_actor", f"slot {number} belongs to another actor, or to none")
        return line, line.session

    def _queue(self, line: _Line, session: _Session, ready: Iterable[_Placed]) -> None:
        for placed in ready:
            session.received_steps += placed.env_steps
            if placed.experience is not None:
                session.uncredited.append(placed.seq)
                line.queue.append((session, placed))
                self._ready.setdefault(session.slot.number)
                self._changed.notify_all()

    def _resends(self, session: _Session, now: float) -> list[tuple[Sender, Message]]:
        ranges = session.window.ask(now, RESEND_INTERVAL)
        return [(session.sender, Resend(self.epoch, first, last)) for first, last in ranges]

    def hear_heartbeat(self, beat: Heartbeat, sender: Sender, now: float) -> None:
        """Note what the actor does; answer with its credit, and ask for what has not arrived."""
        answers: list[tuple[Sender, Message]]
        with self._changed:
            try:
                _, session = self._find(beat.epoch, beat.slot, beat.incarnation)
            except DecodeError as error:
                self._rejected[error.reason] += 1
                answers = [(sender, Rejected(error.reason, str(error)))]
            else:
                self._roster.heard(session.slot, now)
                session.sender, session.beat, session.beat_at = sender, beat, now
                # Chunks travel on another connection than heartbeats: only what the heartbeat before this one
                # had announced already, and is still not here, is missing.
                limit = session.consumed_seq + self._lead_chunks()
                session.window.announce(min(session.announced, limit), now)
                session.announced = beat.next_seq
                answers = [(sender, self._credit(session)), *self._resends(session, now)]
                if self._finishing is not None:
                    answers.append((sender, self._finishing))
        self._deliver_all(answers)

    def hear_link_lost(self, number: int, incarnation: int, now: float) -> None:
        """An actor's subscription ended. A process that died ends it at once; one that lives beats soon again."""
        with self._changed:
            slot = self._roster.find(number, incarnation)
            if slot is not None and slot.alive:
                self._roster.link_lost(slot, now + LINK_GRACE * self.transport.heartbeat_interval)

    def hear_goodbye(self, goodbye: Goodbye, sender: Sender, now: float) -> None:
        """Free the slot; said twice it is answered twice."""
        with self._changed:
            try:
                line, session = self._find(goodbye.epoch, goodbye.slot, goodbye.incarnation)
            except DecodeError:
                pass
            else:
                self._flush(line, session)
                line.stats.append(goodbye.stats)
                session.slot.last_heard = now
                self._roster.leave(session.slot)
                log.info("slot %d: left (%s)", goodbye.slot, goodbye.reason or "no reason given")
                self._changed.notify_all()
        self.deliver(sender, Farewell(goodbye.incarnation))

    def hear_get_policy(self, request: GetPolicy, sender: Sender) -> None:
        """Answer with the current policy, if there is one that the actor does not have."""
        with self._changed:
            policy = self._policy
        if policy is not None and (policy.epoch, policy.version) > (request.epoch, request.have_version):
            self.deliver(sender, policy)

    def hear_command(self, command: Command, sender: Sender) -> None:
        """Queue it for the loop; the same one sent again while it waits is queued once."""
        with self._changed:
            origin = (sender, command.request)
            room = len(self._requests) < MAX_COMMANDS
            if origin not in self._requests.values() and room:
                self._enqueue(command.message, origin)
        if not room:
            self.deliver(sender, CommandResult(command.request, False, "too many commands are waiting; try again"))

    def _enqueue(self, message: ControlMessage, origin: tuple[Sender, int] | None) -> None:
        self._commands.append(Command(self._next_request, message))
        if origin is not None:
            self._requests[self._next_request] = origin
        self._next_request += 1
        self._changed.notify_all()

    def tick(self, now: float) -> None:
        """Whatever time alone decides: leases, holes asked for again, holes given up."""
        answers: list[tuple[Sender, Message]] = []
        with self._changed:
            for slot in self._roster.expire(now):
                silent = now - slot.last_heard
                place = (slot.number, slot.host, slot.pid)
                log.warning("slot %d (%s, pid %d): silent for %.1f s, so it is free now", *place, silent)
                self._changed.notify_all()
            for line in self._lines.values():
                session = line.session
                if session is None or session.window.complete or not session.slot.alive:
                    continue
                cuts, ready = session.window.give_up(now)
                if cuts:
                    line.account.cuts += cuts
                    log.warning(
                        "slot %d: %d chunks did not arrive; the trajectory is cut there", session.slot.number, cuts
                    )
                    self._queue(line, session, ready)
                    answers.append((session.sender, self._credit(session)))
                answers += self._resends(session, now)
        self._deliver_all(answers)

    def _refuse_unknown(self, error: DecodeError, now: float) -> None:
        with self._changed:
            self._rejected[error.reason] += 1
        self._quiet.refused("an unknown sender", error.reason, str(error), now)

    def refuse_message(self, error: DecodeError, sender: Sender, now: float) -> None:
        """A control message that is none: counted for the actor that sent it, if it is one, which is told."""
        with self._changed:
            line = next((line for line in self._lines.values() if line.session and line.session.sender == sender), None)
            if line is not None:
                line.account.malformed += 1
                line.refused_messages[error.reason] += 1
        if line is None:
            self._refuse_unknown(error, now)
        else:
            self._quiet.refused("an actor", error.reason, str(error), now)
            self.deliver(sender, Rejected(error.reason, str(error)))

    def _deliver_all(self, messages: Iterable[tuple[Sender, Message]]) -> None:
        for sender, message in messages:
            self.deliver(sender, message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
