"""What is recorded is what happened, row by row."""

from __future__ import annotations

import numpy as np

from zmqrl.chunks import ChunkRecorder
from zmqrl.envs import Transition
from zmqrl.messages import Experience
from zmqrl.spaces import BoxSpec, DictSpec, DiscreteSpec

SPACE = DictSpec((("a", BoxSpec("float32", (2,), 0.0, 1.0)), ("b", DiscreteSpec(9))))
ACTIONS = DiscreteSpec(4)
N = 2


def observed(number: int) -> dict[str, np.ndarray]:
    """Observations that say which step they are of."""
    return {"a": np.full((N, 2), number, np.float32), "b": np.arange(N) + number}


def transition(number: int, truncated_env: int | None = None) -> Transition:
    ended = np.zeros(N, bool)
    final = np.zeros(0, np.int64)
    if truncated_env is not None:
        ended[truncated_env] = True
        final = np.array([truncated_env])
    return Transition(
        observations=observed(number + 1),
        rewards=np.full(N, 0.5 * number, np.float32),
        terminated=np.zeros(N, bool),
        truncated=ended,
        valid=np.ones(N, bool),
        final_index=final,
        final_observations={"a": np.full((len(final), 2), -number, np.float32), "b": final * 0 + 8},
        episode_index=final,
        episode_returns=final * 1.5,
        episode_lengths=final * 0 + number,
    )


def record(recorder: ChunkRecorder, first: int, count: int, truncate_at: int = -1) -> None:
    for number in range(first, first + count):
        recorder.acted(observed(number), np.full(N, number % 4), np.full(N, -0.1 * number, np.float32), version=number)
        recorder.stepped(transition(number, truncated_env=1 if number == truncate_at else None))


def test_a_chunk_holds_each_step_in_its_row() -> None:
    recorder = ChunkRecorder(SPACE, ACTIONS, N, 3)
    record(recorder, 10, 3, truncate_at=11)
    assert recorder.full
    chunk = recorder.take(5, observed(13))
    assert chunk.agent_id == 5
    assert chunk.observations["a"][:, 0, 0].tolist() == [10, 11, 12, 13]
    assert chunk.observations["b"][:, 1].tolist() == [11, 12, 13, 14]
    assert chunk.actions[:, 0].tolist() == [2, 3, 0]
    assert chunk.rewards[:, 0].tolist() == [5.0, 5.5, 6.0]
    assert chunk.versions.tolist() == [10, 11, 12]
    assert chunk.truncated.tolist() == [[False, False], [False, True], [False, False]]
    assert chunk.final_index.tolist() == [[1, 1]]
    assert chunk.final_observations["a"].tolist() == [[-11, -11]]
    assert (chunk.episode_index.tolist(), chunk.episode_returns.tolist()) == ([[1, 1]], [1.5])
    assert chunk.env_steps == 6


def test_chunks_share_no_memory() -> None:
    recorder = ChunkRecorder(SPACE, ACTIONS, N, 2)
    record(recorder, 0, 2)
    first = recorder.take(0, observed(2))
    record(recorder, 50, 2)
    second = recorder.take(0, observed(52))
    assert first.rewards[:, 0].tolist() == [0.0, 0.5]
    assert not np.shares_memory(first.observations["a"], second.observations["a"])


def test_a_short_chunk_is_padded_with_rows_that_are_no_env_steps() -> None:
    recorder = ChunkRecorder(SPACE, ACTIONS, N, 4)
    record(recorder, 7, 1)
    chunk: Experience = recorder.take(0, observed(8))
    assert chunk.valid.tolist() == [[True, True]] + [[False, False]] * 3
    assert chunk.observations["a"][:, 0, 0].tolist() == [7, 8, 8, 8, 8]
    assert chunk.versions.tolist() == [7, 7, 7, 7]
    assert chunk.env_steps == 2


def test_discarding_counts_what_is_lost() -> None:
    recorder = ChunkRecorder(SPACE, ACTIONS, N, 4)
    record(recorder, 0, 3)
    assert recorder.discard() == 6
    assert recorder.env_steps == 0
