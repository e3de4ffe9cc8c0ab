"""Selective repeat without a socket: what was sent and may be needed again, what arrived and what is missing.

Chunks of one session are numbered 0, 1, 2, ... A broken link loses some of them and reorders others, since the old
and the new connection are two queues. `now` is a parameter, in seconds of any clock that does not jump.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Literal, TypeVar

Item = TypeVar("Item")


@dataclass
class SentChunk:
    """A chunk that may have to be sent again."""

    seq: int
    frames: list[Any]
    """Empty once it cannot have to."""
    env_steps: int


class SendWindow:
    """The sender's side: each chunk stays until the receiver is done with it and with all before it.

    One that is done with earlier leaves its number of env steps, but no longer its frames.
    """

    def __init__(self) -> None:
        self._kept: deque[SentChunk] = deque()
        self._released_steps = 0  # env steps of the chunks below the first kept one
        self.next_seq = 0

    @property
    def first_kept(self) -> int:
        """The lowest number not released; `next_seq` if nothing is kept."""
        return self.next_seq - len(self._kept)

    @property
    def env_steps(self) -> int:
        """Of all chunks ever added."""
        return self.steps_before(self.next_seq)

    def add(self, frames: list[Any], env_steps: int) -> SentChunk:
        """Keep a new chunk under `next_seq`."""
        chunk = SentChunk(self.next_seq, frames, env_steps)
        self._kept.append(chunk)
        self.next_seq += 1
        return chunk

    def release(self, seq: int) -> None:
        """The receiver is done with everything below `seq`."""
        while self._kept and self._kept[0].seq < seq:
            self._released_steps += self._kept.popleft().env_steps

    def drop(self, seq: int) -> None:
        """The receiver is done with this one, though perhaps not with those before it."""
        for chunk in self._between(seq, seq + 1):
            chunk.frames = []

    def between(self, first: int, last: int) -> Iterator[SentChunk]:
        """Of the chunks first .. last - 1 those that can be sent again."""
        return (chunk for chunk in self._between(first, last) if chunk.frames)

    def steps_before(self, seq: int) -> int:
        """Env steps of all chunks below `seq`, which must not lie below the first kept one."""
        return self._released_steps + sum(chunk.env_steps for chunk in self._between(self.first_kept, seq))

    def _between(self, first: int, last: int) -> Iterator[SentChunk]:
        begin = self.first_kept
        return islice(self._kept, max(first - begin, 0), max(last - begin, 0))


@dataclass
class _Hole:
    """The lowest missing chunk: since when, and when it was last asked for."""

    since: float
    asked: float | None = None


class ReceiveWindow(Generic[Item]):
    """The receiver's side: puts chunks in order, and knows which are missing and when to give them up.

    At most `reorder_chunks` beyond the awaited one are held, so memory is bounded; what lies further ahead is not
    taken, and asked for later. A hole that stays for `hole_timeout` without any progress is given up: a cut.
    """

    def __init__(self, reorder_chunks: int, hole_timeout: float) -> None:
        self._reorder_chunks = reorder_chunks
        self._hole_timeout = hole_timeout
        self._held: dict[int, Item] = {}
        self._announced = 0
        self._hole: _Hole | None = None
        self.next_seq = 0
        """The awaited one; all below have arrived or were given up."""

    @property
    def held(self) -> list[Item]:
        """What waits for an earlier one."""
        return list(self._held.values())

    @property
    def complete(self) -> bool:
        """Nothing is known to be missing."""
        return self.next_seq >= self._highest()

    def judge(self, seq: int) -> Literal["fresh", "duplicate", "early"]:
        """May this number be put? `early` is too far ahead to be held."""
        if seq < self.next_seq or seq in self._held:
            return "duplicate"
        return "fresh" if seq <= self.next_seq + self._reorder_chunks else "early"

    def put(self, seq: int, item: Item, now: float) -> list[Item]:
        """Take a fresh one; returns all that are in order now."""
        if self.judge(seq) != "fresh":
            raise ValueError(f"chunk {seq} is {self.judge(seq)}; {self.next_seq} is awaited")
        self._held[seq] = item
        return self._advance(now)

    def announce(self, next_seq: int, now: float) -> None:
        """The sender has sent everything below `next_seq`."""
        self._announced = max(self._announced, next_seq)
        self._watch(now)

    def missing(self) -> list[tuple[int, int]]:
        """Ranges [first, last) that are known to have been sent and have not arrived, within what can be held."""
        end = min(self._highest(), self.next_seq + self._reorder_chunks + 1)
        ranges: list[tuple[int, int]] = []
        for seq in range(self.next_seq, end):
            if seq in self._held:
                continue
            if ranges and ranges[-1][1] == seq:
                ranges[-1] = (ranges[-1][0], seq + 1)
            else:
                ranges.append((seq, seq + 1))
        return ranges

    def ask(self, now: float, interval: float) -> list[tuple[int, int]]:
        """The missing ranges if they have not been asked for within `interval`; counts as asking."""
        hole = self._hole
        if hole is None or (hole.asked is not None and now - hole.asked < interval):
            return []
        hole.asked = now
        return self.missing()

    def give_up(self, now: float) -> tuple[int, list[Item]]:
        """(chunks given up, all that are in order now) once the hole has stayed for too long, else (0, [])."""
        if self._hole is None or now - self._hole.since < self._hole_timeout:
            return 0, []
        end = min(self._held, default=self._announced)
        cut = end - self.next_seq
        self.next_seq, self._hole = end, None
        return cut, self._advance(now)

    def flush(self) -> tuple[int, list[Item]]:
        """Nothing more will come: (chunks given up between and before those held, those held in order)."""
        if not self._held:
            return 0, []
        items = [self._held[seq] for seq in sorted(self._held)]
        end = max(self._held) + 1
        cut = end - self.next_seq - len(items)
        self._held.clear()
        self.next_seq, self._hole = end, None
        return cut, items

    def _advance(self, now: float) -> list[Item]:
        ready = []
        while self.next_seq in self._held:
            ready.append(self._held.pop(self.next_seq))
            self.next_seq += 1
        if ready:
            self._hole = None  # progress: the sender is at work, so a hole further on has its own time
        self._watch(now)
        return ready

    def _watch(self, now: float) -> None:
        if self.complete:
            self._hole = None
        elif self._hole is None:
            self._hole = _Hole(now)

    def _highest(self) -> int:
        return max(self._announced, max(self._held, default=-1) + 1)
