"""Observation and action spaces as plain data, and the trees of arrays that live in them.

A space is a leaf (Box, Discrete, MultiDiscrete, MultiBinary) or a branch (Dict, Tuple). A value of a
space has the same form: an array for a leaf, a dict or tuple of values for a branch. `Tree` names that
form wherever batches of observations or actions are passed around; batch dimensions stand in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zmqrl.errors import DecodeError

Tree = Any
"""An array (numpy or torch), or a dict or tuple of trees."""

DTYPES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
)
"""The dtypes an array may have on the wire; little-endian, C order. No other string is looked up."""

MAX_DEPTH = 8
MAX_LEAVES = 256
MAX_ELEMENTS = 2**31


@dataclass(frozen=True)
class BoxSpec:
    """`low` and `high` are one number where all bounds are equal, else one number per element in C order."""

    dtype: str
    shape: tuple[int, ...]
    low: float | tuple[float, ...]
    high: float | tuple[float, ...]

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), each of `shape`, in float64."""

        def full(bound: float | tuple[float, ...]) -> np.ndarray:
            values = np.asarray(bound, dtype=np.float64)
            return np.broadcast_to(values, self.shape) if values.ndim == 0 else values.reshape(self.shape)

        return full(self.low), full(self.high)


@dataclass(frozen=True)
class DiscreteSpec:
    """The integers start, ..., start + n - 1."""

    n: int
    start: int = 0
    dtype: str = "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        """Always ()."""
        return ()


@dataclass(frozen=True)
class MultiDiscreteSpec:
    """One integer per entry of `nvec`, each 0 .. nvec[i] - 1, of the given shape."""

    nvec: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str = "int64"


@dataclass(frozen=True)
class MultiBinarySpec:
    """An array of zeros and ones."""

    shape: tuple[int, ...]
    dtype: str = "int8"


@dataclass(frozen=True)
class DictSpec:
    """Named spaces, in the order of the environment."""

    items: tuple[tuple[str, SpaceSpec], ...]


@dataclass(frozen=True)
class TupleSpec:
    """Spaces in a row."""

    items: tuple[SpaceSpec, ...]


SpaceSpec = BoxSpec | DiscreteSpec | MultiDiscreteSpec | MultiBinarySpec | DictSpec | TupleSpec
LeafSpec = BoxSpec | DiscreteSpec | MultiDiscreteSpec | MultiBinarySpec


def walk(spec: SpaceSpec, path: str = "") -> Iterator[tuple[str, LeafSpec]]:
    """Yield (path, leaf) in a fixed order; the path of a space that is itself a leaf is ''."""
    if isinstance(spec, DictSpec):
        for key, child in spec.items:
            yield from walk(child, f"{path}/{key}" if path else key)
    elif isinstance(spec, TupleSpec):
        for index, child in enumerate(spec.items):
            yield from walk(child, f"{path}/{index}" if path else str(index))
    else:
        yield path, spec


def leaves_of(spec: SpaceSpec, tree: Tree) -> list[Any]:
    """The arrays of `tree` in the order of `walk(spec)`."""
    if isinstance(spec, DictSpec):
        return [leaf for key, child in spec.items for leaf in leaves_of(child, tree[key])]
    if isinstance(spec, TupleSpec):
        return [leaf for child, value in zip(spec.items, tree, strict=True) for leaf in leaves_of(child, value)]
    return [tree]


def tree_of(spec: SpaceSpec, leaves: Sequence[Any]) -> Tree:
    """The tree whose arrays, in the order of `walk(spec)`, are `leaves`."""
    remaining = iter(leaves)

    def build(node: SpaceSpec) -> Tree:
        if isinstance(node, DictSpec):
            return {key: build(child) for key, child in node.items}
        if isinstance(node, TupleSpec):
            return tuple(build(child) for child in node.items)
        return next(remaining)

    return build(spec)


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to each array of `tree` (and to the arrays at the same place in `others`)."""
    if isinstance(tree, dict):
        return {key: map_tree(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *values) for values in zip(tree, *others, strict=True))
    return function(tree, *others)


