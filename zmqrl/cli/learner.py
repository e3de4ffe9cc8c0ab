"""`zmqrl learner`: the learning side of a run, for actors on this host and others."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from zmqrl.cli.options import CONFIG_CLASSES, Options, parse, print_configuration, resolved_config
from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PolicyConfig, PPOConfig, RunConfig, TransportConfig
from zmqrl.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, CheckpointError, DecodeError, UsageError
from zmqrl.messages import Shutdown
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


def main(argv: Sequence[str]) -> int:
    """Run `zmqrl learner`; returns the exit code."""
    options, folder = prepare("learner", argv, fill="quota")
    if options.dry_run:
        return print_configuration(options)
    with folder.hold(), _Signals() as signals:
        return _Learner(options, folder, signals).run()


def prepare(verb: str, argv: Sequence[str], fill: str) -> tuple[Options, RunFolder]:
    """The options of a run, and its folder: a new one, or the one that `--resume` names."""
    options = parse(verb, with_resumed_config(argv), CONFIG_CLASSES, RunOptions, defaults={"fill": fill})
    run = options[RunOptions]
    run_dir = options[RunConfig].run_dir
    if run.resume not in ("", "auto"):
        if run_dir and Path(run_dir) != Path(run.resume):
            raise UsageError(f"--resume {run.resume} and --run-dir {run_dir} name two folders; leave one out")
        run_dir = run.resume
    if run.resume == "auto" and not run_dir:
        raise UsageError("--resume auto needs --run-dir, the folder that is continued or begun")
    if options.dry_run:
        return options, RunFolder(Path(run_dir))
    resumes = bool(run.resume) and (run.resume != "auto" or (Path(run_dir) / "config.json").is_file())
    return options, RunFolder.create(run_dir, options[EnvConfig].env, resume=resumes)


def with_resumed_config(argv: Sequence[str]) -> list[str]:
    """The same words, and `--config` of the run that they resume unless they name one."""
    words = list(argv)
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag == "--resume" and not any(other.split("=")[0] == "--config" for other in words):
            value = value if equals else next(iter(words[index + 1 : index + 2]), "")
            config = RunFolder(Path(value)).config_file
            if value not in ("", "auto") and config.is_file():
                return ["--config", str(config), *words]
    return words


class _Signals:
    """SIGINT and SIGTERM end the run in order: the update that is computed is finished, a rollout that is still
    being collected is given up. The second one ends the process at once.
    """

    def __init__(self) -> None:
        self.first = 0
        self.bus: LearnerBus | None = None

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.first:
            os._exit(128 + number)
        self.first = number
        if self.bus is None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(EXIT_TERMINATED)
        self.bus.post(Shutdown(f"{signal.Signals(number).name} received"))

    @property
    def exit_code(self) -> int:
        """Of a run that ended in order."""
        return {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}.get(self.first, EXIT_OK)


class _Learner:
    """One run, put together and run to its end."""

    def __init__(self, options: Options, folder: RunFolder, signals: _Signals) -> None:
        self.options, self.folder, self.signals = options, folder, signals
        self.config = options[AsyncActorLearnerConfig]
        self.run_config = options[RunConfig]
        self.checkpoint: Path | None = None
        self.resumed: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    def run(self) -> int:
        """Bind before anything heavy is imported, so that actors need not wait to say Hello."""
        logging.basicConfig(format="%(asctime)sZ %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
        logging.Formatter.converter = _utc
        run, env = self.options[RunOptions], self.options[EnvConfig]
        identity = self.resume() if run.resume else {}
        with bind_learner(
            run.bind, self.options[TransportConfig], env=env.env, insecure=run.insecure, **identity
        ) as bus:
            join = str(replace(parse_join(bus.join_string), num_envs=self.config.num_envs))
            self.folder.write_join(join)
            self.folder.write_config(resolved_config(self.options))
            if run.insecure:
                print(
                    f"warning: {run.bind} is open to everyone who can reach it: nothing is authenticated",
                    file=sys.stderr,
                )
            print(f"learner at {join}, fill = {self.config.fill}", flush=True)
            self.signals.bus = bus
            try:
                return self.train(bus)
            finally:
                self.folder.join_file.unlink(missing_ok=True)

    def resume(self) -> dict[str, Any]:
        """Read the newest whole checkpoint; the run's identity, with the next epoch."""
        from zmqrl.runs.checkpoint import load_checkpoint, newest_checkpoint

        try:
            self.checkpoint = newest_checkpoint(self.folder, _warn)
        except CheckpointError:
            if self.options[RunOptions].resume == "auto":
                return {}
            raise
        self.resumed = load_checkpoint(self.checkpoint)
        facts = self.resumed[1]
        return {"run_id": facts["run_id"], "epoch": facts["epoch"] + 1}

    def train(self, bus: LearnerBus) -> int:
        """Everything from here on needs torch."""
        import torch

        from zmqrl.learner import learner_loop
        from zmqrl.progress import LearnerReport

        torch.set_num_threads(self.run_config.learner_threads)
        trainer = self.trainer(*self.spaces(bus))
        recorder = self.recorder(bus, trainer)
        report = LearnerReport()
        try:
            learner_loop(self.config, trainer, bus, on_update=recorder, report=report)
        finally:
            # whichever way it ended: the trainer stands at its last complete update
            recorder.save()
            recorder.write_report(report)
            recorder.close()
        print(f"{report.stopped_because}; run folder {self.folder.path}", flush=True)
        return self.signals.exit_code

    def spaces(self, bus: LearnerBus) -> tuple[SpaceSpec, SpaceSpec]:
        """(observation space, action space): of the checkpoint, a file, the first actor, or the environment."""
        source = self.options[RunOptions].spaces
        if self.resumed is not None:
            facts = self.resumed[1]
            return from_plain(facts["observation_space"]), from_plain(facts["action_space"])
        if source == "env":
            from zmqrl.envs import read_spaces

            return read_spaces(self.options[EnvConfig].validate())
        if source != "first-actor":
            return _read_spaces_file(source)
        while True:
            hello = bus.wait_for_hello(60.0)
            if hello is not None and hello.observation_space is not None and hello.action_space is not None:
                return hello.observation_space, hello.action_space
            for command in bus.commands():
                if isinstance(command.message, Shutdown):
                    raise KeyboardInterrupt
            print("waiting for the first actor, which defines the spaces", flush=True)

    def trainer(self, observation_space: SpaceSpec, action_space: SpaceSpec) -> PPOTrainer:
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
        if self.resumed is not None:
            tensors, facts = self.resumed
            trainer.load_state(tensors, facts["trainer"])
            counters = trainer.counters
            print(
                f"resumed {self.checkpoint} at update {counters.updates}, {counters.env_steps:,} env steps; "
                "environments and the window of recent episodes begin anew",
                flush=True,
            )
        return trainer

    def recorder(self, bus: LearnerBus, trainer: PPOTrainer) -> RunRecorder:
        """Metrics, checkpoints and the goal of this run."""
        from zmqrl.runs.recorder import RunRecorder

        facts = {
            "run_id": bus.run_id,
            "epoch": bus.epoch,
            "observation_space": to_plain(trainer.policy.observation_space),
            "action_space": to_plain(trainer.policy.action_space),
            "config": resolved_config(self.options),
        }
        before = self.resumed[1]["run"] if self.resumed else None
        return RunRecorder.begin(
            self.folder, self.run_config, self.config, trainer, bus, facts, seconds_since_started, before
        )


def _read_spaces_file(name: str) -> tuple[SpaceSpec, SpaceSpec]:
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


def _utc(seconds: float | None) -> Any:
    import time

    return time.gmtime(seconds)
