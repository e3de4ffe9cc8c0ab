"""Who may join a learner: Hellos wait until there are terms, and are judged by them. No lock, no socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zmqrl.accounts import ActorActivity
from zmqrl.messages import Shutdown
from zmqrl.session import Hello, Refuse, Terms
from zmqrl.transport.roster import MAX_SLOTS, Roster, Slot, refusal, refusal_of_protocol

Sender = Any
"""Where answers to a peer go: a routing id, or the peer itself where there is no socket."""


@dataclass(frozen=True)
class Arrival:
    """A Hello, and where its answer goes."""

    hello: Hello
    sender: Sender
    activity: ActorActivity | None = None
    """Of an actor without a socket, read directly."""


class Admission:
    """Before `open` Hellos are kept; from then on they are answered, after `finish` with "the run is over"."""

    def __init__(self) -> None:
        self.terms: Terms | None = None
        self.roster = Roster(0, "columns", 0, 0, 0.0)
        self.first_hello: Hello | None = None
        """Of an actor that speaks this protocol: it can define the spaces."""
        self.finishing: Shutdown | None = None
        self._early: dict[int, Arrival] = {}

    def open(self, terms: Terms) -> list[Arrival]:
        """Admit actors on these terms, into slots that are all free; returns those that came before."""
        self.terms = terms
        self.roster = Roster(terms.num_actors, terms.fill, terms.seed, terms.epoch, terms.lease)
        return self._take_early()

    def finish(self, shutdown: Shutdown) -> list[Arrival]:
        """Admit nobody from now on; returns those that still wait."""
        self.finishing = shutdown
        return self._take_early()

    def _take_early(self) -> list[Arrival]:
        early, self._early = list(self._early.values()), {}
        return early

    def admit(self, arrival: Arrival, now: float) -> Slot | Refuse | None:
        """The slot of an actor, or number -1 for a monitor; None while there are no terms to answer with."""
        hello = arrival.hello
        if mismatch := refusal_of_protocol(hello):
            return mismatch
        if hello.role == "actor" and self.first_hello is None:
            self.first_hello = hello
        if self.finishing is not None:
            return Refuse("finished", f"the run is over: {self.finishing.reason}")
        if self.terms is None:
            if len(self._early) < MAX_SLOTS:
                self._early[hello.incarnation] = arrival
            return None
        if hello.role != "actor":
            return Slot(-1)
        return refusal(hello, self.terms) or self.roster.join(hello, now)
