"""Tiny environments with known answers, to test a learner or an installation with.

Importing this module registers them: `--env zmqrl.envs.probes:AB-trunc-v0`. Actions are Discrete(2) and ignored
unless said otherwise; steps and episodes are counted from 1, and step 0 is the reset.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

Step = tuple[Any, float, bool, bool, dict[str, Any]]
Reset = tuple[Any, dict[str, Any]]


class _Probe(gymnasium.Env[Any, Any]):
    """Counts: `step` within the episode and `episode` are kept, `total` is all steps ever."""

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(2)
        self.step_number = 0
        self.episode = 0
        self.total = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Begin the next episode."""
        super().reset(seed=seed)
        self.step_number = 0
        self.episode += 1
        return self._observation(), {}

    def _count(self) -> None:
        self.step_number += 1
        self.total += 1

    def _observation(self) -> Any:
        return np.array([self.step_number], np.float32)


class AB(_Probe):
    """Two states, one-hot. Reset gives A; the first step has reward 0 and leads to B; in B each has reward 1.

    end: what happens at step `length`: truncated, terminated or both. `early` is the probability of a truncation
    right after step 1. With gamma 0.9: V(B) = 10 and V(A) = 9 where the end is a truncation; with length 5 and a
    termination, and lambda 0, the averages 3.08 and 2.77.
    """

    def __init__(
        self, end: Literal["truncated", "terminated", "both"] = "truncated", length: int = 5, early: float = 0.0
    ) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.end, self.length, self.early = end, length, early

    def _observation(self) -> np.ndarray:
        return np.array([1, 0] if self.step_number == 0 else [0, 1], np.float32)

    def step(self, action: Any) -> Step:
        """One step; the action is ignored."""
        reward = 0.0 if self.step_number == 0 else 1.0
        self._count()
        ended = self.step_number >= self.length
        terminated = ended and self.end != "truncated"
        truncated = ended and self.end != "terminated"
        if self.step_number == 1 and self.early:
            truncated |= bool(self.np_random.random() < self.early)
        return self._observation(), reward, terminated, truncated, {}


