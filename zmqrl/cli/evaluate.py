"""`zmqrl eval`: episodes with a trained policy, in the environment it was trained in, without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from zmqrl.cli.options import parse
from zmqrl.config import EnvConfig, PolicyConfig
from zmqrl.errors import EXIT_OK, CheckpointError, ConfigError, UsageError
from zmqrl.runs.folder import RunFolder

MAX_ENVS = 16
"""Environments that play side by side."""


@dataclass(frozen=True)
class EvalOptions:
    """The evaluation."""

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


def main(argv: Sequence[str]) -> int:
    """Run `zmqrl eval`; prints one JSON object and returns the exit code."""
    options = parse("eval", argv, (EnvConfig,), EvalOptions, positional="run", complete_later=(EnvConfig,))
    chosen = options[EvalOptions]
    if chosen.episodes < 1:
        raise ConfigError("episodes", chosen.episodes, "must be at least 1")
    path = _checkpoint(chosen)

    import torch

    from zmqrl.envs import make_envs
    from zmqrl.evaluation import evaluate_policy
    from zmqrl.policies import make_policy
    from zmqrl.runs.checkpoint import load_checkpoint
    from zmqrl.spaces import from_plain

    torch.set_num_threads(1)
    tensors, facts = load_checkpoint(path)
    config = _config(PolicyConfig, {**facts["config"]["PolicyConfig"], "policy": chosen.policy})
    spaces = from_plain(facts["observation_space"]), from_plain(facts["action_space"])
    policy = make_policy(*spaces, config, seed=0)
    prefix = "policy."
    policy.load_state_dict({name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)})
    env = _environment(options[EnvConfig], facts["config"]["EnvConfig"], options.typed)
    with make_envs(env, min(MAX_ENVS, chosen.episodes)) as envs:
        result = evaluate_policy(
            policy, envs, episodes=chosen.episodes, deterministic=not chosen.stochastic, seed=chosen.seed
        )
    update = facts["trainer"]["counters"]["updates"]
    print(json.dumps({"checkpoint": str(path), "update": update, "env": env.env, **asdict(result)}, allow_nan=False))
    return EXIT_OK


def _checkpoint(chosen: EvalOptions) -> Path:
    from zmqrl.runs.checkpoint import newest_checkpoint

    if not chosen.run:
        raise UsageError("name a run folder or a checkpoint: zmqrl eval runs/CartPole-v1-...")
    path = Path(chosen.run)
    if not path.exists():
        raise UsageError(f"{path} does not exist; name a run folder or a checkpoint")
    if path.is_file():
        return path
    folder = RunFolder.open(chosen.run)
    if not chosen.best:
        return newest_checkpoint(folder)
    if not folder.best_checkpoint.exists():
        raise CheckpointError(f"{folder.path} has no best checkpoint yet: no episode had finished when one was saved")
    return folder.best_checkpoint


def _environment(typed: EnvConfig, trained: dict[str, Any], names: frozenset[str]) -> EnvConfig:
    """The environment of the training, with what was typed here."""
    changed = {name: getattr(typed, name) for name in names & trained.keys()}
    return replace(_config(EnvConfig, trained), **changed).validate()


def _config(kind: type, values: dict[str, Any]) -> Any:
    """A configuration from JSON, where tuples are lists."""
    known = {field.name for field in fields(kind)}
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return kind(**{name: value for name, value in plain.items() if name in known}).validate()
