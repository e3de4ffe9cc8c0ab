"""Processes start, are seen to end, and never stay."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from zmqrl.supervisor import Child, Supervisor

TIMEOUT = 20.0


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return Supervisor(tmp_path)


def python(supervisor: Supervisor, name: str, code: str, stdin_text: str | None = None) -> Child:
    """A child that runs `code` in place of the command."""
    return supervisor.start(name, [sys.executable, "-c", textwrap.dedent(code)], stdin_text=stdin_text)


def test_exit_codes_and_logs(supervisor: Supervisor) -> None:
    with supervisor:
        good = python(supervisor, "good", "print('hello from inside')")
        bad = python(supervisor, "bad", "raise ValueError('a broken arm')")
        killed = python(supervisor, "killed", "import os; os.kill(os.getpid(), 9)")
        assert supervisor.wait([good, bad, killed], TIMEOUT)
        assert (good.exit_code, bad.exit_code, killed.exit_code) == (0, 1, 137)
        assert "hello from inside" in good.last_lines()
        assert "ValueError: a broken arm" in bad.last_lines()


def test_a_restart_runs_the_same_again(supervisor: Supervisor) -> None:
    with supervisor:
        child = python(supervisor, "echo", "print(input())", stdin_text="once more\n")
        assert supervisor.wait([child], TIMEOUT)
        supervisor.restart(child)
        assert supervisor.wait([child], TIMEOUT)
        assert child.last_lines() == "once more"  # of this start only
        assert child.log is not None and child.log.read_text().splitlines() == ["once more", "once more"]


def test_what_ignores_sigterm_is_killed_with_its_children(supervisor: Supervisor, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    python(
        supervisor,
        "stubborn",
        f"""
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        below = subprocess.Popen([sys.executable, "-c", deaf])
        open({str(pids)!r} + ".new", "w").write(f"{{os.getpid()}} {{below.pid}}")
        os.rename({str(pids)!r} + ".new", {str(pids)!r})
        time.sleep(600)
        """,
    )
    _wait_for(pids)
    members = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
    supervisor.grace = 0.2
    supervisor.end()
    gone, alive = psutil.wait_procs(members, timeout=TIMEOUT)
    assert not alive and len(gone) == 2


def test_children_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
            import sys, time
            from pathlib import Path
            from zmqrl.supervisor import Supervisor
            code = '''import os, time
            from zmqrl.supervisor import die_with_parent
            die_with_parent()
            open({str(pids)!r} + ".new", "w").write(str(os.getpid()))
            os.rename({str(pids)!r} + ".new", {str(pids)!r})
            time.sleep(600)'''.replace("\\n" + " " * 12, "\\n")
            Supervisor(Path({str(tmp_path)!r})).start("child", [sys.executable, "-c", code])
            time.sleep(600)
            """),
        ]
    )
    _wait_for(pids)
    child = psutil.Process(int(pids.read_text()))
    launcher.kill()
    launcher.wait(TIMEOUT)
    assert not psutil.wait_procs([child], timeout=TIMEOUT)[1]


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        threading.Event().wait(0.01)


def test_a_signal_to_one_that_is_gone_is_no_error(supervisor: Supervisor) -> None:
    with supervisor:
        child = python(supervisor, "quick", "pass")
        assert supervisor.wait([child], TIMEOUT)
        child.signal(signal.SIGTERM)


def test_time_counts_from_the_creation_of_the_process() -> None:
    """Of the launcher, also where a child asks."""
    code = "from zmqrl.supervisor import seconds_since_started; print(seconds_since_started())"
    began = time.monotonic()
    launcher = f"""
import subprocess, sys, threading
from zmqrl.supervisor import child_environment, seconds_since_started
threading.Event().wait(0.5)
print(subprocess.run([sys.executable, "-c", {code!r}], env=child_environment(), capture_output=True, text=True).stdout)
"""
    printed = subprocess.run([sys.executable, "-c", launcher], capture_output=True, text=True, timeout=TIMEOUT).stdout
    elapsed = time.monotonic() - began
    assert 0.5 < float(printed) < elapsed
    assert float(printed) == pytest.approx(elapsed, abs=0.3)
