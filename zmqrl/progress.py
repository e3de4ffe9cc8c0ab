"""What a learner says of itself: figures of an update, the record of each, and the report of the whole loop."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from zmqrl.errors import CheckpointError
from zmqrl.session import Command

PHASES = ("waiting", "placing", "estimating", "updating", "publishing")
"""Of the learner: for experience, copying it into the rollout, values and advantages, train_step, broadcast."""

RECENT_EPISODES = 100
"""Episodes in the mean that is shown, logged and compared with `stop_at_return`."""


@dataclass
class Counters:
    """How far the run is. The trainer counts updates, the learner loop the rest; all are part of a checkpoint."""

    updates: int = 0
    env_steps: int = 0
    episodes: int = 0
    version: int = 0
    broadcasts: int = 0

    @classmethod
    def from_facts(cls, facts: Any) -> Counters:
        """From the facts of a checkpoint; CheckpointError if one is missing or no number."""
        try:
            return cls(**{field.name: int(facts[field.name]) for field in fields(cls)})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint lacks a count, or it is no number: {error}") from None


@dataclass(frozen=True)
class TrainingStats:
    """Figures of one update; the first five are means over the minibatches evaluated, `grad_norm` over the steps."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    explained_variance: float
    """1 - var(returns - values) / var(returns) before the update, from minus infinity to 1; 0 if returns are equal."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    clip_range: float
    ratio_error: float
    """max |ratio - 1| between the learner's policy and the one that acted, before the first optimizer step."""
    epochs: int
    """In which at least one optimizer step was taken."""
    minibatches: int
    """Optimizer steps really taken."""


@dataclass
class LearnerReport:
    """What the loop did; holds nothing that grows with the length of the run. Counts are over resumes too."""

    updates_completed: int = 0
    env_steps_consumed: int = 0
    episodes_completed: int = 0
    broadcasts_sent: int = 0
    last_policy_version: int = 0
    stopped_because: str = ""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """By phase, since this loop began."""
    policy_lag: Counter[int] = field(default_factory=Counter)
    """Env steps consumed, by how many versions their policy was behind."""
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    recent_lengths: deque[int] = field(default_factory=lambda: deque(maxlen=1000))

    def mean_recent_episode_reward(self, n: int) -> float | None:
        """Mean raw return of the last n finished episodes (at most 1,000); None before the first."""
        return _mean(list(self.recent_returns)[-n:])

    def mean_recent_episode_length(self, n: int) -> float | None:
        """Mean length in env steps of the last n finished episodes (at most 1,000); None before the first."""
        return _mean(list(self.recent_lengths)[-n:])

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds of the block to one of PHASES."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - began

    def add_episodes(self, returns: np.ndarray, lengths: np.ndarray) -> None:
        """Episodes that ended in the rollout just consumed, in the order of columns, then time."""
        self.recent_returns.extend(returns.tolist())
        self.recent_lengths.extend(lengths.tolist())

    def add_lags(self, lags: np.ndarray) -> None:
        """Versions behind, one per env step just consumed."""
        values, steps = np.unique(lags, return_counts=True)
        self.policy_lag.update(dict(zip(values.tolist(), steps.tolist(), strict=True)))


def shown_return(mean: float) -> str:
    """A mean return for people: one decimal, and more where it is small."""
    return f"{mean:.1f}" if abs(mean) >= 10 else f"{mean:.3g}"


def _mean(values: list[float] | list[int]) -> float | None:
    return float(np.mean(values)) if values else None


@dataclass(frozen=True, eq=False)
class UpdateRecord:
    """What `on_update` is told after each update. Counts are of the whole run, over resumes too."""

    update: int
    total_updates: int
    version: int
    env_steps: int
    episodes: int
    training: TrainingStats
    episode_returns: np.ndarray
    """Of the episodes that ended in this rollout, in the order of columns, then time."""
    episode_lengths: np.ndarray
    mean_episode_return: float | None
    """Of the last 100 finished episodes; None before the first."""
    mean_episode_length: float | None
    recent_episodes: int
    """How many episodes those means are over."""
    lag_mean: float
    """Versions behind, over the env steps of this rollout."""
    lag_max: int
    seconds: dict[str, float]
    """By phase, since the loop began."""
    wall_seconds: float
    """Since the loop began."""
    actors_alive: int
    save_requests: tuple[Command, ...] = ()
    """SaveCheckpoint commands of admins; whoever saves them also answers them on the bus."""

    @classmethod
    def of(
        cls,
        report: LearnerReport,
        training: TrainingStats,
        episodes: tuple[np.ndarray, np.ndarray],
        lags: np.ndarray,
        total_updates: int,
        wall_seconds: float,
        actors_alive: int,
        save_requests: tuple[Command, ...],
    ) -> UpdateRecord:
        """The record of the update that `report` was brought up to; `episodes` are returns and lengths."""
        return cls(
            update=report.updates_completed,
            total_updates=total_updates,
            version=report.last_policy_version,
            env_steps=report.env_steps_consumed,
            episodes=report.episodes_completed,
            training=training,
            episode_returns=episodes[0],
            episode_lengths=episodes[1],
            mean_episode_return=report.mean_recent_episode_reward(RECENT_EPISODES),
            mean_episode_length=report.mean_recent_episode_length(RECENT_EPISODES),
            recent_episodes=min(len(report.recent_returns), RECENT_EPISODES),
            lag_mean=float(lags.mean()) if len(lags) else 0.0,
            lag_max=int(lags.max(initial=0)),
            seconds=dict(report.seconds),
            wall_seconds=wall_seconds,
            actors_alive=actors_alive,
            save_requests=save_requests,
        )
