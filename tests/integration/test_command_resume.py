"""`--resume`: one run, one curve, bit for bit what the learner held; whichever way it ended before."""

from __future__ import annotations

import shutil
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import CARTPOLE, FOREVER, Commands, assert_balanced, metrics_of, report_of, until, updates_of
from conftest import FinishedRun
from tensorboard.compat.proto.event_pb2 import Event

from zmqrl.config import PolicyConfig, PPOConfig
from zmqrl.policies import make_policy
from zmqrl.ppo import PPOTrainer
from zmqrl.runs import RunFolder
from zmqrl.runs.checkpoint import load_checkpoint, newest_checkpoint
from zmqrl.spaces import from_plain

DAMAGE = b"nothing that could be read"


def trainer_of(facts: dict[str, Any]) -> PPOTrainer:
    """A new trainer of the kind that a checkpoint is of."""
    policy = {**facts["config"]["PolicyConfig"], "hidden_sizes": tuple(facts["config"]["PolicyConfig"]["hidden_sizes"])}
    spaces = from_plain(facts["observation_space"]), from_plain(facts["action_space"])
    return PPOTrainer(make_policy(*spaces, PolicyConfig(**policy), seed=5), PPOConfig(**facts["config"]["PPOConfig"]))


def event_steps(run: Path) -> list[int]:
    """The steps of all points in the TensorBoard file."""
    data = next((run / "tensorboard").iterdir()).read_bytes()
    steps, place = [], 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        event = Event.FromString(data[place + 12 : place + 12 + length])
        steps += [event.step] if event.summary.value else []
        place += 16 + length
    return steps


def assert_one_curve(run: Path) -> None:
    points = metrics_of(run)
    assert [point["update"] for point in points] == list(range(1, len(points) + 1))
    for name in ("env_steps", "seconds"):
        values = [point[name] for point in points]
        assert values == sorted(set(values)), name
    assert event_steps(run) == [point["env_steps"] for point in points]
    report = report_of(run)
    assert report["updates_completed"] == len(points)
    assert report["env_steps_consumed"] == points[-1]["env_steps"]
    assert report["last_policy_version"] == report["broadcasts_sent"] == len(points)


def test_the_state_after_a_resume_is_the_checkpoints_bit_for_bit(finished_run: FinishedRun) -> None:
    tensors, facts = load_checkpoint(newest_checkpoint(RunFolder.open(str(finished_run.path))))
    trainer = trainer_of(facts)
    trainer.load_state(tensors, facts["trainer"])
    again, facts_again = trainer.state()
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype and torch.equal(again[name], tensor), name
    assert facts_again == facts["trainer"]
    assert trainer.parameters_sha256() == report_of(finished_run.path)["parameters_sha256"]


def test_nothing_left_to_do(commands: Commands, finished_run: FinishedRun) -> None:
    shutil.copytree(finished_run.path, commands.folder / "run")
    before = (commands.folder / "run" / "report.json").read_bytes()
    done = commands.run("train", "--resume", "run")
    assert done.stdout.startswith("nothing left to do: the run's mean return has reached 15;")
    done = commands.run("learner", "--resume=run", "--total-env-steps", 64)
    assert done.stdout.startswith("nothing left to do: the run has consumed ")
    assert (commands.folder / "run" / "report.json").read_bytes() == before


def test_two_lockstep_resumes_from_one_checkpoint_are_equal(commands: Commands, finished_run: FinishedRun) -> None:
    first = report_of(finished_run.path)
    runs = []
    for name in ("one", "two"):
        shutil.copytree(finished_run.path, commands.folder / name)
        total = first["env_steps_consumed"] + 64 * 20
        runs.append(commands.start("train", "--resume", name, "--stop-at-return", "none", "--total-env-steps", total))
    for run in runs:
        run.ends(0)
        assert "environments and the window of recent episodes begin anew" in run.stdout
    one, two = (report_of(commands.folder / name) for name in ("one", "two"))
    assert one["parameters_sha256"] == two["parameters_sha256"] != first["parameters_sha256"]
    assert one["updates_completed"] == first["updates_completed"] + 20
    assert one["reached"] == first["reached"]
    assert_one_curve(commands.folder / "one")
    assert_balanced(one)


