import numpy as np
import pytest
from gymnasium import spaces

from zmqrl.envs import spec_of
from zmqrl.errors import UnsupportedSpace
from zmqrl.spaces import (
    BoxSpec,
    DictSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    TupleSpec,
    from_plain,
    to_plain,
)


def test_every_supported_space_is_described_exactly():
    space = spaces.Dict(
        [  # a list keeps an order that is not alphabetical
            ("z", spaces.Box(0, 255, (4, 2), np.uint8)),
            ("a", spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2))))),
            ("m", spaces.MultiDiscrete([3, 2, 4])),
            ("b", spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32))),
        ]
    )
    spec = spec_of(space, "observation")
    assert spec == DictSpec(
        (
            ("z", BoxSpec("uint8", (4, 2), 0.0, 255.0)),
            ("a", TupleSpec((DiscreteSpec(3, -1), MultiBinarySpec((2, 2))))),
            ("m", MultiDiscreteSpec((3, 2, 4), (3,))),
            ("b", BoxSpec("float32", (2,), (-1.0, 0.0), (1.0, float("inf")))),
        )
    )
    assert from_plain(to_plain(spec)) == spec


def test_a_scalar_box_has_an_empty_shape():
    assert spec_of(spaces.Box(-1.0, 1.0, (), np.float64), "action") == BoxSpec("float64", (), -1.0, 1.0)


@pytest.mark.parametrize(
    ("space", "name", "remedy"),
    [
        (spaces.Text(5), "Text", "MultiDiscrete"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence", "pad it"),
        (spaces.Graph(spaces.Discrete(2), None), "Graph", "pad nodes"),
        (spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]), "OneOf", "Dict with a Discrete"),
    ],
)
def test_an_unsupported_space_is_refused_with_its_path_its_name_and_a_remedy(space, name, remedy):
    with pytest.raises(UnsupportedSpace, match=r"observation/outer/1") as refused:
        spec_of(spaces.Dict({"outer": spaces.Tuple((spaces.Discrete(2), space))}), "observation")
    assert name in str(refused.value)
    assert remedy in str(refused.value)


def test_a_space_of_an_unknown_kind_is_refused():
    class Own(spaces.Space):
        def __repr__(self):
            return "Own(7)"

    with pytest.raises(UnsupportedSpace, match=r"action: Own\(7\)"):
        spec_of(Own((), np.float32), "action")


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.MultiDiscrete([2, 3], start=[0, 1]), "does not start at 0"),
        (spaces.Dict({3: spaces.Discrete(2)}), "the key 3"),
        (spaces.Dict({}), "0 leaves"),
        (spaces.Dict({"x" * 65: spaces.Discrete(2)}), "64 bytes"),
        (spaces.Box(0, 1, (0,)), "impossible shape"),
    ],
)
def test_what_cannot_travel_is_refused_where_the_space_is_read(space, text):
    with pytest.raises(UnsupportedSpace, match=text):
        spec_of(space, "observation")
