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

OWN_METHODS = ("act", "evaluate_actions", "value")
"""What a class of one's own must have; the rest of `Policy` is added where it has none of its own."""


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
        else:  # with a generator of its own, which no other thread of the program can draw from
            generator = torch.Generator().manual_seed(seed)
            policy = ActorCriticPolicy(observation_space, action_space, config, generator)
    policy.observation_space, policy.action_space, policy.config = observation_space, action_space, config
    policy.flat = FlatParameters(policy)
    return policy


def load_policy_class(path: str) -> Callable[[SpaceSpec, SpaceSpec, PolicyConfig], Policy]:
    """The class named by `package.module:Class`: a Policy, or any nn.Module with OWN_METHODS. Else a UsageError."""
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
    missing = [name for name in OWN_METHODS if getattr(found, name, None) in (None, getattr(Policy, name))]
    if missing:
        raise UsageError(
            f"policy {path!r}: {class_name} lacks {', '.join(missing)}; zmqrl.policies.Policy says what they return"
        )
    if not issubclass(found, Policy):
        found = type(found.__name__, (found, Policy), {})
    return cast(Callable[[SpaceSpec, SpaceSpec, PolicyConfig], Policy], found)
