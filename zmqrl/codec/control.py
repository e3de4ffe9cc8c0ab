"""Messages <-> frames, all but experience."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any

from zmqrl.codec.fields import (
    HEADER_BYTES,
    JOINING_HEADER_BYTES,
    MAX_TEXT_BYTES,
    Frames,
    expect,
    pack,
    pack_fields,
    parse_integer,
    parse_record,
    refusing,
    text_kind,
    unpack,
)
from zmqrl.errors import DecodeError
from zmqrl.messages import PolicyBroadcast, Shutdown
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

MAGIC = "ZQRL"
"""First field of Hello and Refuse, so that a peer of any version can tell that it talks to zmqrl."""

TOPIC_POLICY = b"p/"
TOPIC_STATE = b"h/"
TOPIC_CONTROL = b"c/"

POLICY_FRAME_BYTES = 1 << 20
"""ZMTP's heartbeat timer is reset by whole frames only: a larger one can time out on a slow link, for ever."""

MAX_POLICY_BYTES = 1 << 32


@dataclass(frozen=True)
class Subscribed:
    """Learner to one actor, on its private topic: your subscription has arrived, so broadcasts reach you."""

    epoch: int


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

# Hello and Refuse: what every version, past or future, begins with.
_FROZEN_HELLO_FIELDS = 5
_FROZEN_REFUSE_FIELDS = 4


def private_topic(slot: int, incarnation: int) -> bytes:
    """The topic that one actor alone listens to. The slash at its end keeps `a/1-2/` from matching `a/1-23/`."""
    return f"a/{slot}-{incarnation}/".encode()


def encode(message: Message, topic: bytes = b"") -> list[Any]:
    """The frames of a message; with a topic for XPUB, else with its tag. Parameters of a policy are not copied.

    Raises ValueError for a header that no peer would accept.
    """
    first = topic or TAGS[type(message)]
    if isinstance(message, PolicyBroadcast):
        data = memoryview(message.parameters).cast("B")
        facts = PolicyHeader(message.epoch, message.version, len(data), zlib.crc32(data))
        cuts = range(0, len(data), POLICY_FRAME_BYTES)
        return [first, pack(pack_fields(facts)), *(data[cut : cut + POLICY_FRAME_BYTES] for cut in cuts)]
    header = pack_fields(message)
    if isinstance(message, Hello):
        header = [MAGIC, *header]
    elif isinstance(message, Refuse):
        header = [MAGIC, PROTOCOL_VERSION, *header]
    packed, limit = pack(header), _header_limit(type(message))
    if len(packed) > limit:
        raise ValueError(f"the header of this {type(message).__name__} has {len(packed)} bytes; at most {limit} travel")
    return [first, packed]


def decode(frames: Frames) -> Message:
    """The message of these frames. An Experience is read by `codec.experience`, which needs its layout."""
    with refusing():
        kind = _kind_of_frames(frames)
        header = unpack(frames[1], _header_limit(kind))
        if kind is PolicyBroadcast:
            return _join_policy(parse_record(PolicyHeader, header), frames[2:])
        if kind is Hello:
            return _parse_hello(header)
        if len(frames) != 2:
            raise ValueError(f"a {kind.__name__} has 2 frames, not {len(frames)}")
        if kind is Refuse:
            expect(
                len(header) >= _FROZEN_REFUSE_FIELDS and header[0] == MAGIC,
                f"a Refuse that begins with {MAGIC}",
                header,
            )
            header = header[2:]
        message: Message = parse_record(kind, header)
        return message


def decode_policy_header(frames: Frames) -> PolicyHeader:
    """Epoch and version of a policy, without touching its parameters: only the newest of several is worth joining."""
    with refusing():
        kind = _kind_of_frames(frames)
        expect(kind is PolicyBroadcast, "a policy", kind.__name__)
        header: PolicyHeader = parse_record(PolicyHeader, unpack(frames[1], HEADER_BYTES))
        return header


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


def _parse_hello(header: tuple[Any, ...]) -> Hello:
    expect(len(header) >= _FROZEN_HELLO_FIELDS and header[0] == MAGIC, f"a Hello that begins with {MAGIC}", header)
    protocol = parse_integer(header[1])
    if protocol == PROTOCOL_VERSION:
        hello: Hello = parse_record(Hello, header[1:])
        return hello
    # Another version: what comes after the frozen fields means something else there.
    package, incarnation = text_kind(MAX_TEXT_BYTES).parse(header[2]), parse_integer(header[4])
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
