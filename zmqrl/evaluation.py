"""How good is a policy? A fixed number of whole episodes, with an honest error bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from zmqrl.errors import UsageError
from zmqrl.spaces import map_tree

if TYPE_CHECKING:
    from zmqrl.envs import VectorEnvironment
    from zmqrl.policies import Policy


@dataclass(frozen=True)
class EvaluationResult:
    """Raw, undiscounted returns of whole episodes."""

    episodes: int
    mean_return: float
    std_return: float
    """Sample standard deviation (over episodes - 1); 0 for one episode."""
    standard_error: float | None
    """Of the mean: std_return / sqrt(episodes); None for one episode."""
    confidence_interval: tuple[float, float] | None
    """95 %, from the normal distribution: mean_return -+ 1.96 standard_error; None for one episode."""
    min_return: float
    max_return: float
    mean_length: float
    """Env steps per episode."""
    deterministic: bool
    """Whether the most probable action was taken, not a sampled one."""
    seed: int


def evaluate_policy(
    policy: Policy,
    envs: VectorEnvironment,
    *,
    episodes: int = 100,
    deterministic: bool = True,
    seed: int = 0,
) -> EvaluationResult:
    """Run `episodes` whole episodes of `envs` with `policy`, which is left as it was.

    How many episodes each environment contributes is fixed beforehand (they differ by at most one), so short ones
    count no more than long ones. The same seed gives the same result, as far as the environments are
    reproducible. It ends when the episodes do: environments must terminate or truncate.
    """
    if episodes < 1:
        raise UsageError(f"episodes = {episodes}: an evaluation needs at least 1")
    wanted = np.full(envs.num_envs, episodes // envs.num_envs)
    wanted[: episodes % envs.num_envs] += 1

    generator = torch.Generator().manual_seed(seed)
    was_training = policy.training
    policy.eval()
    returns: list[float] = []
    lengths: list[int] = []
    try:
        observations = envs.reset(seed)
        while len(returns) < episodes:
            with torch.inference_mode():
                actions, _ = policy.act(map_tree(torch.from_numpy, observations), generator, deterministic)
                commands = policy.environment_actions(actions)
            transition = envs.step(commands)
            observations = transition.observations
            for position, index in enumerate(transition.episode_index):
                if wanted[index] > 0:
                    wanted[index] -= 1
                    returns.append(float(transition.episode_returns[position]))
                    lengths.append(int(transition.episode_lengths[position]))
    finally:
        policy.train(was_training)
    return _summary(np.array(returns), np.array(lengths), deterministic, seed)


def _summary(returns: np.ndarray, lengths: np.ndarray, deterministic: bool, seed: int) -> EvaluationResult:
    count = len(returns)
    mean = float(returns.mean())
    deviation = float(returns.std(ddof=1)) if count > 1 else 0.0
    error = deviation / float(np.sqrt(count)) if count > 1 else None
    return EvaluationResult(
        episodes=count,
        mean_return=mean,
        std_return=deviation,
        standard_error=error,
        confidence_interval=None if error is None else (mean - 1.96 * error, mean + 1.96 * error),
        min_return=float(returns.min()),
        max_return=float(returns.max()),
        mean_length=float(lengths.mean()),
        deterministic=deterministic,
        seed=seed,
    )
