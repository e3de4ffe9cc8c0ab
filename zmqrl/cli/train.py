"""`zmqrl train`: learner and actors as processes of this machine. Imports no torch; the learner shows the progress."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

from zmqrl.cli.learner import RunOptions, run_folder, run_options
from zmqrl.cli.options import Options, print_configuration, resolved_config
from zmqrl.cli.process import SIGNALS, Signals
from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PolicyConfig
from zmqrl.errors import (
    EXIT_CONFIGURATION_REFUSED,
    EXIT_FAILED,
    EXIT_KEY_REFUSED,
    EXIT_OK,
    EXIT_TRY_LATER,
    EXIT_USAGE,
)
from zmqrl.runs.folder import RunFolder
from zmqrl.runs.report import REPORT_KEYS, amend_report, write_report
from zmqrl.supervisor import Child, Supervisor, command, environment_flags

DEFAULTS = {"fill": "columns", "wait_for_actors": 60.0}
"""Where they differ from those of the configuration."""

MAX_FAILURES = 4
"""Of one actor. One that failed this often will fail again."""

HOPELESS = (EXIT_USAGE, EXIT_KEY_REFUSED, EXIT_CONFIGURATION_REFUSED)
"""Exit codes of an actor that would say the same if it were started again."""

RETRY_INTERVAL = 2.0
"""Seconds between two tries of an actor that finds no place."""

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
    with Signals() as signals, run_folder(options) as folder:
        with folder.hold():  # not while another run goes on here
            folder.join_file.unlink(missing_ok=True)
            # that of a run which has begun is replaced by its learner, once it has agreed to go on
            config_file = folder.next_config_file if folder.begun else folder.config_file
            folder.write_config(resolved_config(options), config_file)
        with Supervisor(folder.logs) as supervisor:
            code = _Launcher(supervisor, folder, options, signals).run()
            folder.next_config_file.unlink(missing_ok=True)
        if code == EXIT_USAGE:
            raise SystemExit(code)  # the learner has said why
        if signals.first and not folder.begun:
            _report_of_nothing(folder, f"{signals.first.name} received")
    return code


class _Launcher:
    """Starts the processes in order, and looks after them until the learner ends."""

    def __init__(self, supervisor: Supervisor, folder: RunFolder, options: Options, signals: Signals) -> None:
        self.supervisor, self.folder, self.options, self.signals = supervisor, folder, options, signals
        self.config = options[AsyncActorLearnerConfig]
        self.learner: Child | None = None
        self.failures: Counter[str] = Counter()
        self.failed_at: dict[str, float] = {}
        self.restart_at: dict[str, float] = {}
        self.shown: set[str] = set()

    def run(self) -> int:
        """Returns the exit code of the learner, which knows best how the run went."""
        self.signals.ask, self.signals.insist = self.pass_on, self.end_at_once
        self.learner = learner = self.supervisor.start("learner", self.learner_command(), share_terminal=True)
        while not self.folder.join_file.exists():
            if learner.exit_code is not None:
                return learner.exit_code
            if self.signals.first:  # it has nothing to put in order yet
                return self.signals.exit_code
            time.sleep(0.005)
        join = self.folder.join_file.read_text()
        actors = [
            self.supervisor.start(f"actor-{number}", self.actor_command(number), stdin_text=join)
            for number in range(self.config.num_actors)
        ]
        code = self.look_after(learner, actors)
        if code in (EXIT_OK, *SIGNALS.values()):
            self.supervisor.wait(actors, LEAVE_WITHIN)
        return code

    def learner_command(self) -> list[str]:
        """It shares this terminal: its lines are the progress of the run."""
        run, path = self.options[RunOptions], str(self.folder.path)
        wanted = self.folder.next_config_file
        config_file = wanted if wanted.exists() else self.folder.config_file
        flags = ["--config", str(config_file), "--run-dir", path]
        flags += ["--bind", run.bind, "--spaces", run.spaces]
        flags += ["--insecure"] if run.insecure else []
        flags += ["--resume", "auto" if run.resume == "auto" else path] if run.resume else []
        return command("learner", *flags)

    def actor_command(self, number: int) -> list[str]:
        """It reads the join string from its standard input, where no one else can see it."""
        env, policy = self.options[EnvConfig], self.options[PolicyConfig].policy
        flags = ["--join", "-", "--slot", str(number), "--num-envs", str(self.config.num_envs)]
        flags += environment_flags(env)
        return command("actor", *flags, *(["--policy", policy] if policy else []))

    def pass_on(self, number: signal.Signals) -> None:
        """The learner ends the run in order, if it is there."""
        if self.learner is not None and self.folder.join_file.exists():
            self.learner.signal(number)

    def end_at_once(self, code: int) -> None:
        """By way of the supervisor, whose processes must not stay."""
        if self.supervisor.grace:
            self.supervisor.grace = 0.0
            raise SystemExit(code)

    def look_after(self, learner: Child, actors: Sequence[Child]) -> int:
        """Until the learner ends: an actor that fails is shown, and started again after a growing pause."""
        while not self.supervisor.wait([learner], LOOK_INTERVAL):
            for actor in actors:
                if actor.exit_code and not self.signals.first and not self.mend(actor, actors):
                    learner.signal(signal.SIGTERM)
                    learner.process.wait()
                    reason = f"the run cannot go on without {actor.name}, which {actor.ending}: {actor.last_line()}"
                    amend_report(self.folder, reason)
                    self.say(reason)
                    return EXIT_FAILED
        if learner.process.returncode < 0:
            self.say(f"the learner {learner.ending}; what it had not saved is lost: --resume {self.folder.path}")
        return learner.exit_code or EXIT_OK

    def mend(self, actor: Child, actors: Sequence[Child]) -> bool:
        """Start a failed actor again when it is time; False if the run can only end."""
        now, name = time.monotonic(), actor.name
        failed_at = self.failed_at.setdefault(name, now)
        if actor.exit_code == EXIT_USAGE and now - failed_at < LEARNERS_TURN:
            return True
        if name not in self.restart_at:
            self.restart_at[name] = now + self.show_failure(actor)
        if now >= self.restart_at[name]:
            self.supervisor.restart(actor)
            del self.failed_at[name], self.restart_at[name]
        given_up = [other for other in actors if self.restart_at.get(other.name) == inf]
        return len(given_up) < (1 if self.config.fill == "columns" else len(actors))

    def show_failure(self, actor: Child) -> float:
        """Show what the actor said, unless another has said the same; seconds until it is to be started again."""
        if actor.exit_code == EXIT_TRY_LATER:  # another took its place, or the learner has not seen it go
            self.say(f"{actor.name} found no free place; trying again in {RETRY_INTERVAL:g} s")
            return RETRY_INTERVAL
        self.failures[actor.name] += 1
        hopeless = actor.exit_code in HOPELESS or self.failures[actor.name] == MAX_FAILURES
        pause = inf if hopeless else 2.0 ** (self.failures[actor.name] - 1)
        output, last_line = actor.last_lines(), actor.last_line()
        seen = " as before" if last_line in self.shown else ""
        if not seen:
            self.shown.add(last_line)
            print(f"{output}\n", file=sys.stderr)
        next_step = "not starting it again" if hopeless else f"starting it again in {pause:g} s"
        self.say(f"{actor.name} {actor.ending}{seen}; {next_step} (its log: {actor.log})")
        return pause

    def say(self, text: str) -> None:
        """On a line of its own, whatever the learner is showing in a terminal."""
        newline = "\n" if sys.stderr.isatty() else ""
        print(f"{newline}zmqrl train: {text}", file=sys.stderr, flush=True)


def _report_of_nothing(folder: RunFolder, reason: str) -> None:
    """The report of a run that was ended before its learner was there."""
    counts: dict[str, Any] = dict.fromkeys(REPORT_KEYS[:5], 0)
    empty: dict[str, Any] = {"reached": [], "transport": {}, "policy_lag": {}, "learner": {}, "actors": []}
    write_report(folder, {**dict.fromkeys(REPORT_KEYS), **counts, **empty, "stopped_because": reason})
