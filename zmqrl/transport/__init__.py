"""Moving messages between one learner and its actors; `bus.py` says what the loops may ask for."""

from __future__ import annotations

from zmqrl.transport.actor_bus import connect_actor
from zmqrl.transport.learner_bus import bind_learner
from zmqrl.transport.memory_bus import memory_buses

__all__ = ["bind_learner", "connect_actor", "memory_buses"]
