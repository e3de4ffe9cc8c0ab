"""The one guest at the learner's door: `RunRecorder` is the `on_update` of a run with a folder."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from zmqrl.accounts import SlotAccount
from zmqrl.config import AsyncActorLearnerConfig, RunConfig
from zmqrl.errors import ZmqrlError
from zmqrl.messages import SaveCheckpoint
from zmqrl.ppo import PPOTrainer
from zmqrl.progress import RECENT_EPISODES, LearnerReport, UpdateRecord, shown_return
from zmqrl.runs.checkpoint import prune, save_checkpoint
from zmqrl.runs.folder import RunFolder
from zmqrl.runs.metrics import metrics_of
from zmqrl.runs.report import summarize_lag, write_report
from zmqrl.runs.writers import ConsoleLine, MetricsFile, TensorBoardWriter
from zmqrl.session import Command
from zmqrl.transport.bus import LearnerBus

log = logging.getLogger(__name__)


@dataclass
class RunRecorder:
    """Writes metrics and checkpoints, shows progress, and ends the run at its goal.

    `facts` are those of every checkpoint: configuration, spaces, run id and epoch. `clock` gives seconds since the
    user's command began.
    """

    folder: RunFolder
    config: RunConfig
    algorithm: AsyncActorLearnerConfig
    trainer: PPOTrainer
    bus: LearnerBus
    facts: dict[str, Any]
    clock: Callable[[], float]
    metrics: MetricsFile
    tensorboard: TensorBoardWriter | None
    console: ConsoleLine
    best_return: float | None = None
    reached: list[dict[str, float]] = field(default_factory=list)
    """When the mean return first reached the threshold: `return`, `env_steps`, `seconds`."""
    last: UpdateRecord | None = None
    _saved_update: int = -1

    @classmethod
    def begin(
        cls,
        folder: RunFolder,
        config: RunConfig,
        algorithm: AsyncActorLearnerConfig,
        trainer: PPOTrainer,
        bus: LearnerBus,
        facts: dict[str, Any],
        clock: Callable[[], float],
        before: dict[str, Any] | None,
    ) -> RunRecorder:
        """Open the files; `before` is what the checkpoint that is resumed says of the run."""
        counters = trainer.counters
        recorder = cls(
            folder,
            config,
            algorithm,
            trainer,
            bus,
            facts,
            clock,
            MetricsFile(folder.metrics_file, after_update=counters.updates),
            TensorBoardWriter(folder.event_file, after_env_steps=counters.env_steps) if config.tensorboard else None,
            ConsoleLine(config.log_interval),
        )
        if before is not None:
            recorder.best_return, recorder.reached = before["best_return"], before["reached"]
            recorder.save()  # in the new epoch: a learner killed before its next checkpoint must not begin it twice
        return recorder

    def __call__(self, record: UpdateRecord) -> str | None:
        """What `learner_loop` calls after each update."""
        metrics = metrics_of(record, self.last)
        self.last = record
        self.metrics.write(record, metrics)
        if self.tensorboard is not None:
            self.tensorboard.write(record, metrics)
        self.console.show(record)
        for command in record.save_requests:
            self._obey(command)
        stopped = self._goal(record)
        if self.config.checkpoint_every and record.update % self.config.checkpoint_every == 0:
            self.save()
        return stopped

    def _obey(self, command: Command) -> None:
        """Save a checkpoint under the name an admin gave; what cannot be is answered, and no error of the run."""
        if not isinstance(command.message, SaveCheckpoint):
            return
        try:
            path = self.folder.named_checkpoint(command.message.name)
            self._save(path)
        except ZmqrlError as error:
            self.bus.answer(command.request, False, str(error))
        else:
            self.bus.answer(command.request, True, f"saved {path.name}")

    def _goal(self, record: UpdateRecord) -> str | None:
        """Why the run ends here, if it first reached its goal with this update."""
        goal, mean = self.config.stop_at_return, record.mean_episode_return
        if goal is None or mean is None or mean < goal or record.recent_episodes < RECENT_EPISODES:
            return None
        if any(entry["return"] == goal for entry in self.reached):  # before it was resumed, for more env steps
            return None
        seconds = self.clock()
        self.reached.append({"return": goal, "env_steps": record.env_steps, "seconds": seconds})
        return (
            f"mean return {shown_return(mean)} over {RECENT_EPISODES} episodes reached {goal:g} "
            f"after {record.env_steps:,} env steps, {seconds:.1f} s"
        )

    def save(self) -> None:
        """A checkpoint of now, once per update; keeps the newest few, and the best by mean return."""
        update = self.trainer.counters.updates
        if update == self._saved_update:
            return
        self._save(self.folder.checkpoint(update))
        self._saved_update = update
        mean = self.last.mean_episode_return if self.last else None
        if mean is not None and (self.best_return is None or mean >= self.best_return):
            self.best_return = mean
            self._save(self.folder.best_checkpoint)
        prune(self.folder, self.config.keep_checkpoints)

    def _save(self, path: Path) -> None:
        tensors, facts = self.trainer.state()
        mean = self.last.mean_episode_return if self.last else None
        run = {"mean_episode_return": mean, "best_return": self.best_return, "reached": self.reached}
        save_checkpoint(path, tensors, {**self.facts, "trainer": facts, "run": run})

    def finish(self, report: LearnerReport) -> None:
        """The last checkpoint and report.json, whichever way the loop ended.

        After an error of training the trainer stands before the update that failed. A disk that is full hides
        neither that error nor the report.
        """
        try:
            self.save()
        except ZmqrlError as error:
            log.error("the last checkpoint is missing: %s", error)
        self._write_report(report)

    def _write_report(self, report: LearnerReport) -> None:
        counters, accounts = self.trainer.counters, self.bus.accounts()
        trained_seconds = self.last.wall_seconds if self.last else 0.0
        trained_steps = sum(report.policy_lag.values())
        write_report(
            self.folder,
            {
                "updates_completed": counters.updates,
                "env_steps_consumed": counters.env_steps,
                "episodes_completed": counters.episodes,
                "broadcasts_sent": counters.broadcasts,
                "last_policy_version": counters.version,
                "mean_episode_return": report.mean_recent_episode_reward(RECENT_EPISODES),
                "wall_seconds": self.clock(),
                "env_steps_per_second": trained_steps / trained_seconds if trained_seconds else None,
                "reached": self.reached,
                "stopped_because": report.stopped_because,
                "parameters_sha256": self.trainer.parameters_sha256(),
                "transport": {
                    "sum": _total(accounts.values()),
                    "actors": {str(s): asdict(accounts[s]) for s in accounts},
                },
                "policy_lag": self._lag(report),
                "learner": report.seconds,
                "actors": [asdict(stats) for stats in self.bus.actor_stats()],
            },
        )

    def _lag(self, report: LearnerReport) -> dict[str, dict[str, float | int | None]]:
        """In versions, and in env steps consumed meanwhile: one version is the rows of its updates."""
        rows = self.algorithm.rows_per_update * self.algorithm.broadcast_every
        steps = {lag * rows: count for lag, count in report.policy_lag.items()}
        return {"versions": summarize_lag(report.policy_lag), "steps": summarize_lag(steps)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self.console.close()
        self.metrics.close()
        if self.tensorboard is not None:
            self.tensorboard.close()


def _total(accounts: Iterable[SlotAccount]) -> dict[str, Any]:
    """The account of all slots together."""
    total: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for account in accounts:
        figures = asdict(account)
        refused.update(figures.pop("refused"))
        total.update(figures)
    return {**total, "refused": dict(refused)}
