"""Processes of this machine: start, watch, restart and end them; and actors inside this program.

Children are commands, never forks: they inherit no thread, no socket and no CUDA state. Each is a process group of
its own, so that Ctrl-C in a terminal reaches the launcher alone, which tells the others in order.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from zmqrl.accounts import ActorStats
from zmqrl.errors import ActorFailed

if TYPE_CHECKING:
    from zmqrl.config import EnvConfig
    from zmqrl.envs.vector import VectorEnvironment
    from zmqrl.transport.bus import LearnerBus

log = logging.getLogger(__name__)

PARENT_VARIABLE = "ZMQRL_PARENT_PID"
STARTED_VARIABLE = "ZMQRL_STARTED"

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL. A learner needs well below one to save; an actor in a long env.step
cannot answer at all and would otherwise stay for as long as the step takes."""

PARENT_INTERVAL = 0.5
"""Seconds between two looks at the parent. Linux could signal its death, but that of its thread too."""


# --- on the side of a supervised process ---------------------------------------------------------------


def die_with_parent() -> None:
    """Called by a supervised process first of all: SIGTERM when the launcher dies, however it dies.

    Whoever cannot answer that within `GRACE` seconds is killed, with all processes of its group.
    """
    expected = os.environ.pop(PARENT_VARIABLE, "")
    if expected:
        threading.Thread(target=_watch_parent, args=(int(expected),), daemon=True, name="parent-watch").start()