def tree_leaves(tree: Tree) -> list[Any]:
    """All arrays of `tree`, in the order of its own keys."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in tree_leaves(value)]
    if isinstance(tree, tuple):
        return [leaf for value in tree for leaf in tree_leaves(value)]
    return [tree]


def empty_tree(spec: SpaceSpec, *batch: int) -> Tree:
    """Zeroed arrays `[*batch, *shape]` for each leaf of `spec`."""
    return tree_of(spec, [np.zeros((*batch, *leaf.shape), leaf.dtype) for _, leaf in walk(spec)])


def bytes_per_value(spec: SpaceSpec) -> int:
    """Bytes of one value of the space."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for _, leaf in walk(spec))


def sampled(action_space: SpaceSpec) -> SpaceSpec:
    """Actions as a policy samples them, and as they travel and are trained on: before bounds, start and dtype.

    Box: float32 without bounds. Discrete: int64 from 0. MultiDiscrete: int64. The others as they are.
    """
    match action_space:
        case BoxSpec():
            return BoxSpec("float32", action_space.shape, -math.inf, math.inf)
        case DiscreteSpec():
            return DiscreteSpec(action_space.n)
        case MultiDiscreteSpec():
            return MultiDiscreteSpec(action_space.nvec, action_space.shape)
        case DictSpec():
            return DictSpec(tuple((key, sampled(child)) for key, child in action_space.items))
        case TupleSpec():
            return TupleSpec(tuple(sampled(child) for child in action_space.items))
        case _:
            return action_space


def describe(spec: SpaceSpec) -> str:
    """A short text for people: `(84, 84, 4) uint8`, `Discrete(2)`, ..."""
    match spec:
        case BoxSpec():
            return f"Box{spec.shape} {spec.dtype}"
        case DiscreteSpec():
            return f"Discrete({spec.n})" if spec.start == 0 else f"Discrete({spec.n}, start={spec.start})"
        case MultiDiscreteSpec():
            return f"MultiDiscrete({list(spec.nvec)})"
        case MultiBinarySpec():
            return f"MultiBinary{spec.shape}"
        case DictSpec():
            return "Dict(" + ", ".join(f"{key}: {describe(child)}" for key, child in spec.items) + ")"
        case TupleSpec():
            return "Tuple(" + ", ".join(describe(child) for child in spec.items) + ")"


def differences(learner: SpaceSpec, actor: SpaceSpec, path: str) -> list[str]:
    """One sentence per place where the two spaces differ; [] when experience of one fits the other.

    Bounds of observations are not compared when dtype and shape agree: they do not change what travels.
    """
    if isinstance(learner, DictSpec) and isinstance(actor, DictSpec):
        ours, theirs = dict(learner.items), dict(actor.items)
        lines = [f"{path}/{key}: only the learner has it" for key in ours if key not in theirs]
        lines += [f"{path}/{key}: only this actor has it" for key in theirs if key not in ours]
        for key in ours:
            if key in theirs:
                lines += differences(ours[key], theirs[key], f"{path}/{key}")
        return lines
    if isinstance(learner, TupleSpec) and isinstance(actor, TupleSpec) and len(learner.items) == len(actor.items):
        pairs = enumerate(zip(learner.items, actor.items, strict=True))
        return [line for index, (one, two) in pairs for line in differences(one, two, f"{path}/{index}")]
    if isinstance(learner, BoxSpec) and isinstance(actor, BoxSpec):
        same = (learner.dtype, learner.shape) == (actor.dtype, actor.shape)
        if same and (path.split("/")[0] != "action" or (learner.low, learner.high) == (actor.low, actor.high)):
            return []
        if same:
            return [
                f"{path}: learner's bounds are {_short(learner.low)} to {_short(learner.high)}, "
                f"this actor's {_short(actor.low)} to {_short(actor.high)}"
            ]
    elif learner == actor:
        return []
    return [f"{path}: learner has {describe(learner)}, this actor {describe(actor)}"]


def _short(bound: float | tuple[float, ...]) -> str:
    text = str(bound)
    return text if len(text) <= 60 else text[:57] + "..."


