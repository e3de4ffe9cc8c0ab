"""Runs in which chunks are refused or lost: they go on, everything is accounted for, and lockstep stays lockstep."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from running import FAST, run_training

from zmqrl.codec import decode_experience_header
from zmqrl.config import AsyncActorLearnerConfig, EnvConfig
from zmqrl.envs import VectorEnvironment, make_envs
from zmqrl.errors import StarvationError
from zmqrl.messages import Experience
from zmqrl.session import Hello
from zmqrl.transport.bus import ActorBus, LearnerBus

MakeBus = Callable[..., LearnerBus]

CHUNK = 4
SHORT_CHUNKS = replace(FAST, chunk_steps=CHUNK, hole_timeout=0.2)
WHOLE_ROLLOUTS = replace(FAST, hole_timeout=0.2)


def cartpole() -> VectorEnvironment:
    return make_envs(EnvConfig(env="CartPole-v1"), 1)


def lockstep(broadcast_every: int = 1, **more: Any) -> AsyncActorLearnerConfig:
    """Six rollouts of two actors, none of which may act for the next one."""
    return AsyncActorLearnerConfig(
        num_actors=2,
        num_envs=1,
        num_steps=16,
        total_env_steps=6 * 32,
        broadcast_every=broadcast_every,
        max_lead_steps=broadcast_every * 16,
        **{"starvation_timeout": 10.0, **more},
    )


def corrupt(bus: LearnerBus, is_bad: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each actor of this bus has NaN rewards in the chunks of these numbers."""
    connect = bus.connect

    def connecting(hello: Hello) -> ActorBus:
        actor = connect(hello)
        send, numbers = actor.send, itertools.count()

        def sending(experience: Experience) -> None:
            bad = is_bad(next(numbers))
            send(replace(experience, rewards=np.full_like(experience.rewards, np.nan)) if bad else experience)

        monkeypatch.setattr(actor, "send", sending)
        return actor

    monkeypatch.setattr(bus, "connect", connecting)


def lose(bus: Any, is_lost: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of these numbers never arrive at this bus, however often they are sent."""
    hear = bus.hear_experience

    def hearing(frames: Any, now: float) -> None:
        if not is_lost(decode_experience_header(frames).seq):
            hear(frames, now)

    monkeypatch.setattr(bus, "hear_experience", hearing)


def among(numbers: Collection[int]) -> Callable[[int], bool]:
    return lambda number: number in numbers


@pytest.mark.parametrize("kind", ["memory", "tcp"])
@pytest.mark.parametrize("bad", [{0}, {2}, {3}, {1, 2, 6, 7, 8}], ids=["first", "middle", "last", "several"])
def test_lockstep_with_short_chunks_goes_on_after_a_refusal(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch, kind: str, bad: set[int]
) -> None:
    bus = make_bus(kind, SHORT_CHUNKS)
    corrupt(bus, among(bad), monkeypatch)
    outcome = run_training(bus, lockstep(), cartpole)
    assert outcome.report.updates_completed == 6
    assert set(outcome.report.policy_lag) == {0}
    assert [account.refused for account in outcome.accounts.values()] == [{"nonfinite": CHUNK * len(bad)}] * 2


@pytest.mark.parametrize("lost", [{0}, {2}, {3}, {1, 2, 6}], ids=["first", "middle", "last", "several"])
def test_lockstep_with_short_chunks_goes_on_after_a_loss(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch, lost: set[int]
) -> None:
    bus = make_bus("tcp", SHORT_CHUNKS)
    lose(bus, among(lost), monkeypatch)
    outcome = run_training(bus, lockstep(), cartpole)
    assert outcome.report.updates_completed == 6
    assert set(outcome.report.policy_lag) == {0}
    assert [account.cuts for account in outcome.accounts.values()] == [len(lost)] * 2
    assert [stats.steps_lost["cut"] for stats in outcome.stats] == [CHUNK * len(lost)] * 2


@pytest.mark.parametrize("number", [0, 1])
def test_lockstep_over_two_rollouts_a_broadcast_goes_on_after_a_refusal_or_a_loss(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for spoil in (corrupt, lose):
        bus = make_bus("tcp", WHOLE_ROLLOUTS)
        spoil(bus, among({number}), monkeypatch)
        assert run_training(bus, lockstep(broadcast_every=2), cartpole).report.updates_completed == 6


@pytest.mark.parametrize("fill", ["columns", "quota"])
def test_staleness_stays_within_its_bound_while_every_third_chunk_is_refused(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch, fill: str
) -> None:
    bus = make_bus("memory", SHORT_CHUNKS)
    corrupt(bus, lambda number: number % 3 == 1, monkeypatch)
    config = AsyncActorLearnerConfig(
        num_actors=2, num_envs=1, num_steps=16, total_env_steps=12 * 32, fill=fill, starvation_timeout=10.0
    )
    report = run_training(bus, config, cartpole).report
    assert report.updates_completed == 12
    if fill == "columns":
        assert max(report.policy_lag) <= 2


@pytest.mark.parametrize("kind", ["memory", "tcp"])
def test_a_run_of_which_every_chunk_is_refused_ends_and_says_why(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    bus = make_bus(kind, SHORT_CHUNKS)
    corrupt(bus, lambda number: True, monkeypatch)
    with pytest.raises(StarvationError, match=r"slot 0 \(.*\) sends what is refused: nonfinite \(\d+\); slot 1"):
        run_training(bus, lockstep(starvation_timeout=1.0), cartpole)


def test_a_run_to_which_no_experience_gets_through_ends_and_names_the_port(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus: Any = make_bus("tcp", SHORT_CHUNKS)
    lose(bus, lambda number: True, monkeypatch)
    port = bus.experience_port
    with pytest.raises(
        StarvationError, match=rf"its experience does not arrive: can it reach the experience port {port}"
    ):
        run_training(bus, lockstep(starvation_timeout=1.0), cartpole)
