"""Messages <-> frames. `docs/protocol.md` is the authority.

Frame 0 is a tag of four bytes (on XPUB a topic), frame 1 a header: a msgpack array of the fields in the order of the
dataclass. Further frames are raw bytes: the body of an experience, the parameters of a policy. Any bytes give either
a message or one DecodeError whose `reason` is the label they are counted under.
"""

from __future__ import annotations

from zmqrl.codec.control import (
    MAGIC,
    MAX_POLICY_BYTES,
    POLICY_FRAME_BYTES,
    TAGS,
    TOPIC_CONTROL,
    TOPIC_POLICY,
    TOPIC_STATE,
    Message,
    PolicyHeader,
    Subscribed,
    decode,
    decode_policy_header,
    encode,
    private_topic,
)
from zmqrl.codec.experience import (
    EXPERIENCE_TAG,
    ExperienceHeader,
    ExperienceLayout,
    chunk_length,
    decode_experience,
    decode_experience_body,
    decode_experience_header,
    encode_experience,
)
from zmqrl.codec.fields import HEADER_BYTES, JOINING_HEADER_BYTES, MAX_TEXT_BYTES

__all__ = [
    "EXPERIENCE_TAG",
    "HEADER_BYTES",
    "JOINING_HEADER_BYTES",
    "MAGIC",
    "MAX_POLICY_BYTES",
    "MAX_TEXT_BYTES",
    "POLICY_FRAME_BYTES",
    "TAGS",
    "TOPIC_CONTROL",
    "TOPIC_POLICY",
    "TOPIC_STATE",
    "ExperienceHeader",
    "ExperienceLayout",
    "Message",
    "PolicyHeader",
    "Subscribed",
    "chunk_length",
    "decode",
    "decode_experience",
    "decode_experience_body",
    "decode_experience_header",
    "decode_policy_header",
    "encode",
    "encode_experience",
    "private_topic",
]
