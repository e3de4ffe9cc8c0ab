"""`zmqrl learner`: the learning side of a run, for actors on this host and others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zmqrl.cli.options import CONFIG_CLASSES, Options, parse, print_configuration, resolved_config
from zmqrl.cli.process import Signals, begin_process
from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PolicyConfig, PPOConfig, RunConfig, TransportConfig
from zmqrl.errors import EXIT_OK, DecodeError, UsageError
from zmqrl.messages import Shutdown
from zmqrl.progress import RECENT_EPISODES, LearnerReport, shown_return
from zmqrl.runs.folder import RunFolder
from zmqrl.spaces import SpaceSpec, from_plain, to_plain
from zmqrl.supervisor import seconds_since_started
from zmqrl.transport import bind_learner
from zmqrl.transport.bus import LearnerBus
from zmqrl.transport.endpoints import parse_join

if TYPE_CHECKING:
    from torch import Tensor

    from zmqrl.ppo import PPOTrainer
    from zmqrl.runs.recorder import RunRecorder


@dataclass(frozen=True)
class RunOptions:
    """The run as a whole."""

    bind: str = "tcp://127.0.0.1:0"
    """Address to bind: tcp://INTERFACE:PORT takes three consecutive ports, port 0 any three free ones; or ipc://PATH."""
    insecure: bool = False
    """Allow a bind that other hosts can reach. Nothing is authenticated or encrypted then."""
    resume: str = ""
    """Continue the run in this folder. auto: the one in --run-dir if it has a checkpoint, else begin there."""
    spaces: str = "env"
    """Where the spaces come from: env (it is made here once), first-actor, or a JSON file."""


KEPT_BY_A_RUN = {
    "EnvConfig": ("env",),
    "AsyncActorLearnerConfig": ("num_actors", "num_envs", "num_steps"),
    "PolicyConfig": tuple(field.name for field in fields(PolicyConfig)),
}
"""What a checkpoint is made for. Updates are counted in rollouts of one size; the rest may change when it goes on."""


