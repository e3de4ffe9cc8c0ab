"""Headers <-> msgpack arrays: the fields of a dataclass in their order, each checked on the way in.

The only user of msgpack. Any bytes give either a record or one DecodeError.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgpack  # type: ignore[import-untyped]

from zmqrl.errors import DecodeError
from zmqrl.messages import ControlMessage, LoadCheckpoint, SaveCheckpoint, SetLearningRate, Shutdown
from zmqrl.spaces import SpaceSpec, from_plain, to_plain

HEADER_BYTES = 16 << 10
"""Most headers need below 200 bytes. The bound also keeps nesting shallow enough for any parser's stack."""

JOINING_HEADER_BYTES = 256 << 10
"""Hello and Welcome carry spaces and the policy's manifest: some 4,000 tensors fit."""

MAX_INTEGER = 2**63
MAX_TEXT_BYTES = 200

_LONGER_TEXTS = {"text": 4096, "error": 1024, "reason": 1024}
"""Sentences for people, by field; all others hold at most MAX_TEXT_BYTES. Longer ones are cut when sent."""

_CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

_CONTROLS: dict[str, type] = {
    kind.__name__: kind for kind in (Shutdown, SaveCheckpoint, LoadCheckpoint, SetLearningRate)
}

Frames = Sequence[Any]
"""Anything with the buffer protocol: bytes, memoryview, a ZeroMQ frame."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turns whatever a parser may raise on foreign bytes into one DecodeError."""
    foreign = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError)
    try:
        yield
    except (*foreign, msgpack.exceptions.UnpackException) as error:
        raise DecodeError("malformed", f"not a message of this protocol: {str(error)[:200]}") from None


def pack(header: list[Any]) -> bytes:
    """As one frame."""
    packed: bytes = msgpack.packb(header)
    return packed


def unpack(frame: Any, limit: int) -> tuple[Any, ...]:
    """The array in one frame of at most `limit` bytes, which is not parsed if it has more."""
    data = memoryview(frame)
    if data.nbytes > limit:
        raise DecodeError("oversized", f"a header of {data.nbytes} bytes; at most {limit} are read")
    header = msgpack.unpackb(data, use_list=False, strict_map_key=True)
    expect(isinstance(header, tuple), "a header that is an array", header)
    return tuple(header)


@dataclass(frozen=True)
class _Kind:
    """How values of one type travel."""

    pack: Callable[[Any], Any]
    """To what msgpack knows."""
    parse: Callable[[Any], Any]
    """Back; ValueError for anything that is not exactly of this type."""


def expect(right: bool, what: str, value: Any) -> None:
    """ValueError unless the value is right."""
    if not right:
        raise ValueError(f"{what} is expected, not {type(value).__name__} {str(value)[:40]!r}")


def parse_integer(value: Any) -> int:
    """-1 to 2**63 - 1."""
    expect(type(value) is int and -1 <= value < MAX_INTEGER, "an integer from -1 to 2**63 - 1", value)
    return int(value)


def _parse_number(value: Any) -> float:
    expect(type(value) in (int, float) and math.isfinite(value), "a finite number", value)
    return float(value)


def _parse_flag(value: Any) -> bool:
    expect(type(value) is bool, "true or false", value)
    return bool(value)


def text_kind(limit: int) -> _Kind:
    """Texts of at most so many bytes."""

    def pack(value: str) -> str:
        return value.encode(errors="replace")[:limit].decode(errors="ignore")

    def parse(value: Any) -> str:
        expect(isinstance(value, str) and len(value.encode()) <= limit, f"a text of at most {limit} bytes", value)
        text = str(value)
        # it is going to be printed: no control codes for somebody's terminal
        return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)

    return _Kind(pack, parse)


def _choice(*choices: str) -> _Kind:
    def parse(value: Any) -> str:
        expect(isinstance(value, str) and value in choices, f"one of {', '.join(choices)}", value)
        return str(value)

    return _Kind(lambda value: value, parse)


def _row(item: _Kind) -> _Kind:
    def parse(value: Any) -> tuple[Any, ...]:
        expect(isinstance(value, tuple), "an array", value)
        return tuple(item.parse(each) for each in value)

    return _Kind(lambda value: [item.pack(each) for each in value], parse)


def _parse_counts(value: Any) -> dict[str, int]:
    expect(isinstance(value, dict) and len(value) <= 64, "a map of at most 64 counts", value)
    key = text_kind(64)
    return {key.parse(name): parse_integer(count) for name, count in value.items()}


