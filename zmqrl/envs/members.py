"""One environment at a time: its step checked and its faults given a place, in this process or in a worker."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from zmqrl.config import EnvConfig
from zmqrl.envs.convert import spec_of
from zmqrl.envs.finding import AnyEnv, make_env
from zmqrl.errors import EnvironmentFault, UsageError
from zmqrl.spaces import DictSpec, Tree, TupleSpec, differences, empty_tree, leaves_of, tree_of, walk

FAULT = "zmqrl_fault"
"""Key of `infos` under which a worker tells what went wrong in its environment, as a text."""

CLOSE_SECONDS = 2.0
"""Time that workers have to close their environments before they are ended."""

_PR_SET_PDEATHSIG = 1


def cast(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], field: str) -> np.ndarray:
    """`value` as an array of exactly this shape and dtype; EnvironmentFault where that would change what it says."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise EnvironmentFault(f"{field} is no array: {error}") from None
    if array.shape != shape:
        raise EnvironmentFault(f"{field} has shape {array.shape}, its space says {shape}")
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "buif":
        raise EnvironmentFault(f"{field} has dtype {array.dtype}, its space says {dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(result, array):
        raise EnvironmentFault(
            f"{field} has dtype {array.dtype} and values that {dtype}, as its space says, cannot hold"
        )
    return result


class Member:
    """One environment, which knows its place: environment number from 0, episode from 1, step from 1 (0: reset)."""

    def __init__(self, env: AnyEnv, index: int) -> None:
        self.env = env
        self.observation_space = spec_of(env.observation_space, "observation")
        self.action_space = spec_of(env.action_space, "action")
        self._branches = isinstance(self.observation_space, (DictSpec, TupleSpec))
        self._index = index
        self._episode = 0
        self._step = 0
        self._fields = [
            (leaf.shape, np.dtype(leaf.dtype), f"observation/{path}" if path else "observation")
            for path, leaf in walk(self.observation_space)
        ]

    @property
    def place(self) -> str:
        """Where the environment is now, for people."""
        return f"environment {self._index}, episode {self._episode}, step {self._step}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> list[np.ndarray]:
        """Begin an episode; the leaves of its first observation, in the order of `spaces.walk`."""
        self._episode = 1 if seed is not None else self._episode + 1
        self._step = 0
        try:
            observation, _ = self.env.reset(seed=seed, options=options)
        except Exception as error:
            error.add_note(f"raised by reset() in {self.place}")
            raise
        return self._leaves(observation)

    def step(self, action: Tree) -> tuple[list[np.ndarray], float, bool, bool]:
        """(leaves of the observation, reward, terminated, truncated). The environment may reuse its arrays."""
        self._step += 1
        try:
            result = self.env.step(action)
        except Exception as error:
            error.add_note(f"raised by step() in {self.place}")
            raise
        try:
            observation, reward, terminated, truncated, _ = result
            return self._leaves(observation), float(reward), bool(terminated), bool(truncated)
        except (TypeError, ValueError) as error:
            raise EnvironmentFault(
                f"{self.place}: step() must return (observation, reward, terminated, truncated, info), "
                f"with a number as reward: {error}"
            ) from None

    def _leaves(self, observation: Tree) -> list[np.ndarray]:
        if self._branches:
            try:
                values = leaves_of(self.observation_space, observation)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                text = f"{self.place}: observation does not have the form of its space: {type(error).__name__} {error}"
                raise EnvironmentFault(text) from None
        else:
            values = [observation]
        for position, (shape, dtype, field) in enumerate(self._fields):
            value = values[position]
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                try:
                    values[position] = cast(value, shape, dtype, field)
                except EnvironmentFault as fault:
                    raise EnvironmentFault(f"{self.place}: {fault}") from None
        return values


class SameStepEnvironments(VectorEnv[Any, Any, Any]):
    """Environments stepped one after the other and reset within the step that ends their episode.

    Observations live in one set of arrays that the next step or reset overwrites. A final observation is copied
    before the reset, since an environment may write its next one into the same array. Infos of the
    environments are dropped.
    """

    def __init__(self, makers: Sequence[Callable[[], AnyEnv]]) -> None:
        self.num_envs = len(makers)
        self._members: list[Member] = []
        try:
            for index, make in enumerate(makers):
                self._members.append(Member(make(), index))
            self._require_equal_spaces()
        except BaseException:
            self.close_extras()
            raise
        first = self._members[0]
        self.metadata = {**first.env.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = first.env.render_mode
        self.single_observation_space = first.env.observation_space
        self.single_action_space = first.env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._tree = empty_tree(first.observation_space, self.num_envs)
        self._buffers = leaves_of(first.observation_space, self._tree)

    def _require_equal_spaces(self) -> None:
        first = self._members[0]
        for index, other in enumerate(self._members):
            lines = differences(first.observation_space, other.observation_space, "observation")
            if lines or first.action_space != other.action_space:
                text = "; ".join(lines) or f"action: {other.action_space}, not {first.action_space}"
                raise UsageError(f"environment {index} has other spaces than environment 0: {text}")

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        """Reset all environments; `seed` is a list of one per environment, or None to go on as they are."""
        seeds = list(seed) if isinstance(seed, Sequence) else [seed] * self.num_envs
        for index, member in enumerate(self._members):
            self._place(index, member.reset(seed=seeds[index], options=options))
        return self._tree, {}

    def step(self, actions: Tree) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of each environment; `final_obs` of those whose episode ended stands in the infos."""
        rewards, terminated, truncated = [], [], []  # lists, for single items of arrays are slow to write
        infos: dict[str, Any] = {}
        for index, action in enumerate(self._each(actions)):
            member = self._members[index]
            leaves, reward, died, timed_out = member.step(action)
            rewards.append(reward)
            terminated.append(died)
            truncated.append(timed_out)
            if died or timed_out:
                if not infos:
                    infos["final_obs"] = np.full(self.num_envs, None, dtype=object)
                    infos["_final_obs"] = np.zeros(self.num_envs, np.bool_)
                infos["final_obs"][index] = tree_of(member.observation_space, [np.array(leaf) for leaf in leaves])
                infos["_final_obs"][index] = True
                leaves = member.reset()
            self._place(index, leaves)
        return self._tree, np.array(rewards), np.array(terminated), np.array(truncated), infos

    def _each(self, actions: Tree) -> list[Tree]:
        if isinstance(actions, np.ndarray):
            return list(actions)
        space = self._members[0].action_space
        return [tree_of(space, values) for values in zip(*leaves_of(space, actions), strict=True)]

    def _place(self, index: int, leaves: list[np.ndarray]) -> None:
        for number, buffer in enumerate(self._buffers):
            buffer[index] = leaves[number]

    def close_extras(self, **kwargs: Any) -> None:
        """Close each environment, also if another one's close() raises."""
        with contextlib.ExitStack() as stack:
            for member in self._members:
                stack.callback(member.env.close)


class WorkerEnvironment(gymnasium.Env[Any, Any]):
    """What a worker process steps: faults become texts in the infos, since an exception may not be picklable."""

    def __init__(self, env: AnyEnv, index: int) -> None:
        self._member = Member(env, index)
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.metadata = env.metadata
        self.render_mode = env.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """As the environment's own; its infos stay in the worker."""
        space = self._member.observation_space
        try:
            return tree_of(space, self._member.reset(seed=seed, options=options)), {}
        except (Exception, SystemExit) as error:
            return empty_tree(space), {FAULT: self._told(error)}

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """As the environment's own; a final observation is copied before the reset that follows."""
        space = self._member.observation_space
        try:
            leaves, reward, terminated, truncated = self._member.step(action)
        except (Exception, SystemExit) as error:
            return empty_tree(space), 0.0, False, False, {FAULT: self._told(error)}
        if terminated or truncated:
            leaves = [np.array(leaf) for leaf in leaves]
        return tree_of(space, leaves), reward, terminated, truncated, {}

    def _told(self, error: BaseException) -> str:
        if isinstance(error, EnvironmentFault):
            return str(error)
        lines = "".join(traceback.format_exception(error))
        return f"{self._member.place}: {type(error).__name__}: {error}\n\n{lines}"

    def close(self) -> None:
        """Close the environment."""
        self._member.env.close()


def start_workers(config: EnvConfig, num_envs: int) -> AsyncVectorEnv[Any, Any]:
    """A process per environment, each of which dies with this process, also if it hangs.

    Call it from the main thread, and before any ZeroMQ context exists: workers are spawned, so they inherit
    nothing, but the kernel ends them when the thread that started them ends. Raises as `make_env` does.
    """
    makers = [partial(_open, config, index, os.getpid()) for index in range(num_envs)]
    before = set(multiprocessing.active_children())
    try:
        return AsyncVectorEnv(makers, copy=False, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
    except (EOFError, ConnectionError) as error:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
            process.join()
        raise EnvironmentFault(
            f"a worker process of {config.env} ended before its first step; what it said itself stands above. "
            'A script of your own must start the run under `if __name__ == "__main__":`.'
        ) from error


def _open(config: EnvConfig, index: int, parent: int) -> AnyEnv:
    """In a worker, and once in the parent, where gymnasium reads the spaces."""
    if os.getpid() != parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
    return WorkerEnvironment(make_env(config), index)


def lost_workers(envs: AsyncVectorEnv[Any, Any]) -> str:
    """Which workers have ended, and how, for people; call it when a pipe has broken."""
    sentinels = {process.sentinel: index for index, process in enumerate(envs.processes)}
    ended = sorted(sentinels[sentinel] for sentinel in multiprocessing.connection.wait(list(sentinels), timeout=1.0))  # type: ignore[index]
    for index in ended:
        envs.processes[index].join(
            1.0
        )  # a dying process closes its pipes some time before the kernel tells how it died
    return "; ".join(f"environment {index}: {_how(envs.processes[index].exitcode)}" for index in ended)


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"its process was ended by {signal.Signals(-exit_code).name}"
    return f"its process ended with exit code {exit_code}"


def close_workers(envs: AsyncVectorEnv[Any, Any], seconds: float = CLOSE_SECONDS) -> None:
    """Close the environments and end their processes, within `seconds` and a moment, whatever they are doing."""
    if envs.closed:
        return
    for pipe in envs.parent_pipes:
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.send(("close", None))
    deadline = time.monotonic() + seconds
    for process in envs.processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    for pipe in envs.parent_pipes:
        if pipe is not None:
            pipe.close()
    envs.error_queue.close()
    envs.closed = True
