"""`zmqrl eval`: episodes with a trained policy, in the environment it was trained in, without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zmqrl.cli.options import Options, parse
from zmqrl.config import EnvConfig, PolicyConfig
from zmqrl.errors import EXIT_OK, CheckpointError, ConfigError, UsageError
from zmqrl.runs.folder import RunFolder
from zmqrl.spaces import describe, differences, from_plain

if TYPE_CHECKING:
    from torch import Tensor

    from zmqrl.envs import VectorEnvironment
    from zmqrl.policies import Policy

MAX_ENVS = 16
"""Environments that play side by side."""


@dataclass(frozen=True)
class EvalOptions:
    """The evaluation.

    It prints one JSON object: checkpoint, update, env, episodes, mean_return, std_return, standard_error,
    confidence_interval (95 %), min_return, max_return, mean_length, deterministic and seed.
    """

    run: str = ""
    """Run folder (its newest checkpoint), or a checkpoint file."""
    episodes: int = 100
    """Episodes to play; each environment plays the same number, so that short ones weigh no more than long ones."""
    stochastic: bool = False
    """Sample actions as in training. The default takes the most probable one."""
    best: bool = False
    """Of a run folder, the checkpoint with the best mean return in training."""
    seed: int = 0
    """Of environments and sampling; the same seed gives the same numbers."""
    policy: str = ""
    """The run's --policy, if it has one of its own: package.module:Class, imported here."""
    env: str = ""
    """Another environment than that of the training, with the same spaces."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Other arguments of its constructor than in training, as key=value; the rest stay."""
    vectorization: Literal["sync", "async", "vector_entry_point"] = "sync"
    """Another way to run environments side by side than in training."""

    def validate(self) -> EvalOptions:
        """Raise ConfigError for an impossible value; return self."""
        if self.episodes < 1:
            raise ConfigError("episodes", self.episodes, "must be at least 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError("seed", self.seed, "must be at least 0 and below 2**63")
        return self


def main(argv: Sequence[str]) -> int:
    """Run `zmqrl eval`; prints one JSON object and returns the exit code."""
    options = parse("eval", argv, (), EvalOptions, positional="run")
    chosen = options[EvalOptions]
    path = _checkpoint(chosen)

    import torch

    from zmqrl.envs import make_envs
    from zmqrl.evaluation import evaluate_policy
    from zmqrl.runs.checkpoint import load_checkpoint

    torch.set_num_threads(1)
    tensors, facts = load_checkpoint(path)
    policy = _policy(tensors, facts, chosen.policy)
    env = _environment(options, facts["config"]["EnvConfig"])
    with make_envs(env, min(MAX_ENVS, chosen.episodes)) as envs:
        _check_spaces(policy, envs)
        result = evaluate_policy(
            policy, envs, episodes=chosen.episodes, deterministic=not chosen.stochastic, seed=chosen.seed
        )
    update = facts["trainer"]["counters"]["updates"]
    print(json.dumps({"checkpoint": str(path), "update": update, "env": env.env, **asdict(result)}, allow_nan=False))
    return EXIT_OK


def _checkpoint(chosen: EvalOptions) -> Path:
    if not chosen.run:
        raise UsageError("name a run folder or a checkpoint: zmqrl eval runs/CartPole-v1-...")
    path = Path(chosen.run)
    if not path.exists():
        raise UsageError(f"{path} does not exist; name a run folder or a checkpoint")
    if path.is_file():
        if chosen.best:
            raise UsageError(f"--best would do nothing: {path} is a checkpoint already; name its run folder")
        return path
    folder = RunFolder.open(chosen.run)
    if not chosen.best:
        from zmqrl.runs.checkpoint import newest_checkpoint

        return newest_checkpoint(folder)
    if not folder.best_checkpoint.exists():
        raise CheckpointError(f"{folder.path} has no best checkpoint: no episode had finished when one was saved")
    return folder.best_checkpoint


def _policy(tensors: dict[str, Tensor], facts: dict[str, Any], policy_class: str) -> Policy:
    """The trained policy, with its statistics."""
    from zmqrl.policies import make_policy

    saved = facts["config"]["PolicyConfig"]
    sizes = tuple(saved["hidden_sizes"])
    config = PolicyConfig(**{**saved, "hidden_sizes": sizes, "policy": policy_class}).validate()
    spaces = from_plain(facts["observation_space"]), from_plain(facts["action_space"])
    policy = make_policy(*spaces, config, seed=0)
    prefix = "policy."
    policy.load_state_dict({name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)})
    return policy


def _environment(options: Options, trained: dict[str, Any]) -> EnvConfig:
    """That of the training, with what was typed here."""
    typed = {name: getattr(options[EvalOptions], name) for name in options.typed & trained.keys()}
    arguments = {**trained["env_kwargs"], **typed.get("env_kwargs", {})}
    return EnvConfig(**{**trained, **typed, "env_kwargs": arguments}).validate()


def _check_spaces(policy: Policy, envs: VectorEnvironment) -> None:
    pairs = {
        "obs": (policy.observation_space, envs.observation_space),
        "action": (policy.action_space, envs.action_space),
    }
    for name, (trained, here) in pairs.items():
        if differences(trained, here, name):
            raise UsageError(
                f"{name}: the policy was trained for {describe(trained)}, and this environment has {describe(here)}"
            )
