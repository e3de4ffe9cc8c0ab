"""Running mean and deviation of observations, as buffers of the policy: they travel and are saved with the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLIP = 10.0
"""Normalized observations are clipped to this many deviations, so that an outlier cannot saturate the network."""

EPSILON = 1e-8
"""Added to the variance: a feature that never changed so far does not divide by zero."""


class RunningMeanStd(nn.Module):
    """Mean and variance over all rows ever passed to `update`, in float64. Before the first row: mean 0, variance 1."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, rows: Tensor) -> Tensor:
        """[R, size] float32 to the same, normalized and clipped."""
        deviation = (self.variance + EPSILON).sqrt()
        return ((rows - self.mean.float()) / deviation.float()).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """Add rows [R, size] by the pairwise formula of Chan, Golub and LeVeque (1979), which does not cancel."""
        if rows.shape[0] == 0:
            return
        rows = rows.double()
        variance, mean = torch.var_mean(rows, dim=0, correction=0)
        before, added = self.count.double(), float(rows.shape[0])
        total = before + added
        shift = mean - self.mean
        squares = self.variance * before + variance * added + shift**2 * (before * added / total)
        self.variance.copy_(squares / total)  # in place: the buffers are views of FlatParameters
        self.mean.add_(shift * (added / total))
        self.count.add_(rows.shape[0])
