"""When waiting is an error, walked through without a clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zmqrl.accounts import SlotStatus
from zmqrl.errors import StarvationError
from zmqrl.starvation import StarvationWatch

QUIET = SlotStatus(
    agent_id=0,
    alive=True,
    host="north",
    pid=11,
    silent_seconds=0.5,
    steps_taken=0,
    in_step_seconds=0.0,
    waiting_for_credit=False,
    accepted_chunks=0,
    refused={},
    cuts=0,
    experience_port=5556,
    last_error="",
)


def watch(wait_for_actors: float = 0.0) -> StarvationWatch:
    return StarvationWatch(60.0, 600.0, wait_for_actors, now=0.0)


def test_nobody_joined_is_no_error_without_a_limit() -> None:
    watch().check([], frozenset({0}), now=1e6)


def test_nobody_joined_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    watcher = watch()
    for now in range(150):
        watcher.check([], frozenset({0}), now=float(now))
    assert [record.message for record in caplog.records] == [
        "no actor has joined for 60 s; waiting",
        "no actor has joined for 120 s; waiting",
    ]


def test_nobody_joined_within_the_limit() -> None:
    watcher = watch(wait_for_actors=5.0)
    watcher.check([], frozenset({0}), now=5.0)
    with pytest.raises(StarvationError, match="no actor joined within 5 s"):
        watcher.check([], frozenset({0}), now=5.1)


def test_the_time_starts_with_the_first_join() -> None:
    watcher = watch()
    watcher.check([QUIET], frozenset({0}), now=1000.0)
    watcher.check([QUIET], frozenset({0}), now=1060.0)
    with pytest.raises(StarvationError):
        watcher.check([QUIET], frozenset({0}), now=1060.1)


@pytest.mark.parametrize("progress", [{"steps_taken": 1}, {"accepted_chunks": 1}])
def test_a_step_or_a_chunk_is_progress(progress: dict[str, int]) -> None:
    watcher = watch()
    watcher.check([QUIET], None, now=0.0)
    watcher.check([replace(QUIET, **progress)], None, now=50.0)
    watcher.check([replace(QUIET, **progress)], None, now=110.0)
    with pytest.raises(StarvationError):
        watcher.check([replace(QUIET, **progress)], None, now=110.1)


def test_slow_is_not_dead_until_env_step_timeout() -> None:
    watcher = watch()
    watcher.check([QUIET], None, now=0.0)
    for now in range(1, 600, 10):
        watcher.check([replace(QUIET, in_step_seconds=float(now))], None, now=float(now))
    with pytest.raises(StarvationError, match=r"inside one env\.step for 700 s"):
        watcher.check([replace(QUIET, in_step_seconds=700.0)], None, now=700.0)


def test_a_dead_actor_inside_a_step_is_dead() -> None:
    watcher = watch()
    dead = replace(QUIET, alive=False, in_step_seconds=30.0, silent_seconds=61.0)
    watcher.check([dead], None, now=0.0)
    with pytest.raises(StarvationError, match="is gone, silent for 61 s"):
        watcher.check([dead], None, now=61.0)


def test_progress_of_a_slot_that_is_not_needed_does_not_count() -> None:
    watcher = watch()
    other = replace(QUIET, agent_id=1, host="south")
    watcher.check([QUIET, other], frozenset({0}), now=0.0)
    with pytest.raises(StarvationError, match=r"slot 0 \(host north, pid 11\)") as caught:
        watcher.check([QUIET, replace(other, steps_taken=500)], frozenset({0}), now=61.0)
    assert "slot 1" not in str(caught.value)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"refused": {"nonfinite": 20}}, r"sends what is refused: nonfinite \(20\)"),
        ({"waiting_for_credit": True}, "waits for credit"),
        ({"waiting_for_credit": True, "steps_taken": 5, "accepted_chunks": 1}, "waits for credit"),
        (
            {"waiting_for_credit": True, "steps_taken": 5},
            r"took 5 steps, but its experience does not arrive: can it reach the experience port 5556\?",
        ),
        ({"cuts": 3, "steps_taken": 5, "experience_port": 0}, r"does not arrive: can it reach the experience port\?"),
        ({"last_error": "ValueError: broken arm"}, "reported: ValueError: broken arm"),
        ({}, "alive but takes no steps"),
    ],
)
def test_each_reason_is_named(state: dict[str, object], text: str) -> None:
    watcher = watch()
    watcher.check([replace(QUIET, **state)], None, now=0.0)
    with pytest.raises(StarvationError, match=text):
        watcher.check([replace(QUIET, **state)], None, now=61.0)


@pytest.mark.parametrize("loss", ["refused", "cuts"])
@pytest.mark.parametrize("doing", ["steps", "slow steps"])
def test_steps_whose_experience_is_lost_are_no_progress(loss: str, doing: str) -> None:
    watcher = watch()
    slot = replace(QUIET, accepted_chunks=1)
    watcher.check([slot], None, now=0.0)
    for now in range(1, 63):
        lost = {"refused": {"nonfinite": now}} if loss == "refused" else {"cuts": now}
        steps = {"steps_taken": now} if doing == "steps" else {"in_step_seconds": 0.5}
        watcher.check([replace(slot, **lost, **steps)], None, now=float(now))
    with pytest.raises(StarvationError, match=r"refused: nonfinite \(63\)" if loss == "refused" else "not arrive"):
        lost = {"refused": {"nonfinite": 63}} if loss == "refused" else {"cuts": 63}
        watcher.check([replace(slot, steps_taken=63, **lost)], None, now=63.0)


@pytest.mark.parametrize("lost", [{"refused": {"nonfinite": 2}}, {"cuts": 2}], ids=["refused", "cut"])
def test_one_or_two_losses_of_a_slow_actor_are_an_accident(lost: dict[str, object]) -> None:
    """Its next chunk may take far longer than the time after which silence is an error."""
    watcher = watch()
    for now in range(0, 1000, 50):
        watcher.check([replace(QUIET, steps_taken=now, **lost)], None, now=float(now))


def test_after_an_accepted_chunk_steps_are_progress_again_and_old_refusals_are_no_reason() -> None:
    watcher = watch()
    refused = replace(QUIET, refused={"nonfinite": 1})
    watcher.check([refused], None, now=0.0)
    recovered = replace(refused, accepted_chunks=1)
    watcher.check([recovered], None, now=50.0)
    watcher.check([replace(recovered, steps_taken=1)], None, now=100.0)
    watcher.check([replace(recovered, steps_taken=2)], None, now=150.0)
    with pytest.raises(StarvationError, match="alive but takes no steps"):
        watcher.check([replace(recovered, steps_taken=2)], None, now=211.0)


def test_a_slot_that_was_never_taken_is_named() -> None:
    watcher = watch()
    watcher.check([QUIET], frozenset({0, 1}), now=0.0)
    with pytest.raises(StarvationError, match="slot 1 was never taken"):
        watcher.check([QUIET], frozenset({0, 1}), now=61.0)


def test_a_new_rollout_starts_the_time_anew() -> None:
    watcher = watch()
    watcher.check([QUIET], None, now=0.0)
    watcher.restart(now=59.0)
    watcher.check([QUIET], None, now=119.0)
