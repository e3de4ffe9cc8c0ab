"""What is said: experience one way, policies and control the other. `session.py` has the words around it.

Shapes: T steps, N environments of one actor. A *chunk* is one `Experience`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zmqrl.spaces import Tree


@dataclass(frozen=True, eq=False)
class Experience:
    """Consecutive steps of all environments of one actor; T = N = 1 is a single transition.

    The successor of row (t, n) is `observations[t + 1, n]`, unless (t, n) stands in `final_index`: then it is
    the entry of `final_observations` at the same position, and `observations[t + 1, n]` begins a new episode.
    """

    agent_id: int
    """Slot of the actor, 0 .. num_actors - 1."""
    observations: Tree
    """[T + 1, N, ...]: what each action was chosen from, and what came after the last step."""
    actions: Tree
    """[T, N, ...]: as sampled, before any bound is applied."""
    rewards: np.ndarray
    """[T, N] float32, raw."""
    terminated: np.ndarray
    """[T, N] bool."""
    truncated: np.ndarray
    """[T, N] bool."""
    valid: np.ndarray
    """[T, N] bool: False for autoreset artefacts and padding, which are no env steps."""
    log_probs: np.ndarray
    """[T, N] float32: of the actions under the behavior policy."""
    versions: np.ndarray
    """[T] int64: version of the behavior policy."""
    final_index: np.ndarray
    """[F, 2] int32: (t, n) of rows whose successor is not the next observation."""
    final_observations: Tree
    """[F, ...]."""
    episode_index: np.ndarray
    """[M, 2] int32: (t, n) of rows that ended an episode."""
    episode_returns: np.ndarray
    """[M] float64, raw."""
    episode_lengths: np.ndarray
    """[M] int64, in env steps."""
    values: np.ndarray | None = None
    """[T, N] float32: the actor's own estimate, if it made one. The learner evaluates anew."""
    session: int = 0
    """Which stay of an actor in its slot; told apart by the learner's bus."""
    seq: int = 0
    """Number of the chunk within its session; given by the actor's bus."""

    @property
    def num_steps(self) -> int:
        """T."""
        return int(self.rewards.shape[0])

    @property
    def num_envs(self) -> int:
        """N."""
        return int(self.rewards.shape[1])

    @property
    def env_steps(self) -> int:
        """Valid rows."""
        return int(np.count_nonzero(self.valid))


@dataclass(frozen=True, eq=False)
class PolicyBroadcast:
    """Parameters and statistics of one policy version."""

    version: int
    parameters: bytes | memoryview
    """All entries of the manifest, each at its aligned offset, in one run of bytes."""
    epoch: int = 0
    """Given by the bus; policies are ordered by (epoch, version)."""


@dataclass(frozen=True)
class Shutdown:
    """To every actor, repeated until each said goodbye; from an admin: finish the update and end the run."""

    reason: str = "the run is over"


@dataclass(frozen=True)
class SaveCheckpoint:
    """Save under this name (letters, digits, `._-`, at most 64) inside the run's own folder."""

    name: str


@dataclass(frozen=True)
class LoadCheckpoint:
    """Go back to the checkpoint of this name: a new epoch."""

    name: str


@dataclass(frozen=True)
class SetLearningRate:
    """Use this rate from the next update on; ends a schedule."""

    learning_rate: float


ControlMessage = Shutdown | SaveCheckpoint | LoadCheckpoint | SetLearningRate
