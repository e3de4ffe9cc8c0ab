"""The words of a session: joining, credit, liveness, goodbye. `docs/protocol.md` is the authority on the wire.

Times are durations of one host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from zmqrl.accounts import ActorStats
from zmqrl.messages import ControlMessage
from zmqrl.spaces import SpaceSpec

PROTOCOL_VERSION = 1

# --- joining -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ManifestEntry:
    """One tensor within `PolicyBroadcast.parameters`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """First byte; a multiple of 64."""


@dataclass(frozen=True)
class Hello:
    """An actor (or monitor, or admin) asks to join. Its first fields never change in any version."""

    protocol: int
    package: str
    role: Literal["actor", "monitor", "admin"]
    incarnation: int
    host: str = ""
    pid: int = 0
    num_envs: int = 0
    observation_space: SpaceSpec | None = None
    action_space: SpaceSpec | None = None
    held_slot: int = -1
    """Of a rejoin: the slot it had, which is its own again if it is free; -1 for none."""


@dataclass(frozen=True)
class Terms:
    """What holds for every actor of a run; the learner's side of a Welcome."""

    run_id: str
    epoch: int
    num_actors: int
    num_envs: int
    num_steps: int
    chunk_steps: int
    max_lead_steps: int
    fill: str
    seed: int
    observation_space: SpaceSpec
    action_space: SpaceSpec
    policy: dict[str, Any]
    """Fields of PolicyConfig. A class of one's own is named by each host, never taken from here."""
    manifest: tuple[ManifestEntry, ...]
    heartbeat_interval: float
    lease: float
    rejoin_timeout: float
    env: str = ""
    """For people to read; never imported."""

    @property
    def lead_chunks(self) -> int:
        """Chunks that an actor may begin ahead of its credit; the last one may be padded, so it is rounded up."""
        return -(-self.max_lead_steps // self.chunk_steps)


@dataclass(frozen=True)
class Welcome:
    """The actor is in: its slot, where the other two sockets are, and the terms."""

    slot: int
    seed: int
    """Of this actor's environments and action sampling: from the run's seed, the slot, and who held it before."""
    experience_port: int
    policy_port: int
    """Ports on the host that the actor reached; 0 where addresses have no ports and are derived by suffix."""
    terms: Terms


@dataclass(frozen=True)
class Refuse:
    """No, with a code (see `errors.Refused`) and a sentence that a person can act on."""

    code: str
    text: str


# --- during a session ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GetPolicy:
    """Send me the current policy; answered by policy frames on the control socket."""

    epoch: int
    have_version: int
    """-1 for none."""


@dataclass(frozen=True)
class Heartbeat:
    """Actor to learner, each `heartbeat_interval`: alive, how far it has sent, and what it is doing."""

    epoch: int
    slot: int
    incarnation: int
    next_seq: int
    """All chunks below this have been sent."""
    steps_taken: int
    episodes: int
    version: int
    """Loaded policy; -1 before the first."""
    in_step_seconds: float
    """How long it has been inside the current env.step; 0 if it is not in one."""
    waiting_for_credit: bool
    leaving: bool = False
    """It sends nothing new and waits until all it sent is acknowledged."""
    error: str = ""


@dataclass(frozen=True)
class Credit:
    """Learner to one actor: what has been received of it in this session, and what is done with.

    An actor may be `max_lead_steps` rows ahead of `credited_chunks * chunk_steps`, counted once `version` is loaded.
    """

    epoch: int
    incarnation: int
    consumed_seq: int
    """All chunks below this are done with: used by an update (quota: placed into one), refused, or given up."""
    credited_chunks: int
    """How many chunks are done with, wherever they stand: a refused one behind one that waits counts at once."""
    version: int
    """Of the policy that came out of the chunks used; -1 before the first."""
    received_seq: int
    """All chunks below this have been received or given up; the next one is awaited."""
    received_steps: int
    """Env steps of the chunks received."""


@dataclass(frozen=True)
class Resend:
    """Learner to actor: chunks first_seq .. last_seq - 1 have not arrived."""

    epoch: int
    first_seq: int
    last_seq: int


@dataclass(frozen=True)
class Rejected:
    """Learner to actor: one of your messages was refused, or one of your chunks given up, and why."""

    reason: str
    text: str
    seq: int = -1
    """Of the chunk; -1 for another message."""

    @property
    def ends_chunk(self) -> bool:
        """The chunk is done with. One that came too early is not: it is asked for again."""
        return self.seq >= 0 and self.reason != "early"


@dataclass(frozen=True)
class Goodbye:
    """The actor leaves for good, and what it did."""

    epoch: int
    slot: int
    incarnation: int
    reason: str
    stats: ActorStats


@dataclass(frozen=True)
class Farewell:
    """Answer to a Goodbye: it was heard, the slot is free."""

    incarnation: int


@dataclass(frozen=True)
class LearnerState:
    """Learner to all, each `heartbeat_interval`."""

    run_id: str
    epoch: int
    state: Literal["waiting", "running", "finishing"]
    version: int
    update: int
    env_steps: int


# --- commands of an admin ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A control message on its way to the learner, with the admin's own number for the answer."""

    request: int
    message: ControlMessage


@dataclass(frozen=True)
class CommandResult:
    """What became of a Command."""

    request: int
    ok: bool
    text: str
