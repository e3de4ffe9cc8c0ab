"""Adam over one flat tensor. torch.optim is not used: importing it imports torch._dynamo, which takes a second."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from zmqrl.errors import CheckpointError


class FlatAdam:
    """Adam (Kingma and Ba 2015) over one flat tensor, as one fused kernel."""

    BETA1, BETA2 = 0.9, 0.999

    def __init__(self, weights: Tensor, epsilon: float) -> None:
        self.epsilon = epsilon
        self.first_moment = torch.zeros_like(weights)
        self.second_moment = torch.zeros_like(weights)
        self.steps = torch.zeros((), dtype=torch.float32, device=weights.device)  # the kernel wants a float tensor

    def step(self, weights: Tensor, gradients: Tensor, rate: float, failed: Tensor) -> None:
        """One step, in place; none at all where `failed` (float scalar on the device) is 1."""
        self.steps += 1.0 - failed
        torch._fused_adam_(
            [weights],
            [gradients],
            [self.first_moment],
            [self.second_moment],
            [],
            [self.steps],
            lr=rate,
            beta1=self.BETA1,
            beta2=self.BETA2,
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
            found_inf=failed,
        )

    def tensors(self) -> dict[str, Tensor]:
        """What continues it bit for bit."""
        return {"first_moment": self.first_moment, "second_moment": self.second_moment, "steps": self.steps}


def replace_tensors(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Write the given values into our tensors. CheckpointError if names or shapes differ; nothing is changed then."""
    for name in own.keys() | given.keys():
        ours, theirs = (list(group[name].shape) if name in group else "none" for group in (own, given))
        if ours != theirs:
            raise CheckpointError(
                f"tensor {name} of the checkpoint has shape {theirs}, this run's {ours}: it is of another network; "
                "use the configuration that is saved with the checkpoint"
            )
    for name, tensor in own.items():
        tensor.copy_(given[name])
