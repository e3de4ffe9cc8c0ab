"""From raw observations to rows of float32, and the networks behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from zmqrl.errors import UnsupportedSpace
from zmqrl.spaces import BoxSpec, SpaceSpec, Tree, describe

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}

HIDDEN_GAIN = math.sqrt(2.0)


class FlattenEncoder(nn.Module):
    """A Box of any numeric dtype and shape as rows of float32. A uint8 Box of 0 .. 255 is scaled to 0 .. 1."""

    def __init__(self, observation_space: SpaceSpec) -> None:
        super().__init__()
        if not isinstance(observation_space, BoxSpec):
            raise UnsupportedSpace(
                f"observation space {describe(observation_space)}: the built-in policy reads Box spaces; wrap the "
                "environment in gymnasium.wrappers.FlattenObservation, or give a policy of your own with "
                "--policy package.module:Class"
            )
        low, high = observation_space.bounds()
        pixels = observation_space.dtype == "uint8" and bool((low == 0).all() and (high == 255).all())
        self.size = math.prod(observation_space.shape)
        self.scale = 1.0 / 255.0 if pixels else 1.0

    def forward(self, observations: Tree) -> Tensor:
        """[R, *shape] to [R, size] float32."""
        rows: Tensor = observations.reshape(-1, self.size).to(torch.float32)
        return rows if self.scale == 1.0 else rows * self.scale


def make_mlp(
    inputs: int, hidden_sizes: Sequence[int], outputs: int, activation: str, gain: float, generator: torch.Generator
) -> nn.Sequential:
    """Linear layers with an activation between; orthogonal weights (Saxe et al. 2014) drawn from `generator`.

    gain: of the last layer's weights. Biases start at 0.
    """
    sizes = [inputs, *hidden_sizes, outputs]
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(sizes)):
        last = index == len(sizes) - 2
        linear = nn.Linear(before, after)
        nn.init.orthogonal_(linear.weight, gain if last else HIDDEN_GAIN, generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)
