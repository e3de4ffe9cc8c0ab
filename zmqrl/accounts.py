"""Who did what, and what became of each env step: what buses tell the loops, and loops their bus."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ActorActivity:
    """What the actor loop is doing, written by the loop and read by the bus for heartbeats (plain attributes)."""

    steps_taken: int = 0
    episodes: int = 0
    version: int = -1
    step_began: float | None = None
    """`time.monotonic()` at which the current env.step began; None outside of one."""
    waiting_for_credit: bool = False
    error: str = ""


@dataclass(frozen=True)
class Settlement:
    """What became of the env steps an actor handed to its bus: `sum = steps_received + sum(steps_lost)`."""

    steps_received: int = 0
    steps_lost: dict[str, int] = field(default_factory=dict)
    chunks_sent: int = 0


@dataclass(frozen=True)
class SlotStatus:
    """What the learner knows of one slot that is or was taken."""

    agent_id: int
    alive: bool
    host: str
    pid: int
    silent_seconds: float
    """Since anything was heard of it."""
    steps_taken: int
    in_step_seconds: float
    """How long it has been inside one env.step, brought up to now; 0 if it is not in one."""
    waiting_for_credit: bool
    accepted_chunks: int
    """Received and not refused."""
    refused: dict[str, int]
    """Chunks and messages refused, by reason."""
    cuts: int
    """Chunks given up, since they never arrived."""
    experience_port: int
    """Of this host, where its chunks should arrive; 0 where there are no ports."""
    last_error: str


@dataclass
class SlotAccount:
    """Env steps of one slot over all its sessions: `received = consumed + queued + sum(refused) + rolled_back`.

    A sequence number counts once, when it is first accepted or refused. Duplicates and malformed messages are
    messages, not env steps, and stand apart.
    """

    received: int = 0
    consumed: int = 0
    queued: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    rolled_back: int = 0
    duplicates: int = 0
    malformed: int = 0
    cuts: int = 0
    """Chunks given up: never received, so in no sum."""


@dataclass(frozen=True)
class ActorStats:
    """What an actor did; `steps_taken = steps_received + sum(steps_lost.values())`. Steps are env steps."""

    agent_id: int = -1
    host: str = ""
    steps_taken: int = 0
    steps_received: int = 0
    steps_lost: dict[str, int] = field(default_factory=dict)
    episodes: int = 0
    chunks_sent: int = 0
    policies_loaded: int = 0
    last_version: int = -1
    seconds: float = 0.0
    seconds_waiting: float = 0.0
    """For credit or a policy."""
    seconds_acting: float = 0.0
    seconds_stepping: float = 0.0
