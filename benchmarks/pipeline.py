"""Pipeline efficiency: how much of what actors and learner can do alone is left when they work together.

    python -m benchmarks.pipeline [--env CartPole-v1] [--num-actors 2] [--steps 500000] [--repeats 5]

In turn, `--repeats` times:
  pipeline   `zmqrl train` for `--steps` env steps; env steps/s as its report.json gives them, which counts from the
             moment the learner begins to wait for its first actor, and `steady`: over the second half of the run
  acting     `num_actors` processes with the same environments and the policy that came out of it, in the real
             actor loop, with a learner that grants everything at once and throws the experience away
  learning   the same updates, one after the other, on a rollout that is there already
The limit is min(cores / (a + l), num_actors / a, 1 / l), with a and l the core-seconds per env step of acting and
learning. The last line holds `pipeline_efficiency.<env>` by the report, and in `steady` by the second half.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.measure import call, cores, metrics_of, report_of, show, spread, trained


def main() -> None:
    parser = argparse.ArgumentParser(description="pipeline efficiency of zmqrl train")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--num-actors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500_000, help="env steps of each run")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement alone")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--alone", choices=("acting", "learning"), help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    args, flags = parser.parse_known_args()
    if args.alone:
        print(json.dumps({"acting": acting, "learning": learning}[args.alone](args.run, args.seconds)))
        return
    rounds = []
    for number in range(args.repeats):
        rounds.append(measure(args, number + 1, flags))
        show("pipeline.round", rounds[-1])
    name = args.env.split(":")[-1].split("-")[0].lower()
    show("pipeline.cores", cores())
    for figure in rounds[0]:
        show(f"pipeline.{figure}", spread([each[figure] for each in rounds], 9))
    efficiency, steady = ([each[figure] for each in rounds] for figure in ("efficiency", "steady_efficiency"))
    show(
        f"pipeline_efficiency.{name}",
        round(statistics.median(efficiency), 3),
        spread=spread(efficiency),
        steady=spread(steady),
    )


def measure(args: argparse.Namespace, seed: int, flags: list[str]) -> dict[str, float]:
    """One round: the pipeline, and both of its sides alone with the policy it ended with."""
    sizes = ("--num-actors", str(args.num_actors), "--total-env-steps", str(args.steps))
    with trained("--env", args.env, *sizes, "--seed", str(seed), *flags) as folder:
        report, metrics = report_of(folder), metrics_of(folder)
        alone = [sys.executable, "-m", "benchmarks.pipeline", "--run", str(folder), "--seconds", str(args.seconds)]
        actors = [
            subprocess.Popen([*alone, "--alone", "acting"], stdout=subprocess.PIPE, text=True)
            for _ in range(args.num_actors)
        ]
        act = statistics.mean(json.loads(actor.communicate()[0]) for actor in actors)
        learn = json.loads(call(*alone, "--alone", "learning"))
    limit = min(cores() / (act + learn), args.num_actors / act, 1.0 / learn)
    middle, last = metrics[len(metrics) // 2], metrics[-1]
    steps, seconds = (last[key] - middle[key] for key in ("time/total_timesteps", "time/time_elapsed"))
    return {
        "steps_per_s": report["env_steps_per_second"],
        "steady_steps_per_s": steps / seconds,
        "core_seconds_per_step_acting": act,
        "core_seconds_per_step_learning": learn,
        "limit_steps_per_s": limit,
        "efficiency": report["env_steps_per_second"] / limit,
        "steady_efficiency": steps / seconds / limit,
    }


# --- each side alone ----------------------------------------------------------------------------------


class OpenValve:
    """The actor's side of a bus whose learner is infinitely fast: full credit at once, and every chunk is dropped.

    keep: how many of the first chunks are kept instead.
    """

    def __init__(self, welcome: Any, keep: int = 0) -> None:
        from zmqrl.accounts import ActorActivity, Settlement
        from zmqrl.session import Credit

        self.welcome, self.session, self.shutdown = welcome, 0, None
        self.activity = ActorActivity()
        self.credit = Credit(0, 0, consumed_seq=0, credited_chunks=1 << 40, version=0, received_seq=0, received_steps=0)
        self.chunks: list[Any] = []
        self._keep, self._settlement = keep, Settlement()
        self._policy: Any = SimpleNamespace(version=0, parameters=b"")
        self.leave = threading.Event()

    def take_policy(self) -> Any:
        policy, self._policy = self._policy, None
        return policy

    def send(self, experience: Any) -> None:
        if len(self.chunks) < self._keep:
            self.chunks.append(experience)
        elif self._keep:
            self.leave.set()

    def wait(self, timeout: float) -> None:
        raise AssertionError("it never has to wait")

    def settle(self, timeout: float) -> Any:
        return self._settlement

    def goodbye(self, stats: Any, reason: str = "") -> None:
        pass


class Side:
    """Environments, policy and trainer as the run in this folder had them at its end."""

    def __init__(self, folder: Path) -> None:
        import torch

        from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PolicyConfig, PPOConfig
        from zmqrl.envs import make_envs
        from zmqrl.policies import make_policy
        from zmqrl.ppo import PPOTrainer
        from zmqrl.runs import RunFolder
        from zmqrl.runs.checkpoint import load_checkpoint, newest_checkpoint

        torch.set_num_threads(1)
        tensors, facts = load_checkpoint(newest_checkpoint(RunFolder(folder)))
        config = facts["config"]
        config["PolicyConfig"]["hidden_sizes"] = tuple(config["PolicyConfig"]["hidden_sizes"])
        self.config = AsyncActorLearnerConfig(**config["AsyncActorLearnerConfig"])
        self.envs = make_envs(EnvConfig(**config["EnvConfig"]), self.config.num_envs)
        spaces = self.envs.observation_space, self.envs.action_space
        self.policy = make_policy(*spaces, PolicyConfig(**config["PolicyConfig"]), seed=0)
        self.trainer = PPOTrainer(self.policy, PPOConfig(**config["PPOConfig"]))
        self.trainer.load_state(tensors, facts["trainer"])

    def act(self, bus: OpenValve) -> int:
        """The real loop over this bus until `bus.leave`; env steps taken."""
        from zmqrl.actor import actor_loop
        from zmqrl.throttle import ActorThrottle

        bus._policy.parameters = self.policy.flat.dump()
        return actor_loop(bus, self.envs, self.policy, ActorThrottle(1), leave=bus.leave).steps_taken

    def bus(self, keep: int = 0) -> OpenValve:
        terms = SimpleNamespace(num_envs=self.config.num_envs, chunk_steps=self.config.num_steps)
        return OpenValve(SimpleNamespace(slot=0, seed=0, terms=terms), keep)


def acting(folder: Path, seconds: float) -> float:
    """Core-seconds per env step of acting."""
    with (side := Side(folder)).envs:
        side.act(side.bus(keep=1))  # warm
        bus = side.bus()
        timer = threading.Timer(seconds, bus.leave.set)
        began = time.process_time()
        timer.start()
        steps = side.act(bus)
        return (time.process_time() - began) / steps


def learning(folder: Path, seconds: float) -> float:
    """Core-seconds per env step of learning: values, advantages and update of one rollout, over and over."""
    from zmqrl.estimates import estimate, evaluate_rollout
    from zmqrl.rollout import RolloutBuffer
    from zmqrl.spaces import sampled

    side = Side(folder)
    config, policy, trainer = side.config, side.policy, side.trainer
    bus = side.bus(keep=config.num_actors)
    with side.envs:
        side.act(bus)
    sizes = config.num_steps, config.num_actors, config.num_envs
    buffer = RolloutBuffer(*sizes, policy.observation_space, sampled(policy.action_space))
    for agent_id, chunk in enumerate(bus.chunks):
        buffer.add(chunk.__class__(**{**vars(chunk), "agent_id": agent_id}))
    rollout, weights = buffer.rollout(trainer.device), policy.flat.dump()

    def update() -> None:
        evaluation = evaluate_rollout(policy, rollout)
        trainer.train_step(rollout, evaluation, *estimate(config, rollout, evaluation))
        policy.flat.load(weights)  # the same data again: without this the ratios would run away

    update()
    updates, until, began = 0, time.monotonic() + seconds, time.process_time()
    while time.monotonic() < until:
        update()
        updates += 1
    return (time.process_time() - began) / (updates * buffer.env_steps)


if __name__ == "__main__":
    main()
