"""Recording: the steps of one actor become chunks (`Experience`).

Shapes: T = `chunk_steps`, N = `num_envs`. Each chunk has arrays of its own, since the bus keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from zmqrl.envs.vector import Transition
from zmqrl.messages import Experience
from zmqrl.spaces import SpaceSpec, Tree, empty_tree, map_tree


@dataclass
class _Ends:
    """Rows whose successor or whose episode's end has to be told, in the order in which they came."""

    final_index: list[tuple[int, int]] = field(default_factory=list)
    final_observations: list[Tree] = field(default_factory=list)
    episode_index: list[tuple[int, int]] = field(default_factory=list)
    episode_returns: list[float] = field(default_factory=list)
    episode_lengths: list[int] = field(default_factory=list)


class ChunkRecorder:
    """Collects steps until `full`; `take` gives the chunk and begins the next."""

    def __init__(self, observation_space: SpaceSpec, action_space: SpaceSpec, num_envs: int, chunk_steps: int) -> None:
        """`action_space` is that of the actions as sampled (`spaces.sampled`)."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.num_envs = num_envs
        self.chunk_steps = chunk_steps
        self._begin()

    def _begin(self) -> None:
        steps, envs = self.chunk_steps, self.num_envs
        self._row = 0
        self._observations = empty_tree(self.observation_space, steps + 1, envs)
        self._actions = empty_tree(self.action_space, steps, envs)
        self._rewards = np.zeros((steps, envs), np.float32)
        self._terminated = np.zeros((steps, envs), np.bool_)
        self._truncated = np.zeros((steps, envs), np.bool_)
        self._valid = np.zeros((steps, envs), np.bool_)
        self._log_probs = np.zeros((steps, envs), np.float32)
        self._versions = np.zeros(steps, np.int64)
        self._ends = _Ends()

    @property
    def full(self) -> bool:
        """Whether the chunk has all its rows."""
        return self._row == self.chunk_steps

    @property
    def env_steps(self) -> int:
        """Valid rows in the chunk being recorded."""
        return int(np.count_nonzero(self._valid))

    def acted(self, observations: Tree, actions: Tree, log_probs: np.ndarray, version: int) -> None:
        """What the next action is chosen from, and what was chosen by the policy `version`; before env.step."""
        row = self._row
        map_tree(lambda into, batch: into.__setitem__(row, batch), self._observations, observations)
        map_tree(lambda into, batch: into.__setitem__(row, batch), self._actions, actions)
        self._log_probs[row] = log_probs
        self._versions[row] = version

    def stepped(self, transition: Transition) -> None:
        """What env.step gave; completes the row."""
        row, ends = self._row, self._ends
        self._rewards[row] = transition.rewards
        self._terminated[row] = transition.terminated
        self._truncated[row] = transition.truncated
        self._valid[row] = transition.valid
        if len(transition.final_index):
            ends.final_index += [(row, int(env)) for env in transition.final_index]
            ends.final_observations.append(map_tree(np.copy, transition.final_observations))
        if len(transition.episode_index):
            ends.episode_index += [(row, int(env)) for env in transition.episode_index]
            ends.episode_returns += transition.episode_returns.tolist()
            ends.episode_lengths += transition.episode_lengths.tolist()
        self._row += 1

    def take(self, agent_id: int, observations: Tree) -> Experience:
        """The chunk, closed by the observations after its last step; the next one begins empty.

        A chunk that is not full is padded with invalid rows, so that none straddles an update.
        """
        for row in range(self._row, self.chunk_steps + 1):
            map_tree(lambda into, batch, row=row: into.__setitem__(row, batch), self._observations, observations)
        ends = self._ends
        experience = Experience(
            agent_id=agent_id,
            observations=self._observations,
            actions=self._actions,
            rewards=self._rewards,
            terminated=self._terminated,
            truncated=self._truncated,
            valid=self._valid,
            log_probs=self._log_probs,
            versions=self._padded_versions(),
            final_index=np.array(ends.final_index, np.int32).reshape(-1, 2),
            final_observations=self._final_observations(),
            episode_index=np.array(ends.episode_index, np.int32).reshape(-1, 2),
            episode_returns=np.array(ends.episode_returns, np.float64),
            episode_lengths=np.array(ends.episode_lengths, np.int64),
        )
        self._begin()
        return experience

    def discard(self) -> int:
        """Forget the chunk being recorded; its env steps, for the account."""
        lost = self.env_steps
        self._begin()
        return lost

    def _padded_versions(self) -> np.ndarray:
        if 0 < self._row < self.chunk_steps:
            self._versions[self._row :] = self._versions[self._row - 1]
        return self._versions

    def _final_observations(self) -> Tree:
        if not self._ends.final_observations:
            return empty_tree(self.observation_space, 0)
        first, *others = self._ends.final_observations
        return map_tree(lambda *leaves: np.concatenate(leaves), first, *others)
