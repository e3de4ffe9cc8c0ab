"""`zmqrl train`: learner and actors as processes of this machine. Imports no torch; the learner shows the progress."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

from zmqrl.cli.learner import RunOptions, prepare
from zmqrl.cli.options import Options, print_configuration, resolved_config
from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PolicyConfig
from zmqrl.errors import EXIT_INTERRUPTED, EXIT_USAGE
from zmqrl.runs.folder import RunFolder
from zmqrl.supervisor import Child, Supervisor, environment_flags

MAX_RESTARTS = 3
"""Of one actor. One that fails this often will fail again; the learner then names its slot as starved."""

LEAVE_WITHIN = 15.0
"""Seconds for actors to end after the learner did: each was told, and settles its account within ten."""


def main(argv: Sequence[str]) -> int:
    """Run `zmqrl train`; returns the exit code."""
    options, folder = prepare("train", argv, fill="columns")
    if options.dry_run:
        return print_configuration(options)
    folder.write_config(resolved_config(options))
    print(f"run folder {folder.path}", flush=True)
    with Supervisor(folder.logs) as supervisor:
        return _Launcher(supervisor, folder, options).run()


class _Launcher:
    """Starts the processes in order, and looks after them until the learner ends."""

    def __init__(self, supervisor: Supervisor, folder: RunFolder, options: Options) -> None:
        self.supervisor, self.folder, self.options = supervisor, folder, options
        self.learner: Child | None = None
        self.actors: list[Child] = []
        self.signals: list[int] = []
        self.wake = threading.Event()

    def run(self) -> int:
        """Returns the exit code of the learner, which knows best how the run went."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.on_signal)
        self.folder.join_file.unlink(missing_ok=True)
        self.learner = self.start_learner()
        join = self.await_join_string(self.learner)
        if join:
            self.actors = [self.start_actor(number, join) for number in range(self.config.num_actors)]
            self.look_after(self.learner)
            self.supervisor.wait(self.actors, LEAVE_WITHIN)
        code = self.learner.process.wait()
        if code < 0:
            print(f"zmqrl train: the learner was ended by {signal.Signals(-code).name}", file=sys.stderr)
            return 128 - code
        return code

    @property
    def config(self) -> AsyncActorLearnerConfig:
        return self.options[AsyncActorLearnerConfig]

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """First: the learner ends the run in order. Second: everything ends now."""
        self.signals.append(number)
        if len(self.signals) > 1:
            self.supervisor.end(grace=0.0)
            sys.stderr.flush()
            sys.exit(EXIT_INTERRUPTED if number == signal.SIGINT else 128 + number)
        if self.learner is not None:
            self.supervisor.signal(self.learner, number)
        self.wake.set()

    def start_learner(self) -> Child:
        """It shares this terminal: its lines are the progress of the run."""
        run = self.options[RunOptions]
        flags = ["--config", str(self.folder.config_file), "--run-dir", str(self.folder.path)]
        flags += ["--bind", run.bind, "--spaces", run.spaces, *(["--insecure"] if run.insecure else [])]
        flags += ["--resume", "auto"] if run.resume else []
        return self.supervisor.start("learner", ["learner", *flags], share_terminal=True)

    def await_join_string(self, learner: Child) -> str:
        """What the learner writes as soon as it is bound; '' if it ended before."""
        while learner.exit_code is None:
            if self.folder.join_file.exists():
                return self.folder.join_file.read_text()
            self.wake.wait(0.005)
        return ""

    def start_actor(self, number: int, join: str) -> Child:
        policy = self.options[PolicyConfig].policy
        flags = ["--join", "-", "--num-envs", str(self.config.num_envs), *environment_flags(self.options[EnvConfig])]
        flags += ["--policy", policy] if policy else []
        return self.supervisor.start(f"actor-{number}", ["actor", *flags], stdin_text=join)

    def look_after(self, learner: Child) -> None:
        """Until the learner ends: an actor that fails is shown, and started again after a growing pause."""
        due: dict[str, float] = {}
        while learner.exit_code is None:
            for actor in self.actors:
                if not actor.exit_code or self.signals:
                    continue
                if actor.name not in due:
                    due[actor.name] = self.report_failure(actor)
                elif time.monotonic() >= due[actor.name] and actor.restarts < MAX_RESTARTS:
                    self.supervisor.restart(actor)
                    del due[actor.name]
            self.supervisor.wait([learner], 0.1)

    def report_failure(self, actor: Child) -> float:
        """Print what the actor said last; when to start it again."""
        again = actor.restarts < MAX_RESTARTS and actor.exit_code != EXIT_USAGE
        pause = 2.0**actor.restarts
        what_next = f"starting it again in {pause:g} s" if again else "not starting it again"
        print(
            f"\n{actor.last_lines()}\nzmqrl train: {actor.name} ended with exit code {actor.exit_code}; {what_next} "
            f"(whole log: {actor.log})",
            file=sys.stderr,
            flush=True,
        )
        return time.monotonic() + pause if again else float("inf")
