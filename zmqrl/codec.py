"""Messages <-> frames; the only user of msgpack. `docs/protocol.md` is the authority.

Frame 0 is a tag of four bytes (on XPUB a topic), frame 1 a header: a msgpack array of the fields in the order of the
dataclass. Further frames are raw bytes: the body of an experience, the parameters of a policy. Any bytes give either
a message or one DecodeError whose `reason` is the label they are counted under.

Shapes: T steps, N environments, F rows with a successor of their own, M episodes that ended.
"""

from __future__ import annotations

import dataclasses
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgpack  # type: ignore[import-untyped]
import numpy as np

from zmqrl.errors import DecodeError
from zmqrl.messages import (
    ControlMessage,
    Experience,
    LoadCheckpoint,
    PolicyBroadcast,
    SaveCheckpoint,
    SetLearningRate,
    Shutdown,
)
from zmqrl.session import (
    PROTOCOL_VERSION,
    Command,
    CommandResult,
    Credit,
    Farewell,
    GetPolicy,
    Goodbye,
    Heartbeat,
    Hello,
    LearnerState,
    Refuse,
    Rejected,
    Resend,
    Welcome,
)
from zmqrl.spaces import (
    BoxSpec,
    DictSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
    TupleSpec,
    from_plain,
    leaves_of,
    to_plain,
    tree_of,
    walk,
)

MAGIC = "ZQRL"
"""First field of Hello and Refuse, so that a peer of any version can tell that it talks to zmqrl."""

TOPIC_POLICY = b"p/"
TOPIC_STATE = b"h/"
TOPIC_CONTROL = b"c/"

EXPERIENCE_TAG = b"EXPR"

HEADER_BYTES = 16 << 10
"""Most headers need below 200 bytes. The bound also keeps nesting shallow enough for any parser's stack."""

JOINING_HEADER_BYTES = 256 << 10
"""Hello and Welcome carry spaces and the policy's manifest: some 4,000 tensors fit."""

POLICY_FRAME_BYTES = 1 << 20
"""ZMTP's heartbeat timer is reset by whole frames only: a larger one can time out on a slow link, for ever."""

MAX_POLICY_BYTES = 1 << 32
MAX_INTEGER = 2**63
MAX_TEXT_BYTES = 200
ALIGNMENT = 8

_LONGER_TEXTS = {"text": 4096, "error": 1024, "reason": 1024}
"""Sentences for people, by field; all others hold at most MAX_TEXT_BYTES. Longer ones are cut when sent."""

_CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

Frames = Sequence[Any]
"""Anything with the buffer protocol: bytes, memoryview, a ZeroMQ frame."""


@dataclass(frozen=True)
class Subscribed:
    """Learner to one actor, on its private topic: your subscription has arrived, so broadcasts reach you."""

    epoch: int


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
class PolicyHeader:
    """Header of a policy; its frames follow."""

    epoch: int
    version: int
    total_bytes: int
    crc32: int


Message = (
    Hello
    | Welcome
    | Refuse
    | GetPolicy
    | PolicyBroadcast
    | Heartbeat
    | Credit
    | Resend
    | Rejected
    | Goodbye
    | Farewell
    | LearnerState
    | Shutdown
    | Command
    | CommandResult
    | Subscribed
)

TAGS: dict[type, bytes] = {
    Hello: b"HELO",
    Welcome: b"WELC",
    Refuse: b"RFSE",
    GetPolicy: b"GETP",
    PolicyBroadcast: b"POLC",
    Heartbeat: b"BEAT",
    Credit: b"CRED",
    Resend: b"RSND",
    Rejected: b"RJCT",
    Goodbye: b"BYE_",
    Farewell: b"FARE",
    Shutdown: b"SHUT",
    Command: b"CTRL",
    CommandResult: b"CRES",
}

_KINDS: dict[bytes, type] = {tag: kind for kind, tag in TAGS.items()}
_KINDS |= {TOPIC_POLICY: PolicyBroadcast, TOPIC_STATE: LearnerState, TOPIC_CONTROL: Shutdown}

_CONTROLS: dict[str, type] = {
    kind.__name__: kind for kind in (Shutdown, SaveCheckpoint, LoadCheckpoint, SetLearningRate)
}

# Hello and Refuse: what every version, past or future, begins with.
_FROZEN_HELLO_FIELDS = 5
_FROZEN_REFUSE_FIELDS = 4


