"""Environments: gymnasium's, seen as one vectorized environment with true successors. No torch, no zmq."""

from __future__ import annotations

from zmqrl.envs.convert import spec_of
from zmqrl.envs.vector import Transition, VectorEnvironment, make_envs, read_spaces, wrap_envs

__all__ = ["Transition", "VectorEnvironment", "make_envs", "read_spaces", "spec_of", "wrap_envs"]