class Saved(NamedTuple):
    """What a checkpoint holds."""

    path: Path
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Run `zmqrl learner`; returns the exit code."""
    begin_process()
    options = run_options("learner", argv, {"fill": "quota"})
    if options.dry_run:
        return print_configuration(options)
    with Signals() as signals, run_folder(options) as folder, folder.hold():
        return _Learner(options, folder, signals).run()


# --- what `train` does too -----------------------------------------------------------------------------


def run_options(verb: str, argv: Sequence[str], defaults: Mapping[str, Any]) -> Options:
    """The options of a run. The configuration of the run that `--resume` names comes before these defaults."""
    options = parse(verb, _with_resumed_config(argv), CONFIG_CLASSES, RunOptions, defaults=defaults)
    resume, run_dir = options[RunOptions].resume, options[RunConfig].run_dir
    if resume == "auto" and not run_dir:
        raise UsageError("--resume auto needs --run-dir, the folder that is continued or begun")
    if resume not in ("", "auto") and run_dir and Path(run_dir) != Path(resume):
        raise UsageError(f"--resume {resume} and --run-dir {run_dir} name two folders; leave one out")
    return options


def _with_resumed_config(argv: Sequence[str]) -> list[str]:
    """The same words, and `--config` of the run that they resume unless they name one."""
    words = list(argv)
    given = {name: _value_of(name, words) for name in ("--resume", "--run-dir", "--config")}
    if given["--resume"] == "auto":
        folder = RunFolder(Path(given["--run-dir"]))
    elif given["--resume"] and given["--run-dir"] in ("", given["--resume"]):
        folder = RunFolder.open(given["--resume"])
    else:
        return words
    if given["--config"] or not folder.config_file.is_file():
        return words
    return ["--config", str(folder.config_file), *words]


def _value_of(flag: str, words: Sequence[str]) -> str:
    """Of `--flag value` or `--flag=value`; '' if it is not there."""
    for word, following in pairwise([*words, ""]):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return ""


@contextmanager
def run_folder(options: Options) -> Iterator[RunFolder]:
    """The folder of a run: a new one, or that of the run to be resumed.

    Whatever this made is removed again if the run cannot begin for what was typed.
    """
    resume, run_dir = options[RunOptions].resume, options[RunConfig].run_dir
    resumes = resume not in ("", "auto") or (resume == "auto" and RunFolder(Path(run_dir)).config_file.is_file())
    path = run_dir if resume in ("", "auto") else resume
    is_new = not path or not Path(path).exists()
    folder = RunFolder.create(path, options[EnvConfig].env, resume=resumes)
    try:
        yield folder
    except (UsageError, KeyboardInterrupt, SystemExit):
        if is_new and not folder.begun:
            shutil.rmtree(folder.path)
            with suppress(OSError):  # `runs`, if it held nothing else
                folder.path.parent.rmdir()
        raise


# --- the learner ---------------------------------------------------------------------------------------


class _Learner:
    """One run, put together and run to its end."""

    def __init__(self, options: Options, folder: RunFolder, signals: Signals) -> None:
        self.options, self.folder, self.signals = options, folder, signals
        self.config, self.run_config = options[AsyncActorLearnerConfig], options[RunConfig]

    def run(self) -> int:
        """Bind before anything heavy is imported, so that actors need not wait to say Hello."""
        run, env = self.options[RunOptions], self.options[EnvConfig]
        saved = self.read_checkpoint() if run.resume else None
        if saved is not None:
            self.check_unchanged(saved)
            if done := self.nothing_left(saved):
                print(f"{done}; run folder {self.folder.path}", flush=True)
                return EXIT_OK
        identity = {"run_id": saved.facts["run_id"], "epoch": saved.facts["epoch"] + 1} if saved else {}
        with bind_learner(
            run.bind, self.options[TransportConfig], env=env.env, insecure=run.insecure, **identity
        ) as bus:
            self.signals.ask = partial(_end_in_order, bus)
            join = str(replace(parse_join(bus.join_string), num_envs=self.config.num_envs))
            self.folder.write_join(join)
            if run.insecure:
                _warn(f"{run.bind} is open to everyone who can reach it: nothing is authenticated")
            try:
                return self.train(bus, join, saved)
            finally:
                self.folder.join_file.unlink(missing_ok=True)

    def read_checkpoint(self) -> Saved | None:
        """The newest whole checkpoint; None where `--resume auto` finds none at all."""
        from zmqrl.runs.checkpoint import load_checkpoint, newest_checkpoint

        if self.options[RunOptions].resume == "auto" and not self.folder.saved_updates():
            return None
        path = newest_checkpoint(self.folder, _warn)
        return Saved(path, *load_checkpoint(path))

    def nothing_left(self, saved: Saved) -> str:
        """Why there is nothing to train on; '' if there is.

        A goal that was reached ends the run for good, unless more env steps are asked for than then.
        """
        counters, run = saved.facts["trainer"]["counters"], saved.facts["run"]
        goal, asked = self.run_config.stop_at_return, self.config.total_env_steps
        asked_then = saved.facts["config"]["AsyncActorLearnerConfig"]["total_env_steps"]
        if counters["updates"] >= self.config.total_updates:
            return (
                f"nothing left to do: the run has consumed {counters['env_steps']:,} env steps, and total_env_steps "
                f"is {asked:,}; a larger --total-env-steps continues it"
            )
        if goal in [entry["return"] for entry in run["reached"]] and asked <= asked_then:
            return (
                f"nothing left to do: the run's mean return has reached {goal:g}; --stop-at-return none, a higher "
                f"one, or --total-env-steps above {asked_then:,} continues it"
            )
        return ""

    def check_unchanged(self, saved: Saved) -> None:
        """UsageError if another environment, network or shape of the rollout is asked for than the run has."""
        before, now = saved.facts["config"], resolved_config(self.options)
        for kind, names in KEPT_BY_A_RUN.items():
            for name in names:
                if before[kind][name] != now[kind][name]:
                    raise UsageError(
                        f"the run in {self.folder.path} has {name} = {before[kind][name]!r}, not {now[kind][name]!r}; "
                        "it can only go on with what it has, so begin a new run for another"
                    )

    def train(self, bus: LearnerBus, join: str, saved: Saved | None) -> int:
        """What is wrong with the environment, the device or a size ends the run before it begins."""
        spaces = self.spaces(bus, join, saved)

        import torch

        from zmqrl.learner import learner_loop

        bus.chunk_steps(self.config.num_steps, self.config.num_envs, *spaces)  # an impossible one is an error now
        torch.set_num_threads(self.run_config.learner_threads)
        trainer = self.trainer(*spaces, saved)
        self.folder.write_config(resolved_config(self.options))
        print(f"learner at {join}, fill = {self.config.fill}, run folder {self.folder.path}", flush=True)
        report = LearnerReport()
        with self.recorder(bus, trainer, saved) as recorder:
            try:
                learner_loop(self.config, trainer, bus, on_update=recorder, report=report)
            finally:
                recorder.finish(report)
        print(self.last_words(report), flush=True)
        return self.signals.exit_code

    def last_words(self, report: LearnerReport) -> str:
        """The line that a run ends with."""
        words = report.stopped_because
        mean, episodes = report.mean_recent_episode_reward(RECENT_EPISODES), len(report.recent_returns)
        if mean is not None and "mean return" not in words:
            words += f"; mean return {shown_return(mean)} over the last {min(episodes, RECENT_EPISODES)} episodes"
        if not self.signals.first:
            return f"{words}; run folder {self.folder.path}"
        return f"{words}; saved at update {report.updates_completed}, --resume {self.folder.path} goes on from there"

    def spaces(self, bus: LearnerBus, join: str, saved: Saved | None) -> tuple[SpaceSpec, SpaceSpec]:
        """(observation space, action space): of the checkpoint, a file, the first actor, or the environment."""
        source = self.options[RunOptions].spaces
        if saved is not None:
            return from_plain(saved.facts["observation_space"]), from_plain(saved.facts["action_space"])
        if source == "env":
            from zmqrl.envs import read_spaces

            return read_spaces(self.options[EnvConfig].validate())
        return self.first_actors_spaces(bus, join) if source == "first-actor" else _spaces_in_file(source)

    def first_actors_spaces(self, bus: LearnerBus, join: str) -> tuple[SpaceSpec, SpaceSpec]:
        """Wait for an actor, as long as it takes."""
        print(f"waiting at {join} for the first actor, which defines the spaces", flush=True)
        while (hello := bus.wait_for_hello(0.5)) is None:
            if self.signals.first:
                raise SystemExit(self.signals.exit_code)
        if hello.observation_space is None or hello.action_space is None:
            raise UsageError(
                f"the first actor (host {hello.host}) described no spaces; use --spaces env or a JSON file"
            )
        return hello.observation_space, hello.action_space

    def trainer(self, observation_space: SpaceSpec, action_space: SpaceSpec, saved: Saved | None) -> PPOTrainer:
        """A new trainer, or the one of the checkpoint."""
        import torch

        from zmqrl.policies import make_policy
        from zmqrl.ppo import PPOTrainer

        device = self.run_config.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UsageError(f"--device {device}: this host has no CUDA device that torch can use")
        policy = make_policy(observation_space, action_space, self.options[PolicyConfig], seed=self.config.seed)
        trainer = PPOTrainer(policy, self.options[PPOConfig], device=device, seed=self.config.seed)
        if saved is not None:
            trainer.load_state(saved.tensors, saved.facts["trainer"])
            counters = trainer.counters
            print(
                f"resumed {saved.path} at update {counters.updates}, {counters.env_steps:,} env steps; "
                "environments and the window of recent episodes begin anew",
                flush=True,
            )
        return trainer

    def recorder(self, bus: LearnerBus, trainer: PPOTrainer, saved: Saved | None) -> RunRecorder:
        """Metrics, checkpoints and the goal of this run."""
        from zmqrl.runs.recorder import RunRecorder

        facts = {
            "run_id": bus.run_id,
            "epoch": bus.epoch,
            "observation_space": to_plain(trainer.policy.observation_space),
            "action_space": to_plain(trainer.policy.action_space),
            "config": resolved_config(self.options),
        }
        before = saved.facts["run"] if saved else None
        return RunRecorder.begin(
            self.folder, self.run_config, self.config, trainer, bus, facts, seconds_since_started, before
        )


def _end_in_order(bus: LearnerBus, number: signal.Signals) -> None:
    # not by print, which this signal may have interrupted
    os.write(2, f"\n{number.name}: ending the run in order; once more ends it at once\n".encode())
    bus.post(Shutdown(f"{number.name} received"))


def _spaces_in_file(name: str) -> tuple[SpaceSpec, SpaceSpec]:
    try:
        data = json.loads(Path(name).read_text())
        return from_plain(data["observation_space"]), from_plain(data["action_space"])
    except OSError as error:
        raise UsageError(
            f"--spaces {name}: cannot be read ({error.strerror}); use env, first-actor or a JSON file"
        ) from None
    except (ValueError, KeyError, TypeError, DecodeError) as error:
        raise UsageError(f"--spaces {name}: no description of spaces: {error}") from None


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
