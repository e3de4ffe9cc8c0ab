"""One slot of the learner, stay after stay: its chunks in order, its credit, and an account of each env step.

No lock and no clock: whoever calls holds the lock of the bus, and `now` is a parameter.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from zmqrl.accounts import ActorActivity, ActorStats, SlotAccount, SlotStatus
from zmqrl.messages import Experience
from zmqrl.session import Credit, Heartbeat
from zmqrl.transport.admission import Sender
from zmqrl.transport.roster import Slot
from zmqrl.transport.sequence import ReceiveWindow

MAX_STATS = 1000
"""Goodbyes of one slot that are kept for the report: actors that come and go must not fill the memory."""


@dataclass(frozen=True)
class Placed:
    """A chunk in its place of the sequence; without experience if it was refused."""

    seq: int
    env_steps: int
    experience: Experience | None


@dataclass(eq=False)
class Session:
    """The stay of one incarnation in a slot: what arrived in it, and its credit."""

    number: int
    """Of no other stay on this bus."""
    slot: Slot
    incarnation: int
    seed: int
    """Of no other stay in this slot."""
    sender: Sender
    window: ReceiveWindow[Placed]
    activity: ActorActivity | None = None
    """Of an actor without a socket, read directly."""
    received_steps: int = 0
    """Of the chunks below `window.next_seq`."""
    waiting: deque[int] = field(default_factory=deque)
    """Chunks that were queued and not credited yet, in order."""
    handed_out: int = 0
    """How many of these, from the front, the loop has taken."""
    used_chunks: int = 0
    """Taken by the loop, and credited."""
    lost_chunks: int = 0
    """Refused or given up, wherever they stand in the sequence."""
    announced: int = 0
    """`next_seq` of the heartbeat before."""
    beat: Heartbeat | None = None
    beat_at: float = 0.0

    @property
    def consumed_seq(self) -> int:
        """All chunks below this are done with: it is the lowest that still waits for credit, or to arrive."""
        return self.waiting[0] if self.waiting else self.window.next_seq

    @property
    def credited_chunks(self) -> int:
        """How many chunks are done with. A loss counts at once: nothing is gained by waiting for those before it."""
        return self.used_chunks + self.lost_chunks

    def is_stay_of(self, incarnation: int, seed: int) -> bool:
        """Whether this is the stay that has this seed."""
        return (self.incarnation, self.seed) == (incarnation, seed)

    def credit(self, epoch: int, version: int) -> Credit:
        """What its actor is told; `version` came out of the chunks used."""
        seqs = (self.consumed_seq, self.credited_chunks)
        return Credit(epoch, self.incarnation, *seqs, version, self.window.next_seq, self.received_steps)

    def credit_handed_out(self) -> None:
        """What the loop has taken is used."""
        for _ in range(self.handed_out):
            self.waiting.popleft()
        self.used_chunks += self.handed_out
        self.handed_out = 0

    def hear_beat(self, beat: Heartbeat, sender: Sender, limit: int, now: float) -> None:
        """What the actor does, and how far it has sent, of which nothing from `limit` on is believed.

        Chunks travel on another connection than heartbeats: only what the heartbeat before this one had announced
        already, and is still not here, is missing.
        """
        self.sender, self.beat, self.beat_at = sender, beat, now
        self.window.announce(min(self.announced, limit), now)
        self.announced = beat.next_seq

    def in_step_seconds(self, now: float) -> float:
        """How long its actor has been inside one env.step, brought up to now; 0 if it is not in one."""
        if self.activity is not None:
            began = self.activity.step_began
            return 0.0 if began is None else max(now - began, 1e-9)
        if self.beat is None or self.beat.in_step_seconds <= 0:
            return 0.0
        return self.beat.in_step_seconds + (now - self.beat_at)


@dataclass(eq=False)
class Line:
    """All that came through one slot, stay after stay."""

    number: int
    turns: dict[int, None]
    """Shared by all lines: those with something queued, in the order of their turns."""
    account: SlotAccount = field(default_factory=SlotAccount)
    queue: deque[tuple[Session, Placed]] = field(default_factory=deque)
    unconsumed: int = 0
    """Env steps handed out and not used by an update yet."""
    accepted_chunks: int = 0
    refused_messages: Counter[str] = field(default_factory=Counter)
    session: Session | None = None
    stats: deque[ActorStats] = field(default_factory=lambda: deque(maxlen=MAX_STATS))

    @property
    def queued(self) -> int:
        """Env steps, counted from what is really there."""
        held = self.session.window.held if self.session else []
        waiting = sum(placed.env_steps for _, placed in self.queue)
        return waiting + self.unconsumed + sum(placed.env_steps for placed in held if placed.experience)

    def begin(self, session: Session, room: int) -> None:
        """Another stay. Of what is queued from earlier ones the newest `room` chunks remain.

        Each stay has a full credit of its own: without this, actors that come and go would fill the memory.
        """
        self.end_stay()
        self.session = session
        while len(self.queue) > room:
            self._count_refused("superseded", self.queue.popleft()[1].env_steps)

    def end_stay(self) -> None:
        """Nothing more will come of this stay: what waits for an earlier chunk waits no longer."""
        if self.session is not None:
            cuts, ready = self.session.window.flush()
            self.account.cuts += cuts
            self._enqueue(self.session, ready)

    def put(self, chunk: Placed, reason: str, now: float) -> None:
        """A chunk of the current stay that came for the first time; with a reason if it is refused."""
        session = self._current()
        self.account.received += chunk.env_steps
        if chunk.experience is None:
            session.lost_chunks += 1
            self._count_refused(reason, chunk.env_steps)
        else:
            self.accepted_chunks += 1
        self._enqueue(session, session.window.put(chunk.seq, chunk, now))

    def give_up(self, now: float) -> range:
        """The chunks of the current stay that have been missing for too long: the trajectory is cut there."""
        session = self._current()
        first = session.window.next_seq
        cuts, ready = session.window.give_up(now)
        self.account.cuts += cuts
        session.lost_chunks += cuts
        self._enqueue(session, ready)
        return range(first, first + cuts)

    def _current(self) -> Session:
        assert self.session is not None  # whoever says something has been found by it
        return self.session

    def _count_refused(self, reason: str, env_steps: int) -> None:
        refused = self.account.refused
        refused[reason] = refused.get(reason, 0) + env_steps

    def _enqueue(self, session: Session, ready: Iterable[Placed]) -> None:
        for placed in ready:
            session.received_steps += placed.env_steps
            if placed.experience is not None:
                session.waiting.append(placed.seq)
                self.queue.append((session, placed))
                self.turns.setdefault(self.number)

    def take(self) -> Experience | None:
        """The next chunk, for the loop; the line's next turn comes after those of all others."""
        session, placed = self.queue.popleft()
        del self.turns[self.number]
        if self.queue:
            self.turns[self.number] = None
        self.unconsumed += placed.env_steps
        session.handed_out += 1
        return placed.experience

    def mark_consumed(self) -> None:
        """What was handed out has been used by an update."""
        self.account.consumed += self.unconsumed
        self.unconsumed = 0

    def roll_back(self) -> None:
        """A new epoch: what was not used never will be."""
        self.account.rolled_back += self.queued
        self.queue.clear()
        self.unconsumed, self.session = 0, None

    def status(self, slot: Slot, experience_port: int, now: float) -> SlotStatus:
        """What is known of the slot and of who has it."""
        session = self.session
        doing = (session.activity or session.beat) if session is not None else None
        heard_directly = session is not None and session.activity is not None and slot.alive
        return SlotStatus(
            agent_id=self.number,
            alive=slot.alive,
            host=slot.host,
            pid=slot.pid,
            silent_seconds=0.0 if heard_directly else now - slot.last_heard,
            steps_taken=doing.steps_taken if doing else 0,
            in_step_seconds=session.in_step_seconds(now) if session is not None else 0.0,
            waiting_for_credit=doing.waiting_for_credit if doing else False,
            accepted_chunks=self.accepted_chunks,
            refused=dict(self.refused_messages),
            cuts=self.account.cuts,
            experience_port=experience_port,
            last_error=doing.error if doing else "",
        )
