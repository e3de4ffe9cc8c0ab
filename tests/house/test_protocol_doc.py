"""The protocol document is the authority: its examples are real, and no message lacks its section."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from zmqrl import codec
from zmqrl.accounts import ActorStats
from zmqrl.codec import ExperienceLayout, decode, decode_experience, encode, encode_experience
from zmqrl.messages import ControlMessage, PolicyBroadcast
from zmqrl.session import PROTOCOL_VERSION, ManifestEntry, Terms
from zmqrl.spaces import BoxSpec, DiscreteSpec

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
SECTIONS = {
    title: body for title, body in re.findall(r"^### (\w+)\n(.*?)(?=^##)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
}

FIELDS = {kind.__name__: [field.name for field in dataclasses.fields(kind)] for kind in get_args(codec.Message)}
FIELDS |= {kind.__name__: [field.name for field in dataclasses.fields(kind)] for kind in get_args(ControlMessage)}
FIELDS |= {
    kind.__name__: [field.name for field in dataclasses.fields(kind)] for kind in (ActorStats, ManifestEntry, Terms)
}
FIELDS |= {
    "Hello": ["magic", *FIELDS["Hello"]],
    "Refuse": ["magic", "protocol", *FIELDS["Refuse"]],
    "PolicyBroadcast": [field.name for field in dataclasses.fields(codec.PolicyHeader)],
    "Experience": [field.name for field in dataclasses.fields(codec.ExperienceHeader)],
}
WITHOUT_EXAMPLE = {"Terms", "ManifestEntry", "ActorStats", "SaveCheckpoint", "LoadCheckpoint", "SetLearningRate"}
"""They travel inside another message, whose examples hold them."""

LAYOUT = ExperienceLayout(BoxSpec("float32", (2,), -math.inf, math.inf), DiscreteSpec(2), 1, 2)


def examples(title: str) -> list[list[bytes]]:
    """The frames of each example; a frame that goes on is indented."""
    blocks = re.findall(r"```frames\n(.*?)```", SECTIONS[title], re.DOTALL)
    return [[bytes.fromhex(frame) for frame in block.replace("\n  ", "").split("\n")[:-1]] for block in blocks]


EXAMPLES = [(title, frames) for title in SECTIONS for frames in examples(title)]


def test_every_message_has_a_section_and_an_example() -> None:
    assert set(FIELDS) <= set(SECTIONS)
    assert {title for title, _ in EXAMPLES} == set(FIELDS) - WITHOUT_EXAMPLE


@pytest.mark.parametrize("title", FIELDS)
def test_the_fields_are_listed_in_the_order_in_which_they_travel(title: str) -> None:
    table = SECTIONS[title].partition("| field | type | |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (\w+) \|", table, re.MULTILINE) == FIELDS[title]


@pytest.mark.parametrize(("title", "frames"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_each_example_decodes_to_its_section_and_encodes_to_the_same_bytes(title: str, frames: list[bytes]) -> None:
    topic = frames[0] if frames[0] not in codec.TAGS.values() else b""
    if title == "Experience":
        header, experience = decode_experience(frames, LAYOUT)
        again = encode_experience(experience, LAYOUT, header.epoch, header.incarnation)
    else:
        message = decode(frames)
        assert type(message).__name__ == title
        again = encode(message, topic)
    assert [bytes(frame) for frame in again] == frames


def test_all_control_messages_are_among_the_examples_of_commands() -> None:
    commands = [decode(frames) for frames in examples("Command")]
    assert {type(command.message) for command in commands} == set(get_args(ControlMessage))  # type: ignore[union-attr]


def test_the_example_of_an_experience_says_what_the_text_says() -> None:
    frames = examples("Experience")[0]
    _, experience = decode_experience(frames, LAYOUT)
    np.testing.assert_array_equal(experience.observations, [[[0, 1]], [[2, 3]], [[4, 5]]])
    np.testing.assert_array_equal(experience.final_observations, [[6, 7]])
    assert experience.final_index.tolist() == [[1, 0]]
    assert experience.truncated.tolist() == [[False], [True]]
    rows, size = LAYOUT.plan(1, 1, False)
    expected = [
        (str(offset), section.name, section.dtype.name, ", ".join(map(str, shape))) for section, shape, offset in rows
    ]
    table = re.findall(r"^\| (\d+) \| (\w+) \| (\w+) \| ([\d, ]+) \|$", SECTIONS["Experience"], re.MULTILINE)
    assert table == expected
    assert f"| {size} | end |" in SECTIONS["Experience"]
    assert len(frames[2]) == size


def test_a_policy_travels_alike_on_both_sockets() -> None:
    on_control, on_topic = examples("PolicyBroadcast")
    assert (on_control[0], on_topic[0]) == (codec.TAGS[PolicyBroadcast], codec.TOPIC_POLICY)
    assert on_control[1:] == on_topic[1:]


def test_version_tags_limits_and_reasons_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    assert f"Protocol version **{PROTOCOL_VERSION}**" in text
    for kind, tag in codec.TAGS.items():
        assert f"`{tag.decode()}`" in SECTIONS[kind.__name__]
    for dtype in re.findall(r'Section\("\w+", dtype\("(\w+)"\)', Path(codec.experience.__file__).read_text()):
        assert f"| {dtype} |" in SECTIONS["Experience"]
    assert f"at most {codec.MAX_TEXT_BYTES} bytes of UTF-8" in text
    assert (codec.HEADER_BYTES, codec.JOINING_HEADER_BYTES) == (16 << 10, 256 << 10)
    assert "| header | 16 KiB; Hello and Welcome 256 KiB |" in text
