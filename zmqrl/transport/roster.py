"""Who takes part: slots, leases, refusals. No socket and no clock of its own; `now` is a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zmqrl.session import PROTOCOL_VERSION, Hello, Refuse, Terms
from zmqrl.spaces import differences

MAX_SLOTS = 4096
"""With fill = quota. Three connections each make some 12,000 descriptors, within a usual hard limit."""


@dataclass
class Slot:
    """A place for one actor, and who has it now or had it last."""

    number: int
    incarnation: int | None = None
    """None while it is free after a goodbye."""
    seed: int = 0
    host: str = ""
    pid: int = 0
    times_taken: int = 0
    alive: bool = False
    last_heard: float = 0.0
    doubted_until: float = math.inf
    """Its link has ended: unless it says something before then, it is gone."""


def actor_seed(run_seed: int, epoch: int, slot: int, times_taken: int) -> int:
    """A 63-bit seed of its own for each actor that ever takes a slot; the same in each run with this seed.

    A resumed run is a new epoch: its environments begin anew, and should not repeat their first episodes.
    """
    sequence = np.random.SeedSequence(run_seed, spawn_key=(epoch, slot, times_taken))
    return int(sequence.generate_state(1, np.uint64)[0]) >> 1


def refusal(hello: Hello, terms: Terms) -> Refuse | None:
    """Why this actor cannot take part, in words for the person who started it; None if it can."""
    if hello.protocol != PROTOCOL_VERSION:
        return refusal_of_protocol(hello)
    if hello.num_envs != terms.num_envs:
        return Refuse(
            "num_envs",
            f"the learner's actors have {terms.num_envs} environments each, this one {hello.num_envs}; "
            f"start it with --num-envs {terms.num_envs}",
        )
    if hello.observation_space is None or hello.action_space is None:
        return Refuse("spaces", "this actor's Hello describes no observation and action space")
    lines = differences(terms.observation_space, hello.observation_space, "obs")
    lines += differences(terms.action_space, hello.action_space, "action")
    return Refuse("spaces", "; ".join(lines)) if lines else None


def refusal_of_protocol(hello: Hello) -> Refuse | None:
    """Possible before anything else is agreed on."""
    if hello.protocol == PROTOCOL_VERSION:
        return None
    older = "actor" if hello.protocol < PROTOCOL_VERSION else "learner"
    return Refuse(
        "protocol",
        f"the learner speaks protocol {PROTOCOL_VERSION}, this actor protocol {hello.protocol} "
        f"(zmqrl {hello.package}); install the same zmqrl on both; the {older}'s is the older one",
    )


class Roster:
    """The slots of one epoch. With fill = columns as many as the rollout has room for, with quota up to MAX_SLOTS.

    A slot is freed by a goodbye or by a lease of silence, and then given to the next that joins, lowest number first.
    An actor that was only silent gets its own slot back as long as nobody else has taken it; so does one that held a
    slot of the epoch before, which keeps the columns of a resumed run with their actors.
    """

    def __init__(self, num_actors: int, fill: str, run_seed: int, epoch: int, lease: float) -> None:
        self._capacity = num_actors if fill == "columns" else MAX_SLOTS
        self._fill = fill
        self._run_seed, self._epoch = run_seed, epoch
        self.lease = lease
        self._slots: dict[int, Slot] = {}  # those that were ever taken

    def __iter__(self) -> Iterator[Slot]:
        return iter([self._slots[number] for number in sorted(self._slots)])

    @property
    def living(self) -> list[Slot]:
        """Slots of actors that are here."""
        return [slot for slot in self if slot.alive]

    def join(self, hello: Hello, now: float) -> Slot | Refuse:
        """The slot of this incarnation, its old one or a free one; saying Hello again changes nothing."""
        slot = next((slot for slot in self if slot.incarnation == hello.incarnation), None) or self._take(hello)
        if slot is None:
            return Refuse("full", self._full())
        self.heard(slot, now)
        return slot

    def _take(self, hello: Hello) -> Slot | None:
        free = (number for number in (hello.held_slot, *range(self._capacity)) if self._is_free(number))
        number = next(free, None)
        if number is None:
            return None
        slot = self._slots.setdefault(number, Slot(number))
        slot.incarnation, slot.host, slot.pid = hello.incarnation, hello.host, hello.pid
        slot.seed = actor_seed(self._run_seed, self._epoch, slot.number, slot.times_taken)
        slot.times_taken += 1
        return slot

    def _is_free(self, number: int) -> bool:
        taken = self._slots.get(number)
        return 0 <= number < self._capacity and (taken is None or not taken.alive)

    def _full(self) -> str:
        remedy = "use fill = quota to let more actors join, or wait until one leaves"
        if self._fill == "quota":
            remedy = "wait until one leaves"
        count = (
            "the only slot is taken by a living actor"
            if self._capacity == 1
            else (f"all {self._capacity} slots are taken by living actors")
        )
        return f"{count} (fill = {self._fill}); {remedy}"

    def find(self, number: int, incarnation: int) -> Slot | None:
        """The slot if this incarnation has it, or had it last."""
        slot = self._slots.get(number)
        return slot if slot is not None and slot.incarnation == incarnation else None

    def heard(self, slot: Slot, now: float) -> None:
        """Its actor said something. One whose lease had run out has it again."""
        slot.alive, slot.last_heard, slot.doubted_until = True, now, math.inf

    def link_lost(self, slot: Slot, until: float) -> None:
        """Its connection has ended, because the actor died or because the network did: it has until then to speak."""
        slot.doubted_until = min(until, slot.doubted_until)

    def leave(self, slot: Slot) -> None:
        """Its actor said goodbye: whatever it still sends comes from nobody."""
        slot.alive, slot.incarnation = False, None

    def expire(self, now: float) -> list[Slot]:
        """Free the slots of those that were silent for a lease, or since their link ended, and return them."""
        expired = [
            slot for slot in self if slot.alive and (now - slot.last_heard > self.lease or now > slot.doubted_until)
        ]
        for slot in expired:
            slot.alive = False
        return expired
