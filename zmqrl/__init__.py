"""PPO with one learner and any number of actors, over ZeroMQ.

These are the public names. Each is imported from its module at its first use, so that a program that
only moves messages does not load torch, and one that only learns does not load ZeroMQ.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zmqrl.accounts import ActorStats
    from zmqrl.actor import actor_loop
    from zmqrl.advantages import compute_advantages, compute_vtrace_advantages
    from zmqrl.config import (
        AsyncActorLearnerConfig,
        EnvConfig,
        PolicyConfig,
        PPOConfig,
        RunConfig,
        TransportConfig,
    )
    from zmqrl.envs import make_envs, read_spaces
    from zmqrl.errors import ZmqrlError
    from zmqrl.evaluation import evaluate_policy
    from zmqrl.learner import learner_loop
    from zmqrl.messages import ControlMessage, Experience, PolicyBroadcast
    from zmqrl.policies import Policy, make_policy
    from zmqrl.ppo import PPOTrainer
    from zmqrl.progress import LearnerReport, UpdateRecord
    from zmqrl.rollout import RolloutBuffer
    from zmqrl.runs import RunFolder
    from zmqrl.supervisor import ActorHandle, Supervisor, spawn_actor
    from zmqrl.throttle import ActorThrottle
    from zmqrl.transport import bind_learner, connect_actor, memory_buses

__version__ = "0.1.0"

_HOMES = {
    "ActorHandle": "supervisor",
    "ActorStats": "accounts",
    "ActorThrottle": "throttle",
    "AsyncActorLearnerConfig": "config",
    "ControlMessage": "messages",
    "EnvConfig": "config",
    "Experience": "messages",
    "LearnerReport": "progress",
    "PPOConfig": "config",
    "PPOTrainer": "ppo",
    "Policy": "policies",
    "PolicyBroadcast": "messages",
    "PolicyConfig": "config",
    "RolloutBuffer": "rollout",
    "RunConfig": "config",
    "RunFolder": "runs",
    "Supervisor": "supervisor",
    "TransportConfig": "config",
    "UpdateRecord": "progress",
    "ZmqrlError": "errors",
    "actor_loop": "actor",
    "bind_learner": "transport",
    "compute_advantages": "advantages",
    "compute_vtrace_advantages": "advantages",
    "connect_actor": "transport",
    "evaluate_policy": "evaluation",
    "learner_loop": "learner",
    "make_envs": "envs",
    "make_policy": "policies",
    "memory_buses": "transport",
    "read_spaces": "envs",
    "spawn_actor": "supervisor",
}

__all__ = [
    "ActorHandle",
    "ActorStats",
    "ActorThrottle",
    "AsyncActorLearnerConfig",
    "ControlMessage",
    "EnvConfig",
    "Experience",
    "LearnerReport",
    "PPOConfig",
    "PPOTrainer",
    "Policy",
    "PolicyBroadcast",
    "PolicyConfig",
    "RolloutBuffer",
    "RunConfig",
    "RunFolder",
    "Supervisor",
    "TransportConfig",
    "UpdateRecord",
    "ZmqrlError",
    "__version__",
    "actor_loop",
    "bind_learner",
    "compute_advantages",
    "compute_vtrace_advantages",
    "connect_actor",
    "evaluate_policy",
    "learner_loop",
    "make_envs",
    "make_policy",
    "memory_buses",
    "read_spaces",
    "spawn_actor",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module, once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zmqrl' has no attribute {name!r}")
    value = getattr(import_module(f"zmqrl.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what is public, loaded or not."""
    return sorted({*globals(), *__all__})
