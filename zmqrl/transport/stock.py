"""Experience between its arrival and its use: the lines of all slots, in turns, and what their actors are told.

No lock and no clock: whoever calls holds the lock of the bus, and `now` is a parameter.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from zmqrl.accounts import ActorStats, SlotAccount
from zmqrl.codec import ExperienceHeader, Message
from zmqrl.errors import DecodeError
from zmqrl.messages import Experience
from zmqrl.session import Credit, Heartbeat, Rejected, Resend, Terms
from zmqrl.transport.admission import Arrival, Sender
from zmqrl.transport.line import Line, Placed, Session
from zmqrl.transport.roster import Slot
from zmqrl.transport.sequence import ReceiveWindow

log = logging.getLogger(__name__)

RESEND_INTERVAL = 0.25
"""Seconds before the same hole is asked for again: well above a round trip, well below `hole_timeout`."""

Verdict = Literal["fresh", "duplicate", "early", "beyond_credit"]
"""What its number says about a chunk."""

Answers = list[tuple[Sender, Message]]


class Stock:
    """The lines of all slots that were ever taken, in one epoch after the other."""

    def __init__(self, reorder_chunks: int, hole_timeout: float) -> None:
        self._reorder_chunks, self._hole_timeout = reorder_chunks, hole_timeout
        self._lines: dict[int, Line] = {}
        self._turns: dict[int, None] = {}
        self._session_numbers = itertools.count(1)
        self._epoch, self._credit_version = 0, -1
        self._lead_chunks = self._rows_per_chunk = 0

    def open(self, terms: Terms) -> None:
        """A new epoch: all sessions end, and what is queued is rolled back."""
        self._turns.clear()
        for line in self._lines.values():
            line.roll_back()
        self._epoch, self._credit_version = terms.epoch, -1
        self._lead_chunks, self._rows_per_chunk = terms.lead_chunks, terms.chunk_steps * terms.num_envs

    @property
    def sessions(self) -> list[Session]:
        """The newest of each slot, whether its actor is still here or not."""
        return [line.session for line in self._lines.values() if line.session is not None]

    def begin_session(self, arrival: Arrival, slot: Slot) -> bool:
        """The actor has this slot from now on; False if it had it before, in the same stay."""
        line = self._lines.setdefault(slot.number, Line(slot.number, self._turns))
        incarnation, sender = arrival.hello.incarnation, arrival.sender
        if line.session is not None and line.session.is_stay_of(incarnation, slot.seed):
            line.session.sender = sender
            return False
        window = ReceiveWindow[Placed](self._reorder_chunks, self._hole_timeout)
        number = next(self._session_numbers)
        session = Session(number, slot, incarnation, slot.seed, sender, window, activity=arrival.activity)
        line.begin(session, room=self._lead_chunks)
        return True

    def line(self, number: int) -> Line | None:
        """The line of a slot; None if nobody ever had it."""
        return self._lines.get(number)

    def line_of(self, sender: Sender) -> Line | None:
        """The line of the actor that was last heard from there."""
        return next((line for line in self._lines.values() if line.session and line.session.sender == sender), None)

    # --- in ----------------------------------------------------------------------------------------------

    def judge(self, session: Session, seq: int) -> Verdict:
        """May this chunk be put?"""
        verdict = session.window.judge(seq)
        return "beyond_credit" if verdict == "fresh" and seq >= self._limit(session) else verdict

    def _limit(self, session: Session) -> int:
        """The first chunk that the actor may not begin yet."""
        return session.credited_chunks + self._lead_chunks

    def put(self, header: ExperienceHeader, line: Line, checked: Experience | DecodeError, now: float) -> None:
        """Book a chunk that came for the first time, or why it is refused."""
        assert line.session is not None
        env_steps = min(header.env_steps, self._rows_per_chunk)
        if isinstance(checked, DecodeError):
            line.put(Placed(header.seq, env_steps, None), checked.reason, now)
        else:
            line.put(Placed(header.seq, env_steps, replace(checked, session=line.session.number)), "", now)

    def hear_beat(self, session: Session, beat: Heartbeat, sender: Sender, now: float) -> None:
        """What the actor does, and how far it says it has sent."""
        session.hear_beat(beat, sender, self._limit(session), now)

    # --- out ---------------------------------------------------------------------------------------------

    def whose_turn(self, slots: Collection[int] | None) -> Line | None:
        """The next line of these slots (None: of any) with something queued."""
        number = next((number for number in self._turns if slots is None or number in slots), None)
        return None if number is None else self._lines[number]

    def mark_consumed(self) -> None:
        """All that was handed out has been used by an update."""
        for line in self._lines.values():
            line.mark_consumed()

    def give_credit(self, version: int) -> Answers:
        """All that was handed out is done with; what to tell each actor that is here."""
        self._credit_version = max(version, self._credit_version)
        for session in self.sessions:
            session.credit_handed_out()
        return [(session.sender, self.credit(session)) for session in self.sessions if session.slot.alive]

    def accounts(self) -> dict[int, SlotAccount]:
        """By slot; a copy."""
        return {
            number: replace(line.account, queued=line.queued, refused=dict(line.account.refused))
            for number, line in sorted(self._lines.items())
        }

    def stats(self) -> list[ActorStats]:
        """Of the actors that said goodbye, in the order of their slots."""
        return [stats for _, line in sorted(self._lines.items()) for stats in line.stats]

    # --- what actors are told ----------------------------------------------------------------------------

    def credit(self, session: Session) -> Credit:
        """What is done with, and what has been received."""
        return session.credit(self._epoch, self._credit_version)

    def resends(self, session: Session, now: float) -> Answers:
        """What is missing, unless it was asked for a moment ago."""
        ranges = session.window.ask(now, RESEND_INTERVAL)
        return [(session.sender, Resend(self._epoch, first, last)) for first, last in ranges]

    def repair(self, now: float) -> Answers:
        """Ask living actors again for what is missing, and give up what has been missing for too long."""
        answers: Answers = []
        for line in self._lines.values():
            if line.session is not None and line.session.slot.alive and not line.session.window.complete:
                answers += self._give_up(line, line.session, now)
                answers += self.resends(line.session, now)
        return answers

    def _give_up(self, line: Line, session: Session, now: float) -> Answers:
        cut = line.give_up(now)
        if not cut:
            return []
        text = f"did not arrive within {self._hole_timeout:g} s; the trajectory is cut there"
        log.warning("slot %d: %d chunks, from %d on: %s", line.number, len(cut), cut[0], text)
        told: Answers = [(session.sender, Rejected("cut", f"chunk {seq} {text}", seq)) for seq in cut]
        return [*told, (session.sender, self.credit(session))]
