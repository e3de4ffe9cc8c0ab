"""Buses and commands for tests, and the proof that nothing outlives a test."""

from __future__ import annotations

import ctypes
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from commands import CARTPOLE, Commands
from running import FAST
from zmq.utils.garbage import GarbageCollectorThread

from zmqrl.config import TransportConfig
from zmqrl.transport import bind_learner, memory_buses
from zmqrl.transport.bus import LearnerBus

torch.set_num_threads(1)

LEAVE_WITHIN = 10.0
"""Seconds in which everything a test started has to be gone."""

if sys.platform == "linux":
    # PR_SET_CHILD_SUBREAPER: whoever loses its parent becomes a child of this process, and is seen below
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


@pytest.fixture(scope="session")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this process, and what it starts, make temporary files: a folder that nobody else uses."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def everyone_goes_home(temporary: Path, tmp_path: Path) -> Iterator[None]:
    """No thread, child process, listening port, socket file or temporary file may outlive its test."""
    before = _living(temporary, tmp_path)
    yield
    deadline = time.monotonic() + LEAVE_WITHIN
    while (left := _living(temporary, tmp_path) - before) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert not left, f"left behind: {sorted(left)}"


def _living(temporary: Path, own: Path) -> set[str]:
    threads = {f"thread {thread.name}" for thread in threading.enumerate() if not _lasting(thread)}
    processes = {
        f"process {child.pid} {child.name()}"
        for child in psutil.Process().children(recursive=True)
        if not _resource_keeper(child)
    }
    ports = {f"port {link.laddr}" for link in psutil.Process().net_connections() if link.status == psutil.CONN_LISTEN}
    sockets = {f"socket file {path}" for path in own.rglob("*") if path.is_socket()}
    # the fork server of multiprocessing keeps its folder as long as it lives, which is as long as this process
    files = {f"temporary file {path}" for path in temporary.iterdir() if not path.name.startswith("pymp-")}
    return threads | processes | ports | sockets | files


def _lasting(thread: threading.Thread) -> bool:
    """Threads that stay once they exist: the interpreter's, pytest's, and the one that pyzmq frees large frames in."""
    of_pyzmq = isinstance(thread, GarbageCollectorThread)
    return of_pyzmq or thread.name.startswith(("MainThread", "pytest_timeout", "QueueFeederThread", "pydevd"))


def _resource_keeper(child: psutil.Process) -> bool:
    """multiprocessing keeps one tracker and one fork server per interpreter, which end with it."""
    try:
        command = " ".join(child.cmdline())
        return child.status() == psutil.STATUS_ZOMBIE or "resource_tracker" in command or "forkserver" in command
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def make_bus(tmp_path: Path) -> Iterator[Callable[..., LearnerBus]]:
    """A learner's bus of any kind, closed at the end of the test."""
    with ExitStack() as stack:

        def make(kind: str = "tcp", transport: TransportConfig = FAST, **more: object) -> LearnerBus:
            addresses = {
                "inproc": "inproc://learner",
                "ipc": f"ipc://{tmp_path}/learner",
                "tcp": "tcp://127.0.0.1:0",
            }
            if kind == "memory":
                return stack.enter_context(memory_buses(transport=transport, **more))
            return stack.enter_context(bind_learner(addresses[kind], transport, **more))

        yield make


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """Starts `zmqrl ...` in a folder of its own."""
    commands = Commands(tmp_path)
    yield commands
    commands.close()


@dataclass(frozen=True)
class FinishedRun:
    """A run of `zmqrl train` in lockstep that reached its goal."""

    path: Path
    launched: float
    """Unix time just before the command was."""
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Not to be changed; copy it."""
    commands = Commands(tmp_path_factory.mktemp("finished"))
    launched = time.time()
    goal = ("--num-actors", 2, "--max-lead-steps", 16, "--checkpoint-every", 20, "--stop-at-return", 15)
    try:
        done = commands.run("train", *CARTPOLE, *goal)
    finally:
        commands.close()
    return FinishedRun(commands.run_folder(), launched, done.stdout, done.stderr)