def private_topic(slot: int, incarnation: int) -> bytes:
    """The topic that one actor alone listens to. The slash at its end keeps `a/1-2/` from matching `a/1-23/`."""
    return f"a/{slot}-{incarnation}/".encode()


# --- fields of headers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """How values of one type travel."""

    pack: Callable[[Any], Any]
    """To what msgpack knows."""
    parse: Callable[[Any], Any]
    """Back; ValueError for anything that is not exactly of this type."""


def _expect(right: bool, what: str, value: Any) -> None:
    if not right:
        raise ValueError(f"{what} is expected, not {type(value).__name__} {str(value)[:40]!r}")


def _parse_integer(value: Any) -> int:
    _expect(type(value) is int and -1 <= value < MAX_INTEGER, "an integer from -1 to 2**63 - 1", value)
    return int(value)


def _parse_number(value: Any) -> float:
    _expect(type(value) in (int, float) and math.isfinite(value), "a finite number", value)
    return float(value)


def _parse_flag(value: Any) -> bool:
    _expect(type(value) is bool, "true or false", value)
    return bool(value)


def _text(limit: int) -> _Kind:
    def pack(value: str) -> str:
        return value.encode(errors="replace")[:limit].decode(errors="ignore")

    def parse(value: Any) -> str:
        _expect(isinstance(value, str) and len(value.encode()) <= limit, f"a text of at most {limit} bytes", value)
        text = str(value)
        # it is going to be printed: no control codes for somebody's terminal
        return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)

    return _Kind(pack, parse)


def _choice(*choices: str) -> _Kind:
    def parse(value: Any) -> str:
        _expect(isinstance(value, str) and value in choices, f"one of {', '.join(choices)}", value)
        return str(value)

    return _Kind(lambda value: value, parse)


def _row(item: _Kind) -> _Kind:
    def parse(value: Any) -> tuple[Any, ...]:
        _expect(isinstance(value, tuple), "an array", value)
        return tuple(item.parse(each) for each in value)

    return _Kind(lambda value: [item.pack(each) for each in value], parse)


def _parse_counts(value: Any) -> dict[str, int]:
    _expect(isinstance(value, dict) and len(value) <= 64, "a map of at most 64 counts", value)
    key = _text(64)
    return {key.parse(name): _parse_integer(count) for name, count in value.items()}


def _parse_plain(value: Any, depth: int = 4) -> Any:
    """Settings: nothing but null, bool, numbers, texts, arrays and maps of them."""
    _expect(depth > 0, "nesting of at most 4", value)
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return _text(MAX_TEXT_BYTES).parse(value)
    if isinstance(value, tuple):
        return tuple(_parse_plain(each, depth - 1) for each in value)
    _expect(isinstance(value, dict), "a plain value", value)
    key = _text(64)
    return {key.parse(name): _parse_plain(each, depth - 1) for name, each in value.items()}


def _parse_settings(value: Any) -> dict[str, Any]:
    _expect(isinstance(value, dict), "a map", value)
    settings: dict[str, Any] = _parse_plain(value)
    return settings


def _optional(kind: _Kind) -> _Kind:
    return _Kind(
        lambda value: None if value is None else kind.pack(value),
        lambda value: None if value is None else kind.parse(value),
    )


def _pack_control(message: ControlMessage) -> list[Any]:
    return [type(message).__name__, *_pack_fields(message)]


def _parse_control(value: Any) -> ControlMessage:
    _expect(isinstance(value, tuple) and len(value) > 0 and value[0] in _CONTROLS, "a control message", value)
    message: ControlMessage = _parse_record(_CONTROLS[value[0]], value[1:])
    match message:
        case SaveCheckpoint(name) | LoadCheckpoint(name):
            right = _CHECKPOINT_NAME.fullmatch(name) is not None and name.strip(".") != ""
            _expect(right, "a name of letters, digits, `._-`, at most 64", name)
        case SetLearningRate(rate):
            _expect(0 < rate <= 1, "a learning rate above 0 and at most 1", rate)
        case Shutdown():
            pass
    return message


_INTEGER = _Kind(int, _parse_integer)
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
        return _text(_LONGER_TEXTS.get(name, MAX_TEXT_BYTES))
    if hint == SpaceSpec:
        return _SPACE
    if hint == SpaceSpec | None:
        return _optional(_SPACE)
    if hint == ControlMessage:
        return _CONTROL
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _Kind(_pack_fields, lambda value: _parse_record(hint, value))
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


def _pack_fields(record: Any) -> list[Any]:
    return [field.kind.pack(getattr(record, field.name)) for field in _fields(record.__class__)]


