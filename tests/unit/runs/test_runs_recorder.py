"""The guest at the learner's door: what it saves, answers and writes, also where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zmqrl.config import AsyncActorLearnerConfig, PolicyConfig, PPOConfig, RunConfig
from zmqrl.errors import CheckpointError
from zmqrl.messages import SaveCheckpoint
from zmqrl.policies import make_policy
from zmqrl.ppo import PPOTrainer
from zmqrl.progress import PHASES, LearnerReport, TrainingStats, UpdateRecord
from zmqrl.runs import RunFolder, recorder
from zmqrl.runs.checkpoint import load_checkpoint
from zmqrl.runs.recorder import RunRecorder
from zmqrl.session import Command
from zmqrl.spaces import BoxSpec, DiscreteSpec


class Bus:
    """Of the learner's bus, what the recorder calls."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bool, str]] = []

    def answer(self, request: int, ok: bool, text: str) -> None:
        self.answers.append((request, ok, text))

    def accounts(self) -> dict[int, Any]:
        return {}

    def actor_stats(self) -> list[Any]:
        return []


def record(update: int, mean: float | None = None, commands: tuple[Command, ...] = ()) -> UpdateRecord:
    training = TrainingStats(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1e-3, 0.2, 0.0, 1, 1)
    nothing = np.zeros(0)
    seconds = dict.fromkeys(PHASES, 0.0)
    return UpdateRecord(
        *(update, 9, update, 64 * update, 0, training, nothing, nothing, mean, None),
        *(100, 0.0, 0, seconds, float(update), 1, commands),
    )


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
def trainer() -> PPOTrainer:
    spaces = BoxSpec("float32", (2,), -np.ones(2, np.float32), np.ones(2, np.float32)), DiscreteSpec(2)
    return PPOTrainer(make_policy(*spaces, PolicyConfig(), seed=0), PPOConfig())


@pytest.fixture
def guest(tmp_path: Path, bus: Bus, trainer: PPOTrainer) -> Iterator[RunRecorder]:
    with begin(tmp_path, bus, trainer) as guest:
        yield guest


def begin(
    path: Path, bus: Any, trainer: PPOTrainer, before: dict[str, Any] | None = None, epoch: int = 1
) -> RunRecorder:
    folder = RunFolder.create(str(path / "run"), "CartPole-v1")
    config = RunConfig(stop_at_return=100.0, tensorboard=False)
    algorithm = AsyncActorLearnerConfig()
    return RunRecorder.begin(folder, config, algorithm, trainer, bus, {"epoch": epoch}, lambda: 1.5, before)


def test_checkpoints_that_admins_name_are_saved_and_answered(guest: RunRecorder, bus: Bus) -> None:
    names = {1: "good", 2: "../evil", 3: ""}
    guest(record(1, commands=tuple(Command(number, SaveCheckpoint(name)) for number, name in names.items())))
    (good, evil, empty) = bus.answers
    assert good == (1, True, "saved named-good.safetensors")
    assert (evil[:2], empty[:2]) == ((2, False), (3, False))
    assert "'../evil' cannot name a checkpoint" in evil[2]
    assert [path.name for path in guest.folder.checkpoints.iterdir()] == ["named-good.safetensors"]


def test_a_full_disk_is_an_answer_too(guest: RunRecorder, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "save_checkpoint", full_disk)
    assert guest(record(1, commands=(Command(1, SaveCheckpoint("good")),))) is None
    assert bus.answers == [(1, False, "cannot write checkpoint: No space left on device")]


def full_disk(*_: object) -> None:
    raise CheckpointError("cannot write checkpoint: No space left on device")


def test_a_full_disk_does_not_hide_the_report(
    guest: RunRecorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "save_checkpoint", full_disk)
    guest.finish(LearnerReport(stopped_because="TrainingError: the loss is inf"))
    assert json.loads(guest.folder.report_file.read_text())["stopped_because"] == "TrainingError: the loss is inf"
    assert "the last checkpoint is missing: cannot write checkpoint" in caplog.text


def test_the_goal_ends_the_run_once(guest: RunRecorder, tmp_path: Path, bus: Bus, trainer: PPOTrainer) -> None:
    assert guest(record(1, mean=99.9)) is None
    reason = guest(record(2, mean=100.0))
    assert reason == "mean return 100.0 over 100 episodes reached 100 after 128 env steps, 1.5 s"
    assert guest.reached == [{"return": 100.0, "env_steps": 128, "seconds": 1.5}]
    # it is resumed for more env steps
    with begin(tmp_path / "later", bus, trainer, {"best_return": 100.0, "reached": guest.reached}) as later:
        assert later(record(3, mean=120.0)) is None
        assert len(later.reached) == 1


def test_a_resumed_run_saves_its_epoch_at_once(tmp_path: Path, bus: Bus, trainer: PPOTrainer) -> None:
    trainer.counters.updates = 7
    with begin(tmp_path, bus, trainer, {"best_return": 5.0, "reached": []}, epoch=2) as guest:
        facts = load_checkpoint(guest.folder.checkpoint(7))[1]
    assert facts["epoch"] == 2
    assert facts["run"]["best_return"] == 5.0
