"""The actor's front half: newest-only policies, credit that never goes back, and what became of each env step."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from zmqrl.accounts import ActorStats
from zmqrl.codec import ExperienceLayout, decode_experience
from zmqrl.errors import NoLearner, Refused
from zmqrl.messages import Experience, PolicyBroadcast, Shutdown
from zmqrl.session import Credit, Hello, Refuse, Rejected, Terms, Welcome
from zmqrl.spaces import BoxSpec, DiscreteSpec
from zmqrl.transport.inbox import Inbox
from zmqrl.transport.sequence import SentChunk

OBSERVATIONS, ACTIONS = BoxSpec("float32", (2,), -math.inf, math.inf), DiscreteSpec(2)
T, N = 4, 2
ROWS = T * N
LAYOUT = ExperienceLayout(OBSERVATIONS, ACTIONS, N, T)
TERMS = Terms("r", 1, 2, N, 8, T, 16, "columns", 0, OBSERVATIONS, ACTIONS, {}, (), 1.0, 30.0, 300.0)
WELCOME = Welcome(3, 99, 0, 0, TERMS)


class Still(Inbox):
    """Keeps what it would send."""

    def __init__(self) -> None:
        super().__init__(Hello(1, "0.1.0", "actor", 42))
        self.sent: list[SentChunk] = []

    def _transmit(self, chunk: SentChunk, session: int) -> None:
        self.sent.append(chunk)

    def _leave(self) -> None:
        pass

    def goodbye(self, stats: ActorStats, reason: str = "") -> None:
        pass

    def close(self) -> None:
        pass


def chunk(valid: int = ROWS) -> Experience:
    return Experience(
        agent_id=-1,
        observations=np.zeros((T + 1, N, 2), np.float32),
        actions=np.zeros((T, N), np.int64),
        rewards=np.zeros((T, N), np.float32),
        terminated=np.zeros((T, N), bool),
        truncated=np.zeros((T, N), bool),
        valid=(np.arange(ROWS) < valid).reshape(T, N),
        log_probs=np.zeros((T, N), np.float32),
        versions=np.zeros(T, np.int64),
        final_index=np.zeros((0, 2), np.int32),
        final_observations=np.zeros((0, 2), np.float32),
        episode_index=np.zeros((0, 2), np.int32),
        episode_returns=np.zeros(0),
        episode_lengths=np.zeros(0, np.int64),
    )


@pytest.fixture
def inbox() -> Still:
    """Joined in slot 3."""
    still = Still()
    assert still.hear_welcome(WELCOME)
    return still


def credit(consumed: int, received: int, steps: int, version: int = 0, epoch: int = 1, lost: int = 0) -> Credit:
    """`lost` chunks stand behind the consumed ones."""
    return Credit(epoch, 42, consumed, consumed + lost, version, received, steps)


def test_before_the_welcome_there_is_nothing_to_read() -> None:
    with pytest.raises(NoLearner):
        _ = Still().welcome


def test_chunks_leave_under_the_names_of_the_session(inbox: Still) -> None:
    inbox.send(chunk())
    inbox.send(chunk(valid=5))
    header, experience = decode_experience(inbox.sent[1].frames, LAYOUT)
    assert (header.epoch, header.slot, header.incarnation, header.seq, header.env_steps) == (1, 3, 42, 1, 5)
    assert experience.agent_id == 3


def test_only_the_newest_policy_of_this_epoch_is_taken(inbox: Still) -> None:
    for version, epoch in ((1, 1), (3, 1), (2, 1), (9, 2), (8, 0)):
        inbox.hear_policy(PolicyBroadcast(version, b"", epoch))
    policy = inbox.take_policy()
    assert policy is not None
    assert policy.version == 3
    assert inbox.take_policy() is None


def test_credit_never_goes_back_and_frees_what_was_kept(inbox: Still) -> None:
    for _ in range(3):
        inbox.send(chunk())
    inbox.hear_credit(credit(2, 3, 3 * ROWS, version=4))
    for old in (credit(1, 2, 2 * ROWS, version=3), credit(9, 9, 9, epoch=2), replace(credit(3, 3, 0), incarnation=1)):
        inbox.hear_credit(old)
    assert inbox.credit == credit(2, 3, 3 * ROWS, version=4)
    assert inbox._window.first_kept == 2


def test_credit_grows_by_a_loss_behind_a_chunk_that_still_waits(inbox: Still) -> None:
    inbox.send(chunk())
    inbox.send(chunk())
    inbox.hear_credit(credit(0, 1, ROWS))
    inbox.hear_credit(credit(0, 1, ROWS, lost=1))
    assert (inbox.credit.consumed_seq, inbox.credit.credited_chunks) == (0, 1)
    inbox.hear_credit(credit(0, 1, ROWS))
    assert inbox.credit.credited_chunks == 1


def test_what_is_kept_does_not_grow_while_chunk_after_chunk_is_refused(inbox: Still) -> None:
    inbox.send(chunk())
    for seq in range(1, 100):
        inbox.send(chunk())
        inbox.hear_rejected(Rejected("nonfinite" if seq % 2 else "cut", "...", seq))
        inbox.hear_credit(credit(0, seq + 1, (seq + 1) * ROWS, lost=seq))
    assert [bool(sent.frames) for sent in inbox.sent] == [True] + [False] * 99
    assert inbox.settle(0.0).steps_received == 100 * ROWS


def test_what_came_too_early_and_what_is_no_chunk_is_kept(inbox: Still) -> None:
    inbox.send(chunk())
    inbox.hear_rejected(Rejected("early", "too far ahead", 0))
    inbox.hear_rejected(Rejected("malformed", "not a heartbeat"))
    assert inbox.sent[0].frames


def test_the_settlement_tells_received_cut_and_unacknowledged_apart(inbox: Still) -> None:
    for valid in (8, 7, 6, 5):
        inbox.send(chunk(valid))
    inbox.hear_credit(credit(1, 3, 8 + 6))  # chunk 1 was given up, chunk 3 not heard of
    settlement = inbox.settle(0.0)
    assert settlement.steps_received == 14
    assert settlement.steps_lost == {"cut": 7, "unacknowledged": 5}
    assert settlement.chunks_sent == 4


def test_settling_ends_with_the_last_acknowledgement(inbox: Still) -> None:
    inbox.send(chunk())
    inbox.hear_credit(credit(0, 1, ROWS))
    assert inbox.settle(100.0).steps_lost == {}


def test_a_welcome_to_the_same_stay_changes_nothing(inbox: Still) -> None:
    inbox.send(chunk())
    assert not inbox.hear_welcome(WELCOME)
    assert inbox.session == 1
    inbox.send(chunk())
    assert [sent.seq for sent in inbox.sent] == [0, 1]


@pytest.mark.parametrize(
    "welcome",
    [
        replace(WELCOME, terms=replace(TERMS, epoch=2)),
        replace(WELCOME, terms=replace(TERMS, run_id="another")),
        replace(WELCOME, slot=4),
        replace(WELCOME, seed=100),
    ],
)
def test_a_new_session_counts_from_zero_once_it_was_read(inbox: Still, welcome: Welcome) -> None:
    assert inbox.session == 1
    inbox.send(chunk(8))
    inbox.send(chunk(7))
    inbox.hear_credit(credit(1, 1, 8))
    inbox.hear_policy(PolicyBroadcast(5, b"", 1))
    inbox.take_policy()
    assert inbox.hear_welcome(welcome)
    epoch = welcome.terms.epoch
    inbox.hear_policy(PolicyBroadcast(0, b"", epoch))
    inbox.send(chunk(6))  # begun before the loop knew
    assert len(inbox.sent) == 2
    assert inbox.take_policy() is None
    assert inbox.session == 2
    assert inbox.take_policy() is not None
    assert inbox.credit == credit(0, 0, 0, version=-1, epoch=epoch)
    inbox.send(chunk(5))
    assert inbox.sent[-1].seq == 0
    inbox.hear_credit(credit(0, 1, 5, epoch=epoch))
    settlement = inbox.settle(0.0)
    assert settlement.steps_received == 8 + 5
    assert settlement.steps_lost == {"stale_epoch": 7 + 6}
    assert settlement.chunks_sent == 3


def test_shutdown_stays_and_the_first_reason_counts(inbox: Still) -> None:
    assert inbox.shutdown is None
    inbox.hear_shutdown(Shutdown("first"))
    inbox.hear_shutdown(Shutdown("second"))
    assert inbox.shutdown == Shutdown("first")


def test_waiting_returns_for_news_that_came_before_it(inbox: Still) -> None:
    inbox.hear_policy(PolicyBroadcast(1, b"", 1))
    inbox.wait(100.0)


def test_after_a_failure_the_loop_gets_it_and_settling_does_not_wait(inbox: Still) -> None:
    inbox.send(chunk())
    inbox.fail(NoLearner("gone"))
    inbox.fail(NoLearner("a later one"))
    with pytest.raises(NoLearner, match="gone"):
        inbox.send(chunk())
    with pytest.raises(NoLearner, match="gone"):
        inbox.wait(100.0)
    assert inbox.settle(100.0).steps_lost == {"unacknowledged": ROWS}


@pytest.mark.parametrize("error", [NoLearner("gone"), Refused("full", "no slot")])
@pytest.mark.parametrize("shutdown_first", [True, False])
def test_after_shutdown_nothing_is_an_error(inbox: Still, error: NoLearner, shutdown_first: bool) -> None:
    if shutdown_first:
        inbox.hear_shutdown(Shutdown("done"))
    inbox.fail(error)
    inbox.hear_shutdown(Shutdown("done"))
    inbox.wait(100.0)
    inbox.send(chunk())
    assert inbox.sent == []
    assert inbox.settle(100.0).steps_lost == {"unacknowledged": ROWS}


def test_a_run_that_ended_meanwhile_is_a_shutdown_and_nobody_waits_for_its_learner(inbox: Still) -> None:
    inbox.send(chunk())
    inbox.hear_refuse(Refuse("finished", "the run is over: done"))
    assert inbox.shutdown == Shutdown("the run is over: done")
    inbox.wait(100.0)
    inbox.send(chunk())
    assert inbox.settle(100.0).steps_lost == {"unacknowledged": 2 * ROWS}


def test_another_refusal_of_one_that_was_in_is_its_error(inbox: Still) -> None:
    inbox.hear_refuse(Refuse("full", "all slots are taken"))
    assert inbox.shutdown is None
    with pytest.raises(Refused, match="all slots are taken"):
        inbox.wait(100.0)


@pytest.mark.parametrize("code", ["full", "finished"])
def test_a_refusal_of_the_first_hello_is_the_answer_to_joining(code: str) -> None:
    still = Still()
    still.hear_refuse(Refuse(code, "no"))
    with pytest.raises(Refused) as refused:
        still.wait_for_answer(100.0)
    assert refused.value.code == code
    assert still.shutdown is None


def test_a_hello_said_again_names_the_slot_held(inbox: Still) -> None:
    assert Still()._hello_now().held_slot == -1
    assert inbox._hello_now().held_slot == 3
