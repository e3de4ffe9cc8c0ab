"""`zmqrl train`: learner and actors as processes of this machine. Imports no torch; the learner shows the progress."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from types import FrameType

from zmqrl.cli.learner import RunOptions, run_folder, run_options
from zmqrl.cli.options import Options, print_configuration, resolved_config
from zmqrl.cli.process import SIGNALS
from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PolicyConfig
from zmqrl.errors import EXIT_FAILED, EXIT_OK, EXIT_TRY_LATER, EXIT_USAGE
from zmqrl.runs.folder import RunFolder
from zmqrl.runs.report import REPORT_KEYS, write_report
from zmqrl.supervisor import Child, Supervisor, command, environment_flags

DEFAULTS = {"fill": "columns", "wait_for_actors": 60.0, "lease": 10.0}
"""Where they differ from those of the configuration: all actors are on this machine, so silence means more, and the
place of one that was killed is free sooner."""

MAX_FAILURES = 4
"""Of one actor. One that failed this often will fail again."""

LOOK_INTERVAL = 0.1
"""Seconds between two looks at the actors."""

LEARNERS_TURN = 5.0
"""Seconds an actor's usage error is kept back: the learner was told the same things, and says once what is wrong."""

LEAVE_WITHIN = 5.0
"""Seconds for actors to end after a learner that ended in order. It has waited for their goodbyes already."""


def main(argv: Sequence[str]) -> int:
    """Run `zmqrl train`; returns the exit code."""
    options = run_options("train", argv, DEFAULTS)
    if options.dry_run:
        return print_configuration(options)
    with run_folder(options) as folder:
        with folder.hold():  # not while another run goes on here
            folder.join_file.unlink(missing_ok=True)
            folder.write_config(resolved_config(options))
        with Supervisor(folder.logs) as supervisor:
            launcher = _Launcher(supervisor, folder, options)
            code = launcher.run()
        if code == EXIT_USAGE:  # the learner has said what is wrong
            raise SystemExit(code)
        if launcher.signals and not folder.begun:
            _report_of_nothing(folder, f"{signal.Signals(launcher.signals[0]).name} received")
    return code


class _Launcher:
    """Starts the processes in order, and looks after them until the learner ends."""

    def __init__(self, supervisor: Supervisor, folder: RunFolder, options: Options) -> None:
        self.supervisor, self.folder, self.options = supervisor, folder, options
        self.config = options[AsyncActorLearnerConfig]
        self.learner: Child | None = None
        self.actors: list[Child] = []
        self.signals: list[int] = []
        self.failures: Counter[str] = Counter()
        self.failed_at: dict[str, float] = {}
        self.restart_at: dict[str, float] = {}
        self.shown: set[str] = set()

    def run(self) -> int:
        """Returns the exit code of the learner, which knows best how the run went."""
        for number in SIGNALS:
            signal.signal(number, self.on_signal)
        self.learner = learner = self.supervisor.start("learner", self.learner_command(), share_terminal=True)
        while not self.folder.join_file.exists():
            if learner.exit_code is not None:
                return learner.exit_code
            if self.signals:  # it has nothing to put in order yet
                return SIGNALS[signal.Signals(self.signals[0])]
            time.sleep(0.005)
        join = self.folder.join_file.read_text()
        actor = self.actor_command()
        self.actors = [
            self.supervisor.start(f"actor-{number}", actor, stdin_text=join) for number in range(self.config.num_actors)
        ]
        code = self.look_after(learner)
        if code in (EXIT_OK, *SIGNALS.values()):
            self.supervisor.wait(self.actors, LEAVE_WITHIN)
        return code

    def learner_command(self) -> list[str]:
        """It shares this terminal: its lines are the progress of the run."""
        run, path = self.options[RunOptions], str(self.folder.path)
        flags = [
            "--config",
            str(self.folder.config_file),
            "--run-dir",
            path,
            "--bind",
            run.bind,
            "--spaces",
            run.spaces,
        ]
        flags += ["--insecure"] if run.insecure else []
        flags += ["--resume", "auto" if run.resume == "auto" else path] if run.resume else []
        return command("learner", *flags)

    def actor_command(self) -> list[str]:
        """It reads the join string from its standard input, where no one else can see it."""
        env, policy = self.options[EnvConfig], self.options[PolicyConfig].policy
        flags = ["--join", "-", "--num-envs", str(self.config.num_envs), *environment_flags(env)]
        return command("actor", *flags, *(["--policy", policy] if policy else []))

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """First: the learner ends the run in order, once it is there. Second: everything ends now."""
        self.signals.append(number)
        if len(self.signals) == 2:
            self.supervisor.grace = 0.0
            raise SystemExit(SIGNALS[signal.Signals(number)])
        if self.learner is not None and self.folder.join_file.exists():
            self.learner.signal(number)

    def look_after(self, learner: Child) -> int:
        """Until the learner ends: an actor that fails is shown, and started again after a growing pause."""
        while not self.supervisor.wait([learner], LOOK_INTERVAL):
            for actor in self.actors:
                if actor.exit_code and not self.signals and not self.mend(actor):
                    self.say(f"{actor.name} is not started again, and the run cannot go on without it")
                    learner.signal(signal.SIGTERM)
                    self.supervisor.wait([learner], float("inf"))
                    return EXIT_FAILED
        code = learner.exit_code or EXIT_OK
        if learner.process.returncode < 0:
            self.say(f"the learner was ended by {signal.Signals(-learner.process.returncode).name}")
        return code

    def mend(self, actor: Child) -> bool:
        """Start a failed actor again when it is time; False if that is of no use."""
        now, name = time.monotonic(), actor.name
        failed_at = self.failed_at.setdefault(name, now)
        if actor.exit_code == EXIT_USAGE and now - failed_at < LEARNERS_TURN:
            return True
        if name not in self.restart_at:
            # its place is free when its lease has run out; until then there is none for a new one
            self.failures[name] += actor.exit_code != EXIT_TRY_LATER
            hopeless = actor.exit_code == EXIT_USAGE or self.failures[name] == MAX_FAILURES
            pause = 2.0 ** (self.failures[name] - 1)
            self.show_failure(actor, "" if hopeless else f"; starting it again in {pause:g} s")
            if hopeless:
                return False
            self.restart_at[name] = now + pause
        if now >= self.restart_at[name]:
            self.supervisor.restart(actor)
            del self.failed_at[name], self.restart_at[name]
        return True

    def show_failure(self, actor: Child, what_next: str) -> None:
        """What the actor said last, unless another has said it already, and what becomes of it."""
        output = actor.last_lines()
        last_line = output.rpartition("\n")[2]
        if last_line not in self.shown:
            self.shown.add(last_line)
            print(f"{output}\n", file=sys.stderr)
        self.say(f"{actor.name} ended with exit code {actor.exit_code} ({last_line}){what_next}; its log: {actor.log}")

    def say(self, text: str) -> None:
        """On a line of its own, whatever the learner is showing in a terminal."""
        print(f"{'\n' if sys.stderr.isatty() else ''}zmqrl train: {text}", file=sys.stderr, flush=True)


def _report_of_nothing(folder: RunFolder, reason: str) -> None:
    """The report of a run that was ended before its learner was there."""
    figures = dict.fromkeys(REPORT_KEYS[:5], 0) | {"reached": [], "actors": [], "learner": {}, "policy_lag": {}}
    write_report(folder, {**dict.fromkeys(REPORT_KEYS), **figures, "transport": {}, "stopped_because": reason})
