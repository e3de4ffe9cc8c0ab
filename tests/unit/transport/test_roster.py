"""Slots and leases; an hour passes in a millisecond."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from zmqrl.session import PROTOCOL_VERSION, Hello, Refuse, Terms
from zmqrl.spaces import BoxSpec, DictSpec, DiscreteSpec, SpaceSpec
from zmqrl.transport.roster import MAX_SLOTS, Roster, Slot, actor_seed, refusal

OBSERVATIONS = BoxSpec("float32", (4,), -math.inf, math.inf)


def hello(incarnation: int, *, num_envs: int = 2, observations: SpaceSpec = OBSERVATIONS) -> Hello:
    return Hello(PROTOCOL_VERSION, "0.1.0", "actor", incarnation, "host", 1, num_envs, observations, DiscreteSpec(2))


TERMS = Terms("r", 1, 2, 2, 8, 8, 16, "columns", 0, OBSERVATIONS, DiscreteSpec(2), {}, (), 1.0, 30.0, 300.0)


def joined(roster: Roster, incarnation: int, now: float = 0.0) -> Slot:
    slot = roster.join(hello(incarnation), now)
    assert isinstance(slot, Slot)
    return slot


def test_slots_are_given_from_the_lowest_and_hello_is_idempotent() -> None:
    roster = Roster(3, "columns", 0, 1, 30.0)
    assert [joined(roster, incarnation).number for incarnation in (11, 22, 11, 33, 22)] == [0, 1, 0, 2, 1]


def test_columns_are_full_when_all_are_taken_and_say_what_to_do() -> None:
    roster = Roster(2, "columns", 0, 1, 30.0)
    joined(roster, 1), joined(roster, 2)
    assert roster.join(hello(3), 0.0) == Refuse(
        "full",
        "all 2 slots are taken by living actors (fill = columns); use fill = quota to let more actors join, "
        "or wait until one leaves",
    )


def test_a_quota_takes_more_actors_than_it_was_made_for() -> None:
    roster = Roster(2, "quota", 0, 1, 30.0)
    numbers = [joined(roster, incarnation).number for incarnation in range(100, 110)]
    assert numbers == list(range(10))
    assert MAX_SLOTS == 4096


def test_a_goodbye_frees_the_slot_for_the_next() -> None:
    roster = Roster(2, "columns", 0, 1, 30.0)
    first = joined(roster, 1)
    joined(roster, 2)
    roster.leave(first)
    assert roster.find(0, 1) is None
    assert joined(roster, 3).number == 0


def test_a_lease_of_silence_frees_the_slot() -> None:
    roster = Roster(1, "columns", 0, 1, 30.0)
    slot = joined(roster, 1, now=0.0)
    for now in range(0, 3600, 29):
        roster.heard(slot, float(now))
        assert roster.expire(float(now) + 30.0) == []
    assert roster.expire(now + 30.1) == [slot]
    assert roster.living == []
    assert joined(roster, 2, now=3700.0).number == 0


def test_one_that_was_only_silent_has_its_own_slot_again_with_the_same_seed() -> None:
    roster = Roster(2, "columns", 0, 1, 30.0)
    seed = joined(roster, 1).seed
    joined(roster, 2)
    roster.expire(now=31.0)
    again = joined(roster, 1, now=40.0)
    assert (again.number, again.seed, again.alive) == (0, seed, True)


def test_one_whose_slot_was_taken_gets_another_with_another_seed() -> None:
    roster = Roster(2, "columns", 0, 1, 30.0)
    seed = joined(roster, 1).seed
    roster.expire(now=31.0)
    assert joined(roster, 2, now=32.0).number == 0
    again = joined(roster, 1, now=33.0)
    assert again.number == 1
    assert again.seed != seed


def test_one_that_held_a_slot_has_it_again_in_a_new_epoch_if_it_is_free() -> None:
    roster = Roster(3, "columns", 0, 2, 30.0)
    held = [replace(hello(incarnation), held_slot=slot) for incarnation, slot in ((11, 2), (22, 1), (33, 2), (44, 0))]
    taken = [roster.join(each, 0.0) for each in held]
    assert [slot.number for slot in taken if isinstance(slot, Slot)] == [2, 1, 0]
    assert isinstance(taken[-1], Refuse)
    assert [slot.number for slot in roster] == [0, 1, 2]


@pytest.mark.parametrize("held_slot", [-1, 2, 4000, 2**62])
def test_a_slot_that_cannot_be_is_not_given_back(held_slot: int) -> None:
    slot = Roster(2, "columns", 0, 2, 30.0).join(replace(hello(11), held_slot=held_slot), 0.0)
    assert isinstance(slot, Slot)
    assert slot.number == 0


def test_seeds_depend_on_run_slot_and_turn_and_fit_63_bits() -> None:
    seeds = {actor_seed(*key) for key in itertools.product(range(4), repeat=4)}
    assert len(seeds) == 4**4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert actor_seed(3, 1, 2, 1) == actor_seed(3, 1, 2, 1)


def test_a_wrong_number_of_environments_is_refused_with_both_numbers() -> None:
    refused = refusal(hello(1, num_envs=5), TERMS)
    assert refused is not None
    assert refused.code == "num_envs"
    assert refused.text == "the learner's actors have 2 environments each, this one 5; start it with --num-envs 2"


def test_differing_spaces_are_refused_with_the_place_and_both_sides() -> None:
    ours = DictSpec((("cam", BoxSpec("uint8", (84, 84, 4), 0.0, 255.0)),))
    theirs = DictSpec((("cam", BoxSpec("uint8", (96, 96, 3), 0.0, 255.0)),))
    refused = refusal(hello(1, observations=theirs), replace(TERMS, observation_space=ours))
    assert refused == Refuse("spaces", "obs/cam: learner has Box(84, 84, 4) uint8, this actor Box(96, 96, 3) uint8")
    refused = refusal(replace(hello(1), action_space=DiscreteSpec(3)), TERMS)
    assert refused == Refuse("spaces", "action: learner has Discrete(2), this actor Discrete(3)")


@pytest.mark.parametrize(("protocol", "older"), [(0, "actor"), (2, "learner")])
def test_two_versions_tell_each_other_why(protocol: int, older: str) -> None:
    refused = refusal(Hello(protocol, "9.9", "actor", 1), TERMS)
    assert refused is not None
    assert refused.code == "protocol"
    assert f"protocol {PROTOCOL_VERSION}, this actor protocol {protocol}" in refused.text
    assert f"the {older}'s is the older one" in refused.text


def test_one_that_fits_is_not_refused() -> None:
    assert refusal(hello(1), TERMS) is None


def test_a_slot_whose_link_ended_is_free_soon_unless_its_actor_speaks() -> None:
    roster = Roster(2, "columns", 0, 1, 30.0)
    dead, living = joined(roster, 1), joined(roster, 2)
    roster.link_lost(dead, until=3.0)
    roster.link_lost(living, until=3.0)
    roster.heard(living, 1.0)
    assert roster.expire(3.0) == []
    assert roster.expire(3.1) == [dead]
    assert joined(roster, 3, now=3.2).number == dead.number
    assert roster.expire(3.1 + 30.0) == [living]