def _parse_plain(value: Any, depth: int = 4) -> Any:
    """Settings: nothing but null, bool, numbers, texts, arrays and maps of them."""
    expect(depth > 0, "nesting of at most 4", value)
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return text_kind(MAX_TEXT_BYTES).parse(value)
    if isinstance(value, tuple):
        return tuple(_parse_plain(each, depth - 1) for each in value)
    expect(isinstance(value, dict), "a plain value", value)
    key = text_kind(64)
    return {key.parse(name): _parse_plain(each, depth - 1) for name, each in value.items()}


def _parse_settings(value: Any) -> dict[str, Any]:
    expect(isinstance(value, dict), "a map", value)
    settings: dict[str, Any] = _parse_plain(value)
    return settings


def _optional(kind: _Kind) -> _Kind:
    return _Kind(
        lambda value: None if value is None else kind.pack(value),
        lambda value: None if value is None else kind.parse(value),
    )


def _pack_control(message: ControlMessage) -> list[Any]:
    return [type(message).__name__, *pack_fields(message)]


def _parse_control(value: Any) -> ControlMessage:
    expect(isinstance(value, tuple) and len(value) > 0 and value[0] in _CONTROLS, "a control message", value)
    message: ControlMessage = parse_record(_CONTROLS[value[0]], value[1:])
    match message:
        case SaveCheckpoint(name) | LoadCheckpoint(name):
            right = _CHECKPOINT_NAME.fullmatch(name) is not None and name.strip(".") != ""
            expect(right, "a name of letters, digits, `._-`, at most 64", name)
        case SetLearningRate(rate):
            expect(0 < rate <= 1, "a learning rate above 0 and at most 1", rate)
        case Shutdown():
            pass
    return message


_INTEGER = _Kind(int, parse_integer)
_NUMBER = _Kind(float, _parse_number)
_FLAG = _Kind(bool, _parse_flag)
_COUNTS = _Kind(dict, _parse_counts)
_SETTINGS = _Kind(dict, _parse_settings)
_SPACE = _Kind(to_plain, from_plain)
_CONTROL = _Kind(_pack_control, _parse_control)


def _kind_of(hint: Any, name: str) -> _Kind:
    simple = {int: _INTEGER, float: _NUMBER, bool: _FLAG, dict[str, int]: _COUNTS, dict[str, Any]: _SETTINGS}
    if get_origin(hint) is Literal:
        return _choice(*get_args(hint))
    if get_origin(hint) is tuple:
        return _row(_kind_of(get_args(hint)[0], name))
    if hint in simple:
        return simple[hint]
    if hint is str:
        return text_kind(_LONGER_TEXTS.get(name, MAX_TEXT_BYTES))
    if hint == SpaceSpec:
        return _SPACE
    if hint == SpaceSpec | None:
        return _optional(_SPACE)
    if hint == ControlMessage:
        return _CONTROL
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _Kind(pack_fields, lambda value: parse_record(hint, value))
    raise TypeError(f"field {name}: no way to send a {hint}")


@dataclass(frozen=True)
class _Field:
    name: str
    kind: _Kind
    has_default: bool


@cache
def _fields(record: type) -> tuple[_Field, ...]:
    hints = get_type_hints(record)
    missing = dataclasses.MISSING
    return tuple(
        _Field(
            field.name,
            _kind_of(hints[field.name], field.name),
            (field.default, field.default_factory) != (missing,) * 2,
        )
        for field in dataclasses.fields(record)
    )


def pack_fields(record: Any) -> list[Any]:
    """The fields of a record in their order."""
    return [field.kind.pack(getattr(record, field.name)) for field in _fields(record.__class__)]


def parse_record(record: type, values: Any) -> Any:
    """The record of these fields; ValueError names the field that is wrong.

    Fields at the end that this version does not know are ignored; those it knows may be missing if they have a
    default: so either side may be newer.
    """
    fields = _fields(record)
    required = sum(not field.has_default for field in fields)
    expect(isinstance(values, tuple), f"{record.__name__} as an array", values)
    if len(values) < required:
        raise ValueError(f"{record.__name__} has at least {required} fields, not {len(values)}")
    parsed = {}
    for field, value in zip(fields, values, strict=False):
        try:
            parsed[field.name] = field.kind.parse(value)
        except ValueError as error:
            raise ValueError(f"{record.__name__}.{field.name}: {error}") from None
    return record(**parsed)