def _parse_record(record: type, values: Any) -> Any:
    """Fields at the end that this version does not know are ignored; those it knows may be missing if they have a
    default: so either side may be newer.
    """
    fields = _fields(record)
    required = sum(not field.has_default for field in fields)
    _expect(isinstance(values, tuple), f"{record.__name__} as an array", values)
    if len(values) < required:
        raise ValueError(f"{record.__name__} has at least {required} fields, not {len(values)}")
    parsed = {}
    for field, value in zip(fields, values, strict=False):
        try:
            parsed[field.name] = field.kind.parse(value)
        except ValueError as error:
            raise ValueError(f"{record.__name__}.{field.name}: {error}") from None
    return record(**parsed)


# --- messages --------------------------------------------------------------------------------------------


def encode(message: Message, topic: bytes = b"") -> list[Any]:
    """The frames of a message; with a topic for XPUB, else with its tag. Parameters of a policy are not copied.

    Raises ValueError for a header that no peer would accept.
    """
    first = topic or TAGS[type(message)]
    if isinstance(message, PolicyBroadcast):
        data = memoryview(message.parameters).cast("B")
        facts = PolicyHeader(message.epoch, message.version, len(data), zlib.crc32(data))
        cuts = range(0, len(data), POLICY_FRAME_BYTES)
        return [first, _pack(_pack_fields(facts)), *(data[cut : cut + POLICY_FRAME_BYTES] for cut in cuts)]
    header = _pack_fields(message)
    if isinstance(message, Hello):
        header = [MAGIC, *header]
    elif isinstance(message, Refuse):
        header = [MAGIC, PROTOCOL_VERSION, *header]
    packed, limit = _pack(header), _header_limit(type(message))
    if len(packed) > limit:
        raise ValueError(f"the header of this {type(message).__name__} has {len(packed)} bytes; at most {limit} travel")
    return [first, packed]


def decode(frames: Frames) -> Message:
    """The message of these frames. An Experience is read by `decode_experience`, which needs its layout."""
    with _refusing():
        kind = _kind_of_frames(frames)
        header = _unpack(frames[1], _header_limit(kind))
        if kind is PolicyBroadcast:
            return _join_policy(_parse_record(PolicyHeader, header), frames[2:])
        if kind is Hello:
            return _parse_hello(header)
        if len(frames) != 2:
            raise ValueError(f"a {kind.__name__} has 2 frames, not {len(frames)}")
        if kind is Refuse:
            _expect(
                len(header) >= _FROZEN_REFUSE_FIELDS and header[0] == MAGIC,
                f"a Refuse that begins with {MAGIC}",
                header,
            )
            header = header[2:]
        message: Message = _parse_record(kind, header)
        return message


def decode_policy_header(frames: Frames) -> PolicyHeader:
    """Epoch and version of a policy, without touching its parameters: only the newest of several is worth joining."""
    with _refusing():
        kind = _kind_of_frames(frames)
        _expect(kind is PolicyBroadcast, "a policy", kind.__name__)
        header: PolicyHeader = _parse_record(PolicyHeader, _unpack(frames[1], HEADER_BYTES))
        return header


