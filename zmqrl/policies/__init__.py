"""Policies: `make_policy` builds one from the spaces of an environment and the configuration."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from zmqrl.config import PolicyConfig
from zmqrl.errors import UsageError
from zmqrl.policies.parameters import FlatParameters
from zmqrl.policies.policy import ActorCriticPolicy, Policy
from zmqrl.spaces import SpaceSpec

__all__ = ["ActorCriticPolicy", "FlatParameters", "Policy", "load_policy_class", "make_policy"]

ABSTRACT_METHODS = ("act", "evaluate_actions", "value")
"""Those that `Policy` cannot give to a class of one's own."""

REQUIRED_METHODS = (*ABSTRACT_METHODS, "sampled_action_space", "environment_actions", "update_statistics")


def make_policy(observation_space: SpaceSpec, action_space: SpaceSpec, config: PolicyConfig, *, seed: int) -> Policy:
    """A policy on the CPU whose tensors are views of its `flat`; the same seed gives the same weights, bit for bit.

    Raises UnsupportedSpace for a space that the built-in policy cannot handle, UsageError for an impossible class
    of one's own. torch's default random state is as before.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy: Policy
        if config.policy:
            policy = load_policy_class(config.policy)(observation_space, action_space, config)
            policy.observation_space, policy.action_space = observation_space, action_space
        else:  # with a generator of its own, which no other thread of the program can draw from
            generator = torch.Generator().manual_seed(seed)
            policy = ActorCriticPolicy(observation_space, action_space, config, generator)
    policy.flat = FlatParameters(policy)
    return policy


def load_policy_class(path: str) -> Callable[[SpaceSpec, SpaceSpec, PolicyConfig], Policy]:
    """The class named by `package.module:Class`: an nn.Module with the methods of `Policy`. Else a UsageError."""
    module_name, _, class_name = path.partition(":")
    if not module_name or not class_name:
        raise UsageError(f"policy {path!r}: name it as package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"policy {path!r}: there is no module {error.name!r} here; install it on this host, or start in its folder"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise UsageError(f"policy {path!r}: module {module_name} has no {class_name}")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UsageError(f"policy {path!r}: {class_name} is not a subclass of torch.nn.Module")
    missing = [name for name in REQUIRED_METHODS if not callable(getattr(found, name, None))]
    missing += [name for name in ABSTRACT_METHODS if getattr(found, name, None) is getattr(Policy, name)]
    if missing:
        raise UsageError(
            f"policy {path!r}: {class_name} lacks {', '.join(missing)}; derive it from zmqrl.policies.Policy, "
            "which has all but act, evaluate_actions and value"
        )
    return cast(Callable[[SpaceSpec, SpaceSpec, PolicyConfig], Policy], found)
