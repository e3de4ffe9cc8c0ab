r"""An environment of one's own, in a file of one's own.

The command finds it by module and id, on each host where the module can be imported:

    PYTHONPATH=examples zmqrl train --env own_environment:Corridor-v0 --num-actors 2 --total-env-steps 40000 \
        --num-steps 64 --stop-at-return 0.9
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env[np.ndarray, np.int64]):
    """Walk right to the end: reward 1 there, a little less for each step, given up after 50."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.position = 0
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        return np.array([self.position / self.length], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Back to the left end."""
        super().reset(seed=seed)
        self.position = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Action 1 is right, 0 is left."""
        self.position = max(0, self.position + (1 if action == 1 else -1))
        arrived = self.position == self.length
        return self._observe(), 1.0 if arrived else -0.001, arrived, False, {}


gymnasium.register("Corridor-v0", entry_point=Corridor, max_episode_steps=50)
