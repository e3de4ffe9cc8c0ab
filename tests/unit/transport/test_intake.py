"""The learner's front half: order, turns, credit, refusals, and an account that always adds up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from zmqrl.accounts import ActorStats
from zmqrl.codec import ExperienceLayout, Message, encode_experience
from zmqrl.config import TransportConfig
from zmqrl.errors import ConfigError
from zmqrl.messages import Experience, PolicyBroadcast, SetLearningRate, Shutdown
from zmqrl.session import (
    Command,
    CommandResult,
    Credit,
    Farewell,
    GetPolicy,
    Goodbye,
    Heartbeat,
    Hello,
    Refuse,
    Rejected,
    Resend,
    Terms,
    Welcome,
)
from zmqrl.spaces import BoxSpec, DiscreteSpec
from zmqrl.transport.admission import Sender
from zmqrl.transport.intake import Intake

OBSERVATIONS, ACTIONS = BoxSpec("float32", (2,), -math.inf, math.inf), DiscreteSpec(2)
T, N = 4, 2
ROWS = T * N
LAYOUT = ExperienceLayout(OBSERVATIONS, ACTIONS, N, T)
TERMS = Terms("r", 1, 2, N, 8, T, 16, "columns", 0, OBSERVATIONS, ACTIONS, {}, (), 1.0, 30.0, 300.0)


class Recorder(Intake):
    """Keeps what it would send."""

    def __init__(self, transport: TransportConfig) -> None:
        super().__init__(transport, "r", 1, "")
        self.sent: list[tuple[Sender, Message]] = []

    def deliver(self, sender: Sender, message: Message) -> None:
        self.sent.append((sender, message))

    def broadcast(self, message: PolicyBroadcast | Shutdown) -> None:
        self.sent.append(("all", message))

    def close(self) -> None:
        pass

    def heard_by(self, sender: Sender, kind: type) -> list[Any]:
        return [message for to, message in self.sent if to == sender and isinstance(message, kind)]


def hello(incarnation: int, **more: Any) -> Hello:
    return Hello(1, "0.1.0", "actor", incarnation, "host", incarnation, N, OBSERVATIONS, ACTIONS, **more)


def chunk(incarnation: int, seq: int, *, slot: int = 0, epoch: int = 1, **change: Any) -> list[Any]:
    experience = Experience(
        agent_id=slot,
        observations=np.zeros((T + 1, N, 2), np.float32),
        actions=np.zeros((T, N), np.int64),
        rewards=np.full((T, N), seq, np.float32),
        terminated=np.zeros((T, N), bool),
        truncated=np.zeros((T, N), bool),
        valid=np.ones((T, N), bool),
        log_probs=np.zeros((T, N), np.float32),
        versions=np.zeros(T, np.int64),
        final_index=np.zeros((0, 2), np.int32),
        final_observations=np.zeros((0, 2), np.float32),
        episode_index=np.zeros((0, 2), np.int32),
        episode_returns=np.zeros(0),
        episode_lengths=np.zeros(0, np.int64),
        seq=seq,
    )
    return encode_experience(replace(experience, **change), LAYOUT, epoch, incarnation)


def beat(incarnation: int, next_seq: int, *, slot: int = 0, epoch: int = 1, **more: Any) -> Heartbeat:
    return Heartbeat(epoch, slot, incarnation, next_seq, 0, 0, 0, 0.0, False, **more)


@pytest.fixture
def intake() -> Iterator[Recorder]:
    """Open, with one policy, and two actors 1 and 2 in slots 0 and 1 whose senders are "one" and "two"."""
    opened = Recorder(TransportConfig(reorder_chunks=4, hole_timeout=5.0, shutdown_timeout=0.05))
    opened.open(TERMS)
    opened.publish(PolicyBroadcast(0, b"weights"))
    opened.hear_hello(hello(1), "one", 0.0)
    opened.hear_hello(hello(2), "two", 0.0)
    yield opened
    for account in opened.accounts().values():
        disposed = account.consumed + account.queued + sum(account.refused.values()) + account.rolled_back
        assert account.received == disposed, account


def taken(intake: Recorder, slots: set[int] | None = None) -> list[tuple[int, int]]:
    found = []
    while (experience := intake.receive(slots, 0.0)) is not None:
        found.append((experience.agent_id, experience.seq))
    return found


def last_credit(intake: Recorder, sender: str) -> Credit:
    credit: Credit = intake.heard_by(sender, Credit)[-1]
    return credit


# --- joining ---------------------------------------------------------------------------------------------


def test_joining_is_answered_with_slot_seed_and_terms(intake: Recorder) -> None:
    first, second = intake.heard_by("one", Welcome)[0], intake.heard_by("two", Welcome)[0]
    assert (first.slot, second.slot) == (0, 1)
    assert first.seed != second.seed
    assert first.terms == TERMS
    policy = intake.heard_by("all", PolicyBroadcast)[0]
    assert (policy.version, policy.epoch, policy.parameters) == (0, 1, b"weights")


def test_one_too_many_and_one_that_does_not_fit_are_refused(intake: Recorder) -> None:
    intake.hear_hello(hello(3), "three", 0.0)
    intake.hear_hello(replace(hello(4), num_envs=5), "four", 0.0)
    intake.hear_hello(replace(hello(5), action_space=DiscreteSpec(9)), "five", 0.0)
    intake.hear_hello(Hello(7, "9", "actor", 6), "six", 0.0)
    codes = [intake.heard_by(sender, Refuse)[0].code for sender in ("three", "four", "five", "six")]
    assert codes == ["full", "num_envs", "spaces", "protocol"]


def test_a_hello_before_open_is_remembered_and_answered_at_open() -> None:
    intake = Recorder(TransportConfig())
    assert intake.wait_for_hello(0.0) is None
    intake.hear_hello(hello(1), "one", 0.0)
    intake.hear_hello(hello(2), "two", 0.0)
    first = intake.wait_for_hello(0.0)
    assert first is not None
    assert first.incarnation == 1
    assert intake.sent == []
    intake.open(TERMS)
    assert [(to, type(message)) for to, message in intake.sent] == [("one", Welcome), ("two", Welcome)]


def test_a_monitor_is_welcome_and_takes_no_slot(intake: Recorder) -> None:
    intake.hear_hello(Hello(1, "0.1.0", "monitor", 9), "monitor", 0.0)
    assert intake.heard_by("monitor", Welcome)[0].slot == -1
    assert len(intake.slots()) == 2


def test_get_policy_is_answered_only_with_something_newer(intake: Recorder) -> None:
    intake.hear_get_policy(GetPolicy(1, 0), "one")
    assert intake.heard_by("one", PolicyBroadcast) == []
    intake.hear_get_policy(GetPolicy(1, -1), "one")
    assert [policy.version for policy in intake.heard_by("one", PolicyBroadcast)] == [0]


# --- experience ------------------------------------------------------------------------------------------


def test_actors_take_turns_and_each_is_in_order(intake: Recorder) -> None:
    for seq in range(3):
        intake.hear_experience(chunk(1, seq), 0.0)
    for seq in range(2):
        intake.hear_experience(chunk(2, seq, slot=1), 0.0)
    assert taken(intake) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


def test_only_slots_asked_for_are_handed_out(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 0), 0.0)
    intake.hear_experience(chunk(2, 0, slot=1), 0.0)
    assert taken(intake, {1}) == [(1, 0)]
    assert taken(intake, set()) == []
    assert intake.accounts()[0].queued == ROWS
    assert taken(intake, {0, 1}) == [(0, 0)]


def test_chunks_out_of_order_wait_and_are_asked_for(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 1), 0.0)
    assert taken(intake) == []
    assert intake.accounts()[0].queued == ROWS
    assert intake.heard_by("one", Resend) == [Resend(1, 0, 1)]
    intake.hear_experience(chunk(1, 0), 0.1)
    assert taken(intake) == [(0, 0), (0, 1)]


def test_a_duplicate_counts_as_a_message_and_not_as_steps(intake: Recorder) -> None:
    for _ in range(3):
        intake.hear_experience(chunk(1, 0), 0.0)
    account = intake.accounts()[0]
    assert (account.received, account.duplicates) == (ROWS, 2)


def test_a_lost_tail_is_asked_for_when_two_heartbeats_announced_it(intake: Recorder) -> None:
    intake.hear_heartbeat(beat(1, 2), "one", 1.0)
    assert intake.heard_by("one", Resend) == []
    intake.hear_heartbeat(beat(1, 2), "one", 2.0)
    assert intake.heard_by("one", Resend) == [Resend(1, 0, 2)]


def test_a_hole_that_stays_is_a_cut_and_credited(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 2), 0.0)
    intake.tick(4.9)
    assert taken(intake) == []
    intake.tick(5.0)
    assert taken(intake) == [(0, 2)]
    assert intake.accounts()[0].cuts == 2
    assert last_credit(intake, "one").received_seq == 3
    intake.give_credit(1)
    assert last_credit(intake, "one").consumed_seq == 3
    assert last_credit(intake, "one").received_steps == ROWS


def test_a_hole_that_is_given_up_counts_as_credit_at_once_and_is_told_by_name(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 0), 0.0)
    intake.hear_experience(chunk(1, 3), 0.0)
    intake.tick(5.0)
    credit = last_credit(intake, "one")
    assert (credit.consumed_seq, credit.credited_chunks, credit.received_seq) == (0, 2, 4)
    assert [(told.reason, told.seq) for told in intake.heard_by("one", Rejected)] == [("cut", 1), ("cut", 2)]
    assert intake.slots()[0].cuts == 2
    assert (intake.slots()[0].accepted_chunks, intake.slots()[0].refused) == (2, {})


def test_a_tail_that_was_given_up_is_credited_without_another_chunk(intake: Recorder) -> None:
    intake.hear_heartbeat(beat(1, 2), "one", 1.0)
    intake.hear_heartbeat(beat(1, 2), "one", 2.0)
    intake.tick(7.0)
    assert (last_credit(intake, "one").consumed_seq, last_credit(intake, "one").received_seq) == (2, 2)
    assert intake.accounts()[0].cuts == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rewards": np.full((T, N), np.nan, np.float32)}, "nonfinite"),
        ({"actions": np.full((T, N), 7)}, "out_of_schema"),
        ({"versions": np.full(T, 1)}, "out_of_schema"),
    ],
)
def test_a_bad_chunk_is_refused_counted_told_and_passed(intake: Recorder, change: dict[str, Any], reason: str) -> None:
    intake.hear_experience(chunk(1, 0, **change), 0.0)
    intake.hear_experience(chunk(1, 1), 0.0)
    account, status = intake.accounts()[0], intake.slots()[0]
    assert account.refused == {reason: ROWS}
    assert status.refused == {reason: 1}
    assert account.received == 2 * ROWS
    told = intake.heard_by("one", Rejected)[0]
    assert (told.reason, told.seq) == (reason, 0)
    assert taken(intake) == [(0, 1)]


def test_a_refused_tail_is_credited_at_once(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 0, rewards=np.full((T, N), np.inf, np.float32)), 0.0)
    assert last_credit(intake, "one").consumed_seq == 1


NAN = np.full((T, N), np.nan, np.float32)


def test_a_refusal_counts_as_credit_at_once_under_the_version_credited_last(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 0), 0.0)
    intake.receive(None, 0.0)
    intake.give_credit(7)
    for seq in (1, 2):
        intake.hear_experience(chunk(1, seq), 0.0)
    intake.hear_experience(chunk(1, 3, rewards=NAN), 0.0)
    assert last_credit(intake, "one") == Credit(1, 1, 1, 2, 7, 4, 4 * ROWS)
    intake.hear_experience(chunk(1, 5, rewards=NAN), 0.0)  # behind a hole
    assert last_credit(intake, "one") == Credit(1, 1, 1, 3, 7, 4, 4 * ROWS)
    intake.receive(None, 0.0)
    intake.give_credit(8)
    assert last_credit(intake, "one") == Credit(1, 1, 2, 4, 8, 4, 4 * ROWS)


def test_who_was_refused_may_send_as_many_more_and_no_more(intake: Recorder) -> None:
    # max_lead_steps = 16 rows are 4 chunks
    for seq in range(8):
        intake.hear_experience(chunk(1, seq, **({"rewards": NAN} if seq in (1, 2) else {})), 0.0)
    assert [seq for _, seq in taken(intake)] == [0, 3, 4, 5]
    assert intake.accounts()[0].refused == {"nonfinite": 2 * ROWS, "beyond_credit": 2 * ROWS}


def test_an_announcement_is_believed_as_far_as_credit_goes(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 0, rewards=NAN), 0.0)
    intake.hear_experience(chunk(1, 1), 0.0)
    for now in (1.0, 2.0):
        intake.hear_heartbeat(beat(1, 2**40), "one", now)
    assert intake.heard_by("one", Resend) == [Resend(1, 2, 5)]


def test_a_torn_body_is_refused_under_the_sender_of_its_header(intake: Recorder) -> None:
    tag, header, body = chunk(1, 0)
    intake.hear_experience([tag, header, bytes(body)[:-1]], 0.0)
    assert intake.accounts()[0].refused == {"out_of_schema": ROWS}


def test_nobody_runs_beyond_its_credit(intake: Recorder) -> None:
    # max_lead_steps = 16 rows are 4 chunks
    for seq in range(5):
        intake.hear_experience(chunk(1, seq), 0.0)
    assert intake.accounts()[0].refused == {"beyond_credit": ROWS}
    assert [seq for _, seq in taken(intake)] == [0, 1, 2, 3]


def test_what_is_far_ahead_is_not_held(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 10**9), 0.0)
    account = intake.accounts()[0]
    assert (account.received, account.refused) == (0, {})
    assert intake.slots()[0].refused == {"early": 1}


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (chunk(1, 0, epoch=2), "stale_epoch"),
        (chunk(99, 0), "unknown_actor"),
        (chunk(1, 0, slot=1), "unknown_actor"),
        (chunk(1, 0, slot=4000), "unknown_actor"),
        ([b"EXPR"], "malformed"),
        ([b"EXPR", b"\xc1", b""], "malformed"),
        ([b"BEAT", b"\x90", b""], "malformed"),
    ],
)
def test_what_comes_from_nobody_is_counted_apart(intake: Recorder, frames: list[Any], reason: str) -> None:
    intake.hear_experience(frames, 0.0)
    assert intake.rejected() == {reason: 1}
    assert all(account.received == 0 for account in intake.accounts().values())


# --- credit ----------------------------------------------------------------------------------------------


def test_credit_covers_what_was_handed_out_and_names_the_version(intake: Recorder) -> None:
    for seq in range(3):
        intake.hear_experience(chunk(1, seq), 0.0)
    assert intake.receive({0}, 0.0) is not None
    assert intake.receive({0}, 0.0) is not None
    intake.hear_heartbeat(beat(1, 3), "one", 1.0)
    assert (last_credit(intake, "one").consumed_seq, last_credit(intake, "one").received_seq) == (0, 3)
    intake.mark_consumed()
    intake.give_credit(4)
    assert last_credit(intake, "one") == Credit(1, 1, 2, 2, 4, 3, 3 * ROWS)
    assert last_credit(intake, "two") == Credit(1, 2, 0, 0, 4, 0, 0)
    account = intake.accounts()[0]
    assert (account.consumed, account.queued) == (2 * ROWS, ROWS)


def test_credit_in_a_quota_comes_before_consumption(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 0), 0.0)
    intake.receive(None, 0.0)
    intake.give_credit(0)
    assert last_credit(intake, "one").consumed_seq == 1
    assert intake.accounts()[0].queued == ROWS
    intake.mark_consumed()
    assert intake.accounts()[0].consumed == ROWS


def test_each_heartbeat_repeats_the_credit(intake: Recorder) -> None:
    for now in range(3):
        intake.hear_heartbeat(beat(1, 0), "one", float(now))
    assert intake.heard_by("one", Credit) == [Credit(1, 1, 0, 0, -1, 0, 0)] * 3


def test_a_heartbeat_of_another_epoch_or_actor_is_told_so(intake: Recorder) -> None:
    intake.hear_heartbeat(beat(1, 0, epoch=5), "x", 0.0)
    intake.hear_heartbeat(beat(77, 0), "x", 0.0)
    assert [rejected.reason for rejected in intake.heard_by("x", Rejected)] == ["stale_epoch", "unknown_actor"]


# --- leaving and coming back -----------------------------------------------------------------------------


def test_a_goodbye_frees_the_slot_and_is_answered_however_often(intake: Recorder) -> None:
    stats = ActorStats(agent_id=0, steps_taken=5)
    for _ in range(2):
        intake.hear_goodbye(Goodbye(1, 0, 1, "done", stats), "one", 0.0)
    assert intake.heard_by("one", Farewell) == [Farewell(1), Farewell(1)]
    assert intake.actor_stats() == [stats]
    assert [status.alive for status in intake.slots()] == [False, True]
    intake.hear_experience(chunk(1, 0), 0.0)
    assert intake.rejected() == {"unknown_actor": 1}


def test_what_a_dead_actor_sent_stays_valid_and_its_leftovers_are_flushed_behind_a_cut(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 0), 0.0)
    intake.hear_experience(chunk(1, 2), 0.0)
    intake.hear_heartbeat(beat(2, 0, slot=1), "two", 31.0)
    intake.tick(31.0)
    assert [status.alive for status in intake.slots()] == [False, True]
    intake.hear_hello(hello(3), "three", 32.0)
    assert intake.heard_by("three", Welcome)[0].slot == 0
    intake.hear_experience(chunk(3, 0), 33.0)
    experiences = [intake.receive({0}, 0.0) for _ in range(3)]
    first, second, third = [(e.session, e.seq) for e in experiences if e]
    assert [first[1], second[1], third[1]] == [0, 2, 0]
    assert first[0] == second[0] != third[0]
    intake.mark_consumed()
    intake.give_credit(1)
    assert last_credit(intake, "three") == Credit(1, 3, 1, 1, 1, 1, ROWS)
    assert intake.accounts()[0].cuts == 1
    assert intake.accounts()[0].consumed == 3 * ROWS


def test_a_slot_queues_at_most_two_credits_however_many_actors_come_and_go(intake: Recorder) -> None:
    lead = TERMS.lead_chunks
    for incarnation in range(100, 120):
        intake.hear_goodbye(Goodbye(1, 0, incarnation - 1 if incarnation > 100 else 1, "", ActorStats()), "x", 0.0)
        intake.hear_hello(hello(incarnation), "x", 0.0)
        for seq in range(lead):
            intake.hear_experience(chunk(incarnation, seq), 0.0)
        assert intake.accounts()[0].queued <= 2 * lead * ROWS
    account = intake.accounts()[0]
    assert account.refused == {"superseded": 18 * lead * ROWS}
    assert intake.slots()[0].refused == {}
    assert [seq for _, seq in taken(intake)] == [*range(lead)] * 2
    intake.mark_consumed()
    assert intake.accounts()[0].consumed == 2 * lead * ROWS


def test_two_stays_of_one_incarnation_in_one_slot_are_two_sessions(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 0), 0.0)
    intake.hear_heartbeat(beat(2, 0, slot=1), "two", 31.0)
    intake.tick(31.0)
    intake.hear_hello(hello(3), "three", 31.0)
    intake.hear_goodbye(Goodbye(1, 0, 3, "", ActorStats()), "three", 31.0)
    intake.hear_hello(hello(1), "one", 32.0)
    assert [welcome.slot for welcome in intake.heard_by("one", Welcome)] == [0, 0]
    intake.hear_experience(chunk(1, 0), 32.0)
    intake.hear_experience(chunk(1, 1), 32.0)
    intake.hear_experience(chunk(2, 0, slot=1), 32.0)
    experiences = [intake.receive({slot}, 0.0) for slot in (0, 0, 0, 1)]
    sessions = [experience.session for experience in experiences if experience]
    assert sessions[1] == sessions[2]
    assert len(set(sessions)) == 3
    intake.open(replace(TERMS, epoch=2))
    intake.hear_hello(hello(1), "one", 33.0)
    intake.hear_experience(chunk(1, 0, epoch=2, versions=np.zeros(T, np.int64)), 33.0)
    assert intake.receive(None, 0.0) is None  # no policy of this epoch was published yet
    intake.publish(PolicyBroadcast(0, b"weights"))
    intake.hear_experience(chunk(1, 1, epoch=2), 33.0)
    later = intake.receive(None, 0.0)
    assert later is not None
    assert later.session not in sessions


def test_an_actor_has_its_slot_again_in_the_next_epoch(intake: Recorder) -> None:
    intake.open(replace(TERMS, epoch=2))
    intake.hear_hello(hello(2, held_slot=1), "two", 1.0)
    intake.hear_hello(hello(1, held_slot=0), "one", 1.0)
    assert [intake.heard_by(sender, Welcome)[-1].slot for sender in ("one", "two")] == [0, 1]


def test_a_silent_actor_that_comes_back_goes_on_where_it_was(intake: Recorder) -> None:
    intake.hear_experience(chunk(1, 0), 0.0)
    intake.tick(31.0)
    intake.hear_hello(hello(1), "one again", 40.0)
    assert intake.heard_by("one again", Welcome) == intake.heard_by("one", Welcome)
    intake.hear_experience(chunk(1, 0), 40.0)
    intake.hear_experience(chunk(1, 1), 40.0)
    account = intake.accounts()[0]
    assert (account.received, account.duplicates) == (2 * ROWS, 1)


def test_a_new_epoch_rolls_back_what_was_not_consumed(intake: Recorder) -> None:
    for seq in range(3):
        intake.hear_experience(chunk(1, seq), 0.0)
    intake.receive(None, 0.0)
    intake.mark_consumed()
    intake.receive(None, 0.0)
    intake.hear_experience(chunk(2, 1, slot=1), 0.0)
    intake.open(replace(TERMS, epoch=2))
    accounts = intake.accounts()
    assert (accounts[0].consumed, accounts[0].rolled_back, accounts[0].queued) == (ROWS, 2 * ROWS, 0)
    assert accounts[1].rolled_back == ROWS
    intake.hear_experience(chunk(1, 3), 0.0)
    assert intake.rejected() == {"stale_epoch": 1}
    assert intake.state().epoch == 2


# --- status, commands, the end ---------------------------------------------------------------------------


def test_the_status_says_how_long_a_step_has_lasted_up_to_now(intake: Recorder) -> None:
    intake.hear_heartbeat(replace(beat(1, 0), steps_taken=70, in_step_seconds=3.0, error="slow"), "one", 0.0)
    status = intake.slots()[0]
    assert (status.steps_taken, status.last_error, status.host, status.pid) == (70, "slow", "host", 1)
    assert status.in_step_seconds > 3.0
    assert intake.slots()[1].in_step_seconds == 0.0


def test_commands_are_numbered_anew_and_answered_under_the_admins_number(intake: Recorder) -> None:
    for sender in ("admin", "other"):
        intake.hear_command(Command(7, SetLearningRate(0.1)), sender)
    intake.hear_command(Command(7, SetLearningRate(0.1)), "admin")
    intake.post(Shutdown("signal"))
    first, second, third = intake.commands()
    assert len({first.request, second.request, third.request}) == 3
    assert third.message == Shutdown("signal")
    intake.answer(second.request, True, "set")
    intake.answer(third.request, True, "nobody to tell")
    assert intake.heard_by("other", CommandResult) == [CommandResult(7, True, "set")]
    assert intake.heard_by("admin", CommandResult) == []
    assert intake.commands() == []


def test_commands_do_not_pile_up(intake: Recorder) -> None:
    for request in range(100):
        intake.hear_command(Command(request, SetLearningRate(0.1)), "admin")
    assert len(intake.commands()) == 64
    assert len(intake.heard_by("admin", CommandResult)) == 36


def test_shutdown_tells_everyone_and_waits_no_longer_than_it_may(intake: Recorder) -> None:
    assert intake.state().state == "running"
    intake.shutdown("done")
    assert intake.heard_by("one", Shutdown) == intake.heard_by("two", Shutdown) == [Shutdown("done")]
    assert intake.heard_by("all", Shutdown) == [Shutdown("done")]
    assert intake.state().state == "finishing"
    intake.hear_hello(hello(9), "late", 0.0)
    assert intake.heard_by("late", Refuse) == [Refuse("finished", "the run is over: done")]
    intake.hear_heartbeat(beat(1, 0), "one", 1.0)
    assert len(intake.heard_by("one", Shutdown)) == 2


def test_shutdown_is_said_again_until_each_said_goodbye(intake: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqrl.transport.intake.SHUTDOWN_INTERVAL", 0.001)
    intake.transport = replace(intake.transport, shutdown_timeout=100.0)
    deliver = intake.deliver

    def answer(sender: Sender, message: Message) -> None:
        deliver(sender, message)
        slot = {"one": 0, "two": 1}.get(sender)
        if isinstance(message, Shutdown) and slot is not None and len(intake.heard_by(sender, Shutdown)) == 3:
            intake.hear_goodbye(Goodbye(1, slot, slot + 1, "", ActorStats()), sender, 1.0)

    monkeypatch.setattr(intake, "deliver", answer)
    intake.shutdown("done")
    assert len(intake.heard_by("one", Shutdown)) == len(intake.heard_by("two", Shutdown)) == 3
    assert len(intake.heard_by("all", Shutdown)) == 3


def test_those_who_waited_for_open_hear_that_the_run_is_over() -> None:
    intake = Recorder(TransportConfig())
    intake.hear_hello(hello(1), "one", 0.0)
    intake.shutdown("failed to start")
    assert intake.heard_by("one", Refuse)[0].code == "finished"


def test_chunk_steps_follow_from_the_shapes_or_are_checked() -> None:
    assert Recorder(TransportConfig()).chunk_steps(128, 8, OBSERVATIONS, ACTIONS) == 128
    images = BoxSpec("uint8", (84, 84, 4), 0.0, 255.0)
    assert Recorder(TransportConfig()).chunk_steps(128, 8, images, ACTIONS) == 2
    assert Recorder(TransportConfig(chunk_steps=32)).chunk_steps(128, 8, images, ACTIONS) == 32
    with pytest.raises(ConfigError, match=r"chunk_steps = 24: must divide num_steps \(128\)"):
        Recorder(TransportConfig(chunk_steps=24)).chunk_steps(128, 8, images, ACTIONS)
