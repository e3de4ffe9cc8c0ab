"""Experience <-> frames: one body, whose layout both sides agreed on when joining.

Shapes: T steps, N environments, F rows with a successor of their own, M episodes that ended.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from zmqrl.codec.fields import (
    HEADER_BYTES,
    MAX_INTEGER,
    Frames,
    expect,
    pack,
    pack_fields,
    parse_record,
    refusing,
    unpack,
)
from zmqrl.errors import DecodeError
from zmqrl.messages import Experience
from zmqrl.session import Terms
from zmqrl.spaces import (
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
    leaves_of,
    sampled,
    tree_of,
    walk,
)

EXPERIENCE_TAG = b"EXPR"
ALIGNMENT = 8


@dataclass(frozen=True)
class ExperienceHeader:
    """Header of an experience; with the agreed layout it fixes the length of the body."""

    epoch: int
    slot: int
    incarnation: int
    seq: int
    steps: int
    """T"""
    finals: int
    """F"""
    episodes: int
    """M"""
    env_steps: int
    """Valid rows, so that a chunk whose body is refused can be accounted for."""
    has_values: bool


@dataclass(frozen=True)
class Section:
    """One array of an experience within its body."""

    name: str
    dtype: np.dtype[Any]
    lead: Literal["T+1,N", "T,N", "T", "F", "M"]
    shape: tuple[int, ...]
    """Of one entry."""
    leaf: SpaceSpec | None = None
    """The space of observations and actions."""


@dataclass(frozen=True)
class ExperienceLayout:
    """What both sides agreed on when joining: it fixes order, dtype and shape of every array of an experience.

    `action_space` is that of actions as sampled (`spaces.sampled`). A body is the arrays in this order, each in C
    order, little-endian, beginning at the next multiple of 8 bytes; the gaps and the end are filled with zeros.
    """

    observation_space: SpaceSpec
    action_space: SpaceSpec
    num_envs: int
    chunk_steps: int

    @classmethod
    def of(cls, terms: Terms) -> Self:
        """What these terms agree on."""
        return cls(terms.observation_space, sampled(terms.action_space), terms.num_envs, terms.chunk_steps)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """All arrays in their order; `values` only if the header says so."""
        return tuple(self._sections())

    def _sections(self) -> Iterator[Section]:
        def dtype(name: str) -> np.dtype[Any]:
            return np.dtype(name).newbyteorder("<")

        for path, leaf in walk(self.observation_space):
            yield Section(f"observations/{path}".rstrip("/"), dtype(leaf.dtype), "T+1,N", leaf.shape, leaf)
        for path, leaf in walk(self.action_space):
            yield Section(f"actions/{path}".rstrip("/"), dtype(leaf.dtype), "T,N", leaf.shape, leaf)
        yield Section("rewards", dtype("float32"), "T,N", ())
        for name in ("terminated", "truncated", "valid"):
            yield Section(name, dtype("bool"), "T,N", ())
        yield Section("log_probs", dtype("float32"), "T,N", ())
        yield Section("versions", dtype("int64"), "T", ())
        yield Section("final_index", dtype("int32"), "F", (2,))
        for path, leaf in walk(self.observation_space):
            yield Section(f"final_observations/{path}".rstrip("/"), dtype(leaf.dtype), "F", leaf.shape, leaf)
        yield Section("episode_index", dtype("int32"), "M", (2,))
        yield Section("episode_returns", dtype("float64"), "M", ())
        yield Section("episode_lengths", dtype("int64"), "M", ())
        yield Section("values", dtype("float32"), "T,N", ())

    def plan(
        self, finals: int, episodes: int, has_values: bool
    ) -> tuple[list[tuple[Section, tuple[int, ...], int]], int]:
        """([(section, shape, offset), ...], bytes of the body) for these counts."""
        steps, envs = self.chunk_steps, self.num_envs
        leads = {"T+1,N": (steps + 1, envs), "T,N": (steps, envs), "T": (steps,), "F": (finals,), "M": (episodes,)}
        offset, rows = 0, []
        for section in self.sections[: None if has_values else -1]:
            shape = leads[section.lead] + section.shape
            rows.append((section, shape, offset))
            offset += _aligned(math.prod(shape) * section.dtype.itemsize)
        return rows, offset

    @property
    def bytes_per_step(self) -> int:
        """What one more step of all environments adds to a body without episode ends, but for alignment."""
        per_step = {"T+1,N": self.num_envs, "T,N": self.num_envs, "T": 1, "F": 0, "M": 0}
        return sum(
            per_step[section.lead] * math.prod(section.shape) * section.dtype.itemsize for section in self.sections
        )

    @property
    def max_body_bytes(self) -> int:
        """Where every row ends an episode and has a successor of its own; follows from the shapes alone."""
        rows = self.chunk_steps * self.num_envs
        return self.plan(rows, rows, True)[1]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def chunk_length(num_steps: int, bytes_per_step: int, limit: int) -> int:
    """The largest divisor of `num_steps` whose chunk stays within `limit` bytes; 1 if even that is larger.

    One step is added for the closing observation.
    """
    divisors = (steps for steps in range(num_steps, 1, -1) if num_steps % steps == 0)
    return next((steps for steps in divisors if (steps + 1) * bytes_per_step <= limit), 1)


def encode_experience(experience: Experience, layout: ExperienceLayout, epoch: int, incarnation: int) -> list[Any]:
    """[tag, header, body]: each array is copied once, cast to the dtype of the layout. ValueError for a wrong shape.

    epoch, incarnation: of the actor's session, which `Experience.session` does not tell: that is the learner's.
    """
    finals, episodes = len(experience.final_index), len(experience.episode_index)
    has_values = experience.values is not None
    header = ExperienceHeader(
        epoch,
        experience.agent_id,
        incarnation,
        experience.seq,
        layout.chunk_steps,
        finals,
        episodes,
        experience.env_steps,
        has_values,
    )
    rows, size = layout.plan(finals, episodes, has_values)
    body = np.zeros(size, np.uint8)  # zeros, since what lay in memory before must not travel in the gaps
    for (section, shape, offset), array in zip(rows, _arrays_of(experience, layout), strict=True):
        if np.shape(array) != shape:
            raise ValueError(f"{section.name} has shape {np.shape(array)}; {shape} was agreed on")
        np.ndarray(shape, section.dtype, body.data, offset)[...] = array
    return [EXPERIENCE_TAG, pack(pack_fields(header)), body.data]


def _arrays_of(experience: Experience, layout: ExperienceLayout) -> list[Any]:
    space = layout.observation_space
    arrays = [
        *leaves_of(space, experience.observations),
        *leaves_of(layout.action_space, experience.actions),
        experience.rewards,
        experience.terminated,
        experience.truncated,
        experience.valid,
        experience.log_probs,
        experience.versions,
        experience.final_index,
        *leaves_of(space, experience.final_observations),
        experience.episode_index,
        experience.episode_returns,
        experience.episode_lengths,
    ]
    return arrays if experience.values is None else [*arrays, experience.values]


def decode_experience_header(frames: Frames) -> ExperienceHeader:
    """Who sent it and how large it says it is; the body has not been looked at."""
    with refusing():
        if len(frames) != 3 or bytes(memoryview(frames[0])[:8]) != EXPERIENCE_TAG:
            raise ValueError(f"an Experience has 3 frames and begins with {EXPERIENCE_TAG.decode()}")
        header: ExperienceHeader = parse_record(ExperienceHeader, unpack(frames[1], HEADER_BYTES))
        negative = [field.name for field in dataclasses.fields(header) if getattr(header, field.name) < 0]
        expect(not negative, f"no negative {', '.join(negative)}", header)
        return header


def decode_experience_body(
    header: ExperienceHeader, body: Any, layout: ExperienceLayout, newest_version: int
) -> Experience:
    """The arrays, as views of `body` and not copied, after all of them have been checked. Its session is the bus's.

    Raises DecodeError: `out_of_schema` where size, counts, indices, versions or discrete values are impossible,
    `nonfinite` for a reward, log-prob, observation, action, value or return that is not finite.
    """
    with refusing():
        data = memoryview(body).cast("B")
        rows_of_chunk = layout.chunk_steps * layout.num_envs
        _require(header.steps == layout.chunk_steps, f"{header.steps} steps; {layout.chunk_steps} were agreed on")
        _require(max(header.finals, header.episodes, header.env_steps) <= rows_of_chunk, "more ends than rows")
        rows, size = layout.plan(header.finals, header.episodes, header.has_values)
        _require(len(data) == size, f"a body of {len(data)} bytes; its header makes it {size}")
        if not np.frombuffer(data, np.int64, 1).flags.aligned:
            data = memoryview(data.tobytes())  # small frames lie anywhere within a receive buffer; larger ones never do
        arrays: list[np.ndarray] = [np.ndarray(shape, section.dtype, data, offset) for section, shape, offset in rows]
        for (section, _, _), array in zip(rows, arrays, strict=True):
            _check_values(section, array)
        experience = _assemble(header, layout, arrays)
        _check_facts(header, experience, layout, newest_version)
        return experience


def decode_experience(
    frames: Frames, layout: ExperienceLayout, newest_version: int = MAX_INTEGER
) -> tuple[ExperienceHeader, Experience]:
    """Both in one step."""
    header = decode_experience_header(frames)
    return header, decode_experience_body(header, frames[2], layout, newest_version)


def _require(right: bool, text: str) -> None:
    if not right:
        raise DecodeError("out_of_schema", text)


def _check_values(section: Section, array: np.ndarray) -> None:
    if array.dtype.kind == "f" and not _all_finite(array):
        raise DecodeError("nonfinite", f"{section.name} holds NaN or infinity")
    if array.size == 0:
        return
    if array.dtype == np.bool_:
        _require(int(array.view(np.uint8).max()) <= 1, f"{section.name}: a bool is 0 or 1")
    match section.leaf:
        case DiscreteSpec(n=n, start=start):
            _require(_within(array, start, start + n - 1), f"{section.name}: not in Discrete({n})")
        case MultiDiscreteSpec(nvec=nvec, shape=shape):
            inside = bool((array >= 0).all()) and bool((array < np.reshape(nvec, shape)).all())
            _require(inside, f"{section.name}: not in its MultiDiscrete space")
        case MultiBinarySpec():
            _require(_within(array, 0, 1), f"{section.name}: not 0 or 1")


def _within(array: np.ndarray, low: int, high: int) -> bool:
    return int(array.min()) >= low and int(array.max()) <= high


def _all_finite(array: np.ndarray) -> bool:
    """One pass without a temporary; only where the sum overflowed or is not finite, each element is looked at."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def _check_facts(
    header: ExperienceHeader, experience: Experience, layout: ExperienceLayout, newest_version: int
) -> None:
    _require(experience.env_steps == header.env_steps, "env_steps is not the number of valid rows")
    _require(
        _within(experience.versions, 0, newest_version),
        f"a version outside 0 to {newest_version}, the newest that was published",
    )
    for name, index in (("final_index", experience.final_index), ("episode_index", experience.episode_index)):
        bounds = (layout.chunk_steps, layout.num_envs)
        _require(bool((index >= 0).all()) and bool((index < bounds).all()), f"{name} points outside the chunk")
        rows = index[:, 0].astype(np.int64) * layout.num_envs + index[:, 1]
        _require(len(rows) < 2 or len(np.unique(rows)) == len(rows), f"{name} names a row twice")
    if len(experience.episode_lengths):
        _require(int(experience.episode_lengths.min()) >= 1, "an episode shorter than one step")


def _assemble(header: ExperienceHeader, layout: ExperienceLayout, arrays: Sequence[np.ndarray]) -> Experience:
    """From arrays in the order of the sections."""
    remaining = iter(arrays)

    def tree(space: SpaceSpec) -> Any:
        return tree_of(space, [next(remaining) for _ in walk(space)])

    # arguments are evaluated from top to bottom, in the order of the sections
    return Experience(
        agent_id=header.slot,
        observations=tree(layout.observation_space),
        actions=tree(layout.action_space),
        rewards=next(remaining),
        terminated=next(remaining),
        truncated=next(remaining),
        valid=next(remaining),
        log_probs=next(remaining),
        versions=next(remaining),
        final_index=next(remaining),
        final_observations=tree(layout.observation_space),
        episode_index=next(remaining),
        episode_returns=next(remaining),
        episode_lengths=next(remaining),
        values=next(remaining, None),
        seq=header.seq,
    )
