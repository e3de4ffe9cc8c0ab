"""One run of Stable-Baselines3's PPO for `against_sb3`, in an interpreter that has it; needs nothing of zmqrl.

    python sb3_run.py rate|goal SEED STEPS BEGAN          BEGAN: time.time() when the command was given

Prints {"steps_per_s"} or {"seconds", "env_steps"} of the goal, null if it was not reached.
"""

import json
import sys
import time
from collections import deque

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

GOAL, WINDOW = 475.0, 100
EQUAL = {"n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": 1e-3, "ent_coef": 0.01}
ZOO = {"n_steps": 32, "n_epochs": 20, "batch_size": 256, "gamma": 0.98, "gae_lambda": 0.8, "ent_coef": 0.0}
ZOO_STEPS = 100_000


class Watch(BaseCallback):
    """Notes the end of each update, and when the mean return first reaches the goal."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.updates: list[tuple[int, float]] = []
        self.reached: tuple[int, float] | None = None

    def _on_rollout_start(self) -> None:
        self.updates.append((self.num_timesteps, time.time()))

    def _on_step(self) -> bool:
        self.returns.extend(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
        if self.reached is None and len(self.returns) == WINDOW and sum(self.returns) / WINDOW >= GOAL:
            self.reached = self.num_timesteps, time.time()
        return what == "rate" or self.reached is None


what, seed, steps, began = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
torch.set_num_threads(1)  # faster for networks this small, and what zmqrl does
watch = Watch()
if what == "rate":
    env = make_vec_env("CartPole-v1", n_envs=16, seed=seed)
    PPO("MlpPolicy", env, seed=seed, device="cpu", **EQUAL).learn(steps, callback=watch)
    watch.updates.append((watch.num_timesteps, time.time()))
    (_, _), (first, start), *_, (last, end) = watch.updates  # the first entry is from before any update
    print(json.dumps({"steps_per_s": (last - first) / (end - start)}))
else:
    env = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    schedules = {"learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left}
    PPO("MlpPolicy", env, seed=seed, device="cpu", **ZOO, **schedules).learn(ZOO_STEPS, callback=watch)
    reached = watch.reached
    print(json.dumps({"seconds": reached and reached[1] - began, "env_steps": reached and reached[0]}))
