"""What is typed wrong: one clear sentence, the right exit code, and nothing left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import CARTPOLE, SMALL, SOURCES, TIMEOUT, Commands, Running, report_of


def sentence_of(done: Running, verb: str) -> str:
    """The one line on standard error, but for the notice of a preset."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("preset ")]
    assert len(lines) == 1, done.all_output
    prefix = f"zmqrl {verb}: error: "
    assert lines[0].startswith(prefix), done.all_output
    return lines[0].removeprefix(prefix)


def assert_nothing_left(folder: Path) -> None:
    """But for what `Commands` keeps of its processes."""
    assert [path.name for path in folder.iterdir() if path.suffix not in (".stdout", ".stderr", ".given")] == []


HERE = ("--env", "CartPole-v1")
WRONG = [
    ((*HERE, "--num-actor", 2), "unknown option --num-actor; did you mean --num-actors?"),
    ((), "env = '': name an environment, for example CartPole-v1"),
    ((*HERE, "--num-steps", 16, "--max-lead-steps", 8), "max_lead_steps = 8: would deadlock"),
    ((*HERE, "--batch-size", 0), "batch_size = 0: must be at least 2"),
    ((*HERE, "--num-envs", 0), "num_envs = 0: must be at least 1"),
    ((*HERE, "--vtrace-rho-bar", 2), "--vtrace-rho-bar would do nothing: it acts only with --use-vtrace"),
    ((*HERE, "--resume", "nothing"), "nothing is not the folder of a run"),
    ((*HERE, "--resume", "a", "--run-dir", "b"), "--resume a and --run-dir b name two folders"),
    ((*HERE, "--resume", "auto"), "--resume auto needs --run-dir"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[sentence.split()[0] for _, sentence in WRONG])
def test_what_the_launcher_sees_itself(commands: Commands, words: tuple[object, ...], sentence: str) -> None:
    assert sentence in sentence_of(commands.run("train", *words, code=2), "train")
    assert_nothing_left(commands.folder)


REFUSED = [
    (("--env", "CartPole-v2", *SMALL), "gymnasium knows no environment 'CartPole-v2' here. Nearest: CartPole-v1"),
    ((*CARTPOLE, "--device", "cuda"), "--device cuda: this host has no CUDA device"),
    ((*CARTPOLE, "--chunk-steps", 5), "chunk_steps = 5: must divide num_steps (16)"),
    ((*CARTPOLE, "--bind", "tcp://192.0.2.1:5555", "--insecure"), "192.0.2.1"),
    ((*CARTPOLE, "--bind", "tcp://0.0.0.0:0"), "can be reached from other machines"),
    ((*CARTPOLE, "--bind", "tcp://127.0.0.1:99999"), "ends in no port"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED, ids=["env", "cuda", "chunk", "foreign", "open", "port"])
def test_what_the_learner_finds_out_is_said_once(commands: Commands, words: tuple[object, ...], sentence: str) -> None:
    done = commands.run("train", *words, "--num-actors", 2, code=2, CUDA_VISIBLE_DEVICES="")
    assert sentence in sentence_of(done, "learner")
    assert_nothing_left(commands.folder)


def test_a_taken_port(commands: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for verb in ("learner", "train"):
            done = commands.run(verb, *CARTPOLE, "--bind", address, code=2)
            assert address in sentence_of(done, "learner")
    assert_nothing_left(commands.folder)


NO_JOIN = [
    (("--join", "nowhere/join"), "the join file nowhere/join cannot be read: No such file or directory"),
    (("--join", "empty.given"), "the join file empty.given is empty"),
    (("--join", "words.given"), "this is no join string"),
    (("--join", "127.0.0.1:5555"), "did you mean tcp://127.0.0.1:5555?"),
    (
        ("--join", "tcp://no-such-host.invalid:5555", *HERE, "--num-envs", 1),
        "tcp://no-such-host.invalid:5555: the host name 'no-such-host.invalid' is not known here",
    ),
    ((), "no learner named: give its join file with --join, or set $ZMQRL_JOIN"),
]


@pytest.mark.parametrize(("words", "sentence"), NO_JOIN, ids=["absent", "empty", "words", "scheme", "host", "none"])
def test_what_is_no_join_file(commands: Commands, words: tuple[object, ...], sentence: str) -> None:
    (commands.folder / "empty.given").write_text("\n")
    (commands.folder / "words.given").write_text("come in\n")
    assert sentence in sentence_of(commands.run("actor", *words, code=2), "actor")
    assert_nothing_left(commands.folder)


def test_an_actor_that_does_not_know_the_environment(commands: Commands) -> None:
    done = commands.run("actor", "--join", "tcp://127.0.0.1:9", "--env", "CartPol-v1", "--num-envs", 1, code=2)
    assert "Nearest: CartPole-v1" in sentence_of(done, "actor")


def test_a_folder_in_which_a_run_goes_on(commands: Commands) -> None:
    going = commands.start("learner", *CARTPOLE, "--run-dir", "run")
    going.prints("learner at")
    join = (commands.folder / "run" / "join").read_text()
    config = (commands.folder / "run" / "config.json").read_bytes()
    done = commands.run("train", "--resume", "run", "--seed", 5, code=2)
    assert "another process is running in run" in sentence_of(done, "train")
    assert (commands.folder / "run" / "join").read_text() == join
    assert (commands.folder / "run" / "config.json").read_bytes() == config
    going.process.terminate()
    going.ends(143)


def test_an_unknown_environment_is_said_quickly(commands: Commands) -> None:
    began = time.monotonic()
    commands.run("train", "--env", "CartPole-v2", code=2)
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("learner", "--help"), ("eval", "--help")], ids=" ".join
)
def test_help_is_quiet_when_nobody_reads_it(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert _help(words, writing) == (1, "")
    full = os.open("/dev/full", os.O_WRONLY)
    assert _help(words, full) == (1, "zmqrl: error: cannot write: No space left on device\n")


def _help(words: tuple[str, ...], stdout: int) -> tuple[int, str]:
    """(exit code, standard error)."""
    line = [sys.executable, "-m", "zmqrl", *words]
    variables = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(line, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT, env=variables)
    os.close(stdout)
    return done.returncode, done.stderr


def test_a_run_goes_on_when_nobody_reads_it_any_more(commands: Commands) -> None:
    words = ("train", *CARTPOLE, "--num-actors", "1", "--total-env-steps", "2000", "--log-interval", "0.01")
    line = [sys.executable, "-m", "zmqrl", *words, "--run-dir", "run"]
    variables = {**os.environ, "PYTHONPATH": SOURCES}
    with subprocess.Popen(
        line, cwd=commands.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline().startswith(b"learner at ")
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 0 and b"Traceback" not in errors, errors
    assert report_of(commands.folder / "run")["env_steps_consumed"] >= 1900
