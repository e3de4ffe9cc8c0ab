"""Hellos before, during and after a run."""

from __future__ import annotations

import math
from dataclasses import replace

from zmqrl.messages import Shutdown
from zmqrl.session import PROTOCOL_VERSION, Hello, Refuse, Terms
from zmqrl.spaces import BoxSpec, DiscreteSpec
from zmqrl.transport.admission import Admission, Arrival
from zmqrl.transport.roster import MAX_SLOTS, Slot

SPACES = BoxSpec("float32", (2,), -math.inf, math.inf), DiscreteSpec(2)
TERMS = Terms("r", 1, 2, 2, 8, 4, 16, "columns", 0, *SPACES, {}, (), 1.0, 30.0, 300.0)


def arrival(incarnation: int, role: str = "actor", protocol: int = PROTOCOL_VERSION) -> Arrival:
    hello = Hello(protocol, "0.1.0", "actor", incarnation, "host", 1, 2, *SPACES)
    return Arrival(replace(hello, role=role), f"sender {incarnation}")


def test_before_there_are_terms_hellos_wait_and_each_actor_waits_once() -> None:
    admission = Admission()
    for incarnation in (1, 2, 1):
        assert admission.admit(arrival(incarnation), 0.0) is None
    assert admission.first_hello == arrival(1).hello
    assert admission.open(TERMS) == [arrival(1), arrival(2)]
    assert admission.open(replace(TERMS, epoch=2)) == []


def test_no_more_wait_than_there_can_be_slots() -> None:
    admission = Admission()
    for incarnation in range(MAX_SLOTS + 10):
        admission.admit(arrival(incarnation), 0.0)
    assert len(admission.open(TERMS)) == MAX_SLOTS


def test_the_first_hello_is_one_of_an_actor_of_this_protocol() -> None:
    admission = Admission()
    admission.admit(arrival(1, role="monitor"), 0.0)
    assert isinstance(admission.admit(arrival(2, protocol=9), 0.0), Refuse)
    admission.admit(arrival(3), 0.0)
    assert admission.first_hello == arrival(3).hello


def test_actors_have_slots_and_monitors_have_none() -> None:
    admission = Admission()
    admission.open(TERMS)
    answers = [admission.admit(each, 0.0) for each in (arrival(1), arrival(9, role="monitor"), arrival(2))]
    assert [answer.number for answer in answers if isinstance(answer, Slot)] == [0, -1, 1]
    assert [slot.number for slot in admission.roster.living] == [0, 1]


def test_once_the_run_is_over_everybody_hears_that() -> None:
    admission = Admission()
    admission.admit(arrival(1), 0.0)
    assert admission.finish(Shutdown("done")) == [arrival(1)]
    assert admission.admit(arrival(1), 0.0) == Refuse("finished", "the run is over: done")
