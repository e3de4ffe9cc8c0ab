"""What the network sees of an observation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zmqrl.errors import UnsupportedSpace
from zmqrl.policies.encoders import FlattenEncoder, make_mlp
from zmqrl.spaces import BoxSpec, DictSpec, DiscreteSpec, MultiBinarySpec, SpaceSpec


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64"])
def test_any_numeric_box_becomes_rows_of_float32(dtype: str) -> None:
    encoder = FlattenEncoder(BoxSpec(dtype, (2, 2), 0.0, 1.0))
    array = np.arange(12).reshape(3, 2, 2) % 2
    rows = encoder(torch.from_numpy(array.astype(dtype)))
    assert rows.dtype == torch.float32
    assert rows.tolist() == array.reshape(3, 4).tolist()


def test_a_scalar_box() -> None:
    assert FlattenEncoder(BoxSpec("float32", (), -1, 1))(torch.tensor([0.5, 1.0])).tolist() == [[0.5], [1.0]]


def test_pixels_are_scaled_once_and_other_bytes_are_not() -> None:
    pixels = torch.tensor([[[0, 51], [102, 255]]], dtype=torch.uint8)
    expected = torch.tensor([[0.0, 0.2, 0.4, 1.0]])
    torch.testing.assert_close(FlattenEncoder(BoxSpec("uint8", (2, 2), 0, 255))(pixels), expected)
    assert FlattenEncoder(BoxSpec("uint8", (2, 2), 0, 200))(pixels).tolist() == [[0.0, 51.0, 102.0, 255.0]]


@pytest.mark.parametrize("space", [DiscreteSpec(4), MultiBinarySpec((2,)), DictSpec((("a", DiscreteSpec(2)),))])
def test_other_spaces_are_refused_by_name_with_a_remedy(space: SpaceSpec) -> None:
    with pytest.raises(UnsupportedSpace, match=f"observation space {type(space).__name__[:4]}.*FlattenObservation"):
        FlattenEncoder(space)


def test_weights_are_orthogonal_with_their_gain() -> None:
    network = make_mlp(3, (8, 8), 2, "relu", 0.01, torch.Generator().manual_seed(0))
    assert [type(layer).__name__ for layer in network] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    for index, gain in ((0, math.sqrt(2)), (2, math.sqrt(2)), (4, 0.01)):
        weight = network[index].weight.detach()
        small = weight.T @ weight if weight.shape[0] > weight.shape[1] else weight @ weight.T
        torch.testing.assert_close(small, gain**2 * torch.eye(len(small)), rtol=1e-5, atol=1e-6 * gain**2 * 10)
        assert not bool(network[index].bias.any())
