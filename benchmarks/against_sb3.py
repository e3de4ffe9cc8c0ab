"""Against Stable-Baselines3's PPO, on CartPole-v1: env steps/s at equal settings, and seconds to a mean return of 475.

    python -m venv /tmp/sb3
    /tmp/sb3/bin/pip install torch==2.13.0 stable-baselines3==2.9.2
    python -m benchmarks.against_sb3 --sb3-python /tmp/sb3/bin/python
    make bench-peers SB3_PYTHON=/tmp/sb3/bin/python                       (the same)

In turn, `--repeats` times. Equal settings: 16 environments (zmqrl: 2 actors with 8 each), 128 steps of each per
update, 4 epochs of minibatches of 256, 1e-3, two networks of 64 x 64, one thread of torch per process. Steps/s are of
whole updates, from the end of the first to the end of the last. To 475: each with its own best known settings,
zmqrl's preset and the RL-Zoo's for SB3; seconds from the creation of the process to a mean of 475 over the last 100
episodes, imports and start-up included.
`ratio_to_sb3.cartpole` and `seconds_to_475.ratio` are medians, above 1 and below 1 where zmqrl is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import call, metrics_of, report_of, show, spread, trained

GOAL = 475.0
EQUAL = {"num_envs": 8, "num_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": 1e-3, "ent_coef": 0.01}
EQUAL |= {"gamma": 0.99, "gae_lambda": 0.95, "max_lead_steps": 0}
CONSTANT = {"learning_rate_schedule": "constant", "clip_range_schedule": "constant"}


def main() -> None:
    parser = argparse.ArgumentParser(description="zmqrl against Stable-Baselines3")
    parser.add_argument("--sb3-python", required=True, help="of an environment with stable-baselines3 and torch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200_000, help="env steps of each run for steps/s")
    args = parser.parse_args()
    rates: dict[str, list[float]] = {"zmqrl": [], "sb3": []}
    reached: dict[str, list[dict[str, Any]]] = {"zmqrl": [], "sb3": []}
    for seed in range(1, args.repeats + 1):
        rates["zmqrl"].append(zmqrl_rate(args.steps, seed))
        rates["sb3"].append(sb3(args.sb3_python, "rate", seed, args.steps)["steps_per_s"])
        reached["zmqrl"].append(zmqrl_to_goal(seed))
        reached["sb3"].append(sb3(args.sb3_python, "goal", seed, args.steps))
        show("sb3.round", {"seed": seed} | {f"{name} steps/s": round(values[-1]) for name, values in rates.items()})
        show("sb3.round", {"seed": seed} | {f"{name} to {GOAL:g}": values[-1] for name, values in reached.items()})
    for name, values in rates.items():
        show(f"steps_per_s.cartpole.{name}", spread(values, 0))
        for figure in ("seconds", "env_steps"):
            all_of = [each[figure] for each in reached[name] if each[figure] is not None]
            missed = len(values) - len(all_of)
            show(f"{figure}_to_475.{name}", spread(all_of, 2) if all_of else {}, not_reached=missed)
    ratios = [ours / theirs for ours, theirs in zip(rates["zmqrl"], rates["sb3"], strict=True)]
    show("ratio_to_sb3.cartpole", round(statistics.median(ratios), 3), spread=spread(ratios))
    both = [
        ours["seconds"] / theirs["seconds"]
        for ours, theirs in zip(reached["zmqrl"], reached["sb3"], strict=True)
        if ours["seconds"] and theirs["seconds"]
    ]
    if both:
        show("seconds_to_475.ratio", round(statistics.median(both), 3), spread=spread(both))


def zmqrl_rate(steps: int, seed: int) -> float:
    settings = EQUAL | CONSTANT | {"total_env_steps": steps, "seed": seed, "num_actors": 2}
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with trained("--env", "CartPole-v1", *flags) as folder:
        first, *_, last = metrics_of(folder)
    done, seconds = (last[key] - first[key] for key in ("time/total_timesteps", "time/time_elapsed"))
    return float(done / seconds)


def zmqrl_to_goal(seed: int) -> dict[str, float | None]:
    flags = ["--num-actors", "2", "--stop-at-return", str(GOAL), "--seed", str(seed)]
    with trained("--env", "CartPole-v1", *flags) as folder:
        reached = report_of(folder)["reached"]
    return {key: reached[0][key] if reached else None for key in ("seconds", "env_steps")}


def sb3(python: str, what: str, seed: int, steps: int) -> dict[str, Any]:
    script = str(Path(__file__).with_name("sb3_run.py"))
    began = time.time()
    answer: dict[str, Any] = json.loads(call(python, script, what, str(seed), str(steps), str(began)).splitlines()[-1])
    return answer


if __name__ == "__main__":
    main()
