"""From the last layer of the network to actions, and from actions to the environment.

Actions travel and are trained on as they were sampled: a Discrete action is 0 .. n - 1 whatever the start of the
space, a Box action is an unbounded float32. Only `environment_actions` knows start, bounds and dtype of the space:
a log-prob of a clipped action would not be that of the action which the network chose.
"""

from __future__ import annotations

import math
from typing import assert_never

import numpy as np
import torch
from torch import Tensor, nn

from zmqrl.errors import UnsupportedSpace
from zmqrl.spaces import BoxSpec, DiscreteSpec, SpaceSpec, Tree, describe

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Categorical(nn.Module):
    """One of n actions, from n logits."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.size = n

    def sample(self, logits: Tensor, generator: torch.Generator, deterministic: bool) -> tuple[Tensor, Tensor]:
        """(actions [N] int64, log_probs [N]); the most probable action if deterministic."""
        log_probs = torch.log_softmax(logits, dim=-1)
        if deterministic:
            actions = log_probs.argmax(dim=-1)
        else:  # the largest of p_i / e_i with exponential e_i is i with probability p_i
            noise = torch.empty_like(log_probs).exponential_(generator=generator)
            actions = (log_probs - noise.log_()).argmax(dim=-1)
        return actions, log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def evaluate(self, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(log_probs [R] of actions [R], entropy [R])."""
        log_probs = torch.log_softmax(logits, dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1), entropy


class DiagonalGaussian(nn.Module):
    """Independent normal distributions around the network's output; their deviation does not depend on the state."""

    def __init__(self, shape: tuple[int, ...], log_std_init: float) -> None:
        super().__init__()
        self.shape = shape
        self.size = math.prod(shape)
        self.log_std = nn.Parameter(torch.full((self.size,), log_std_init))

    def sample(self, mean: Tensor, generator: torch.Generator, deterministic: bool) -> tuple[Tensor, Tensor]:
        """(actions [N, *shape] float32, log_probs [N]); the mean if deterministic."""
        flat = mean
        if not deterministic:
            flat = mean + self.log_std.exp() * torch.randn(mean.shape, generator=generator, device=mean.device)
        # From the action as rounded, not from the noise: the learner will compute it from the same action.
        return flat.reshape(-1, *self.shape), self._log_probs(mean, flat)

    def evaluate(self, mean: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(log_probs [R] of actions [R, *shape], entropy [R])."""
        entropy = (self.log_std + (0.5 + HALF_LOG_2PI)).sum()
        return self._log_probs(mean, actions.reshape(-1, self.size)), entropy.expand(mean.shape[0])

    def _log_probs(self, mean: Tensor, flat: Tensor) -> Tensor:
        scaled = (flat - mean) * (-self.log_std).exp()
        return -0.5 * scaled.square().sum(dim=-1) - (self.log_std + HALF_LOG_2PI).sum()


def make_distribution(action_space: SpaceSpec, log_std_init: float) -> Categorical | DiagonalGaussian:
    """The distribution over a space; UnsupportedSpace if there is none."""
    space = supported_action_space(action_space)
    if isinstance(space, DiscreteSpec):
        return Categorical(space.n)
    return DiagonalGaussian(space.shape, log_std_init)


def supported_action_space(space: SpaceSpec) -> BoxSpec | DiscreteSpec:
    """The space itself, or UnsupportedSpace with a remedy."""
    if isinstance(space, DiscreteSpec) or (isinstance(space, BoxSpec) and space.dtype != "bool"):
        return space
    raise UnsupportedSpace(
        f"action space {describe(space)}: the built-in policy acts in Discrete and numeric Box spaces; wrap the "
        "environment so that it takes one of these (gymnasium.wrappers.TransformAction), or give a policy of your "
        "own with --policy package.module:Class"
    )


def environment_actions(action_space: SpaceSpec, actions: Tree) -> Tree:
    """Sampled actions as the environment takes them: start added, or clipped to the bounds, in the space's dtype."""
    space = supported_action_space(action_space)
    values: np.ndarray = actions.cpu().numpy()
    match space:
        case DiscreteSpec():
            return (values + space.start).astype(space.dtype)
        case BoxSpec():
            dtype = np.dtype(space.dtype)
            low, high = space.bounds()
            whole = values if dtype.kind == "f" else np.rint(values)
            return np.clip(whole, low, high).astype(dtype).reshape(-1, *space.shape)
        case _:
            assert_never(space)