class _refusing:
    """Turns whatever a parser may raise on foreign bytes into one DecodeError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        foreign = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError)
        if isinstance(error, (*foreign, msgpack.exceptions.UnpackException)):
            raise DecodeError("malformed", f"not a message of this protocol: {str(error)[:200]}") from None


def _header_limit(kind: type) -> int:
    return JOINING_HEADER_BYTES if kind in (Hello, Welcome) else HEADER_BYTES


def _kind_of_frames(frames: Frames) -> type:
    if len(frames) < 2:
        raise ValueError(f"at least 2 frames are expected, not {len(frames)}")
    first = bytes(memoryview(frames[0])[:80])
    if first in _KINDS:
        return _KINDS[first]
    if re.fullmatch(rb"a/\d{1,19}-\d{1,19}/", first):
        return Subscribed
    raise ValueError(f"unknown tag {first[:16]!r}")


def _pack(header: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(header)
    return packed


def _unpack(frame: Any, limit: int) -> tuple[Any, ...]:
    data = memoryview(frame)
    if data.nbytes > limit:
        raise DecodeError("oversized", f"a header of {data.nbytes} bytes; at most {limit} are read")
    header = msgpack.unpackb(data, use_list=False, strict_map_key=True)
    _expect(isinstance(header, tuple), "a header that is an array", header)
    return tuple(header)


def _parse_hello(header: tuple[Any, ...]) -> Hello:
    _expect(len(header) >= _FROZEN_HELLO_FIELDS and header[0] == MAGIC, f"a Hello that begins with {MAGIC}", header)
    protocol = _parse_integer(header[1])
    if protocol == PROTOCOL_VERSION:
        hello: Hello = _parse_record(Hello, header[1:])
        return hello
    # Another version: what comes after the frozen fields means something else there.
    package, incarnation = _text(MAX_TEXT_BYTES).parse(header[2]), _parse_integer(header[4])
    return Hello(protocol, package, "actor", incarnation)


def _join_policy(header: PolicyHeader, frames: Frames) -> PolicyBroadcast:
    if not 0 <= header.total_bytes <= MAX_POLICY_BYTES:
        raise DecodeError("oversized", f"a policy of {header.total_bytes} bytes; at most {MAX_POLICY_BYTES} are read")
    views = [memoryview(frame).cast("B") for frame in frames]
    total = sum(len(view) for view in views)
    if total != header.total_bytes:
        raise DecodeError("malformed", f"policy {header.version} says {header.total_bytes} bytes and has {total}")
    data = views[0] if len(views) == 1 else b"".join(views)
    if zlib.crc32(data) != header.crc32:
        raise DecodeError("malformed", f"policy {header.version}: checksum does not match")
    return PolicyBroadcast(header.version, data, header.epoch)


# --- experience ------------------------------------------------------------------------------------------


def sampled(action_space: SpaceSpec) -> SpaceSpec:
    """The space of actions as sampled, which is what travels: Discrete begins at 0, Box is float32 and unbounded."""
    leaves = [_sampled_leaf(leaf) for _, leaf in walk(action_space)]
    remaining = iter(leaves)

    def build(spec: SpaceSpec) -> SpaceSpec:
        match spec:
            case DictSpec():
                return DictSpec(tuple((key, build(child)) for key, child in spec.items))
            case TupleSpec():
                return TupleSpec(tuple(build(child) for child in spec.items))
            case _:
                return next(remaining)

    return build(action_space)


def _sampled_leaf(leaf: SpaceSpec) -> SpaceSpec:
    match leaf:
        case DiscreteSpec():
            return DiscreteSpec(leaf.n)
        case MultiDiscreteSpec():
            return MultiDiscreteSpec(leaf.nvec, leaf.shape)
        case BoxSpec():
            return BoxSpec("float32", leaf.shape, -math.inf, math.inf)
        case _:
            return leaf


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

    `action_space` is that of actions as sampled (see `sampled`). A body is the arrays in this order, each in C order,
    little-endian, beginning at the next multiple of 8 bytes; the gaps and the end are filled with zeros.
    """

    observation_space: SpaceSpec
    action_space: SpaceSpec
    num_envs: int
    chunk_steps: int

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


def encode_experience(experience: Experience, layout: ExperienceLayout, epoch: int) -> list[Any]:
    """[tag, header, body]: each array is copied once, cast to the dtype of the layout. ValueError for a wrong shape."""
    finals, episodes = len(experience.final_index), len(experience.episode_index)
    has_values = experience.values is not None
    header = ExperienceHeader(
        epoch,
        experience.agent_id,
        experience.incarnation,
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
    return [EXPERIENCE_TAG, _pack(_pack_fields(header)), body.data]


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
    with _refusing():
        if len(frames) != 3 or bytes(memoryview(frames[0])[:8]) != EXPERIENCE_TAG:
            raise ValueError(f"an Experience has 3 frames and begins with {EXPERIENCE_TAG.decode()}")
        header: ExperienceHeader = _parse_record(ExperienceHeader, _unpack(frames[1], HEADER_BYTES))
        negative = [field.name for field in dataclasses.fields(header) if getattr(header, field.name) < 0]
        _expect(not negative, f"no negative {', '.join(negative)}", header)
        return header


def decode_experience_body(
    header: ExperienceHeader, body: Any, layout: ExperienceLayout, newest_version: int
) -> Experience:
    """The arrays, as views of `body` and not copied, after all of them have been checked.

    Raises DecodeError: `out_of_schema` where size, counts, indices, versions or discrete values are impossible,
    `nonfinite` for a reward, log-prob, observation, action, value or return that is not finite.
    """
    with _refusing():
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
        incarnation=header.incarnation,
        seq=header.seq,
    )
