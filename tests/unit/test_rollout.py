"""The rollout buffer: every value identifies its own step, so that a mix-up shows itself."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from zmqrl.errors import ZmqrlError
from zmqrl.messages import Experience
from zmqrl.rollout import Rollout, RolloutBuffer, RolloutError, UnknownSlot
from zmqrl.spaces import BoxSpec, DictSpec, DiscreteSpec, SpaceSpec

OBSERVATIONS = BoxSpec("float32", (1,), -1e9, 1e9)
ACTIONS = DiscreteSpec(1000)


def identity(agent: int, env: int, step: int) -> int:
    """What identifies the observation of `env` of `agent` at `step`."""
    return agent * 10_000 + env * 1_000 + step


def chunk(
    agent: int = 0,
    seq: int = 0,
    K: int = 4,
    N: int = 2,
    *,
    session: int = 1,
    terminated: tuple[tuple[int, int], ...] = (),
    truncated: tuple[tuple[int, int], ...] = (),
    finals: tuple[tuple[int, int], ...] = (),
    invalid: tuple[tuple[int, int], ...] = (),
    version: int = 0,
) -> Experience:
    """Steps seq * K .. seq * K + K - 1 of an actor; a final observation is its identity plus 500, negated."""
    steps = seq * K + np.arange(K + 1)
    names = np.array([[identity(agent, env, step) for env in range(N)] for step in steps])

    def flags(where: tuple[tuple[int, int], ...]) -> np.ndarray:
        array = np.zeros((K, N), bool)
        for t, n in where:
            array[t, n] = True
        return array

    ends = tuple(dict.fromkeys(terminated + truncated))
    return Experience(
        agent_id=agent,
        observations=names[..., None].astype(np.float32),
        actions=names[:-1] % 1000,
        rewards=names[:-1].astype(np.float32) + 0.5,
        terminated=flags(terminated),
        truncated=flags(truncated),
        valid=~flags(invalid),
        log_probs=-names[:-1].astype(np.float32),
        versions=np.full(K, version),
        final_index=np.array(finals, np.int32).reshape(-1, 2),
        final_observations=np.array([[-names[t, n] - 500] for t, n in finals], np.float32).reshape(-1, 1),
        episode_index=np.array(ends, np.int32).reshape(-1, 2),
        episode_returns=np.array([names[t, n] for t, n in ends], np.float64),
        episode_lengths=np.array([steps[t] + 1 for t, n in ends], np.int64),
        session=session,
        seq=seq,
    )


def buffer(num_steps: int = 8, num_actors: int = 1, num_envs: int = 2, fill: str = "columns") -> RolloutBuffer:
    return RolloutBuffer(num_steps, num_actors, num_envs, OBSERVATIONS, ACTIONS, fill)


def filled(chunks: list[Experience], **sizes: object) -> Rollout:
    buffer_ = buffer(**sizes)
    for one in chunks:
        buffer_.add(one)
    return buffer_.rollout()


def successors(rollout: Rollout) -> dict[tuple[int, int], float]:
    """(t, b) to the identity of its explicit successor."""
    index, values = rollout.successor_index.tolist(), rollout.successor_observations.flatten().tolist()
    assert len({tuple(place) for place in index}) == len(index)  # one each
    return {(t, b): value for (t, b), value in zip(index, values, strict=True)}


def same(one: Rollout, other: Rollout) -> bool:
    return all(
        torch.equal(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(Rollout)
    )


# --- where rows go -------------------------------------------------------------------------------------


def test_each_row_of_each_actor_stands_in_its_own_place() -> None:
    chunks = [chunk(agent, seq, version=seq) for seq in range(2) for agent in range(3)]
    rollout = filled(chunks, num_actors=3)
    expected = torch.tensor([[identity(b // 2, b % 2, t) for b in range(6)] for t in range(8)])
    assert torch.equal(rollout.observations.squeeze(-1), expected.float())
    assert torch.equal(rollout.actions, expected % 1000)
    assert torch.equal(rollout.rewards, expected + 0.5)
    assert torch.equal(rollout.log_probs, -expected.float())
    assert torch.equal(rollout.versions, (torch.arange(8) // 4)[:, None].expand(8, 6))
    assert bool(rollout.valid.all())
    assert not bool(rollout.terminated.any())
    assert (rollout.rewards.dtype, rollout.actions.dtype) == (torch.float32, torch.int64)


def test_neighbouring_chunks_are_joined_and_only_the_last_row_is_a_boundary() -> None:
    rollout = filled([chunk(seq=0), chunk(seq=1)])
    assert not bool(rollout.boundary[:-1].any())
    assert bool(rollout.boundary[-1].all())
    assert successors(rollout) == {(7, 0): identity(0, 0, 8), (7, 1): identity(0, 1, 8)}


def test_arrival_order_does_not_matter_in_columns_mode() -> None:
    chunks = [
        chunk(agent, seq, terminated=((1, 0),), truncated=((2, 1),), finals=((1, 0), (2, 1)))
        for agent in range(3)
        for seq in range(2)
    ]
    orders = [order for order in itertools.permutations(chunks) if _in_sequence(order)]
    rollouts = []
    for order in orders[::7]:
        buffer_ = buffer(num_actors=3)
        for one in order:
            buffer_.add(one)
        rollouts.append((buffer_.rollout(), buffer_.episodes()))
    first, first_episodes = rollouts[0]
    assert len(rollouts) > 10
    assert all(same(first, rollout) for rollout, _ in rollouts)
    assert all(np.array_equal(first_episodes, episodes) for _, episodes in rollouts)


def _in_sequence(order: tuple[Experience, ...]) -> bool:
    return all([one.seq for one in order if one.agent_id == agent] == [0, 1] for agent in range(3))


def test_single_transitions_fill_it_too() -> None:
    rollout = filled([chunk(seq=seq, K=1, N=1) for seq in range(8)], num_envs=1)
    assert rollout.observations.flatten().tolist() == list(range(8))
    assert successors(rollout) == {(7, 0): 8}
    assert rollout.boundary.flatten().tolist() == [False] * 7 + [True]


def test_observations_may_be_a_tree() -> None:
    space = DictSpec((("near", OBSERVATIONS), ("far", BoxSpec("uint8", (2, 3), 0, 255))))
    buffer_ = RolloutBuffer(4, 1, 2, space, ACTIONS)
    plain = chunk(finals=((1, 0),), truncated=((1, 0),))
    far = np.arange(5 * 2 * 6, dtype=np.uint8).reshape(5, 2, 2, 3)
    tree = {"near": plain.observations, "far": far}
    finals = {"near": plain.final_observations, "far": np.full((1, 2, 3), 77, np.uint8)}
    buffer_.add(dataclasses.replace(plain, observations=tree, final_observations=finals))
    rollout = buffer_.rollout()
    assert torch.equal(rollout.observations["far"], torch.from_numpy(far[:-1]))
    assert torch.equal(rollout.successor_observations["far"][0], torch.full((2, 3), 77, dtype=torch.uint8))
    assert rollout.successor_index.tolist() == [[1, 0], [3, 0], [3, 1]]


# --- boundaries and successors -------------------------------------------------------------------------


def test_a_truncated_row_has_its_final_observation_and_a_terminated_row_none() -> None:
    kinds = chunk(seq=0, terminated=((0, 0), (2, 0)), truncated=((1, 1), (2, 0)), finals=((0, 0), (1, 1), (2, 0)))
    rollout = filled([kinds, chunk(seq=1)])
    assert rollout.boundary[:, 0].tolist() == [True, False, True, False, False, False, False, True]
    assert rollout.boundary[:, 1].tolist() == [False, True, False, False, False, False, False, True]
    assert successors(rollout) == {
        (1, 1): -identity(0, 1, 1) - 500,
        (7, 0): identity(0, 0, 8),
        (7, 1): identity(0, 1, 8),
    }


@pytest.mark.parametrize(
    ("seq", "session"), [(2, 1), (1, 2), (0, 1)], ids=["a hole", "another process", "the same again"]
)
def test_where_a_chunk_is_not_the_direct_successor_there_is_a_cut(seq: int, session: int) -> None:
    rollout = filled([chunk(seq=0), chunk(seq=seq, session=session)])
    assert bool(rollout.boundary[3].all())
    assert not bool(rollout.boundary[[0, 1, 2, 4, 5, 6]].any())
    found = successors(rollout)
    assert (found[3, 0], found[3, 1]) == (identity(0, 0, 4), identity(0, 1, 4))  # what the first chunk closed with
    assert (found[7, 0], found[7, 1]) == (identity(0, 0, 4 * seq + 4), identity(0, 1, 4 * seq + 4))


def test_a_cut_keeps_final_observations_and_termination_of_its_row() -> None:
    first = chunk(seq=0, N=3, terminated=((3, 0),), truncated=((3, 1),), finals=((3, 0), (3, 1)))
    found = successors(filled([first, chunk(seq=5, N=3)], num_envs=3))
    assert (3, 0) not in found
    assert found[3, 1] == -identity(0, 1, 3) - 500
    assert found[3, 2] == identity(0, 2, 4)


def test_the_last_row_keeps_final_observations_and_termination() -> None:
    last = chunk(seq=1, N=3, terminated=((3, 0),), truncated=((3, 1),), finals=((3, 0), (3, 1)))
    found = successors(filled([chunk(seq=0, N=3), last], num_envs=3))
    assert found == {(7, 1): -identity(0, 1, 7) - 500, (7, 2): identity(0, 2, 8)}


def test_truncation_without_a_final_observation_takes_the_next_row() -> None:
    # Next-step autoreset: the observation of the artefact row is the last one of the episode.
    rollout = filled([chunk(seq=0, truncated=((1, 0),), invalid=((2, 0),)), chunk(seq=1)])
    assert (1, 0) not in successors(rollout)
    assert rollout.boundary[:4, 0].tolist() == [False, True, True, False]
    assert rollout.valid[:4, 0].tolist() == [True, True, False, True]


def test_padding_is_no_step_and_a_boundary_stands_before_it() -> None:
    padded = chunk(seq=1, invalid=tuple((t, n) for t in (2, 3) for n in (0, 1)))
    buffer_ = buffer()
    buffer_.add(chunk(seq=0, version=3))
    buffer_.add(dataclasses.replace(padded, versions=np.full(4, 4)))
    rollout = buffer_.rollout()
    assert rollout.boundary[:, 0].tolist() == [False] * 5 + [True] * 3
    assert successors(rollout) == {}  # row 5 is followed by its own successor, and padding needs none
    assert buffer_.env_steps == 12
    assert buffer_.versions().tolist() == [3] * 8 + [4] * 4


def test_nothing_is_remembered_over_clear() -> None:
    buffer_ = buffer()
    for seq in (0, 1):
        buffer_.add(chunk(seq=seq, truncated=((1, 0),), finals=((1, 0),)))
    buffer_.clear()
    assert (buffer_.env_steps, buffer_.full, buffer_.needed()) == (0, False, frozenset({0}))
    assert buffer_.episodes()[0].tolist() == []
    buffer_.add(chunk(seq=2))
    buffer_.add(chunk(seq=3))
    rollout = buffer_.rollout()
    assert not bool(rollout.boundary[:-1].any())
    assert successors(rollout) == {(7, 0): identity(0, 0, 16), (7, 1): identity(0, 1, 16)}


def test_chunks_are_copied() -> None:
    first, second = chunk(seq=0, truncated=((0, 0),), finals=((0, 0),)), chunk(seq=1)
    buffer_ = buffer()
    for one in (first, second):
        buffer_.add(one)
        for array in (one.observations, one.final_observations, one.rewards, one.episode_returns):
            array[:] = 12345
    rollout = buffer_.rollout()
    assert 12345 not in rollout.observations.flatten().tolist() + rollout.rewards.flatten().tolist()
    assert 12345 not in successors(rollout).values()
    assert buffer_.episodes()[0].tolist() == [identity(0, 0, 0)]


# --- whom it waits for ---------------------------------------------------------------------------------


def test_columns_needs_the_slots_that_are_not_full() -> None:
    buffer_ = buffer(num_actors=2)
    assert buffer_.needed() == {0, 1}
    buffer_.add(chunk(0, 0))
    buffer_.add(chunk(0, 1))
    assert buffer_.needed() == {1}
    with pytest.raises(RolloutError, match="agent 0 has 8 of 8 rows"):
        buffer_.add(chunk(0, 2))
    with pytest.raises(RolloutError, match="lacks 16 rows"):
        buffer_.rollout()
    buffer_.add(chunk(1, 0))
    buffer_.add(chunk(1, 1))
    assert buffer_.full
    assert buffer_.needed() == frozenset()


def test_quota_takes_anyone_and_keeps_trajectories_together() -> None:
    buffer_ = buffer(num_actors=2, fill="quota")
    assert buffer_.needed() is None
    for agent, seq in ((7, 0), (3, 0), (7, 1), (3, 1)):
        buffer_.add(chunk(agent, seq))
    rollout = buffer_.rollout()
    assert rollout.observations[:, 0, 0].tolist() == [identity(7, 0, t) for t in range(8)]
    assert rollout.observations[:, 2, 0].tolist() == [identity(3, 0, t) for t in range(8)]
    assert not bool(rollout.boundary[:-1].any())


def test_quota_prefers_an_empty_group_and_cuts_where_it_must_mix() -> None:
    buffer_ = buffer(num_actors=2, fill="quota")
    for agent in (0, 1, 2, 3):  # the third comes when no group is empty
        buffer_.add(chunk(agent, 0))
    rollout = buffer_.rollout()
    assert rollout.observations[::4, ::2, 0].int().tolist() == [[0, 10_000], [20_000, 30_000]]
    assert bool(rollout.boundary[3].all())
    found = successors(rollout)
    assert [found[3, b] for b in range(4)] == [4, 1004, 10_004, 11_004]
    with pytest.raises(RolloutError, match="no group"):
        buffer_.add(chunk(4, 0))


def test_quota_a_trajectory_goes_on_elsewhere_when_its_group_is_full() -> None:
    buffer_ = buffer(num_actors=2, fill="quota")
    for seq in range(4):
        buffer_.add(chunk(5, seq))
    rollout = buffer_.rollout()
    assert rollout.observations[:, 0, 0].tolist() == [identity(5, 0, t) for t in range(8)]
    assert rollout.observations[:, 2, 0].tolist() == [identity(5, 0, t) for t in range(8, 16)]
    assert successors(rollout)[7, 0] == identity(5, 0, 8)


def test_episodes_are_listed_by_column_then_time() -> None:
    buffer_ = buffer(num_actors=2)
    for agent, seq in ((1, 0), (0, 0), (0, 1), (1, 1)):
        buffer_.add(chunk(agent, seq, terminated=((2, 1), (3, 0)), truncated=((1, 1),)))
    returns, lengths = buffer_.episodes()
    order = [
        (agent, env, 4 * seq + t) for agent in (0, 1) for env in (0, 1) for seq in (0, 1) for t in ((3,), (1, 2))[env]
    ]
    assert returns.tolist() == [identity(*place) for place in order]
    assert lengths.tolist() == [step + 1 for _, _, step in order]
    assert (returns.dtype, lengths.dtype) == (np.float64, np.int64)


# --- what does not fit ---------------------------------------------------------------------------------


def test_an_unknown_slot_is_an_index_error() -> None:
    for agent in (-1, 2):
        with pytest.raises(UnknownSlot, match=f"agent_id {agent} is none of this run's slots, 0 .. 1"):
            buffer(num_actors=2).add(chunk(agent))
    assert issubclass(UnknownSlot, IndexError)
    assert issubclass(UnknownSlot, ZmqrlError)
    with pytest.raises(UnknownSlot):
        buffer(fill="quota").add(chunk(-1))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rewards": np.zeros(4, np.float32)}, "rewards of shape"),
        ({"rewards": np.zeros((3, 2), np.float32)}, "divides num_steps = 8"),
        ({"rewards": np.zeros((4, 3), np.float32)}, r"\[K, 2\]"),
        ({"observations": np.zeros((4, 2, 1), np.float32)}, r"observations .* \(4, 2, 1\); right is \(5, 2, 1\)"),
        ({"observations": {"a": np.zeros((5, 2, 1))}}, "observations"),
        ({"actions": np.zeros((4, 2, 1), np.int64)}, "actions"),
        ({"actions": np.zeros((4, 2), np.float32)}, "float32, which is no int64"),
        ({"log_probs": np.zeros(4, np.float32)}, "log_probs"),
        ({"versions": np.zeros((4, 2), np.int64)}, "versions"),
        ({"final_index": np.array([[0, 0]], np.int32)}, "final_observations"),
        ({"episode_index": np.array([[0, 0]], np.int32)}, "episode_returns"),
        (
            {"final_index": np.array([[4, 0]], np.int32), "final_observations": np.zeros((1, 1), np.float32)},
            "points outside",
        ),
        (
            {"final_index": np.array([[0, -1]], np.int32), "final_observations": np.zeros((1, 1), np.float32)},
            "points outside",
        ),
    ],
)
def test_wrong_shapes_are_named_and_change_nothing(change: dict[str, object], text: str) -> None:
    buffer_ = buffer()
    with pytest.raises(RolloutError, match=text):
        buffer_.add(dataclasses.replace(chunk(), **change))
    assert buffer_.env_steps == 0
    for seq in (0, 1):
        buffer_.add(chunk(seq=seq))
    assert same(buffer_.rollout(), filled([chunk(seq=0), chunk(seq=1)]))


def test_values_are_cast_only_within_their_kind() -> None:
    space: SpaceSpec = BoxSpec("float32", (1,), -1, 1)
    buffer_ = RolloutBuffer(4, 1, 2, space, ACTIONS)
    wide = chunk(truncated=((0, 0),), finals=((0, 0),))
    finals = wide.final_observations.astype(np.float64)
    buffer_.add(dataclasses.replace(wide, observations=wide.observations.astype(np.float64), final_observations=finals))
    rollout = buffer_.rollout()
    assert rollout.observations.dtype == rollout.successor_observations.dtype == torch.float32
