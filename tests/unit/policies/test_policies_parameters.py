"""One run of bytes: layout, round trips, and that nothing in training breaks the views."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from zmqrl.errors import UsageError, ZmqrlError
from zmqrl.policies import FlatParameters


class Mixed(nn.Module):
    """Parameters of odd sizes, a frozen one, a shared one, buffers of several dtypes, a transient buffer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.inner = nn.BatchNorm1d(3)
        self.odd = nn.Parameter(torch.randn(5, 7, generator=generator))
        self.scalar = nn.Parameter(torch.randn((), generator=generator))
        self.frozen = nn.Parameter(torch.randn(2, generator=generator), requires_grad=False)
        self.tied = self.odd
        self.register_buffer("precise", torch.randn(3, dtype=torch.float64, generator=generator))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("transient", torch.ones(2), persistent=False)


def values(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}


def test_the_module_is_the_same_after_flattening() -> None:
    plain, module = Mixed(), Mixed()
    FlatParameters(module)
    before, after = values(plain), values(module)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    assert module.tied is module.odd
    assert not module.frozen.requires_grad


def test_manifest_names_the_state_dict_at_aligned_offsets_that_hold_its_bytes() -> None:
    module = Mixed()
    flat = FlatParameters(module)
    data, state = flat.dump(), module.state_dict()
    manifest = flat.manifest()
    assert [entry.name for entry in manifest] == [
        "odd", "scalar", "frozen", "inner.weight", "inner.bias",
        "precise", "flag", "inner.running_mean", "inner.running_var", "inner.num_batches_tracked",
    ]  # fmt: skip
    assert {entry.name for entry in manifest} == state.keys() - {"tied"}
    end = 0
    for entry in manifest:
        assert entry.offset % 64 == 0
        assert entry.offset >= end
        array = np.frombuffer(data, entry.dtype, count=int(np.prod(entry.shape)), offset=entry.offset)
        assert np.array_equal(array.reshape(entry.shape), state[entry.name].numpy())
        end = entry.offset + array.nbytes
    assert len(data) - end < 64
    assert manifest == FlatParameters(Mixed(1)).manifest()


def test_load_makes_another_module_equal_and_a_wrong_length_changes_nothing() -> None:
    module, other = Mixed(0), Mixed(1)
    flat, other_flat = FlatParameters(module), FlatParameters(other)
    assert flat.sha256() != other_flat.sha256()
    before = other_flat.dump()
    for wrong in (b"", flat.dump()[:-1], flat.dump() + b"0"):
        with pytest.raises(ZmqrlError, match="do not fit this policy"):
            other_flat.load(wrong)
    assert other_flat.dump() == before
    other_flat.load(memoryview(flat.dump()))
    expected, found = values(module), values(other)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert flat.sha256() == other_flat.sha256() == hashlib.sha256(flat.dump()).hexdigest()


def test_gradients_arrive_in_one_tensor_and_the_views_outlive_training() -> None:
    module = Mixed()
    flat = FlatParameters(module)
    weights, gradients = flat.weights, flat.gradients
    assert weights.dtype == gradients.dtype == torch.float32
    assert weights.shape == gradients.shape
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    for step in range(3):
        gradients.zero_()
        (module.inner(rows).sum() + (module.odd**2).sum() + 3 * module.scalar).backward()
        assert module.scalar.grad is not None
        assert float(module.scalar.grad) == 3.0
        assert int((gradients == 3.0).sum()) == 1
        weights.sub_(gradients, alpha=0.1)
        assert int(module.inner.num_batches_tracked) == step + 1
    flat.check()
    views = flat.tensors()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name != "transient":
            assert tensor.data_ptr() == views[name].data_ptr(), name
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert gradients.data_ptr() <= parameter.grad.data_ptr() < gradients.data_ptr() + gradients.nbytes
    assert np.array_equal(values(module)["odd"], flat.tensors()["odd"].numpy())


def test_bytes_between_tensors_stay_zero() -> None:
    flat = FlatParameters(Mixed())
    flat.gradients.fill_(1.0)  # even so, what is no parameter is never read as one
    used = sum(int(np.prod(entry.shape)) for entry in flat.manifest() if entry.dtype == "float32")
    assert flat.weights.numel() > used - 6  # two running statistics of three float32 are no weights
    gaps = np.frombuffer(flat.dump(), np.uint8).copy()
    for entry in flat.manifest():
        gaps[entry.offset : entry.offset + int(np.prod(entry.shape)) * np.dtype(entry.dtype).itemsize] = 0
    assert not gaps.any()


def test_check_names_a_tensor_that_was_replaced() -> None:
    module = Mixed()
    flat = FlatParameters(module)
    flat.check()
    module.precise = module.precise + 1
    with pytest.raises(ZmqrlError, match="precise of Mixed was replaced"):
        flat.check()


def test_moving_binds_everything_anew() -> None:
    module = Mixed()
    flat = FlatParameters(module)
    data = flat.dump()
    flat.gradients.fill_(1.0)
    flat.to("cpu")
    flat.check()
    assert flat.dump() == data
    assert not bool(flat.gradients.any())


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(UsageError, match=r"parameter weight of Linear is torch\.float64; use float32"):
        FlatParameters(nn.Linear(2, 2).double())
    module = nn.Linear(2, 2)
    module.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UsageError, match="buffer phase of Linear is complex64"):
        FlatParameters(module)


def test_a_module_without_parameters_or_state() -> None:
    flat = FlatParameters(nn.Identity())
    assert flat.dump() == b""
    assert flat.weights.numel() == flat.gradients.numel() == 0
    module = nn.Module()
    module.register_buffer("only", torch.arange(3))
    assert FlatParameters(module).weights.numel() == 0
