"""`zmqrl learner` and `zmqrl actor --join` by hand: who is let in, how they leave, and when waiting is an error."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from commands import CARTPOLE, FOREVER, SMALL, Commands, Running, assert_balanced, report_of, until, updates_of

from zmqrl.cli.process import AT_ONCE

PROBES = "zmqrl.envs.probes"
LEARNER = ("learner", "--run-dir", "run")
JOIN = ("actor", "--join", "run/join")


def joined(commands: Commands) -> Running:
    """One more actor, once it is in."""
    actor = commands.start(*JOIN)
    actor.prints("joined tcp://127.0.0.1:")
    return actor


def test_actors_come_and_go_where_anyone_may_fill_the_rollout(commands: Commands) -> None:
    run = commands.folder / "run"
    learner = commands.start(*LEARNER, *CARTPOLE, *FOREVER, "--num-actors", 1)
    until((run / "join").exists, "the join file")
    assert (run / "join").stat().st_mode & 0o777 == 0o600
    actors = [commands.start(*JOIN) for _ in range(3)]  # more than num_actors: welcome
    for actor in actors:
        actor.prints("joined tcp://127.0.0.1:")

    for actor, number, code in zip(actors, (signal.SIGTERM, signal.SIGINT), (143, 130), strict=False):
        actor.process.send_signal(number)
        actor.ends(code)
        assert "lost: none" in actor.stdout, actor.all_output
    before = updates_of(run)
    until(lambda: updates_of(run) > before + 2, "the run to go on")

    learner.process.send_signal(signal.SIGINT)
    learner.ends(130)
    actors[2].ends(0)
    assert "lost: none" in actors[2].stdout or "unsent_at_shutdown" in actors[2].stdout
    report = report_of(run)
    assert len(report["actors"]) == 3
    assert_balanced(report)


def test_whoever_does_not_fit_is_told_why(commands: Commands) -> None:
    """No place, another number of environments, other spaces: a sentence at the actor, and at the learner too."""
    columns = ("--fill", "columns", "--num-actors", 1)
    learner = commands.start(*LEARNER, *CARTPOLE, *FOREVER, *columns)
    until((commands.folder / "run" / "join").exists, "the join file")
    joined(commands)
    extra = commands.start(*JOIN)
    more = commands.start(*JOIN, "--num-envs", 3)
    other = commands.start(*JOIN, "--env", "Acrobot-v1")
    extra.ends(75)
    more.ends(78)
    other.ends(78)
    sentences = [
        "the only slot is taken by a living actor (fill = columns); use fill = quota",
        "the learner's actors have 2 environments each, this one 3; start it with --num-envs 2",
        "obs: learner has Box(4,) float32, this actor Box(6,) float32",
    ]
    for actor, sentence in zip((extra, more, other), sentences, strict=True):
        (line,) = [line for line in actor.stderr.splitlines() if line.startswith("zmqrl actor: error: ")]
        assert sentence in line
        assert "Traceback" not in actor.stderr
        assert sentence in learner.stderr
    learner.process.send_signal(signal.SIGTERM)
    learner.ends(143)


def test_no_learner_there(commands: Commands) -> None:
    nobody = ("actor", "--join", "tcp://127.0.0.1:9", "--env", "CartPole-v1", "--num-envs", 1)
    patient = commands.start(*nobody, "--connect-timeout", 60)
    began = time.monotonic()
    short = commands.run(*nobody, "--connect-timeout", 0.5, code=75)
    assert time.monotonic() - began < 20
    assert "no learner answered at tcp://127.0.0.1:9 within" in short.stderr
    assert "Traceback" not in short.stderr

    patient.prints("no answer from tcp://127.0.0.1:9")
    patient.process.send_signal(signal.SIGINT)
    patient.ends(130, timeout=2.0)
    assert patient.stderr.splitlines()[-1] == "zmqrl actor: interrupted"


# --- starvation ----------------------------------------------------------------------------------------


def test_an_actor_that_hangs_in_env_step_starves_the_run(commands: Commands) -> None:
    hang = ("--env", f"{PROBES}:Fail-v0", "--env-kwargs", "how=hang")
    limits = ("--starvation-timeout", 2, "--env-step-timeout", 1, "--shutdown-timeout", 0.5)
    learner = commands.start(*LEARNER, *hang, *SMALL, "--num-actors", 1, *limits, "--heartbeat-interval", 0.1)
    until((commands.folder / "run" / "join").exists, "the join file")
    actor = commands.start(*JOIN, *hang)
    learner.ends(4)
    (line,) = [line for line in learner.stderr.splitlines() if line.startswith("zmqrl learner: error: ")]
    assert "slot 0 (host " in line and f"pid {actor.process.pid}" in line and "has been inside one env.step for" in line
    run = commands.folder / "run"
    report = report_of(run)
    assert report["stopped_because"].startswith("StarvationError: no experience for")
    assert list((run / "checkpoints").iterdir())
    actor.process.send_signal(signal.SIGTERM)
    actor.prints("SIGTERM: leaving after this step")
    asked = time.monotonic()
    until(lambda: time.monotonic() - asked > AT_ONCE, "the next to count as another")
    actor.process.send_signal(signal.SIGINT)
    actor.ends(130, timeout=2.0)


def test_a_slow_environment_is_no_error(commands: Commands) -> None:
    slow = ("--env", f"{PROBES}:Sleep-v0", "--env-kwargs", "seconds=1.5", "--num-envs", 1, "--num-steps", 2)
    limits = ("--starvation-timeout", 0.5, "--env-step-timeout", 10, "--heartbeat-interval", 0.1)
    commands.run("train", *slow, "--num-actors", 1, "--total-env-steps", 2, *limits)
    assert report_of(commands.run_folder())["env_steps_consumed"] == 2


@pytest.mark.parametrize(("verb", "seconds"), [("train", 60.0), ("learner", 0.0)])
def test_how_long_the_first_actor_is_waited_for(commands: Commands, verb: str, seconds: float) -> None:
    done = commands.run(verb, "--env", "CartPole-v1", "--dry-run")
    assert f'"wait_for_actors": {seconds}' in done.stdout


def test_nobody_joins(commands: Commands) -> None:
    learner = commands.run(*LEARNER, *CARTPOLE, "--wait-for-actors", 0.5, code=4)
    assert "no actor joined within 0.5 s" in learner.stderr
    assert report_of(commands.folder / "run")["updates_completed"] == 0
    assert not (commands.folder / "run" / "join").exists()


# --- the launcher that is a script ---------------------------------------------------------------------

LAUNCH = Path(__file__).parents[2] / "launch" / "local" / "launch.py"


def test_the_local_launcher_runs_what_its_dry_run_prints(commands: Commands) -> None:
    words = (LAUNCH, "--env", "CartPole-v1", "--num-actors", 2, "--run-dir", "run")
    dry = commands.run(*words, "--dry-run", "--seed", 3).stdout.splitlines()
    assert [line.split(" -m ")[1] for line in dry] == [
        "zmqrl learner --env CartPole-v1 --num-actors 2 --run-dir run --seed 3",
        *["zmqrl actor --env CartPole-v1 --join run/join"] * 2,
    ]
    commands.run(*words, *SMALL, "--total-env-steps", 640, "--fill", "columns")
    report = report_of(commands.folder / "run")
    assert report["updates_completed"] == 10
    assert_balanced(report)
