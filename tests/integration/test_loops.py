"""The two loops together, in threads, over every bus: wiring, accounting, lockstep, staleness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import BUSES, Outcome
from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PPOConfig
from zmqrl.envs import VectorEnvironment, make_envs
from zmqrl.envs.probes import vector_probe
from zmqrl.envs.vector import wrap_envs
from zmqrl.learner import UpdateRecord

Run = Callable[..., Outcome]


def cartpole(num_envs: int) -> Callable[[], VectorEnvironment]:
    return lambda: make_envs(EnvConfig(env="CartPole-v1"), num_envs)


@pytest.mark.parametrize("bus", BUSES)
def test_wiring_figures_of_the_origin(run_training: Run, bus: str) -> None:
    config = AsyncActorLearnerConfig(num_actors=2, num_envs=1, num_steps=32, total_env_steps=128)
    outcome = run_training(config, cartpole(1), bus=bus)
    report = outcome.report
    assert (report.updates_completed, report.env_steps_consumed) == (2, 128)
    assert (report.broadcasts_sent, report.last_policy_version) == (2, 2)
    for stats in outcome.stats:
        assert stats.policies_loaded >= 1
        assert stats.steps_received >= 64


@pytest.mark.parametrize("num_actors", [1, 3])
def test_lockstep_is_reproducible_bit_for_bit(run_training: Run, num_actors: int) -> None:
    config = AsyncActorLearnerConfig(
        num_actors=num_actors, num_envs=2, num_steps=16, max_lead_steps=16, total_env_steps=num_actors * 32 * 8, seed=7
    )
    runs = [
        run_training(config, cartpole(2), ppo=PPOConfig(batch_size=32, n_epochs=3), bus=bus)
        for bus in ("tcp", "memory")
    ]
    assert runs[0].trainer.parameters_sha256() == runs[1].trainer.parameters_sha256()
    assert [r.training for r in runs[0].records] == [r.training for r in runs[1].records]
    for record in runs[0].records:
        assert record.training.ratio_error <= 1e-5
        assert record.lag_max == 0


def test_another_seed_gives_other_parameters(run_training: Run) -> None:
    def sha(seed: int) -> str:
        config = AsyncActorLearnerConfig(
            num_actors=1, num_envs=2, num_steps=16, max_lead_steps=16, total_env_steps=64, seed=seed
        )
        return run_training(config, cartpole(2)).trainer.parameters_sha256()

    assert sha(1) != sha(2)


@pytest.mark.parametrize("fill", ["columns", "quota"])
@pytest.mark.parametrize("broadcast_every", [1, 3])
def test_staleness_stays_within_its_bound(run_training: Run, fill: str, broadcast_every: int) -> None:
    config = AsyncActorLearnerConfig(
        num_actors=2, num_envs=2, num_steps=16, total_env_steps=64 * 12, broadcast_every=broadcast_every, fill=fill
    )
    outcome = run_training(config, cartpole(2), bus="tcp")
    assert outcome.report.updates_completed == 12
    assert outcome.report.broadcasts_sent == 12 // broadcast_every
    assert sum(outcome.report.policy_lag.values()) == outcome.report.env_steps_consumed
    if fill == "columns":
        # 2 * broadcast_every * num_steps ahead: one whole broadcast period behind at most
        assert max(outcome.report.policy_lag) <= 2


@pytest.mark.parametrize("fill", ["columns", "quota"])
@pytest.mark.parametrize("bus", ["memory", "tcp"])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_the_environments_own_count_equals_the_account(
    run_training: Run, tmp_path: Path, mode: str, bus: str, fill: str
) -> None:
    files = iter(range(100))

    def environments() -> VectorEnvironment:
        log = tmp_path / f"{next(files)}.log"
        return wrap_envs(vector_probe("Count", 3, mode, length=3, path=str(log)))

    config = AsyncActorLearnerConfig(num_actors=2, num_envs=3, num_steps=16, total_env_steps=16 * 6 * 4, fill=fill)
    outcome = run_training(config, environments, bus=bus)
    lines = [line for log in tmp_path.glob("*.log") for line in log.read_text().splitlines()]
    counted = sum(line.split()[0] == "step" for line in lines)
    assert counted == sum(stats.steps_taken for stats in outcome.stats)
    assert sum(stats.episodes for stats in outcome.stats) == counted // 3 - _unfinished(lines)
    for record in outcome.records:
        assert set(record.episode_returns.tolist()) <= {3.0}
        assert set(record.episode_lengths.tolist()) <= {3}
    if mode != "next_step":
        assert outcome.report.env_steps_consumed == 16 * 6 * 4


def _unfinished(lines: list[str]) -> int:
    """Whole episodes' worth of steps that belong to episodes not finished: none, since 3 steps finish one."""
    return 0


def test_on_update_can_end_the_run(run_training: Run) -> None:
    def stop(record: UpdateRecord) -> str | None:
        return "enough" if record.update == 3 else None

    config = AsyncActorLearnerConfig(num_actors=1, num_envs=2, num_steps=8, total_env_steps=10_000)
    outcome = run_training(config, cartpole(2), on_update=stop)
    assert outcome.report.updates_completed == 3
    assert outcome.report.stopped_because == "enough"
