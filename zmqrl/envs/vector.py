"""N environments as one: what each step really gave, in each of gymnasium's three autoreset modes.

The *true successor* of a step is the observation that the environment returned from it, also where the episode
ended there and `observations` already shows the next one. Shapes: N environments; F steps with an explicit
successor, M ended episodes in one vector step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from zmqrl.config import EnvConfig
from zmqrl.envs.convert import spec_of
from zmqrl.envs.finding import AnyVectorEnv, make_env, make_vector_env
from zmqrl.envs.members import FAULT, SameStepEnvironments, cast, close_workers, lost_workers, start_workers
from zmqrl.errors import EnvironmentFault, UsageError
from zmqrl.spaces import (
    BoxSpec,
    DiscreteSpec,
    LeafSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
    Tree,
    describe,
    empty_tree,
    leaves_of,
    map_tree,
    tree_of,
    walk,
)

_MODES = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.DISABLED: "disabled",
}

_LARGEST_REWARD = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Transition:
    """What one vector step gave. Arrays of observations may be overwritten by the next step: copy to keep."""

    observations: Tree
    """[N, ...]: what the next action is chosen from."""
    rewards: np.ndarray
    """[N] float32, raw; 0 where not valid."""
    terminated: np.ndarray
    """[N] bool."""
    truncated: np.ndarray
    """[N] bool."""
    valid: np.ndarray
    """[N] bool: False where the step was a reset that ignored the action (next-step mode), and no env step."""
    final_index: np.ndarray
    """[F] int64: environments whose true successor is not in `observations`. Terminated ones are left out, for
    nothing is bootstrapped from their successor."""
    final_observations: Tree
    """[F, ...]: their true successors."""
    episode_index: np.ndarray
    """[M] int64: environments whose episode ended in this step."""
    episode_returns: np.ndarray
    """[M] float64: raw sums of rewards."""
    episode_lengths: np.ndarray
    """[M] int64, in env steps."""


class VectorEnvironment:
    """A gymnasium VectorEnv of any autoreset mode, seen through `Transition`; a context manager.

    `num_envs` is N; `observation_space` and `action_space` are those of one environment; `autoreset_mode` is
    next_step, same_step or disabled (then ended environments are reset here, within the step).
    """

    def __init__(self, envs: AnyVectorEnv) -> None:
        self._envs = envs
        self.num_envs = int(envs.num_envs)
        self.observation_space: SpaceSpec = spec_of(envs.single_observation_space, "observation")
        self.action_space: SpaceSpec = spec_of(envs.single_action_space, "action")
        self.autoreset_mode = _declared_mode(envs)
        self._fields = [_Field(path, leaf) for path, leaf in walk(self.observation_space)]
        self._episodes = np.zeros(self.num_envs, np.int64)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._returns = np.zeros(self.num_envs, np.float64)
        self._ended = np.zeros(self.num_envs, np.bool_)  # in the step before
        self._all_valid = np.ones(self.num_envs, np.bool_)
        self._none = np.zeros(0, np.int64)
        self._no_returns = np.zeros(0, np.float64)
        self._no_observations = empty_tree(self.observation_space, 0)
        for shared in (self._all_valid, self._none, self._no_returns):
            shared.flags.writeable = False

    def reset(self, seed: int) -> Tree:
        """Begin anew in all environments; observations [N, ...].

        Each environment gets a seed of its own, derived from `seed` (a library's own vectorized one gets a
        single seed); its later resets go on from there. Counts of episodes, lengths and returns begin anew.
        """
        seeds: list[int] = np.random.SeedSequence(seed).generate_state(self.num_envs).tolist()
        seeded_singly = isinstance(self._envs.unwrapped, (SameStepEnvironments, SyncVectorEnv, AsyncVectorEnv))
        for counted in (self._episodes, self._lengths, self._returns, self._ended):
            counted.fill(0)
        try:
            observations, infos = self._envs.reset(seed=seeds if seeded_singly else seeds[0])  # type: ignore[arg-type]
        except (EOFError, ConnectionError) as error:
            self._raise_lost_worker(error)
            raise
        _raise_told_fault(infos)
        leaves = self._batch(observations)
        self._check(leaves)
        return tree_of(self.observation_space, leaves)

    def step(self, actions: Tree) -> Transition:
        """One step of each environment, with actions [N, ...] in the dtypes of the action space.

        Raises EnvironmentFault for values that an environment must not give, naming environment, episode and
        step (from 1), and for a lost worker; what an environment itself raises passes through (from a worker
        process: as an EnvironmentFault that holds its traceback).
        """
        actions = map_tree(np.array, actions)  # an environment may keep or change the array it is given
        try:
            observations, given_rewards, given_terminated, given_truncated, infos = self._envs.step(actions)
        except (EOFError, ConnectionError) as error:
            self._raise_lost_worker(error)
            raise
        if FAULT in infos:
            _raise_told_fault(infos)
        raw = self._column(given_rewards, np.float64, "rewards")
        terminated = self._column(given_terminated, np.bool_, "terminations")
        truncated = self._column(given_truncated, np.bool_, "truncations")
        valid = self._all_valid
        if self.autoreset_mode == "next_step":
            if self._ended.any():
                valid = ~self._ended
                raw[self._ended] = 0.0
                terminated &= valid
                truncated &= valid
            self._ended = terminated | truncated
        self._lengths += valid
        self._returns += raw
        possible = np.abs(raw) <= _LARGEST_REWARD
        if not possible.all():
            index = int(possible.argmin())
            raise EnvironmentFault(f"{self._place(index)}: reward is {raw[index]}; it must be a finite float32")

        leaves = self._batch(observations)
        ended = (terminated | truncated).nonzero()[0]
        final_index, final_observations = self._none, self._no_observations
        if self.autoreset_mode != "same_step":
            self._check(leaves)
        if ended.size and self.autoreset_mode != "next_step":
            final_index = np.flatnonzero(truncated & ~terminated)
            if final_index.size:
                same_step = self.autoreset_mode == "same_step"
                finals = self._announced(infos, final_index) if same_step else [leaf[final_index] for leaf in leaves]
                self._check(finals, final_index)
                final_observations = tree_of(self.observation_space, finals)
        episode_returns, episode_lengths = self._no_returns, self._none
        if ended.size:
            episode_returns, episode_lengths = self._returns[ended], self._lengths[ended]
            self._returns[ended] = 0.0
            self._lengths[ended] = 0
            self._episodes[ended] += 1
            if self.autoreset_mode == "disabled":
                leaves = self._reset_some(ended, leaves)
                self._check(leaves)
        if self.autoreset_mode == "same_step":
            self._check(leaves)
        return Transition(
            observations=tree_of(self.observation_space, leaves),
            rewards=raw.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            final_index=final_index,
            final_observations=final_observations,
            episode_index=ended,
            episode_returns=episode_returns,
            episode_lengths=episode_lengths,
        )

    def _announced(self, infos: dict[str, Any], index: np.ndarray) -> list[np.ndarray]:
        """Leaves [F, ...] of the final observations that same-step environments put into their infos."""
        final = infos.get("final_obs")
        if isinstance(final, np.ndarray) and final.dtype == object:  # an observation per environment, or None
            missing = [int(row) for row in index if final[row] is None]
            each = [] if missing else [leaves_of(self.observation_space, final[row]) for row in index]
        else:  # batched like `observations`, if at all
            missing = [] if final is not None else index.tolist()
            batched = [] if missing else leaves_of(self.observation_space, final)
            each = [[leaf[row] for leaf in batched] for row in index]
        if missing:
            raise EnvironmentFault(
                f"{self._place(missing[0])}: the episode was truncated under same-step autoreset, but there is no "
                "infos['final_obs'] for it. The environment must give its true last observation there."
            )
        return [
            np.stack([cast(leaves[number], field.shape, field.dtype, field.name) for leaves in each])
            for number, field in enumerate(self._fields)
        ]

    def _reset_some(self, ended: np.ndarray, leaves: list[np.ndarray]) -> list[np.ndarray]:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[ended] = True
        leaves = [leaf.copy() for leaf in leaves]
        observations, infos = self._envs.reset(options={"reset_mask": mask})
        _raise_told_fault(infos)
        for leaf, first in zip(leaves, self._batch(observations), strict=True):
            leaf[ended] = first[ended]
        return leaves

    def _batch(self, observations: Tree) -> list[np.ndarray]:
        """The leaves, each [N, ...] in the dtype of its space."""
        try:
            leaves = leaves_of(self.observation_space, observations)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            text = f"a batch of observations does not have the form of its space: {type(error).__name__} {error}"
            raise EnvironmentFault(text) from None
        for number, field in enumerate(self._fields):
            leaf, shape = leaves[number], (self.num_envs, *field.shape)
            if type(leaf) is not np.ndarray or leaf.dtype != field.dtype or leaf.shape != shape:
                leaves[number] = cast(leaf, shape, field.dtype, f"a batch of {field.name}")
        return leaves

    def _column(self, values: Any, dtype: type[np.generic], name: str) -> np.ndarray:
        column = np.array(values, dtype)
        if column.shape != (self.num_envs,):
            text = f"step() gave {name} of shape {column.shape}, not ({self.num_envs},)"
            raise EnvironmentFault(f"{text}: one for each of the {self.num_envs} environments")
        return column

    def _check(self, leaves: list[np.ndarray], index: np.ndarray | None = None) -> None:
        """Refuse values that no network can take; row i of the leaves is of environment `index[i]` (None: i)."""
        for field, leaf in zip(self._fields, leaves, strict=True):
            wrong = field.first_wrong(leaf)
            if wrong is not None:
                row, *inner = wrong
                where = f"{field.name}{inner}" if inner else field.name
                place = self._place(row if index is None else int(index[row]))
                raise EnvironmentFault(f"{place}: {where} is {leaf[wrong]}; it must be {field.demand}")

    def _place(self, index: int) -> str:
        return f"environment {index}, episode {self._episodes[index] + 1}, step {self._lengths[index]}"

    def _raise_lost_worker(self, error: BaseException) -> None:
        if isinstance(self._envs.unwrapped, AsyncVectorEnv):
            lost = lost_workers(self._envs.unwrapped)
            taken = ", ".join(str(length) for length in self._lengths)
            text = f"{lost or 'a worker process closed its pipe'}. Steps taken in the current episodes: {taken}."
            raise EnvironmentFault(text) from error

    def close(self) -> None:
        """Close all environments; worker processes are ended if they do not follow within two seconds."""
        if isinstance(self._envs.unwrapped, AsyncVectorEnv):
            close_workers(self._envs.unwrapped)
        else:
            self._envs.close()

    def __enter__(self) -> VectorEnvironment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Field:
    """What the values of one leaf of the observations must be."""

    def __init__(self, path: str, spec: LeafSpec) -> None:
        self.name = f"observation/{path}" if path else "observation"
        self.shape, self.dtype = spec.shape, np.dtype(spec.dtype)
        self._finite = self.dtype.kind == "f"
        self.demand = "a finite number" if self._finite else f"in {describe(spec)}"
        self._low: Any = None
        self._high: Any = None
        match spec:
            case DiscreteSpec():
                self._low, self._high = spec.start, spec.start + spec.n - 1
            case MultiDiscreteSpec():
                self._low, self._high = 0, np.reshape(np.subtract(spec.nvec, 1), spec.shape)
            case MultiBinarySpec():
                self._low, self._high = 0, 1
            case BoxSpec():
                pass  # bounds of observations are often wrong, and harmless

    def first_wrong(self, values: np.ndarray) -> tuple[int, ...] | None:
        """Index of the first value that breaks the demand, or None."""
        if self._finite:
            right = np.isfinite(values)
        elif self._low is not None:
            right = (values >= self._low) & (values <= self._high)
        else:
            return None
        return None if right.all() else tuple(int(position) for position in np.argwhere(~right)[0])


def _declared_mode(envs: AnyVectorEnv) -> str:
    declared = envs.metadata.get("autoreset_mode")
    try:
        return _MODES[AutoresetMode(declared)]
    except ValueError:
        raise UsageError(
            f"{envs} declares autoreset mode {declared!r}. Its metadata['autoreset_mode'] must be one of "
            "gymnasium.vector.AutoresetMode, or steps after an episode's end cannot be told from real ones."
        ) from None


def _raise_told_fault(infos: dict[str, Any]) -> None:
    for text in infos.get(FAULT, ()):
        if text is not None:
            raise EnvironmentFault(text)


def wrap_envs(envs: AnyVectorEnv) -> VectorEnvironment:
    """See a gymnasium VectorEnv, of any autoreset mode, as a VectorEnvironment, which then owns it."""
    return VectorEnvironment(envs)


def make_envs(config: EnvConfig, num_envs: int) -> VectorEnvironment:
    """Make `num_envs` environments as `config.vectorization` says.

    With `async`, call it from the main thread before any ZeroMQ context exists. Raises EnvironmentNotFound,
    UnsupportedSpace or UsageError, and what the environment's constructor raises.
    """
    envs: AnyVectorEnv
    match config.vectorization:
        case "sync":
            envs = SameStepEnvironments([partial(make_env, config)] * num_envs)
        case "async":
            envs = start_workers(config, num_envs)
        case "vector_entry_point":
            envs = make_vector_env(config, num_envs)
    try:
        return VectorEnvironment(envs)
    except BaseException:
        envs.close()
        raise


def read_spaces(config: EnvConfig) -> tuple[SpaceSpec, SpaceSpec]:
    """(observation space, action space) of one environment, which is made and closed for it. Raises as `make_envs`."""
    if config.vectorization == "vector_entry_point":
        with make_envs(config, 1) as one:
            return one.observation_space, one.action_space
    env = make_env(config)
    try:
        return spec_of(env.observation_space, "observation"), spec_of(env.action_space, "action")
    finally:
        env.close()