def to_plain(spec: SpaceSpec) -> list[Any]:
    """Lists, strings and numbers, the same for msgpack and strict JSON (infinite bounds are strings)."""
    match spec:
        case BoxSpec():
            return ["box", spec.dtype, list(spec.shape), _plain_bound(spec.low), _plain_bound(spec.high)]
        case DiscreteSpec():
            return ["discrete", spec.dtype, spec.n, spec.start]
        case MultiDiscreteSpec():
            return ["multidiscrete", spec.dtype, list(spec.shape), list(spec.nvec)]
        case MultiBinarySpec():
            return ["multibinary", spec.dtype, list(spec.shape)]
        case DictSpec():
            return ["dict", [[key, to_plain(child)] for key, child in spec.items]]
        case TupleSpec():
            return ["tuple", [to_plain(child) for child in spec.items]]


def _plain_bound(bound: float | tuple[float, ...]) -> Any:
    def plain(value: float) -> float | str:
        return value if math.isfinite(value) else str(value)

    return [plain(value) for value in bound] if isinstance(bound, tuple) else plain(bound)


def from_plain(data: Any) -> SpaceSpec:
    """The inverse of `to_plain`; anything else, or anything too large, is a DecodeError."""
    try:
        spec = _parse(data, MAX_DEPTH)
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise DecodeError("malformed", f"not a description of a space: {error}") from None
    leaves = list(walk(spec))
    if not 1 <= len(leaves) <= MAX_LEAVES:
        raise DecodeError("malformed", f"a space with {len(leaves)} leaves; 1 to {MAX_LEAVES} are possible")
    return spec


def _parse(data: Any, depth: int) -> SpaceSpec:
    if depth == 0:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if not isinstance(data, (list, tuple)) or not data:
        raise ValueError("a list that begins with the kind of space is expected")
    match data:
        case ["box", dtype, shape, low, high]:
            size = math.prod(_shape(shape))
            return BoxSpec(_dtype(dtype), _shape(shape), _bound(low, size), _bound(high, size))
        case ["discrete", dtype, int(n), int(start)] if 1 <= n < 2**31 and abs(start) < 2**62:
            return DiscreteSpec(n, start, _dtype(dtype))
        case ["multidiscrete", dtype, shape, [*nvec]] if all(isinstance(n, int) and 1 <= n < 2**31 for n in nvec):
            if math.prod(_shape(shape)) != len(nvec):
                raise ValueError("nvec and shape differ in size")
            return MultiDiscreteSpec(tuple(nvec), _shape(shape), _dtype(dtype))
        case ["multibinary", dtype, shape]:
            return MultiBinarySpec(_shape(shape), _dtype(dtype))
        case ["dict", [*items]] if len(items) <= MAX_LEAVES:
            return DictSpec(tuple((_key(key), _parse(child, depth - 1)) for key, child in items))
        case ["tuple", [*items]] if len(items) <= MAX_LEAVES:
            return TupleSpec(tuple(_parse(child, depth - 1) for child in items))
    raise ValueError(f"unknown kind or fields: {str(data)[:80]}")


def _dtype(name: Any) -> str:
    if name not in DTYPES:
        raise ValueError(f"dtype {str(name)[:40]!r} is none of {', '.join(DTYPES)}")
    return str(name)


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, (list, tuple)) or len(shape) > 16:
        raise ValueError("a shape is a list of at most 16 sizes")
    if not all(type(size) is int and 0 < size < MAX_ELEMENTS for size in shape) or math.prod(shape) >= MAX_ELEMENTS:
        raise ValueError(f"impossible shape {str(shape)[:80]}")
    return tuple(shape)


def _bound(bound: Any, size: int) -> float | tuple[float, ...]:
    if isinstance(bound, (list, tuple)):
        if len(bound) != size:
            raise ValueError("bounds and shape differ in size")
        return tuple(float(value) for value in bound)
    return float(bound)


def _key(key: Any) -> str:
    if not isinstance(key, str) or not 0 < len(key.encode()) <= 64:
        raise ValueError("a key is a text of 1 to 64 bytes")
    return key
