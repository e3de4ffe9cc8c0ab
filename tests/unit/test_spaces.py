"""Spaces as plain data: trees and back, text and back, differences in words, and nothing else is let in."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqrl.errors import DecodeError
from zmqrl.spaces import (
    DTYPES,
    BoxSpec,
    DictSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
    TupleSpec,
    bytes_per_value,
    describe,
    differences,
    empty_tree,
    from_plain,
    leaves_of,
    map_tree,
    to_plain,
    tree_leaves,
    tree_of,
    walk,
)

IMAGE = BoxSpec("uint8", (84, 84, 4), 0.0, 255.0)
SPEEDS = BoxSpec("float32", (2,), (-1.0, -math.inf), (1.0, math.inf))
ROBOT = DictSpec(
    (("camera", IMAGE), ("arm", TupleSpec((SPEEDS, DiscreteSpec(3, start=-1)))), ("flags", MultiBinarySpec((4,))))
)

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def boxes(shape: tuple[int, ...]) -> st.SearchStrategy[BoxSpec]:
    number = st.floats(allow_nan=False)
    bound = number | st.tuples(*[number] * math.prod(shape))
    return st.builds(BoxSpec, st.sampled_from(DTYPES), st.just(shape), bound, bound)


LEAVES = st.one_of(
    SHAPES.flatmap(boxes),
    st.builds(DiscreteSpec, st.integers(1, 9), st.integers(-5, 5), st.sampled_from(["int32", "int64"])),
    st.lists(st.integers(1, 9), min_size=1, max_size=4).map(lambda nvec: MultiDiscreteSpec(tuple(nvec), (len(nvec),))),
    st.builds(MultiBinarySpec, SHAPES),
)
SPACES: st.SearchStrategy[SpaceSpec] = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(
            st.text(st.characters(codec="ascii"), min_size=1, max_size=5), inner, min_size=1, max_size=3
        ).map(lambda items: DictSpec(tuple(items.items())))
        | st.lists(inner, min_size=1, max_size=3).map(lambda items: TupleSpec(tuple(items)))
    ),
    max_leaves=6,
)


def test_walk_names_leaves_in_the_order_of_the_environment() -> None:
    assert [path for path, _ in walk(ROBOT)] == ["camera", "arm/0", "arm/1", "flags"]
    assert list(walk(IMAGE)) == [("", IMAGE)]


@given(SPACES)
def test_leaves_and_tree_are_inverse(spec: SpaceSpec) -> None:
    leaves = [np.array(number) for number, _ in enumerate(walk(spec))]
    again = leaves_of(spec, tree_of(spec, leaves))
    assert all(one is other for one, other in zip(again, leaves, strict=True))


def test_map_tree_goes_over_trees_of_one_form_together() -> None:
    one = {"a": np.array([1]), "b": (np.array([2]), np.array([3]))}
    other = {"b": (np.array([20]), np.array([30])), "a": np.array([10])}
    total = map_tree(np.add, one, other)
    assert list(total) == ["a", "b"]
    assert [int(leaf[0]) for leaf in tree_leaves(total)] == [11, 22, 33]


def test_map_tree_refuses_trees_of_two_forms() -> None:
    with pytest.raises(ValueError):
        map_tree(np.add, (np.array(1), np.array(2)), (np.array(1),))


def test_an_empty_tree_has_the_batch_in_front() -> None:
    tree = empty_tree(ROBOT, 5, 2)
    assert tree["camera"].shape == (5, 2, 84, 84, 4) and tree["camera"].dtype == np.uint8
    assert tree["arm"][1].shape == (5, 2) and tree["arm"][1].dtype == np.int64
    assert not tree["flags"].any()


def test_bytes_of_one_value() -> None:
    assert bytes_per_value(IMAGE) == 28_224
    assert bytes_per_value(ROBOT) == 28_224 + 2 * 4 + 8 + 4


def test_bounds_are_full_arrays_in_float64() -> None:
    low, high = IMAGE.bounds()
    assert low.shape == high.shape == IMAGE.shape and high.dtype == np.float64 and high.max() == 255.0
    assert BoxSpec("float32", (2, 1), (1.0, 2.0), 3.0).bounds()[0].tolist() == [[1.0], [2.0]]


@given(SPACES)
def test_plain_data_is_strict_json_and_comes_back_equal(spec: SpaceSpec) -> None:
    text = json.dumps(to_plain(spec), allow_nan=False)
    assert from_plain(json.loads(text)) == spec


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "box",
        ["ball", "float32", [2], 0, 1],
        ["box", "float32", [2], 0],
        ["box", "object", [2], 0, 1],
        ["box", "O", [2], 0, 1],
        ["box", ["float32"], [2], 0, 1],
        ["box", "float32", [0], 0, 1],
        ["box", "float32", [-1], 0, 1],
        ["box", "float32", [True], 0, 1],
        ["box", "float32", [2**20, 2**20], 0, 1],
        ["box", "float32", [1] * 17, 0, 1],
        ["box", "float32", 2, 0, 1],
        ["box", "float32", [2], [0], 1],
        ["box", "float32", [2], "low", 1],
        ["box", "float32", [2], 10**400, 1],
        ["discrete", "int64", 0, 0],
        ["discrete", "int64", 2.0, 0],
        ["discrete", "int64", 2**40, 0],
        ["multidiscrete", "int64", [2], [3]],
        ["multidiscrete", "int64", [1], [0]],
        ["multibinary", "int8", [0]],
        ["dict", []],
        ["dict", [["a"]]],
        ["dict", [["", ["discrete", "int64", 2, 0]]]],
        ["dict", [["x" * 65, ["discrete", "int64", 2, 0]]]],
        ["dict", [[3, ["discrete", "int64", 2, 0]]]],
        ["tuple", []],
        ["tuple", [["discrete", "int64", 2, 0]] * 257],
        ["tuple", [["tuple", [["discrete", "int64", 2, 0]] * 20]] * 20],
    ],
)
def test_what_is_no_space_is_a_decode_error(data: object) -> None:
    with pytest.raises(DecodeError) as caught:
        from_plain(data)
    assert caught.value.reason == "malformed"


def test_nesting_is_bounded() -> None:
    data: object = ["discrete", "int64", 2, 0]
    for _ in range(8):
        data = ["tuple", [data]]
    with pytest.raises(DecodeError, match="nested more than 8 deep"):
        from_plain(data)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*DTYPES, "box", "discrete", "dict", "tuple", "inf"])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@given(JSON)
def test_any_data_is_a_space_or_a_decode_error(data: object) -> None:
    try:
        spec = from_plain(data)
    except DecodeError:
        return
    assert list(walk(spec))


@given(SPACES)
def test_a_space_does_not_differ_from_itself(spec: SpaceSpec) -> None:
    assert differences(spec, spec, "obs") == []


@pytest.mark.parametrize(
    ("learner", "actor", "path", "sentences"),
    [
        (IMAGE, BoxSpec("uint8", (96, 96, 3), 0.0, 255.0), "obs/cam",
         ["obs/cam: learner has Box(84, 84, 4) uint8, this actor Box(96, 96, 3) uint8"]),
        (DiscreteSpec(2), DiscreteSpec(3, start=1), "action",
         ["action: learner has Discrete(2), this actor Discrete(3, start=1)"]),
        (DiscreteSpec(2), IMAGE, "obs", ["obs: learner has Discrete(2), this actor Box(84, 84, 4) uint8"]),
        (DictSpec((("a", IMAGE), ("b", IMAGE))), DictSpec((("a", DiscreteSpec(2)), ("c", IMAGE))), "obs",
         ["obs/b: only the learner has it", "obs/c: only this actor has it",
          "obs/a: learner has Box(84, 84, 4) uint8, this actor Discrete(2)"]),
        (TupleSpec((DiscreteSpec(2), DiscreteSpec(3))), TupleSpec((DiscreteSpec(2), DiscreteSpec(4))), "obs",
         ["obs/1: learner has Discrete(3), this actor Discrete(4)"]),
        (BoxSpec("float32", (1,), -1.0, 1.0), BoxSpec("float32", (1,), -2.0, 1.0), "action",
         ["action: learner's bounds are -1.0 to 1.0, this actor's -2.0 to 1.0"]),
        (BoxSpec("float32", (1,), -1.0, 1.0), BoxSpec("float32", (1,), -2.0, 1.0), "obs", []),
    ],
)  # fmt: skip
def test_differences_are_told_in_words(learner: SpaceSpec, actor: SpaceSpec, path: str, sentences: list[str]) -> None:
    assert differences(learner, actor, path) == sentences


def test_descriptions_are_for_people() -> None:
    assert describe(ROBOT) == (
        "Dict(camera: Box(84, 84, 4) uint8, arm: Tuple(Box(2,) float32, Discrete(3, start=-1)), flags: MultiBinary(4,))"
    )
    assert describe(MultiDiscreteSpec((3, 2), (2,))) == "MultiDiscrete([3, 2])"