class Count(_Probe):
    """The observation is (number of the environment, episode, step); reward 1 a step.

    path: a file to which each reset and step is appended, as a JSON line of kind, number, process, episode, step,
    action and reward. reuse: give the same array each time, overwritten, as many simulators do.
    """

    def __init__(
        self,
        length: int = 3,
        end: Literal["truncated", "terminated"] = "truncated",
        number: int = 0,
        path: str = "",
        reuse: bool = False,
    ) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, np.inf, (3,), np.float32)
        self.length, self.end, self.number, self.path, self.reuse = length, end, number, path, reuse
        self._array = np.zeros(3, np.float32)

    def _observation(self) -> np.ndarray:
        self._array[:] = self.number, self.episode, self.step_number
        return self._array if self.reuse else self._array.copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Begin the next episode."""
        result = super().reset(seed=seed)
        self._write("reset", None, 0.0)
        return result

    def step(self, action: Any) -> Step:
        """One step; the action is ignored, but written down."""
        self._count()
        ended = self.step_number >= self.length
        self._write("step", np.asarray(action).tolist(), 1.0)
        return self._observation(), 1.0, ended and self.end == "terminated", ended and self.end == "truncated", {}

    def _write(self, kind: str, action: Any, reward: float) -> None:
        if self.path:
            fields = {
                "kind": kind,
                "number": self.number,
                "process": os.getpid(),
                "episode": self.episode,
                "step": self.step_number,
                "action": action,
                "reward": reward,
            }
            with open(self.path, "a") as file:  # one short write in append mode, so processes do not mix lines
                file.write(json.dumps(fields) + "\n")


class Identity(_Probe):
    """One-step episodes: reward 1 if the action is the number shown, one-hot, else 0. Best mean return: 1."""

    def __init__(self, n: int = 4) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, 1.0, (n,), np.float32)
        self.action_space = spaces.Discrete(n)
        self.n = n
        self._shown = 0

    def _observation(self) -> np.ndarray:
        self._shown = int(self.np_random.integers(self.n))
        observation = np.zeros(self.n, np.float32)
        observation[self._shown] = 1.0
        return observation

    def step(self, action: Any) -> Step:
        """Compare, and end."""
        self._count()
        reward = float(action == self._shown)
        return self._observation(), reward, True, False, {}


class LastRow(_Probe):
    """Never ends. The observation is the step modulo `num_steps`, one-hot; only each `num_steps`-th step has reward 1.

    A learner that does not bootstrap the last row of a rollout, or shifts rewards by a row, gets other values than
    V(s) = gamma ** (num_steps - 1 - s) / (1 - gamma ** num_steps).
    """

    def __init__(self, num_steps: int = 8) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.observation_space = spaces.Box(0.0, 1.0, (num_steps,), np.float32)

    def _observation(self) -> np.ndarray:
        observation = np.zeros(self.num_steps, np.float32)
        observation[self.step_number % self.num_steps] = 1.0
        return observation

    def step(self, action: Any) -> Step:
        """One step; the action is ignored."""
        self._count()
        return self._observation(), float(self.step_number % self.num_steps == 0), False, False, {}


class Bad(_Probe):
    """Puts `value` into the reward or the observation of step `at` of its life, or of each episode."""

    def __init__(
        self,
        at: int = 5,
        field: Literal["reward", "observation"] = "reward",
        value: float = float("nan"),
        each_episode: bool = False,
        length: int = 10,
    ) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.at, self.field, self.value, self.each_episode, self.length = at, field, float(value), each_episode, length

    def step(self, action: Any) -> Step:
        """One step; the action is ignored."""
        self._count()
        now = (self.step_number if self.each_episode else self.total) == self.at
        observation, reward = self._observation(), 1.0
        if now and self.field == "reward":
            reward = self.value
        elif now:
            observation[0] = self.value
        return observation, reward, False, self.step_number >= self.length, {}


class Fail(_Probe):
    """Fails at step `at` of its life; episodes have 10 steps.

    how: raise, unpicklable (raises what no pipe can carry), exit (of the process, with code 9), hang or segfault.
    Only the environment of this `number` (-1: each) fails, and only if the file `once`, if named, does not exist
    yet: it is made then, so that a restarted process runs on.
    """

    def __init__(
        self,
        at: int = 5,
        how: Literal["raise", "unpicklable", "exit", "hang", "segfault"] = "raise",
        number: int = 0,
        only: int = -1,
        once: str = "",
    ) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.at, self.how, self.once = at, how, once
        self._fails = only in (-1, number)

    def step(self, action: Any) -> Step:
        """One step; the action is ignored."""
        self._count()
        if self._fails and self.total == self.at and self._first():
            self._fail()
        return self._observation(), 1.0, False, self.step_number >= 10, {}

    def _first(self) -> bool:
        if not self.once:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _fail(self) -> None:
        match self.how:
            case "raise":
                raise ValueError(f"the probe fails at step {self.at}, as asked, 100%")
            case "unpicklable":
                error = ValueError(f"the probe fails at step {self.at}, as asked")
                error.held = threading.Lock()  # type: ignore[attr-defined]  # a lock cannot be pickled
                raise error
            case "exit":
                os._exit(9)
            case "hang":
                threading.Event().wait()
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)


class Sleep(_Probe):
    """Each step takes `seconds`; episodes have 10 steps with reward 1."""

    def __init__(self, seconds: float = 1.0) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.seconds = float(seconds)

    def step(self, action: Any) -> Step:
        """One step; the action is ignored."""
        self._count()
        time.sleep(self.seconds)
        return self._observation(), 1.0, False, self.step_number >= 10, {}


def vector_probe(
    name: str, num_envs: int, autoreset_mode: str, **kwargs: Any
) -> VectorEnv[np.ndarray, np.ndarray, np.ndarray]:
    """A probe of this module by its id, as gymnasium's own vector environment.

    autoreset_mode: next_step, same_step or disabled. Count and Fail are given their number in the vector.
    """
    numbered = name.split("-")[0] in ("Count", "Fail")
    makers = [
        partial(gymnasium.make, name, disable_env_checker=True, **kwargs, **({"number": number} if numbered else {}))
        for number in range(num_envs)
    ]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[autoreset_mode.upper()])


def _register() -> None:
    ids: dict[str, tuple[type[_Probe], dict[str, Any]]] = {
        "AB-trunc-v0": (AB, {"end": "truncated"}),
        "AB-term-v0": (AB, {"end": "terminated"}),
        "AB-both-v0": (AB, {"end": "both"}),
        "AB-early-v0": (AB, {"end": "truncated", "early": 0.9}),
        **{f"{kind.__name__}-v0": (kind, {}) for kind in (Count, Identity, LastRow, Bad, Fail, Sleep)},
    }
    for name, (kind, kwargs) in ids.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, f"{__name__}:{kind.__name__}", kwargs=kwargs)


_register()
