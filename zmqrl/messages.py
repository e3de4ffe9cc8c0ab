"""What actors and the learner say to each other, as plain data. `docs/protocol.md` is the authority on the wire.

Shapes: T steps, N environments of one actor. A *chunk* is one `Experience`. Times are durations of one host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from zmqrl.spaces import SpaceSpec, Tree

PROTOCOL_VERSION = 1

# --- experience and policies ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Experience:
    """Consecutive steps of all environments of one actor; T = N = 1 is a single transition.

    The successor of row (t, n) is `observations[t + 1, n]`, unless (t, n) stands in `final_index`: then it is
    the entry of `final_observations` at the same position, and `observations[t + 1, n]` begins a new episode.
    """

    agent_id: int
    """Slot of the actor, 0 .. num_actors - 1."""
    observations: Tree
    """[T + 1, N, ...]: what each action was chosen from, and what came after the last step."""
    actions: Tree
    """[T, N, ...]: as sampled, before any bound is applied."""
    rewards: np.ndarray
    """[T, N] float32, raw."""
    terminated: np.ndarray
    """[T, N] bool."""
    truncated: np.ndarray
    """[T, N] bool."""
    valid: np.ndarray
    """[T, N] bool: False for autoreset artefacts and padding, which are no env steps."""
    log_probs: np.ndarray
    """[T, N] float32: of the actions under the behavior policy."""
    versions: np.ndarray
    """[T] int64: version of the behavior policy."""
    final_index: np.ndarray
    """[F, 2] int32: (t, n) of rows whose successor is not the next observation."""
    final_observations: Tree
    """[F, ...]."""
    episode_index: np.ndarray
    """[M, 2] int32: (t, n) of rows that ended an episode."""
    episode_returns: np.ndarray
    """[M] float64, raw."""
    episode_lengths: np.ndarray
    """[M] int64, in env steps."""
    values: np.ndarray | None = None
    """[T, N] float32: the actor's own estimate, if it made one. The learner evaluates anew."""
    incarnation: int = 0
    """Random per actor process; given by the bus."""
    seq: int = 0
    """Number of the chunk within its session; given by the bus."""

    @property
    def num_steps(self) -> int:
        """T."""
        return int(self.rewards.shape[0])

    @property
    def num_envs(self) -> int:
        """N."""
        return int(self.rewards.shape[1])

    @property
    def env_steps(self) -> int:
        """Valid rows."""
        return int(np.count_nonzero(self.valid))


@dataclass(frozen=True, eq=False)
class PolicyBroadcast:
    """Parameters and statistics of one policy version."""

    version: int
    parameters: bytes | memoryview
    """All entries of the manifest, each at its aligned offset, in one run of bytes."""
    epoch: int = 0
    """Given by the bus; policies are ordered by (epoch, version)."""


@dataclass(frozen=True)
class ManifestEntry:
    """One tensor within `PolicyBroadcast.parameters`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """First byte; a multiple of 64."""


# --- joining -------------------------------------------------------------------------------------------


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
    held_epoch: int = -1
    """The session it had before, if this is a rejoin: epoch and slot; -1 for none."""
    held_slot: int = -1


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
    """Learner to one actor: what has been received and consumed of it in this session.

    An actor may be `max_lead_steps` rows ahead of `consumed_seq * chunk_steps`, counted once `version` is loaded.
    """

    epoch: int
    incarnation: int
    consumed_seq: int
    """All chunks below this are done with: used by an update (quota: placed into one), refused, or given up."""
    version: int
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
    """Learner to actor: one of your messages was refused, and why."""

    reason: str
    text: str
    seq: int = -1


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


# --- control -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shutdown:
    """To every actor, repeated until each said goodbye; from an admin: finish the update and end the run."""

    reason: str = "the run is over"


@dataclass(frozen=True)
class SaveCheckpoint:
    """Save under this name (letters, digits, `._-`, at most 64) inside the run's own folder."""

    name: str


@dataclass(frozen=True)
class LoadCheckpoint:
    """Go back to the checkpoint of this name: a new epoch."""

    name: str


@dataclass(frozen=True)
class SetLearningRate:
    """Use this rate from the next update on; ends a schedule."""

    learning_rate: float


ControlMessage = Shutdown | SaveCheckpoint | LoadCheckpoint | SetLearningRate


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
