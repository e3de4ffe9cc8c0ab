"""What the launcher does about actors that fail, told to stand-ins for processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from zmqrl.cli import train
from zmqrl.cli.learner import run_options
from zmqrl.cli.process import Signals
from zmqrl.runs import RunFolder
from zmqrl.supervisor import Child, Supervisor


class Launcher:
    """A launcher whose actors are commands that only exit, and whose clock is set by the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, fill: str = "columns") -> None:
        self.now = 0.0
        monkeypatch.setattr(train.time, "monotonic", lambda: self.now)
        self.supervisor = Supervisor(folder)
        options = run_options("train", ["--env", "MountainCar-v0", "--fill", fill], train.DEFAULTS)
        self.inner = train._Launcher(self.supervisor, RunFolder(folder), options, Signals())
        self.actors: list[Child] = []

    def actor(self, code: str) -> Child:
        child = self.supervisor.start(f"actor-{len(self.actors)}", [sys.executable, "-c", code])
        child.process.wait()
        self.actors.append(child)
        return child

    def mend(self, actor: Child, now: float) -> bool:
        self.now = now
        going_on = self.inner.mend(actor, self.actors)
        actor.process.wait()
        return going_on


def test_an_actor_is_started_again_after_growing_pauses_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher(tmp_path, monkeypatch)
    actor = launcher.actor("raise ValueError('a broken arm')")
    now = 0.0
    for pause in (1.0, 2.0, 4.0):
        first = actor.process
        assert launcher.mend(actor, now)
        assert launcher.mend(actor, now + 0.99 * pause) and actor.process is first
        assert launcher.mend(actor, now + pause) and actor.process is not first
        now += pause
    assert not launcher.mend(actor, now)
    said = capsys.readouterr().err
    assert said.count("Traceback") == 1  # the same one is not shown again
    assert said.index("ValueError: a broken arm") < said.index("actor-0 ended with exit code 1")
    assert said.count("; starting it again in ") == 3 and said.count("; not starting it again") == 1


def test_one_that_finds_no_place_tries_again_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(tmp_path, monkeypatch)
    actor = launcher.actor("raise SystemExit(75)")
    for turn in range(10):
        first = actor.process
        assert launcher.mend(actor, 2.0 * turn)
        assert launcher.mend(actor, 2.0 * turn + 2.0) and actor.process is not first


def test_a_usage_error_is_the_learners_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher(tmp_path, monkeypatch)
    actor = launcher.actor("raise SystemExit(2)")
    assert launcher.mend(actor, 0.0) and launcher.mend(actor, 4.9)
    assert capsys.readouterr().err == ""
    assert not launcher.mend(actor, 5.1)
    assert "actor-0 ended with exit code 2; not starting it again" in capsys.readouterr().err


def test_quota_goes_on_with_those_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(tmp_path, monkeypatch, fill="quota")
    first, second = launcher.actor("raise SystemExit(2)"), launcher.actor("raise SystemExit(2)")
    launcher.mend(first, 0.0)
    assert launcher.mend(first, 6.0)
    launcher.mend(second, 6.0)
    assert not launcher.mend(second, 12.0)


def test_signals_first_ask_then_insist(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []
    now = [100.0]
    monkeypatch.setattr("zmqrl.cli.process.time", SimpleNamespace(monotonic=lambda: now[0]))
    with Signals() as signals:
        signals.ask, signals.insist = seen.append, seen.append
        signal.raise_signal(signal.SIGTERM)
        now[0] += 0.1
        signal.raise_signal(signal.SIGTERM)  # timeout(1) sends it to the child, and to the group of the child
        assert seen == [signal.SIGTERM]
        now[0] += 0.2
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGTERM, 130, 130]
        assert signals.exit_code == 143
    assert capfd.readouterr().err == "ended at once; what was not saved is lost\n"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_with_nothing_to_put_in_order(number: signal.Signals, code: int) -> None:
    with Signals(), pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        signal.raise_signal(number)
    assert code == 130 if caught.type is KeyboardInterrupt else caught.value.code == code


def test_logs_are_in_utc() -> None:
    line = "import logging, zmqrl.cli.process as process; process.begin_process(); logging.getLogger('x').warning('y')"
    variables = {**os.environ, "TZ": "Asia/Tokyo"}
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=30, env=variables)
    stamp, rest = done.stderr.split(" ", 1)
    assert rest == "WARNING x: y\n"
    assert abs((datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()) < 30