def test_a_run_whose_learner_was_killed(commands: Commands) -> None:
    train = (*CARTPOLE, "--num-actors", 1, "--checkpoint-every", 5, "--run-dir", "run")
    launcher = commands.start("train", *train, *FOREVER)
    run = commands.folder / "run"
    until(lambda: updates_of(run) >= 12, "twelve updates")
    family = launcher.family()
    launcher.child("learner").kill()
    launcher.ends(137)
    assert "zmqrl train: the learner was ended by SIGKILL" in launcher.stderr
    until(lambda: not any(process.is_running() for process in family), "all processes to be gone")
    assert not (run / "report.json").exists()

    saved = load_checkpoint(newest_checkpoint(RunFolder.open(str(run))))[1]["trainer"]["counters"]["updates"]
    lines = (run / "metrics.jsonl").read_text().splitlines()[:saved]
    total = 32 * (saved + 10)
    resumed = commands.run("train", "--resume", "run", "--total-env-steps", total)
    assert f"at update {saved}, {saved * 32:,} env steps" in resumed.stdout
    assert (run / "metrics.jsonl").read_text().splitlines()[:saved] == lines
    assert_one_curve(run)
    assert report_of(run)["updates_completed"] == saved + 10


def test_a_run_that_was_interrupted(commands: Commands) -> None:
    learner = ("learner", *CARTPOLE, "--fill", "columns", "--num-actors", 1, "--run-dir", "run")
    running = commands.start(*learner, *FOREVER, "--resume", "auto")
    run = commands.folder / "run"
    until((run / "join").exists, "the join file")
    actor = commands.start("actor", "--join", "run/join")
    until(lambda: updates_of(run) >= 3, "three updates")
    running.process.send_signal(signal.SIGINT)
    running.ends(130)
    actor.ends(0)
    first = report_of(run)
    assert "Traceback" not in running.stderr

    # what was damaged meanwhile is named, and the checkpoint before it taken
    damaged = run / "checkpoints" / "update-99999999.safetensors"
    damaged.write_bytes(DAMAGE)
    running = commands.start(
        "learner", "--resume", "auto", "--run-dir", "run", "--total-env-steps", 32 * first["updates_completed"] + 160
    )
    until((run / "join").exists, "the join file")
    actor = commands.start("actor", "--join", "run/join")
    running.ends(0)
    actor.ends(0)
    assert f"warning: checkpoint {damaged.relative_to(commands.folder)} is damaged" in running.stderr
    assert f"at update {first['updates_completed']}" in running.stdout
    assert_one_curve(run)
    assert report_of(run)["updates_completed"] == first["updates_completed"] + 5


@pytest.mark.parametrize("how", [("--resume", "run"), ("--resume", "auto", "--run-dir", "run")])
def test_no_checkpoint_is_whole(commands: Commands, finished_run: FinishedRun, how: tuple[str, ...]) -> None:
    shutil.copytree(finished_run.path, commands.folder / "run")
    for path in (commands.folder / "run" / "checkpoints").iterdir():
        path.write_bytes(DAMAGE)
    done = commands.run("train", *how, code=1)
    assert "Traceback" not in done.stderr
    newest = sorted(path.name for path in (commands.folder / "run" / "checkpoints").glob("update-*"))[-1]
    assert f"checkpoint run/checkpoints/{newest} is damaged, or no checkpoint" in done.stderr
    assert done.stderr.splitlines()[-1] == "zmqrl learner: error: run/checkpoints holds no whole checkpoint"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("--env", "Acrobot-v1"), "has env = 'CartPole-v1', not 'Acrobot-v1'"),
        (("--hidden-sizes", "8"), "has hidden_sizes = [64, 64], not [8]"),
        (("--num-envs", "4"), "has num_envs = 2, not 4"),
    ],
    ids=["environment", "network", "rollout"],
)
def test_a_run_goes_on_only_as_what_it_is(
    commands: Commands, finished_run: FinishedRun, change: tuple[str, ...], sentence: str
) -> None:
    """And one that was refused is as it was: its configuration too."""
    run = commands.folder / "run"
    shutil.copytree(finished_run.path, run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = commands.run("train", "--resume", "run", *change, "--total-env-steps", "1000000", code=2)
    assert sentence in done.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_that_has_nothing_left_keeps_its_configuration(commands: Commands, finished_run: FinishedRun) -> None:
    run = commands.folder / "run"
    shutil.copytree(finished_run.path, run)
    before = (run / "config.json").read_bytes()
    done = commands.run("train", "--resume", "run", "--learning-rate", "0.5")
    assert "nothing left to do" in done.stdout
    assert (run / "config.json").read_bytes() == before


def test_a_folder_that_is_no_run_is_said_before_anything_else(commands: Commands) -> None:
    done = commands.run("train", "--resume", "nowhere", code=2)
    assert "nowhere is not the folder of a run" in done.stderr
