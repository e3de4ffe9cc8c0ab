"""The rollout buffer: chunks of experience go in, one batch for an update comes out.

Legend: T rows in time (`num_steps`), A groups of N columns (`num_actors`, `num_envs`), B = A * N columns.
A chunk is one Experience of K steps of N environments; K divides T, so no chunk straddles two rollouts.

Two rows that are neighbours in a column come from neighbouring steps, or a boundary stands between them. The
buffer judges that by (agent_id, session, seq) of the chunks: where the next chunk of a group is not the direct
successor of the one before, the row before it is a *cut*, and is bootstrapped from the observation that its own
chunk closed with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zmqrl.errors import TrainingError, ZmqrlError
from zmqrl.messages import Experience
from zmqrl.spaces import BoxSpec, SpaceSpec, Tree, describe, leaves_of, map_tree, tree_of, walk


class RolloutError(ZmqrlError):
    """A chunk that does not fit the rollout buffer."""


class UnknownSlot(RolloutError, IndexError):
    """An `agent_id` that is none of the slots 0 .. num_actors - 1."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """What one update is made from. On the CPU its tensors are the buffer's own: use it before `clear()`."""

    observations: Tree
    """[T, B, ...]: what each action was chosen from."""
    actions: Tree
    """[T, B, ...]: as sampled."""
    rewards: Tensor
    """[T, B] float32."""
    terminated: Tensor
    """[T, B] bool."""
    boundary: Tensor
    """[T, B] bool: terminated, truncated, cut, last row, invalid, or before an invalid row."""
    valid: Tensor
    """[T, B] bool: rows that are env steps."""
    log_probs: Tensor
    """[T, B] float32: of the actions under the behavior policy."""
    versions: Tensor
    """[T, B] int64: version of the behavior policy."""
    successor_index: Tensor
    """[S, 2] int64: (t, b) of rows that did not terminate and whose successor is not `observations[t + 1, b]`,
    in the order of columns, then rows."""
    successor_observations: Tree
    """[S, ...]: their true successors."""


@dataclass
class _Group:
    """N columns, filled from above by chunks that follow each other, or with cuts between them."""

    index: int
    filled: int = 0
    last: tuple[int, int, int] | None = None
    """(agent_id, session, seq) of the chunk placed last."""
    closing: Tree = None
    """[N, ...]: the observations that it closed with."""
    open: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """[N] bool: whether its last row still needs a successor."""

    def continued_by(self, chunk: Experience) -> bool:
        return self.last == (chunk.agent_id, chunk.session, chunk.seq - 1)


