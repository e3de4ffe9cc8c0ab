"""Messages survive the wire; nothing else does."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zmqrl import codec
from zmqrl.accounts import ActorStats
from zmqrl.codec import (
    ExperienceLayout,
    Subscribed,
    chunk_length,
    decode,
    decode_experience,
    decode_experience_header,
    decode_policy_header,
    encode,
    encode_experience,
    private_topic,
)
from zmqrl.errors import DecodeError
from zmqrl.messages import Experience, LoadCheckpoint, PolicyBroadcast, SaveCheckpoint, SetLearningRate, Shutdown
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
    ManifestEntry,
    Refuse,
    Rejected,
    Resend,
    Terms,
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
    leaves_of,
    sampled,
    tree_of,
    walk,
)

VECTOR = BoxSpec("float32", (4,), -math.inf, math.inf)
MIXED = DictSpec(
    (
        ("image", BoxSpec("uint8", (3, 2), 0.0, 255.0)),
        ("a/b", TupleSpec((DiscreteSpec(3, start=1), MultiBinarySpec((5,))))),
        ("many", MultiDiscreteSpec((2, 3), (2,))),
        ("height", BoxSpec("float64", (), -1.0, 1.0)),
        ("flags", BoxSpec("bool", (2,), 0.0, 1.0)),
    )
)
TERMS = Terms(
    run_id="00ff",
    epoch=3,
    num_actors=2,
    num_envs=4,
    num_steps=16,
    chunk_steps=8,
    max_lead_steps=32,
    fill="quota",
    seed=7,
    observation_space=MIXED,
    action_space=DiscreteSpec(2),
    policy={"hidden_sizes": (64, 64), "activation": "tanh", "log_std_init": 0.0, "normalize_observations": False},
    manifest=(ManifestEntry("body.weight", "float32", (64, 4), 0), ManifestEntry("count", "int64", (), 1024)),
    heartbeat_interval=1.0,
    lease=30.0,
    rejoin_timeout=300.0,
    env="CartPole-v1",
)
MESSAGES: list[Any] = [
    Hello(PROTOCOL_VERSION, "0.1.0", "actor", 2**63 - 1, "host", 12, 4, MIXED, DiscreteSpec(2), 1),
    Hello(PROTOCOL_VERSION, "0.1.0", "monitor", 5),
    Welcome(1, 99, 5556, 5557, TERMS),
    Refuse("full", "all 2 slots are taken"),
    GetPolicy(3, -1),
    Heartbeat(3, 1, 8, 12, 3000, 17, 4, 0.25, True, True, "ValueError: no"),
    Credit(3, 8, 9, 10, 4, 12, 2900),
    Resend(3, 9, 11),
    Rejected("nonfinite", "rewards holds NaN", 7),
    Goodbye(3, 1, 8, "asked to leave", ActorStats(1, "host", 10, 8, {"cut": 2}, 3, 2, 1, 4, 1.5, 0.5, 0.25, 0.75)),
    Farewell(8),
    Shutdown("done"),
    Command(1, Shutdown("enough")),
    Command(2, SaveCheckpoint("best-1.0_a")),
    Command(3, LoadCheckpoint("a")),
    Command(4, SetLearningRate(1e-4)),
    CommandResult(4, True, "done"),
]


def make_experience(
    layout: ExperienceLayout, *, finals: int = 2, episodes: int = 1, values: bool = False, seed: int = 0
) -> Experience:
    """Random, valid, and different in each element where the dtype allows."""
    random = np.random.default_rng(seed)
    steps, envs = layout.chunk_steps, layout.num_envs

    def sample(leaf: SpaceSpec, *batch: int) -> np.ndarray:
        match leaf:
            case DiscreteSpec(n=n, start=start):
                return random.integers(start, start + n, batch).astype(leaf.dtype)
            case MultiDiscreteSpec(nvec=nvec, shape=shape):
                return random.integers(0, np.reshape(nvec, shape), (*batch, *shape)).astype(leaf.dtype)
            case MultiBinarySpec(shape=shape):
                return random.integers(0, 2, (*batch, *shape)).astype(leaf.dtype)
            case BoxSpec(dtype=dtype, shape=shape):
                high = 2 if dtype == "bool" else 100
                return random.integers(0, high, (*batch, *shape)).astype(dtype)
        raise AssertionError(leaf)

    def tree(space: SpaceSpec, *batch: int) -> Any:
        return tree_of(space, [sample(leaf, *batch) for _, leaf in walk(space)])

    rows = [(row // envs, row % envs) for row in range(steps * envs)]
    return Experience(
        agent_id=1,
        observations=tree(layout.observation_space, steps + 1, envs),
        actions=tree(layout.action_space, steps, envs),
        rewards=random.normal(size=(steps, envs)).astype(np.float32),
        terminated=random.integers(0, 2, (steps, envs)).astype(bool),
        truncated=random.integers(0, 2, (steps, envs)).astype(bool),
        valid=random.integers(0, 2, (steps, envs)).astype(bool),
        log_probs=random.normal(size=(steps, envs)).astype(np.float32),
        versions=np.arange(steps, dtype=np.int64),
        final_index=np.array(rows[:finals], np.int32).reshape(-1, 2),
        final_observations=tree(layout.observation_space, finals),
        episode_index=np.array(rows[:episodes], np.int32).reshape(-1, 2),
        episode_returns=random.normal(size=episodes),
        episode_lengths=np.arange(1, episodes + 1),
        values=random.normal(size=(steps, envs)).astype(np.float32) if values else None,
        seq=6,
    )


def assert_same(one: Experience, two: Experience, layout: ExperienceLayout) -> None:
    def leaves(experience: Experience) -> list[Any]:
        trees = (
            (layout.observation_space, experience.observations),
            (layout.action_space, experience.actions),
            (layout.observation_space, experience.final_observations),
        )
        plain = [
            getattr(experience, field.name)
            for field in dataclasses.fields(experience)
            if field.name not in ("observations", "actions", "final_observations")
        ]
        return [*plain, *(leaf for space, tree in trees for leaf in leaves_of(space, tree))]

    for left, right in zip(leaves(one), leaves(two), strict=True):
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


# --- messages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_each_message_comes_back_as_it_was(message: codec.Message) -> None:
    assert decode(encode(message)) == message


def test_topics_name_the_kind_of_a_broadcast() -> None:
    state = LearnerState("00ff", 3, "running", 4, 5, 6000)
    assert decode(encode(state, codec.TOPIC_STATE)) == state
    assert decode(encode(Shutdown("done"), codec.TOPIC_CONTROL)) == Shutdown("done")
    assert decode(encode(Subscribed(3), private_topic(11, 2**63 - 1))) == Subscribed(3)


def test_no_private_topic_is_the_prefix_of_another() -> None:
    assert not private_topic(1, 23).startswith(private_topic(1, 2))
    assert not private_topic(11, 2).startswith(private_topic(1, 12))


def test_fields_of_a_newer_peer_are_ignored() -> None:
    tag, header = encode(Credit(3, 8, 9, 10, 4, 12, 2900))
    longer = msgpack.packb([*msgpack.unpackb(header), "new", {"more": [1]}])
    assert decode([tag, longer]) == Credit(3, 8, 9, 10, 4, 12, 2900)


def test_fields_with_defaults_of_an_older_peer_may_be_missing() -> None:
    tag, header = encode(MESSAGES[5])
    assert decode([tag, msgpack.packb(msgpack.unpackb(header)[:9])]) == Heartbeat(3, 1, 8, 12, 3000, 17, 4, 0.25, True)


@pytest.mark.parametrize("protocol", [0, 2, 1000])
def test_a_hello_of_another_version_is_read_as_far_as_its_frozen_fields(protocol: int) -> None:
    header = msgpack.packb(["ZQRL", protocol, "9.9", "spectator", 77, {"unlike": "anything"}, None])
    assert decode([b"HELO", header, b"another frame"]) == Hello(protocol, "9.9", "actor", 77)


def test_a_refuse_of_another_version_is_read() -> None:
    header = msgpack.packb(["ZQRL", 9, "protocol", "the learner speaks protocol 9", ["later", "fields"]])
    assert decode([b"RFSE", header]) == Refuse("protocol", "the learner speaks protocol 9")


def test_frozen_fields_come_first() -> None:
    assert msgpack.unpackb(encode(MESSAGES[0])[1])[:5] == ["ZQRL", PROTOCOL_VERSION, "0.1.0", "actor", 2**63 - 1]
    assert msgpack.unpackb(encode(Refuse("full", "no"))[1]) == ["ZQRL", PROTOCOL_VERSION, "full", "no"]


def test_a_text_too_long_is_cut_and_never_within_a_character() -> None:
    sent = decode(encode(Rejected("nonfinite", "ä" * 5000)))
    assert isinstance(sent, Rejected)
    assert sent.text == "ä" * 2048


def test_control_codes_do_not_reach_a_terminal() -> None:
    heard = decode(encode(Rejected("x", "red \x1b[31m\r and\nmore")))
    assert heard == Rejected("x", "red ?[31m? and\nmore")


@pytest.mark.parametrize(
    "header",
    [
        [3, 8, 9, 10, 4, 12],
        [3, 8, 9, 10, 4, 12, "2900"],
        [3, 8, 9, 10, 4, 12, True],
        [3, 8, 9, 10, 4, 12, 2**63],
        [3, 8, 9, 10, 4, 12, -2],
        {"epoch": 3},
        3,
    ],
)
def test_a_header_of_other_types_is_malformed(header: object) -> None:
    with pytest.raises(DecodeError) as refused:
        decode([b"CRED", msgpack.packb(header)])
    assert refused.value.reason == "malformed"


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_numbers_of_headers_are_finite(seconds: float) -> None:
    with pytest.raises(DecodeError, match="finite"):
        decode(encode(dataclasses.replace(MESSAGES[5], in_step_seconds=seconds)))


@pytest.mark.parametrize("name", ["../evil", "", "a b", "a/b", "x" * 65, "..", "."])
def test_a_checkpoint_name_cannot_leave_its_folder(name: str) -> None:
    header = msgpack.packb([1, ["SaveCheckpoint", name]])
    with pytest.raises(DecodeError):
        decode([b"CTRL", header])


@pytest.mark.parametrize("rate", [0.0, -1e-3, 1.5, math.nan])
def test_an_impossible_learning_rate_is_refused(rate: float) -> None:
    with pytest.raises(DecodeError):
        decode([b"CTRL", msgpack.packb([1, ["SetLearningRate", rate]])])


def test_a_header_too_large_is_not_even_parsed() -> None:
    with pytest.raises(DecodeError) as refused:
        decode([b"CRED", bytes(codec.HEADER_BYTES + 1)])
    assert refused.value.reason == "oversized"


def test_a_welcome_that_no_actor_would_read_is_not_sent() -> None:
    manifest = tuple(ManifestEntry("x" * 100, "float32", (1,), 0) for _ in range(3000))
    with pytest.raises(ValueError, match="at most 262144 travel"):
        encode(Welcome(0, 0, 0, 0, dataclasses.replace(TERMS, manifest=manifest)))


def test_deep_nesting_is_an_error_of_the_message_and_not_of_the_stack() -> None:
    deep = b"\x91" * 10_000 + b"\xc0"
    with pytest.raises(DecodeError):
        decode([b"CRED", deep])
    with pytest.raises(DecodeError):
        decode([b"HELO", msgpack.packb(["ZQRL", 1, "", "actor", 1, "", 1, 1, _nested(100)])])


def _nested(depth: int) -> object:
    return ["tuple", [_nested(depth - 1)]] if depth else ["discrete", "int64", 2, 0]


# --- policies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, codec.POLICY_FRAME_BYTES, codec.POLICY_FRAME_BYTES + 1, 3_000_000])
def test_a_policy_travels_in_frames_of_a_mebibyte(size: int) -> None:
    data = np.random.default_rng(0).bytes(size)
    frames = encode(PolicyBroadcast(7, data, epoch=2), codec.TOPIC_POLICY)
    assert [len(frame) for frame in frames[2:]] == [
        min(codec.POLICY_FRAME_BYTES, size - at) for at in range(0, size, codec.POLICY_FRAME_BYTES)
    ]
    header = decode_policy_header(frames)
    assert (header.epoch, header.version, header.total_bytes) == (2, 7, size)
    heard = decode(frames)
    assert isinstance(heard, PolicyBroadcast)
    assert (heard.version, heard.epoch, bytes(heard.parameters)) == (7, 2, data)


def test_a_policy_is_not_copied_when_it_is_sent() -> None:
    data = bytearray(2_000_000)
    frames = encode(PolicyBroadcast(0, memoryview(data)))
    assert all(frame.obj is data for frame in frames[2:])


@pytest.mark.parametrize("spoil", [lambda f: f[:-1], lambda f: [*f, b"x"], lambda f: [*f[:-1], bytes(len(f[-1]))]])
def test_a_torn_policy_is_refused(spoil: Any) -> None:
    frames = encode(PolicyBroadcast(7, np.random.default_rng(0).bytes(2_500_000)))
    with pytest.raises(DecodeError, match=r"checksum|bytes and has"):
        decode(spoil(frames))


# --- experience ------------------------------------------------------------------------------------------

LAYOUTS = {
    "vector": ExperienceLayout(VECTOR, DiscreteSpec(2), 3, 5),
    "single transition": ExperienceLayout(VECTOR, DiscreteSpec(2), 1, 1),
    "scalar": ExperienceLayout(BoxSpec("float32", (), -1.0, 1.0), sampled(BoxSpec("float64", (), -1.0, 1.0)), 2, 3),
    "mixed": ExperienceLayout(MIXED, sampled(MIXED), 2, 4),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("finals", ["none", "some", "all"])
@pytest.mark.parametrize("values", [False, True])
def test_an_experience_comes_back_as_it_was(name: str, finals: str, values: bool) -> None:
    layout = LAYOUTS[name]
    count = {"none": 0, "some": 1, "all": layout.chunk_steps * layout.num_envs}[finals]
    sent = make_experience(layout, finals=count, episodes=count, values=values)
    frames = encode_experience(sent, layout, 9, 42)
    assert len(frames) == 3
    assert len(frames[2]) <= layout.max_body_bytes
    header, heard = decode_experience(frames, layout)
    assert (header.epoch, header.slot, header.incarnation, header.seq) == (9, 1, 42, 6)
    assert header.env_steps == sent.env_steps
    assert_same(sent, heard, layout)


def test_the_largest_experience_has_exactly_the_announced_size() -> None:
    layout = LAYOUTS["mixed"]
    rows = layout.chunk_steps * layout.num_envs
    frames = encode_experience(make_experience(layout, finals=rows, episodes=rows, values=True), layout, 0, 42)
    assert len(frames[2]) == layout.max_body_bytes


def test_strided_arrays_and_other_dtypes_are_cast_on_the_way_out() -> None:
    layout = LAYOUTS["vector"]
    plain = make_experience(layout)
    odd = dataclasses.replace(
        plain,
        observations=np.asfortranarray(plain.observations.astype(np.float64)),
        actions=np.repeat(plain.actions, 2, axis=1)[:, ::2].astype(np.int32),
        rewards=plain.rewards[::-1].astype(np.float64)[::-1],
        versions=plain.versions.astype(np.int32),
    )
    assert_same(plain, decode_experience(encode_experience(odd, layout, 0, 42), layout)[1], layout)


def test_arrays_are_views_of_the_frame() -> None:
    layout = LAYOUTS["vector"]
    tag, header, body = encode_experience(make_experience(layout), layout, 0, 42)
    store = np.frombuffer(bytearray(body), np.uint8)
    _, heard = decode_experience([tag, header, store.data], layout)
    assert np.shares_memory(heard.observations, store)
    assert np.shares_memory(heard.episode_lengths, store)


def test_an_unaligned_frame_is_read() -> None:
    layout = LAYOUTS["vector"]
    sent = make_experience(layout)
    tag, header, body = encode_experience(sent, layout, 0, 42)
    shifted = memoryview(b"x" + bytes(body))[1:]
    heard = decode_experience([tag, header, shifted], layout)[1]
    assert heard.observations.flags.aligned
    assert_same(sent, heard, layout)


def test_gaps_are_zero_and_sections_aligned() -> None:
    layout = ExperienceLayout(BoxSpec("uint8", (3,), 0.0, 255.0), DiscreteSpec(2), 1, 1)
    rows, size = layout.plan(1, 1, True)
    assert all(offset % 8 == 0 for _, _, offset in rows)
    body = np.frombuffer(encode_experience(make_experience(layout, finals=1, values=True), layout, 0, 42)[2], np.uint8)
    covered = np.zeros(size, bool)
    for section, shape, offset in rows:
        covered[offset : offset + math.prod(shape) * section.dtype.itemsize] = True
    assert not covered.all()
    assert (body[~covered] == 0).all()


def test_a_wrong_shape_is_an_error_of_the_sender() -> None:
    layout = LAYOUTS["vector"]
    with pytest.raises(ValueError, match=r"rewards has shape \(5,\); \(5, 3\) was agreed on"):
        encode_experience(dataclasses.replace(make_experience(layout), rewards=np.zeros(5, np.float32)), layout, 0, 42)


def refuse(layout: ExperienceLayout, spoil: dict[str, Any], newest: int = 100) -> DecodeError:
    experience = dataclasses.replace(make_experience(layout), **spoil)
    with pytest.raises(DecodeError) as refused:
        decode_experience(encode_experience(experience, layout, 0, 42), layout, newest)
    return refused.value


def spoiled(layout: ExperienceLayout, name: str, value: float) -> dict[str, Any]:
    array = np.array(getattr(make_experience(layout), name))
    array.reshape(-1)[-1] = value
    return {name: array}


@pytest.mark.parametrize("name", ["rewards", "log_probs", "observations", "final_observations", "episode_returns"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_name(name: str, value: float) -> None:
    layout = LAYOUTS["vector"]
    error = refuse(layout, spoiled(layout, name, value))
    assert error.reason == "nonfinite"
    assert name in str(error)


def test_large_finite_numbers_are_not_mistaken_for_infinity() -> None:
    layout = LAYOUTS["vector"]
    rewards = np.full((5, 3), np.finfo(np.float32).max)
    sent = dataclasses.replace(make_experience(layout), rewards=rewards)
    heard = decode_experience(encode_experience(sent, layout, 0, 42), layout)[1]
    np.testing.assert_array_equal(heard.rewards, rewards)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("actions", 2),
        ("actions", -1),
        ("final_index", 3),
        ("final_index", -1),
        ("episode_index", 3),
        ("episode_lengths", 0),
        ("versions", -1),
        ("versions", 101),
    ],
)
def test_what_the_spaces_do_not_allow_is_out_of_schema(name: str, value: int) -> None:
    layout = LAYOUTS["vector"]
    assert refuse(layout, spoiled(layout, name, value)).reason == "out_of_schema"


@pytest.mark.parametrize("path", [0, 1, 2, 3, 5])
def test_each_kind_of_observation_is_checked(path: int) -> None:
    layout = LAYOUTS["mixed"]
    experience = make_experience(layout)
    leaves = leaves_of(MIXED, experience.observations)
    flat = leaves[path].view(np.uint8).reshape(-1) if path == 5 else leaves[path].reshape(-1)
    flat[0] = 0 if path == 1 else 9
    frames = encode_experience(experience, layout, 0, 42)
    if path == 0:  # any byte is a pixel
        decode_experience(frames, layout)
        return
    if path == 5:  # casting makes a bool a bool, so a foreign actor's byte is written past it
        rows, _ = layout.plan(2, 1, False)
        offset = next(offset for section, _, offset in rows if section.name == "observations/flags")
        frames[2][offset] = 9
    with pytest.raises(DecodeError) as refused:
        decode_experience(frames, layout)
    assert refused.value.reason == "out_of_schema"


def test_a_row_named_twice_is_refused() -> None:
    layout = LAYOUTS["vector"]
    assert refuse(layout, {"final_index": np.array([[1, 1], [1, 1]], np.int32)}).reason == "out_of_schema"


@pytest.mark.parametrize(
    "change", [{"steps": 4}, {"finals": 16}, {"episodes": 16}, {"finals": 1}, {"has_values": True}]
)
def test_a_header_that_does_not_fit_the_body_is_refused_before_the_body_is_read(change: dict[str, Any]) -> None:
    layout = LAYOUTS["vector"]
    frames = encode_experience(make_experience(layout), layout, 0, 42)
    header = dataclasses.replace(decode_experience_header(frames), **change)
    with pytest.raises(DecodeError) as refused:
        codec.decode_experience_body(header, frames[2], layout, 100)
    assert refused.value.reason == "out_of_schema"


def test_env_steps_of_the_header_must_be_the_valid_rows() -> None:
    layout = LAYOUTS["vector"]
    frames = encode_experience(make_experience(layout), layout, 0, 42)
    header = decode_experience_header(frames)
    wrong = dataclasses.replace(header, env_steps=header.env_steps - 1)
    with pytest.raises(DecodeError, match="env_steps"):
        codec.decode_experience_body(wrong, frames[2], layout, 100)


@pytest.mark.parametrize("extra", [-1, 1, 8])
def test_a_body_of_another_length_is_refused(extra: int) -> None:
    layout = LAYOUTS["vector"]
    tag, header, body = encode_experience(make_experience(layout), layout, 0, 42)
    other = bytes(body) + bytes(extra) if extra > 0 else bytes(body)[:extra]
    with pytest.raises(DecodeError) as refused:
        decode_experience([tag, header, other], layout)
    assert refused.value.reason == "out_of_schema"


def test_one_more_environment_than_agreed_is_refused() -> None:
    layout = LAYOUTS["vector"]
    larger = dataclasses.replace(layout, num_envs=4)
    with pytest.raises(DecodeError):
        decode_experience(encode_experience(make_experience(larger), larger, 0, 42), layout)


def test_sampled_actions() -> None:
    assert sampled(DiscreteSpec(3, start=5, dtype="int32")) == DiscreteSpec(3)
    assert sampled(BoxSpec("float64", (2,), -1.0, 1.0)) == BoxSpec("float32", (2,), -math.inf, math.inf)
    assert sampled(MultiDiscreteSpec((2, 3), (2,), "int32")) == MultiDiscreteSpec((2, 3), (2,))
    nested = DictSpec((("a", TupleSpec((DiscreteSpec(2, 1),))), ("b", MultiBinarySpec((3,)))))
    assert sampled(nested) == DictSpec((("a", TupleSpec((DiscreteSpec(2),))), ("b", MultiBinarySpec((3,)))))
    assert sampled(sampled(MIXED)) == sampled(MIXED)


def test_chunk_length_is_the_largest_divisor_that_fits() -> None:
    assert chunk_length(128, 8, 1 << 20) == 128
    assert chunk_length(128, 8, 129 * 8) == 128
    assert chunk_length(128, 8, 129 * 8 - 1) == 64
    assert chunk_length(12, 10, 75) == 6
    assert chunk_length(7, 10, 60) == 1
    assert chunk_length(128, 1 << 21, 1 << 20) == 1


@pytest.mark.parametrize("num_steps", [1, 12, 128])
def test_a_chunk_of_that_length_stays_below_the_limit(num_steps: int) -> None:
    one = ExperienceLayout(MIXED, sampled(MIXED), 4, 1)
    for limit in (2048, 10_000, 1 << 20):
        steps = chunk_length(num_steps, one.bytes_per_step, limit)
        layout = dataclasses.replace(one, chunk_steps=steps)
        alignment = 8 * len(layout.sections)
        assert steps == 1 or layout.plan(0, 0, True)[1] <= limit + alignment


# --- any bytes -------------------------------------------------------------------------------------------

TAGS = [*codec.TAGS.values(), codec.TOPIC_POLICY, codec.TOPIC_STATE, codec.TOPIC_CONTROL, b"a/1-2/", b"EXPR", b"GET "]
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)
HEADERS = st.binary(max_size=64) | PLAIN.map(msgpack.packb) | st.lists(PLAIN, max_size=13).map(msgpack.packb)


@given(
    st.lists(st.sampled_from(TAGS) | st.binary(max_size=8), max_size=2),
    HEADERS,
    st.lists(st.binary(max_size=40), max_size=3),
)
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_a_message_or_one_named_refusal(first: list[bytes], header: bytes, rest: list[bytes]) -> None:
    frames = [*first, header, *rest]
    for read in (
        decode,
        decode_policy_header,
        decode_experience_header,
        lambda f: decode_experience(f, LAYOUTS["vector"]),
    ):
        try:
            read(frames)
        except DecodeError as error:
            assert error.reason in ("malformed", "oversized", "out_of_schema", "nonfinite")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_message_is_a_message_or_one_named_refusal(data: st.DataObject) -> None:
    layout = LAYOUTS["vector"]
    frames = data.draw(
        st.sampled_from(
            [
                *map(encode, MESSAGES),
                encode(PolicyBroadcast(1, b"abc")),
                encode_experience(make_experience(layout), layout, 0, 42),
            ]
        )
    )
    spoiled_frames = [bytearray(frame) for frame in frames]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = data.draw(st.sampled_from([frame for frame in spoiled_frames if frame]))
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    for read in (decode, lambda f: decode_experience(f, layout)):
        try:
            read(spoiled_frames)
        except DecodeError as error:
            assert error.reason in ("malformed", "oversized", "out_of_schema", "nonfinite")
