"""The command as its users run it: real processes in a folder of their own, and what came of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

import zmqrl

TIMEOUT = 45.0
"""Seconds for anything that is waited for; on a free machine it takes a few."""

SOURCES = os.pathsep.join(filter(None, (str(Path(zmqrl.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
"""So that it is this zmqrl, installed or not."""

SMALL = ("--num-envs", "2", "--num-steps", "16", "--batch-size", "32", "--n-epochs", "2", "--seed", "1")
CARTPOLE = ("--env", "CartPole-v1", *SMALL)
FOREVER = ("--total-env-steps", "1000000000")

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, timeout: float = TIMEOUT) -> T:
    """Wait until this is true, and return it."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}"
        threading.Event().wait(0.01)
    return value


@dataclass(frozen=True)
class Running:
    """One process, and what it printed."""

    process: subprocess.Popen[bytes]
    stdout_file: Path
    stderr_file: Path

    @property
    def stdout(self) -> str:
        return self.stdout_file.read_text()

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text()

    @property
    def all_output(self) -> str:
        return f"{self.process.args}\n{self.stdout}\n{self.stderr}"

    def prints(self, text: str) -> None:
        """Wait until it has printed this."""
        until(lambda: text in self.all_output or self.process.poll() is not None, f"{text!r} in\n{self.all_output}")
        assert text in self.all_output, self.all_output

    def ends(self, code: int, timeout: float = TIMEOUT) -> None:
        """Wait for its end, which has to be this one."""
        try:
            ended = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {timeout:g} s: {self.all_output}") from None
        assert ended == code, f"exit code {ended} and not {code}: {self.all_output}"

    def family(self) -> list[psutil.Process]:
        """This process and all below it."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def child(self, verb: str) -> psutil.Process:
        """The process below it that runs this verb; waits for it."""
        return until(lambda: self._child(verb), f"a process of {verb}")

    def _child(self, verb: str) -> psutil.Process | None:
        for process in self.family()[1:]:
            try:
                if process.cmdline()[1:4] == ["-m", "zmqrl", verb]:
                    return process
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                pass
        return None


@dataclass
class Commands:
    """Starts processes in a folder, and ends at the close whatever of them a failed test has left."""

    folder: Path
    started: list[Running] = field(default_factory=list)

    def start(self, *words: object, **variables: str) -> Running:
        """`zmqrl WORDS...`, or any other command whose first word is a path."""
        line = [sys.executable, *(() if isinstance(words[0], Path) else ("-m", "zmqrl")), *map(str, words)]
        number = len(self.started)
        files = self.folder / f"{number}.stdout", self.folder / f"{number}.stderr"
        with files[0].open("wb") as stdout, files[1].open("wb") as stderr:
            process = subprocess.Popen(
                line,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": SOURCES, **variables},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        running = Running(process, *files)
        self.started.append(running)
        return running

    def run(self, *words: object, code: int = 0, **variables: str) -> Running:
        """The same, to its end."""
        running = self.start(*words, **variables)
        running.ends(code)
        return running

    def run_folder(self) -> Path:
        """The one run folder, once there is a configuration in it."""
        return until(lambda: next(self.folder.glob("runs/*/config.json"), None), "a run folder").parent

    def close(self) -> None:
        for running in self.started:
            if running.process.poll() is None:
                for process in reversed(running.family()):
                    process.send_signal(signal.SIGKILL)
                running.process.wait()


def report_of(run: Path) -> dict[str, Any]:
    """report.json, as strict JSON."""

    def refuse(text: str) -> Any:
        raise AssertionError(f"{text} is no JSON")

    report: dict[str, Any] = json.loads((run / "report.json").read_text(), parse_constant=refuse)
    return report


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def updates_of(run: Path) -> int:
    """How many updates the run has made so far."""
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def assert_balanced(report: dict[str, Any], *, actors: bool = True) -> None:
    """Law 1 at the learner, for each actor and in sum; with `actors` also at each actor, none of which was killed."""
    accounts = report["transport"]["actors"]
    for account in [*accounts.values(), report["transport"]["sum"]]:
        disposed = account["consumed"] + account["queued"] + sum(account["refused"].values()) + account["rolled_back"]
        assert account["received"] == disposed, account
    assert report["transport"]["sum"]["received"] == sum(account["received"] for account in accounts.values())
    for stats in report["actors"]:
        assert stats["steps_taken"] == stats["steps_received"] + sum(stats["steps_lost"].values()), stats
    if actors:
        received = sum(stats["steps_received"] for stats in report["actors"])
        assert received == report["transport"]["sum"]["received"]