def _watch_parent(expected: int) -> None:
    while os.getppid() == expected:
        time.sleep(PARENT_INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def seconds_since_started() -> float:
    """Since the process was created that the user typed: this one, or the launcher that started it."""
    return _clock() - float(_started())


def _started() -> str:
    """On `_clock`, as text for an environment variable."""
    if STARTED_VARIABLE in os.environ:
        return os.environ[STARTED_VARIABLE]
    if sys.platform != "linux":
        return str(_IMPORTED)
    # field 22 of stat, counted after the command name, which may contain anything: clock ticks since boot
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return str(int(fields[19]) / os.sysconf("SC_CLK_TCK"))


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()


_IMPORTED = _clock()


# --- on the side of the launcher -----------------------------------------------------------------------


def command(verb: str, *arguments: str) -> list[str]:
    """The command line of a verb, by this interpreter."""
    return [sys.executable, "-m", "zmqrl", verb, *arguments]


def child_environment() -> dict[str, str]:
    """The environment of a supervised process: whose child it is, and when the user's command began."""
    return {**os.environ, PARENT_VARIABLE: str(os.getpid()), STARTED_VARIABLE: _started()}


def _spawn(
    words: Sequence[str], stdin_text: str | None, stdout: IO[str] | int | None, stderr: int | None
) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, which reads `stdin_text` and then the end of its input."""
    process = subprocess.Popen(
        words,
        env=child_environment(),
        stdin=subprocess.DEVNULL if stdin_text is None else subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        text=True,
        process_group=0,
    )
    if process.stdin is not None:
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(stdin_text or "")
        process.stdin = None  # or `communicate` would use it, closed as it is
    return process


@dataclass
class Child:
    """One supervised process."""

    name: str
    words: Sequence[str]
    """Its command line."""
    stdin_text: str | None
    log: Path | None
    """Where its output goes; None is this terminal."""
    log_began: int
    """Bytes in the log before it."""
    process: subprocess.Popen[str]

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + signal if a signal ended it."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Send a signal to it alone, not to its own children; if it is gone, that is no error."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def kill_group(self) -> None:
        """Kill it and all it started; also what it left behind if it has ended, as an environment's workers."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def ending(self) -> str:
        """What became of it, for a sentence about it."""
        code = self.process.poll()
        if code is None:
            return "is running"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def last_lines(self, count: int = 100) -> str:
        """The end of what it wrote to its log, where a traceback is."""
        if self.log is None:
            return ""
        output = self.log.read_bytes()[self.log_began :].decode(errors="replace")
        return "\n".join(output.splitlines()[-count:])

    def last_line(self) -> str:
        """Of `last_lines`, where the error itself is."""
        return self.last_lines().rpartition("\n")[2]


class Supervisor:
    """Owns the processes of a run; leaving the `with` block ends all of them, in bounded time."""

    def __init__(self, logs: Path | None = None) -> None:
        """`logs`: folder for the output of children that do not share this terminal."""
        self._logs = logs
        self.children: list[Child] = []
        self.grace = GRACE
        """Seconds between SIGTERM and SIGKILL when the block is left."""

    def start(
        self, name: str, words: Sequence[str], *, stdin_text: str | None = None, share_terminal: bool = False
    ) -> Child:
        """Start a command, see `command`."""
        log = None if share_terminal or self._logs is None else self._logs / f"{name}.log"
        child = Child(name, words, stdin_text, log, *_start(words, stdin_text, log))
        self.children.append(child)
        return child

    def restart(self, child: Child) -> None:
        """Start the same command again, under the same name and log; what it left behind is killed before."""
        child.kill_group()
        child.log_began, child.process = _start(child.words, child.stdin_text, child.log)

    def wait(self, children: Sequence[Child], timeout: float) -> bool:
        """Wait until all of these have ended; False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        for child in children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True

    def end(self) -> None:
        """SIGTERM to all that live, SIGKILL to their groups after `grace` seconds, or at once if interrupted."""
        try:
            for child in self.children:
                child.signal(signal.SIGTERM)
            self.wait(self.children, self.grace)
        finally:
            for child in self.children:
                child.kill_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _start(words: Sequence[str], stdin_text: str | None, log: Path | None) -> tuple[int, subprocess.Popen[str]]:
    """(size of the log, the process that writes to it from there on)."""
    if log is None:
        return 0, _spawn(words, stdin_text, None, None)
    with log.open("a") as output:
        return output.tell(), _spawn(words, stdin_text, output, subprocess.STDOUT)


# --- actors of this program ----------------------------------------------------------------------------


class ActorHandle:
    """An actor that `spawn_actor` started."""

    def __init__(self, join: Callable[[float | None], ActorStats]) -> None:
        self._join = join

    def join(self, timeout: float | None = None) -> ActorStats:
        """Wait for its end. Raises ActorFailed, caused by the actor's own error, or TimeoutError."""
        return self._join(timeout)


def spawn_actor(
    bus: LearnerBus,
    env: EnvConfig | str | Callable[[], VectorEnvironment],
    *,
    num_envs: int = 8,
    process: bool = False,
) -> ActorHandle:
    """One actor in a thread (or process) of this program, over the same bus as the learner.

    env: a configuration or id, or in a thread also a function that makes the environments. A process is started as
    a command, so that a script needs no main guard, and a notebook none either; it needs a bus with an address.
    """
    from zmqrl.config import EnvConfig

    config = EnvConfig(env=env) if isinstance(env, str) else env
    if not process:
        return _spawn_thread(bus, config, num_envs)
    if not isinstance(config, EnvConfig):
        raise TypeError("an actor in a process takes its environment by name; a function works in a thread")
    return _spawn_process(bus, config, num_envs)


def _spawn_thread(bus: LearnerBus, env: EnvConfig | Callable[[], VectorEnvironment], num_envs: int) -> ActorHandle:
    from zmqrl.envs import make_envs
    from zmqrl.joining import run_actor

    outcome: list[ActorStats | BaseException] = []

    def make() -> VectorEnvironment:
        return env() if callable(env) else make_envs(env, num_envs)

    def run() -> None:
        try:
            outcome.append(run_actor(bus.connect, make))
        except BaseException as error:
            log.error("an actor of this program ended with %s: %s", type(error).__name__, error)
            outcome.append(error)

    thread = threading.Thread(target=run, name="zmqrl-actor", daemon=True)
    thread.start()

    def join(timeout: float | None) -> ActorStats:
        thread.join(timeout)
        if thread.is_alive():
            raise TimeoutError(f"the actor still runs after {timeout} s")
        if isinstance(outcome[0], BaseException):
            raise ActorFailed(f"an actor ended with {type(outcome[0]).__name__}: {outcome[0]}") from outcome[0]
        return outcome[0]

    return ActorHandle(join)


def _spawn_process(bus: LearnerBus, env: EnvConfig, num_envs: int) -> ActorHandle:
    words = command("actor", "--join", "-", "--json", "--num-envs", str(num_envs), *environment_flags(env))
    process = _spawn(words, bus.join_string, subprocess.PIPE, subprocess.PIPE)
    answers: list[tuple[str, str]] = []
    reader = threading.Thread(target=lambda: answers.append(process.communicate()), daemon=True)
    reader.start()

    def join(timeout: float | None) -> ActorStats:
        reader.join(timeout)
        if reader.is_alive():
            raise TimeoutError(f"the actor still runs after {timeout} s")
        output, errors = answers[0]
        if process.returncode:
            raise ActorFailed(f"an actor ended with exit code {process.returncode}: {errors.strip()[-2000:]}")
        return ActorStats(**json.loads(output.splitlines()[-1]))

    return ActorHandle(join)


def environment_flags(env: EnvConfig) -> list[str]:
    """The flags that name this environment on another command line."""
    flags = ["--env", env.env, "--vectorization", env.vectorization]
    for key, value in env.env_kwargs.items():
        flags += ["--env-kwargs", f"{key}={json.dumps(value)}"]
    return flags


def stats_as_json(stats: ActorStats) -> str:
    """One line; what `spawn_actor` reads back from its process."""
    return json.dumps(asdict(stats), allow_nan=False)
