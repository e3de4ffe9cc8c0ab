"""Selective repeat, without a socket and in no time."""

from __future__ import annotations

import random

import pytest

from zmqrl.transport.sequence import ReceiveWindow, SendWindow

HOUR = 3600.0


def window(reorder: int = 4, timeout: float = 5.0) -> ReceiveWindow[int]:
    return ReceiveWindow(reorder, timeout)


def test_in_order_chunks_pass_at_once() -> None:
    receive = window()
    for seq in range(10):
        assert receive.judge(seq) == "fresh"
        assert receive.put(seq, seq, now=0.0) == [seq]
    assert receive.complete
    assert receive.next_seq == 10


def test_interleaved_queues_of_two_connections_are_put_in_order() -> None:
    receive = window(reorder=16)
    ready = [item for seq in (0, 10, 1, 11, 2, 3, 4, 5, 6, 7, 8, 9) for item in receive.put(seq, seq, now=0.0)]
    assert ready == list(range(12))


def test_duplicates_are_known_whether_delivered_or_held() -> None:
    receive = window()
    receive.put(0, 0, 0.0)
    receive.put(2, 2, 0.0)
    assert receive.judge(0) == "duplicate"
    assert receive.judge(2) == "duplicate"
    assert receive.judge(1) == "fresh"


def test_what_lies_too_far_ahead_is_not_held() -> None:
    receive = window(reorder=4)
    assert receive.judge(4) == "fresh"
    assert receive.judge(5) == "early"
    with pytest.raises(ValueError, match="early"):
        receive.put(5, 5, 0.0)
    assert receive.held == []


def test_missing_ranges_are_within_what_can_be_held() -> None:
    receive = window(reorder=4)
    receive.put(2, 2, 0.0)
    assert receive.missing() == [(0, 2)]
    receive.announce(100, 0.0)
    assert receive.missing() == [(0, 2), (3, 5)]


def test_a_hole_is_asked_for_at_once_and_then_at_intervals() -> None:
    receive = window()
    receive.put(1, 1, now=10.0)
    assert receive.ask(10.0, interval=0.5) == [(0, 1)]
    assert receive.ask(10.4, interval=0.5) == []
    assert receive.ask(10.5, interval=0.5) == [(0, 1)]
    assert receive.put(0, 0, now=10.6) == [0, 1]
    assert receive.ask(20.0, interval=0.5) == []


def test_a_lost_tail_is_found_by_the_announcement() -> None:
    receive = window()
    receive.put(0, 0, now=0.0)
    assert receive.complete
    receive.announce(3, now=1.0)
    assert not receive.complete
    assert receive.ask(1.0, interval=0.5) == [(1, 3)]


def test_a_hole_that_stays_is_given_up_and_what_waited_behind_it_passes() -> None:
    receive = window(timeout=5.0)
    receive.put(2, 2, now=100.0)
    receive.put(3, 3, now=101.0)
    assert receive.give_up(104.9) == (0, [])
    assert receive.give_up(105.0) == (2, [2, 3])
    assert receive.next_seq == 4
    assert receive.complete
    assert receive.judge(0) == "duplicate"


def test_a_lost_tail_is_given_up_too() -> None:
    receive = window(timeout=5.0)
    receive.announce(3, now=0.0)
    assert receive.give_up(5.0) == (3, [])
    assert receive.next_seq == 3
    assert receive.put(3, 3, 6.0) == [3]


def test_progress_gives_the_next_hole_its_own_time() -> None:
    receive = window(timeout=5.0)
    receive.put(1, 1, now=0.0)
    receive.put(3, 3, now=0.0)
    assert receive.put(0, 0, now=4.0) == [0, 1]
    assert receive.give_up(8.9) == (0, [])
    assert receive.give_up(9.0) == (1, [3])


def test_several_holes_are_given_up_one_after_the_other() -> None:
    receive = window(timeout=5.0)
    receive.put(1, 1, now=0.0)
    receive.put(3, 3, now=0.0)
    assert receive.give_up(5.0) == (1, [1])
    assert receive.give_up(5.0) == (0, [])
    assert receive.give_up(10.0) == (1, [3])


def test_flush_gives_what_is_held_and_counts_what_is_not() -> None:
    receive = window()
    receive.put(1, 1, 0.0)
    receive.put(4, 4, 0.0)
    assert receive.flush() == (3, [1, 4])
    assert receive.flush() == (0, [])
    assert receive.next_seq == 5


@pytest.mark.parametrize("seed", range(20))
def test_an_hour_on_a_lossy_link_loses_nothing_that_is_sent_again(seed: int) -> None:
    """One chunk a second; a third is lost, some come late or twice; the sender answers each request."""
    dice = random.Random(seed)
    send, receive = SendWindow(), window(reorder=8, timeout=60.0)
    wire: list[tuple[float, int]] = []
    arrived: list[int] = []
    now = 0.0
    while now < HOUR / 10 or receive.next_seq < send.next_seq:
        now += 1.0
        if now < HOUR / 10:
            wire.append((now + dice.random() * 3, send.add([b"x"], 1).seq))
        receive.announce(send.next_seq, now)
        for first, last in receive.ask(now, 1.0):
            wire += [(now + dice.random() * 3, chunk.seq) for chunk in send.between(first, last)]
        for due, seq in sorted(wire):
            if due > now:
                continue
            wire.remove((due, seq))
            if dice.random() < 0.3 or receive.judge(seq) != "fresh":
                continue
            arrived += receive.put(seq, seq, now)
        assert receive.give_up(now)[0] == 0
        send.release(receive.next_seq)
        assert len(receive.held) <= 8
    assert arrived == list(range(send.next_seq))
    assert send.first_kept == send.next_seq


def test_the_send_window_keeps_until_released_and_knows_its_steps() -> None:
    send = SendWindow()
    for steps in (10, 20, 30):
        send.add([b"x"], steps)
    assert (send.next_seq, send.first_kept, send.env_steps) == (3, 0, 60)
    send.release(1)
    assert send.first_kept == 1
    assert [chunk.seq for chunk in send.between(0, 99)] == [1, 2]
    assert [send.steps_before(seq) for seq in (1, 2, 3)] == [10, 30, 60]
    send.release(3)
    assert (send.first_kept, send.env_steps) == (3, 60)
    assert list(send.between(0, 3)) == []


def test_a_dropped_chunk_is_not_sent_again_and_its_steps_stay_on_the_account() -> None:
    send = SendWindow()
    chunks = [send.add([b"x"], steps) for steps in (10, 20, 30)]
    send.drop(1)
    send.drop(7)
    assert [chunk.seq for chunk in send.between(0, 3)] == [0, 2]
    assert [bool(chunk.frames) for chunk in chunks] == [True, False, True]
    assert [send.steps_before(seq) for seq in (1, 2, 3)] == [10, 30, 60]
    send.release(2)
    send.drop(1)
    assert (send.first_kept, send.env_steps, [chunk.seq for chunk in send.between(0, 3)]) == (2, 60, [2])
