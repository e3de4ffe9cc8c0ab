"""The two loops together, in threads, over every bus: wiring, accounting, lockstep, staleness."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import BUSES, run_training

from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PPOConfig
from zmqrl.envs import VectorEnvironment, make_envs, wrap_envs
from zmqrl.envs.probes import vector_probe
from zmqrl.messages import SetLearningRate, Shutdown
from zmqrl.ppo import PPOTrainer
from zmqrl.progress import UpdateRecord
from zmqrl.transport.bus import LearnerBus

MakeBus = Callable[..., LearnerBus]


def cartpole(num_envs: int) -> Callable[[], VectorEnvironment]:
    return lambda: make_envs(EnvConfig(env="CartPole-v1"), num_envs)


@pytest.mark.parametrize("kind", BUSES)
def test_wiring_figures_of_the_origin(make_bus: MakeBus, kind: str) -> None:
    config = AsyncActorLearnerConfig(num_actors=2, num_envs=1, num_steps=32, total_env_steps=128)
    outcome = run_training(make_bus(kind), config, cartpole(1))
    report = outcome.report
    assert (report.updates_completed, report.env_steps_consumed) == (2, 128)
    assert (report.broadcasts_sent, report.last_policy_version) == (2, 2)
    for stats in outcome.stats:
        assert stats.policies_loaded >= 1
        assert stats.steps_received >= 64


@pytest.mark.parametrize("num_actors", [1, 3])
def test_lockstep_is_reproducible_bit_for_bit(make_bus: MakeBus, num_actors: int) -> None:
    config = AsyncActorLearnerConfig(
        num_actors=num_actors, num_envs=2, num_steps=16, max_lead_steps=16, total_env_steps=num_actors * 32 * 8, seed=7
    )
    ppo = PPOConfig(batch_size=32, n_epochs=3)
    first, second = (run_training(make_bus(kind), config, cartpole(2), ppo=ppo) for kind in ("tcp", "memory"))
    assert first.trainer.parameters_sha256() == second.trainer.parameters_sha256()
    assert [record.training for record in first.records] == [record.training for record in second.records]
    for record in first.records:
        assert record.training.ratio_error <= 1e-5
        assert record.lag_max == 0


def test_another_seed_gives_other_parameters(make_bus: MakeBus) -> None:
    def sha256(seed: int) -> str:
        config = AsyncActorLearnerConfig(
            num_actors=1, num_envs=2, num_steps=16, max_lead_steps=16, total_env_steps=64, seed=seed
        )
        return run_training(make_bus("memory"), config, cartpole(2)).trainer.parameters_sha256()

    assert sha256(1) != sha256(2)


@pytest.mark.parametrize("fill", ["columns", "quota"])
@pytest.mark.parametrize("broadcast_every", [1, 3])
def test_staleness_stays_within_its_bound(make_bus: MakeBus, fill: str, broadcast_every: int) -> None:
    config = AsyncActorLearnerConfig(
        num_actors=2, num_envs=2, num_steps=16, total_env_steps=64 * 12, broadcast_every=broadcast_every, fill=fill
    )
    report = run_training(make_bus("tcp"), config, cartpole(2)).report
    assert report.updates_completed == 12
    assert report.broadcasts_sent == 12 // broadcast_every
    assert sum(report.policy_lag.values()) == report.env_steps_consumed
    if fill == "columns":  # an actor is at most two broadcast periods ahead of what became of its steps
        assert max(report.policy_lag) <= 2


@pytest.mark.parametrize("fill", ["columns", "quota"])
@pytest.mark.parametrize("kind", ["memory", "tcp"])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_the_environments_own_count_equals_the_account(
    make_bus: MakeBus, tmp_path: Path, mode: str, kind: str, fill: str
) -> None:
    made = iter(range(100))

    def environments() -> VectorEnvironment:
        log = tmp_path / f"{next(made)}.jsonl"
        return wrap_envs(vector_probe("Count-v0", 3, mode, length=3, path=str(log)))

    config = AsyncActorLearnerConfig(num_actors=2, num_envs=3, num_steps=16, total_env_steps=16 * 6 * 4, fill=fill)
    outcome = run_training(make_bus(kind), config, environments)

    steps: Counter[tuple[str, int]] = Counter()
    for log in tmp_path.glob("*.jsonl"):
        for line in map(json.loads, log.read_text().splitlines()):
            steps[log.name, line["number"]] += line["kind"] == "step"
    assert sum(steps.values()) == sum(stats.steps_taken for stats in outcome.stats)
    assert sum(count // 3 for count in steps.values()) == sum(stats.episodes for stats in outcome.stats)
    for record in outcome.records:
        assert set(record.episode_returns.tolist()) <= {3.0}
        assert set(record.episode_lengths.tolist()) <= {3}
    assert outcome.report.episodes_completed > 0
    artefacts = mode == "next_step"
    assert (outcome.report.env_steps_consumed < 16 * 6 * 4) == artefacts


def test_on_update_can_end_the_run(make_bus: MakeBus) -> None:
    def stop(record: UpdateRecord) -> str | None:
        return "enough" if record.update == 3 else None

    config = AsyncActorLearnerConfig(num_actors=1, num_envs=2, num_steps=8, total_env_steps=10_000)
    report = run_training(make_bus("memory"), config, cartpole(2), on_update=stop).report
    assert report.updates_completed == 3
    assert report.stopped_because == "enough"


class SlowToStart:
    """An environment whose reset takes longer than the run would wait for a step that never ends."""

    def __init__(self, seconds: float) -> None:
        self._envs = cartpole(1)()
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)

    def __enter__(self) -> SlowToStart:
        return self

    def __exit__(self, *_: object) -> None:
        self._envs.close()

    def reset(self, seed: int) -> Any:
        threading.Event().wait(self._seconds)
        return self._envs.reset(seed)


def test_a_slow_reset_is_not_starvation(make_bus: MakeBus) -> None:
    config = AsyncActorLearnerConfig(num_actors=1, num_envs=1, num_steps=8, total_env_steps=8, starvation_timeout=0.6)
    assert run_training(make_bus("tcp"), config, lambda: SlowToStart(2.5)).report.updates_completed == 1


def test_a_run_that_goes_on_within_a_broadcast_period_is_still_lockstep(make_bus: MakeBus) -> None:
    """It publishes its policy when it begins, so the period begins there too."""
    config = AsyncActorLearnerConfig(
        num_actors=1, num_envs=1, num_steps=8, max_lead_steps=16, broadcast_every=2, total_env_steps=8 * 5
    )
    assert config.lockstep

    def begun(trainer: PPOTrainer) -> None:
        trainer.counters.updates = 1

    outcome = run_training(make_bus("memory"), config, cartpole(1), prepare=begun)
    assert [record.lag_max for record in outcome.records] == [0, 0, 0, 0]
    assert [record.version for record in outcome.records] == [0, 1, 1, 2]


def test_commands_are_answered_also_by_a_run_that_ends(make_bus: MakeBus) -> None:
    config = AsyncActorLearnerConfig(num_actors=1, num_envs=1, num_steps=8, total_env_steps=8)
    bus = make_bus("memory")
    answers: list[tuple[bool, str]] = []
    bus.answer = lambda request, ok, text: answers.append((ok, text))  # type: ignore[method-assign]

    def ask(record: UpdateRecord) -> None:
        bus.post(SetLearningRate(1e-3))

    run_training(bus, config, cartpole(1), on_update=ask)
    assert answers == [(False, "the run has ended")]


@pytest.mark.parametrize("rate", [1e-4, 1e-2])
def test_an_admin_sets_the_learning_rate_and_ends_the_run(make_bus: MakeBus, rate: float) -> None:
    config = AsyncActorLearnerConfig(num_actors=1, num_envs=1, num_steps=8, total_env_steps=1_000_000)
    bus = make_bus("memory")

    def ask(record: UpdateRecord) -> None:
        bus.post(SetLearningRate(rate) if record.update == 1 else Shutdown("enough of it"))

    outcome = run_training(bus, config, cartpole(1), on_update=ask)
    assert [record.training.learning_rate for record in outcome.records] == [PPOConfig().learning_rate, rate]
    assert outcome.report.stopped_because == "enough of it"