class RolloutBuffer:
    """Preallocated `[T, B]` arrays, and what is needed to bootstrap each row from its own true successor.

    fill="columns": group g belongs to the actor in slot g, so that the content does not depend on who was faster.
    fill="quota": whole chunks of whoever has them. A chunk goes behind its predecessor if that is the last one in
    a group with room, else into the first empty group, else into the first with room.

    action_space: of actions as sampled (`spaces.sampled`). pin: page-locked memory, for a GPU.
    """

    def __init__(
        self,
        num_steps: int,
        num_actors: int,
        num_envs: int,
        observation_space: SpaceSpec,
        action_space: SpaceSpec,
        fill: Literal["columns", "quota"] = "columns",
        *,
        pin: bool = False,
    ) -> None:
        self.num_steps, self.num_actors, self.num_envs, self.fill = num_steps, num_actors, num_envs, fill
        self._spaces = {"observations": observation_space, "actions": action_space}
        columns = num_actors * num_envs

        def rows(space: SpaceSpec) -> Tree:
            leaves = [
                torch.zeros((num_steps, columns, *leaf.shape), dtype=getattr(torch, leaf.dtype), pin_memory=pin)
                for _, leaf in walk(space)
            ]
            return tree_of(space, leaves)

        numbers = {"rewards": "float32", "log_probs": "float32", "versions": "int64"}
        flags = {"terminated": "bool", "boundary": "bool", "valid": "bool"}
        scalars = {name: rows(BoxSpec(dtype, (), 0, 1)) for name, dtype in (numbers | flags).items()}
        self._tensors: dict[str, Tree] = {name: rows(space) for name, space in self._spaces.items()} | scalars
        self._arrays: dict[str, Tree] = map_tree(Tensor.numpy, self._tensors)  # the same memory
        self.clear()

    def clear(self) -> None:
        """Empty it. What comes next follows nothing that was in it."""
        self._groups = [_Group(index) for index in range(self.num_actors)]
        no_rows, no_columns = np.zeros((2, 0), np.int64)
        no_observations = map_tree(lambda rows: rows[0, :0].copy(), self._arrays["observations"])
        self._successors: list[tuple[np.ndarray, np.ndarray, Tree]] = [(no_rows, no_columns, no_observations)]
        self._episodes = [(no_rows, no_columns, np.zeros(0), np.zeros(0, np.int64))]  # ... returns, lengths
        self._arrays["valid"][:] = False

    # --- what it wants and has ---

    @property
    def full(self) -> bool:
        """Whether every column holds `num_steps` rows."""
        return all(group.filled == self.num_steps for group in self._groups)

    def needed(self) -> frozenset[int] | None:
        """Slots whose chunks it has room for; None for anyone's (fill="quota")."""
        if self.fill == "quota":
            return None
        return frozenset(group.index for group in self._groups if group.filled < self.num_steps)

    @property
    def env_steps(self) -> int:
        """Valid rows so far."""
        return int(np.count_nonzero(self._arrays["valid"]))

    def versions(self) -> np.ndarray:
        """[env_steps] int64: the behavior policy's version, per valid row."""
        versions: np.ndarray = self._arrays["versions"][self._arrays["valid"]]
        return versions

    def episodes(self) -> tuple[np.ndarray, np.ndarray]:
        """(returns [M] float64, lengths [M] int64) of episodes that ended here, in the order of columns, then rows."""
        rows, columns, returns, lengths = (np.concatenate(parts) for parts in zip(*self._episodes, strict=True))
        order = np.lexsort((rows, columns))
        return returns[order], lengths[order]

    # --- in ---

    def add(self, experience: Experience) -> None:
        """Copy a chunk in. UnknownSlot or RolloutError if it does not fit; nothing is changed then."""
        self._check(experience)
        group = self._place(experience)
        K, base = experience.num_steps, group.index * self.num_envs
        if not group.continued_by(experience):
            self._cut(group)
        first = group.filled
        where = (slice(first, first + K), slice(base, base + self.num_envs))

        def write(rows: np.ndarray, chunk: np.ndarray) -> None:
            rows[where] = chunk

        map_tree(write, self._arrays["observations"], map_tree(lambda leaf: leaf[:-1], experience.observations))
        map_tree(write, self._arrays["actions"], experience.actions)
        for name in ("rewards", "log_probs", "terminated", "valid"):
            write(self._arrays[name], getattr(experience, name))
        write(self._arrays["versions"], experience.versions[:, None])
        write(self._arrays["boundary"], experience.terminated | experience.truncated | ~experience.valid)

        bootstrapped = experience.valid & ~experience.terminated
        t, n = experience.final_index.T
        chosen = bootstrapped[t, n]
        self._add_successors(first + t[chosen], base + n[chosen], experience.final_observations, chosen)
        if len(experience.episode_index):
            t_end, n_end = experience.episode_index.T
            returns, lengths = experience.episode_returns.copy(), experience.episode_lengths.copy()
            self._episodes.append((first + t_end, base + n_end, returns, lengths))

        group.filled += K
        group.last = (experience.agent_id, experience.session, experience.seq)
        group.closing = map_tree(lambda leaf: leaf[-1].copy(), experience.observations)
        group.open = bootstrapped[-1].copy()
        group.open[n[t == K - 1]] = False  # those have their successor already
        if group.filled == self.num_steps:
            self._cut(group)

    def _place(self, experience: Experience) -> _Group:
        slot, K = experience.agent_id, experience.num_steps
        if self.fill == "columns":
            if not 0 <= slot < self.num_actors:
                raise UnknownSlot(f"agent_id {slot} is none of this run's slots, 0 .. {self.num_actors - 1}")
            group = self._groups[slot]
            if group.filled + K > self.num_steps:
                raise RolloutError(
                    f"agent {slot} has {group.filled} of {self.num_steps} rows in this rollout, no room for {K} more; "
                    "take chunks only from the slots that `needed` names"
                )
            return group
        if slot < 0:
            raise UnknownSlot(f"agent_id {slot} is negative")
        fitting = [group for group in self._groups if group.filled + K <= self.num_steps]
        if not fitting:
            raise RolloutError(f"no group of this rollout has room for a chunk of {K} steps; train on it and clear it")
        following = (group for group in fitting if group.continued_by(experience))
        empty = (group for group in fitting if group.filled == 0)
        return next(following, None) or next(empty, None) or fitting[0]

    def _cut(self, group: _Group) -> None:
        """What comes behind the last row of the group, if anything, does not belong to it."""
        if group.last is None:
            return
        row, columns = group.filled - 1, group.index * self.num_envs + np.flatnonzero(group.open)
        self._arrays["boundary"][row, group.index * self.num_envs : (group.index + 1) * self.num_envs] = True
        self._add_successors(np.full(len(columns), row), columns, group.closing, group.open)

    def _add_successors(self, rows: np.ndarray, columns: np.ndarray, observations: Tree, chosen: np.ndarray) -> None:
        def take(rows: np.ndarray, leaf: np.ndarray) -> np.ndarray:
            copied: np.ndarray = leaf[chosen]  # the chunk's memory is not ours
            return copied.astype(rows.dtype, copy=False)

        if len(rows):
            self._successors.append((rows, columns, map_tree(take, self._arrays["observations"], observations)))

    def _check(self, experience: Experience) -> None:
        steps, envs = experience.rewards.shape if experience.rewards.ndim == 2 else (0, 0)
        if envs != self.num_envs or steps < 1 or self.num_steps % steps:
            raise RolloutError(
                f"a chunk of agent {experience.agent_id} has rewards of shape {experience.rewards.shape}; right is "
                f"[K, {self.num_envs}] where K divides num_steps = {self.num_steps}"
            )
        finals, ends = len(experience.final_index), len(experience.episode_index)
        self._check_tree(experience, "observations", "observations", steps + 1, envs)
        self._check_tree(experience, "actions", "actions", steps, envs)
        self._check_tree(experience, "final_observations", "observations", finals)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("terminated", "truncated", "valid", "log_probs"), (steps, envs)
        )
        shapes |= {"versions": (steps,), "episode_returns": (ends,), "episode_lengths": (ends,)}
        shapes |= {"final_index": (finals, 2), "episode_index": (ends, 2)}
        for name, shape in shapes.items():
            self._check_shape(experience, name, getattr(experience, name), shape)
        for name in ("final_index", "episode_index"):
            index = getattr(experience, name)
            if len(index) and (index.min() < 0 or index[:, 0].max() >= steps or index[:, 1].max() >= envs):
                raise RolloutError(
                    f"{name} of a chunk of agent {experience.agent_id} points outside of [{steps}, {envs}]"
                )

    def _check_tree(self, experience: Experience, name: str, kind: str, *batch: int) -> None:
        space = self._spaces[kind]
        try:
            leaves = leaves_of(space, getattr(experience, name))
        except (KeyError, TypeError, ValueError, IndexError):
            raise RolloutError(
                f"{name} of a chunk of agent {experience.agent_id} have not the form of {describe(space)}"
            ) from None
        for (path, leaf), array in zip(walk(space), leaves, strict=True):
            self._check_shape(experience, f"{name}/{path}" if path else name, array, (*batch, *leaf.shape))
            if not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
                raise RolloutError(
                    f"{name} of a chunk of agent {experience.agent_id} are {array.dtype}, which is no {leaf.dtype}"
                )

    def _check_shape(self, experience: Experience, name: str, array: object, shape: tuple[int, ...]) -> None:
        found = array.shape if isinstance(array, np.ndarray) else type(array).__name__
        if found != shape:
            raise RolloutError(f"{name} of a chunk of agent {experience.agent_id} has shape {found}; right is {shape}")

    # --- out ---

    def rollout(self, device: str | torch.device = "cpu") -> Rollout:
        """The full rollout on a device. RolloutError if rows are missing."""
        if not self.full:
            missing = sum(self.num_steps - group.filled for group in self._groups) * self.num_envs
            raise RolloutError(f"the rollout still lacks {missing} rows")
        boundary, valid = self._arrays["boundary"], self._arrays["valid"]
        boundary[:-1] |= ~valid[1:]
        index, observations = self._sorted_successors()
        moved = map_tree(lambda tensor: tensor.to(device, non_blocking=True), self._tensors)
        return Rollout(
            **moved,
            successor_index=torch.from_numpy(index).to(device),
            successor_observations=map_tree(lambda leaf: torch.from_numpy(leaf).to(device), observations),
        )

    def _sorted_successors(self) -> tuple[np.ndarray, Tree]:
        """In the order of columns, then rows: the learner's bits must not depend on which chunk came first."""
        rows, columns, trees = zip(*self._successors, strict=True)
        index = np.stack((np.concatenate(rows), np.concatenate(columns)), axis=1)
        order = np.lexsort((index[:, 0], index[:, 1]))
        return index[order], map_tree(lambda *leaves: np.concatenate(leaves)[order], *trees)


