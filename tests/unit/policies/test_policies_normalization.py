"""Running statistics against those computed directly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zmqrl.policies.normalization import RunningMeanStd


def test_statistics_equal_those_of_all_rows_at_once() -> None:
    random = np.random.default_rng(0)
    parts = [random.normal(5000, 1000, size=(rows, 3)).astype(np.float32) for rows in (1, 7, 0, 100, 33)]
    running = RunningMeanStd(3)
    for part in parts:
        running.update(torch.from_numpy(part))
    everything = np.concatenate(parts).astype(np.float64)
    assert int(running.count) == 141
    np.testing.assert_allclose(running.mean.numpy(), everything.mean(0), rtol=1e-13)
    np.testing.assert_allclose(running.variance.numpy(), everything.var(0), rtol=1e-12)


def test_a_large_offset_does_not_cancel() -> None:
    random = np.random.default_rng(1)
    parts = [1e6 + random.normal(size=(50, 1)) for _ in range(20)]
    running = RunningMeanStd(1)
    for part in parts:
        running.update(torch.from_numpy(part))
    np.testing.assert_allclose(running.variance.numpy(), np.concatenate(parts).var(0), rtol=1e-9)


def test_output_is_normalized_and_clipped() -> None:
    running = RunningMeanStd(2)
    rows = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    assert torch.equal(running(rows), torch.tensor([[1.0, 10.0], [3.0, 10.0]]))  # before the first update
    running.update(rows)
    np.testing.assert_allclose(running(rows).numpy(), [[-1, -1], [1, 1]], rtol=1e-6)
    assert running(torch.tensor([[1e9, -1e9]])).tolist() == [[10.0, -10.0]]
    assert running(rows).dtype == torch.float32


def test_a_constant_feature_stays_finite() -> None:
    running = RunningMeanStd(1)
    running.update(torch.full((5, 1), 4.0))
    assert running(torch.full((1, 1), 4.0)).tolist() == [[0.0]]
    assert running(torch.full((1, 1), 5.0)).tolist() == [[10.0]]
    assert float(running.variance) == pytest.approx(0.0, abs=1e-30)


def test_buffers_are_written_in_place() -> None:
    running = RunningMeanStd(2)
    places = [buffer.data_ptr() for buffer in running.buffers()]
    running.update(torch.randn(9, 2))
    assert [buffer.data_ptr() for buffer in running.buffers()] == places
