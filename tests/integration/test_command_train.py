"""`zmqrl train` from outside: how it ends, what it leaves, and that everyone goes home whoever dies first."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import (
    CARTPOLE,
    FOREVER,
    SMALL,
    SOURCES,
    TIMEOUT,
    Commands,
    assert_balanced,
    metrics_of,
    report_of,
    until,
    updates_of,
)
from conftest import FinishedRun

from zmqrl.cli.process import AT_ONCE
from zmqrl.runs.report import REPORT_KEYS

PROBES = "zmqrl.envs.probes"


def assert_gone(processes: list[psutil.Process], timeout: float = 15.0) -> None:
    _, alive = psutil.wait_procs(processes, timeout)
    assert not alive, alive


# --- a run that goes well ------------------------------------------------------------------------------


def test_the_last_line_says_how_it_went(finished_run: FinishedRun) -> None:
    report = report_of(finished_run.path)
    last = finished_run.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"mean return \d+\.\d over 100 episodes reached 15 after [\d,]+ env steps, \d+\.\d s; "
        rf"run folder runs/{finished_run.path.name}",
        last,
    )
    (reached,) = report["reached"]
    assert f"after {reached['env_steps']:,} env steps, {reached['seconds']:.1f} s;" in last
    assert last.startswith(report["stopped_because"])
    assert reached["return"] == 15.0 <= report["mean_episode_return"]


def test_the_report_is_whole_and_the_account_even(finished_run: FinishedRun) -> None:
    report = report_of(finished_run.path)
    assert tuple(report) == REPORT_KEYS
    assert report["env_steps_consumed"] == report["updates_completed"] * 64 == report["reached"][0]["env_steps"]
    assert report["broadcasts_sent"] == report["last_policy_version"] == report["updates_completed"]
    assert [stats["agent_id"] for stats in report["actors"]] == [0, 1]
    assert_balanced(report)
    assert report["transport"]["sum"]["consumed"] == report["env_steps_consumed"]
    assert report["policy_lag"]["versions"]["max"] == 0  # it is in lockstep


def test_seconds_agree_with_the_clock_outside(finished_run: FinishedRun) -> None:
    """The goal was reached when the last line of metrics was written, as the file system says."""
    written = (finished_run.path / "metrics.jsonl").stat().st_mtime
    seconds = report_of(finished_run.path)["reached"][0]["seconds"]
    assert seconds == pytest.approx(written - finished_run.launched, abs=0.3)


def test_a_finished_run_leaves_its_folder_in_order(finished_run: FinishedRun) -> None:
    names = {path.name for path in finished_run.path.iterdir()}
    assert names == {".lock", "checkpoints", "config.json", "logs", "metrics.jsonl", "report.json", "tensorboard"}
    assert {log.name for log in (finished_run.path / "logs").iterdir()} == {"actor-0.log", "actor-1.log"}
    assert all("joined" in log.read_text() for log in (finished_run.path / "logs").iterdir())


def test_in_a_file_there_are_plain_lines_and_errors_stand_apart(finished_run: FinishedRun) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", finished_run.stdout + finished_run.stderr)
    assert re.search(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  update \d+/\d+  ", finished_run.stdout, re.MULTILINE)
    (notice,) = finished_run.stderr.splitlines()
    assert notice.startswith("preset CartPole-v1: ")


def test_in_a_terminal_there_is_one_live_line(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "zmqrl", "train", *CARTPOLE, "--num-actors", "1", "--total-env-steps", "640"]
    process = subprocess.Popen(
        line,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCES, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    output = b""
    try:
        while block := os.read(ours, 65_536):
            output += block
    except OSError:  # how Linux says that nobody holds the other end any more
        pass
    os.close(ours)
    assert process.wait(TIMEOUT) == 0
    lines = output.decode().split("\r\n")  # a terminal's ends of lines; a carriage return alone is the live line's
    (live,) = [line for line in lines if "\r" in line]
    assert live.count("\rupdate ") == 20 and "\rupdate 1/20 " in live and "\rupdate 20/20 " in live
    assert re.match(
        r"all env steps consumed; mean return \d+\.\d over the last \d+ episodes; run folder runs/", lines[-2]
    )
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "".join(lines))


@pytest.mark.parametrize("num_actors", [1, 3])
def test_lockstep_is_reproducible_across_processes(commands: Commands, num_actors: int) -> None:
    lockstep = ("--num-actors", num_actors, "--max-lead-steps", 16, "--total-env-steps", num_actors * 32 * 20)
    runs = [commands.start("train", *CARTPOLE, *lockstep, "--run-dir", name) for name in ("one", "two")]
    for run in runs:
        run.ends(0)
    reports = [report_of(commands.folder / name) for name in ("one", "two")]
    assert reports[0]["parameters_sha256"] == reports[1]["parameters_sha256"]
    for name in ("one", "two"):
        lines = metrics_of(commands.folder / name)
        assert len(lines) == 20
        assert max(line["train/ratio_error"] for line in lines) <= 1e-5


# --- Ctrl-C and SIGTERM --------------------------------------------------------------------------------


def test_ctrl_c_before_the_learner_is_there(commands: Commands) -> None:
    launcher = commands.start("train", *CARTPOLE, *FOREVER)
    launcher.child("learner")
    family = launcher.family()
    launcher.process.send_signal(signal.SIGINT)
    launcher.ends(130)
    assert_gone(family)
    report = report_of(commands.run_folder())
    assert report["updates_completed"] == 0
    assert report["stopped_because"] == "SIGINT received"


def test_ctrl_c_in_the_first_rollout(commands: Commands) -> None:
    slow = ("--env", f"{PROBES}:Sleep-v0", "--env-kwargs", "seconds=0.05", "--num-steps", 1000, "--num-envs", 1)
    launcher = commands.start("train", *slow, *FOREVER, "--num-actors", 1)
    run = commands.run_folder()
    log = run / "logs" / "actor-0.log"
    until(lambda: log.exists() and "joined" in log.read_text(), "the actor to join")
    family = launcher.family()
    launcher.process.send_signal(signal.SIGINT)
    launcher.ends(130)
    assert_gone(family)
    report = report_of(run)
    assert report["updates_completed"] == 0
    assert_balanced(report)
    assert launcher.stdout.splitlines()[-1] == (
        f"SIGINT received; saved at update 0, --resume runs/{run.name} goes on from there"
    )
    assert "SIGINT: ending the run in order; once more ends it at once" in launcher.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_training(commands: Commands, number: signal.Signals, code: int) -> None:
    launcher = commands.start("train", *CARTPOLE, *FOREVER, "--num-actors", 1)
    run = commands.run_folder()
    until(lambda: updates_of(run) >= 3, "three updates")
    family = launcher.family()
    launcher.process.send_signal(number)
    launcher.ends(code)
    assert_gone(family)
    report = report_of(run)
    assert report["stopped_because"] == f"{number.name} received"
    assert report["updates_completed"] == updates_of(run)
    assert (run / "checkpoints" / f"update-{updates_of(run):08d}.safetensors").exists()
    assert_balanced(report)
    assert "Traceback" not in launcher.stderr


def test_the_second_ctrl_c_ends_everything_at_once(commands: Commands) -> None:
    """Its actor hangs in env.step and cannot say goodbye, so the first one takes a while."""
    hang = ("--env", f"{PROBES}:Fail-v0", "--env-kwargs", "how=hang", *SMALL, "--num-actors", 1)
    launcher = commands.start("train", *hang, *FOREVER)
    run = commands.run_folder()
    log = run / "logs" / "actor-0.log"
    until(lambda: log.exists() and "joined" in log.read_text(), "the actor to join")
    family = launcher.family()
    launcher.process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    until(lambda: time.monotonic() - sent > 3 * AT_ONCE, "the next to count as another")
    launcher.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    launcher.ends(130)
    assert time.monotonic() - began < 2.0
    assert_gone(family, 1.0)
    assert launcher.stderr.count("ended at once; what was not saved is lost\n") == 1


# --- kill -9 -------------------------------------------------------------------------------------------


def test_learner_and_actors_follow_a_launcher_that_was_killed(commands: Commands) -> None:
    launcher = commands.start("train", *CARTPOLE, *FOREVER, "--num-actors", 2)
    run = commands.run_folder()
    until(lambda: updates_of(run) >= 3, "three updates")
    family = launcher.family()
    assert len(family) == 4
    launcher.process.kill()
    launcher.ends(-9)
    assert_gone(family, 5.0)
    assert report_of(run)["updates_completed"] == updates_of(run)


def test_a_killed_actor_is_started_again_and_the_run_ends_well(commands: Commands) -> None:
    slow = ("--env", f"{PROBES}:Sleep-v0", "--env-kwargs", "seconds=0.002")
    launcher = commands.start("train", *slow, *SMALL, "--num-actors", 2, "--total-env-steps", 64 * 40)
    run = commands.run_folder()
    until(lambda: updates_of(run) >= 3, "three updates")
    launcher.child("actor").kill()
    launcher.ends(0)
    assert re.search(r"zmqrl train: actor-\d was ended by SIGKILL; starting it again in 1 s", launcher.stderr)
    report = report_of(run)
    assert report["updates_completed"] == 40
    assert len(report["actors"]) == 2
    assert_balanced(report, actors=False)
    assert report["transport"]["sum"]["consumed"] == report["env_steps_consumed"] == 2560


# --- actors that fail ----------------------------------------------------------------------------------


def test_the_traceback_of_an_environment_comes_first(commands: Commands) -> None:
    fails = ("--env", f"{PROBES}:Fail-v0", "--env-kwargs", "at=5", "--env-kwargs", "once=failed")
    done = commands.run("train", *fails, *SMALL, "--num-actors", 1, "--total-env-steps", 640)
    lines = done.stderr.splitlines()
    (failure,) = [index for index, line in enumerate(lines) if "zmqrl train: actor-0 ended with exit code 1" in line]
    assert "starting it again in 1 s" in lines[failure]
    assert "ValueError: the probe fails at step 5, as asked, 100%" in lines[:failure]
    assert any(line.startswith("Traceback") for line in lines[:failure])
    report = report_of(commands.run_folder())
    assert report["updates_completed"] == 20
    assert_balanced(report, actors=False)


def test_a_run_that_cannot_go_on_says_which_actor_and_why(commands: Commands) -> None:
    """Its learner is ended by the launcher, and the report does not call that the reason."""
    fails = ("--env", f"{PROBES}:Fail-v0", "--env-kwargs", "at=5", *SMALL, "--num-actors", 1, *FOREVER)
    done = commands.run("train", *fails, code=1)
    reason = report_of(commands.run_folder())["stopped_because"]
    assert reason.startswith("the run cannot go on without actor-0, which ended with exit code 1: ")
    assert done.stderr.splitlines()[-1] == f"zmqrl train: {reason}"


# --- errors of the learner -----------------------------------------------------------------------------


def test_an_error_of_training_leaves_a_checkpoint_and_a_report(commands: Commands) -> None:
    """A reward whose square is no float32."""
    huge = ("--env", f"{PROBES}:Bad-v0", "--env-kwargs", "at=40", "--env-kwargs", "value=1e30", *SMALL)
    done = commands.run("train", *huge, "--num-actors", 1, code=1)
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("zmqrl learner: error: ")]
    assert "update 3" in sentence and "is inf" in sentence
    assert "Traceback" not in done.stderr
    run = commands.run_folder()
    report = report_of(run)
    assert report["updates_completed"] == 2
    assert report["stopped_because"].startswith("TrainingError: update 3")
    assert (run / "checkpoints" / "update-00000002.safetensors").exists()
    assert_balanced(report)
