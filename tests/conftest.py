"""Buses for tests, and the proof that nothing outlives a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import torch
from running import FAST
from zmq.utils.garbage import GarbageCollectorThread

from zmqrl.config import TransportConfig
from zmqrl.transport import bind_learner, memory_buses
from zmqrl.transport.bus import LearnerBus

torch.set_num_threads(1)

LEAVE_WITHIN = 10.0
"""Seconds in which everything a test started has to be gone."""


@pytest.fixture(autouse=True)
def everyone_goes_home() -> Iterator[None]:
    """No thread, child process or listening port may outlive its test."""
    before = _living()
    yield
    deadline = time.monotonic() + LEAVE_WITHIN
    while (left := _living() - before) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert not left, f"left behind: {sorted(left)}"


def _living() -> set[str]:
    threads = {f"thread {thread.name}" for thread in threading.enumerate() if not _lasting(thread)}
    processes = {
        f"process {child.pid} {child.name()}"
        for child in psutil.Process().children(recursive=True)
        if not _resource_keeper(child)
    }
    ports = {f"port {link.laddr}" for link in psutil.Process().net_connections() if link.status == psutil.CONN_LISTEN}
    return threads | processes | ports


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
