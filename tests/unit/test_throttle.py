"""The staleness valve: bounded lead, credit that counts only with its policy, messages lost or doubled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zmqrl.throttle import ActorThrottle


def run(throttle: ActorThrottle, limit: int = 1000) -> int:
    """Steps until it says stop."""
    steps = 0
    while throttle.may_act() and steps < limit:
        throttle.step()
        steps += 1
    return steps


def test_nobody_acts_before_a_policy_is_loaded() -> None:
    throttle = ActorThrottle(4)
    assert not throttle.may_act()
    throttle.loaded(0)
    assert throttle.may_act()


def test_the_lead_is_bounded_and_credit_frees_as_much_as_was_consumed() -> None:
    throttle = ActorThrottle(4)
    throttle.loaded(0)
    assert run(throttle) == 4
    throttle.loaded(1)
    throttle.credit(3, version=1)
    assert run(throttle) == 3
    assert throttle.lead == 4


def test_credit_counts_once_its_policy_is_loaded() -> None:
    throttle = ActorThrottle(4)
    throttle.loaded(0)
    run(throttle)
    throttle.credit(4, version=1)
    assert not throttle.may_act()
    throttle.loaded(1)
    assert run(throttle) == 4


def test_a_newer_policy_serves_older_credit() -> None:
    throttle = ActorThrottle(4)
    throttle.loaded(0)
    run(throttle)
    throttle.credit(2, version=1)
    throttle.credit(4, version=3)
    throttle.loaded(2)
    assert run(throttle) == 2
    throttle.loaded(7)
    assert run(throttle) == 2


def test_credit_is_a_total_so_repeats_and_stragglers_change_nothing() -> None:
    throttle = ActorThrottle(4)
    throttle.loaded(5)
    run(throttle)
    for rows in (3, 3, 1, 0):
        throttle.credit(rows, version=2)
    assert run(throttle) == 3


def test_a_lost_credit_is_made_good_by_the_next() -> None:
    throttle = ActorThrottle(4)
    throttle.loaded(0)
    run(throttle)
    throttle.loaded(2)
    throttle.credit(4, version=2)  # the one for version 1 never came
    assert run(throttle) == 4


def test_an_older_policy_does_not_take_credit_back() -> None:
    throttle = ActorThrottle(4)
    throttle.loaded(3)
    throttle.loaded(1)
    run(throttle)
    throttle.credit(4, version=3)
    assert throttle.may_act()


def test_a_new_session_counts_from_zero() -> None:
    throttle = ActorThrottle(4)
    throttle.loaded(9)
    run(throttle)
    throttle.credit(2, version=12)
    throttle.restart(throttle.max_lead_steps)
    assert (throttle.taken, throttle.usable) == (0, 0)
    assert not throttle.may_act()
    throttle.loaded(0)
    assert run(throttle) == 4


EVENTS = st.one_of(
    st.tuples(st.just("step"), st.just(0), st.just(0)),
    st.tuples(st.just("credit"), st.integers(0, 60), st.integers(0, 12)),
    st.tuples(st.just("loaded"), st.just(0), st.integers(0, 12)),
)


@given(st.integers(1, 8), st.lists(EVENTS, max_size=80))
def test_in_any_order_of_events_the_lead_stays_within_the_usable_credit(bound: int, events: list) -> None:
    throttle = ActorThrottle(bound)
    taken, loaded, credits = 0, -1, []
    for kind, rows, version in events:
        if kind == "step" and throttle.may_act():
            throttle.step()
            taken += 1
        elif kind == "credit":
            throttle.credit(rows, version)
            credits.append((rows, version))
        elif kind == "loaded":
            throttle.loaded(version)
            loaded = max(loaded, version)
        usable = max((rows for rows, due in credits if due <= loaded), default=0)
        assert throttle.usable == usable
        assert throttle.may_act() == (loaded >= 0 and taken - usable < bound)
        assert taken <= bound + usable
