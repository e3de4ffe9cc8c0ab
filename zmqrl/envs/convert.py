"""Gymnasium spaces as the plain specs of `zmqrl.spaces`; what cannot be trained on is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from zmqrl.errors import DecodeError, UnsupportedSpace
from zmqrl.spaces import (
    BoxSpec,
    DictSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
    TupleSpec,
    from_plain,
    to_plain,
)

_REMEDIES: dict[type[spaces.Space[Any]], str] = {
    spaces.Text: "encode the text as numbers in a wrapper, for example as a MultiDiscrete of character codes",
    spaces.Sequence: "pad it to a fixed length in a wrapper: a Box with one row per entry, and a MultiBinary mask",
    spaces.Graph: "pad nodes and edges to fixed numbers in a wrapper: a Dict of Boxes and a MultiBinary mask",
    spaces.OneOf: "use a Dict with a Discrete that tells which one is meant, and all the alternatives beside it",
}


def spec_of(space: spaces.Space[Any], where: str) -> SpaceSpec:
    """Describe `space`; `where` ("observation" or "action") begins the path of each part in messages.

    Raises UnsupportedSpace with the path, the space and a remedy.
    """
    spec = _convert(space, where)
    try:
        from_plain(to_plain(spec))  # the limits of what can travel hold here already
    except DecodeError as error:
        raise UnsupportedSpace(f"{where}: {_short(space)} cannot be used: {error}") from None
    return spec


def _convert(space: spaces.Space[Any], path: str) -> SpaceSpec:
    match space:
        case spaces.Box():
            return BoxSpec(space.dtype.name, _shape(space), _bound(space.low), _bound(space.high))
        case spaces.Discrete():
            return DiscreteSpec(int(space.n), int(space.start), np.dtype(space.dtype).name)
        case spaces.MultiDiscrete():
            if np.any(space.start):
                raise UnsupportedSpace(
                    f"{path}: {_short(space)} does not start at 0. Shift it in a wrapper, "
                    "or use a Tuple of Discrete spaces, which may start anywhere."
                )
            nvec = tuple(int(n) for n in space.nvec.flat)
            return MultiDiscreteSpec(nvec, _shape(space), np.dtype(space.dtype).name)
        case spaces.MultiBinary():
            return MultiBinarySpec(_shape(space), np.dtype(space.dtype).name)
        case spaces.Dict():
            for key in space.spaces:
                if not isinstance(key, str):
                    raise UnsupportedSpace(f"{path}: the key {key!r} of {_short(space)} is no text. Rename it.")
            return DictSpec(tuple((key, _convert(child, f"{path}/{key}")) for key, child in space.spaces.items()))
        case spaces.Tuple():
            return TupleSpec(tuple(_convert(child, f"{path}/{index}") for index, child in enumerate(space.spaces)))
    known = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple are supported"
    remedy = next((text for kind, text in _REMEDIES.items() if isinstance(space, kind)), "convert it in a wrapper")
    raise UnsupportedSpace(f"{path}: {_short(space)} cannot be trained on; {known}. Remedy: {remedy}.")


def _shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in space.shape or ())


def _bound(values: np.ndarray) -> float | tuple[float, ...]:
    numbers = tuple(float(value) for value in values.flat)
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _short(space: spaces.Space[Any]) -> str:
    text = " ".join(repr(space).split())
    return text if len(text) <= 120 else text[:117] + "..."