# --- rows, without their order in time -------------------------------------------------------------------


def merge_time(rows: Tensor) -> Tensor:
    """[T, B, ...] to [T * B, ...], without a copy."""
    return rows.flatten(0, 1)


def take(tree: Tree, rows: slice) -> Tree:
    """These rows of every leaf, without a copy."""
    return map_tree(lambda leaf: leaf[rows], tree)


class Rows(NamedTuple):
    """[R] each: the valid rows of a rollout, or some of them."""

    observations: Tree
    actions: Tree
    numbers: Tensor
    """[4, R] float32: old log-probs, old values, advantages, returns. One tensor, so that one gather takes them."""

    def gather(self, index: Tensor) -> Rows:
        """Copies of these rows, in this order."""

        def chosen(leaf: Tensor) -> Tensor:
            return leaf.index_select(0, index)

        return Rows(
            map_tree(chosen, self.observations), map_tree(chosen, self.actions), self.numbers.index_select(1, index)
        )

    def minibatches(self, count: int) -> Iterator[Rows]:
        """Neighbouring rows, `count` times; the sizes differ by at most one."""
        total, start = self.numbers.shape[1], 0
        for index in range(count):
            rows = slice(start, start := (index + 1) * total // count)
            yield Rows(take(self.observations, rows), take(self.actions, rows), self.numbers[:, rows])


def valid_rows(rollout: Rollout, numbers: Mapping[str, Tensor], when: str) -> Rows:
    """The env steps of a rollout with what is said of each, [T, B] by name, in the order of `Rows.numbers`.

    TrainingError, which begins with `when`, if one of the numbers is not finite.
    """
    stacked = torch.stack([merge_time(values) for values in numbers.values()])
    rows = Rows(map_tree(merge_time, rollout.observations), map_tree(merge_time, rollout.actions), stacked)
    index = merge_time(rollout.valid).nonzero().squeeze(1)
    if len(index) < rollout.valid.numel():
        rows = rows.gather(index)
    if not bool(rows.numbers.isfinite().all()):
        # an overflow in one row becomes NaN in those before it: the row to name is the one that overflowed
        wrong = rows.numbers.isinf() if bool(rows.numbers.isinf().any()) else rows.numbers.isnan()
        which, row = wrong.nonzero()[0].tolist()
        t, b = divmod(int(index[row]), rollout.valid.shape[1])
        raise TrainingError(
            f"{when}: the {list(numbers)[which]} of row {t}, column {b} is {rows.numbers[which, row]:g}; nothing has "
            "been changed. Look at the rewards and observations of that column's environment"
        )
    return rows
