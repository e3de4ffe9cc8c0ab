"""Every setting of a run: frozen dataclasses with the documentation of each field below it.

Flags, `--config FILE`, `config.json` and `docs/configuration.md` are derived from these classes, so a
field name is also the flag (`num_envs` is `--num-envs`) and occurs in one class only. `validate()` raises
ConfigError with the field, its value and what would be right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from zmqrl.errors import ConfigError


def _require(condition: bool, field_name: str, value: object, remedy: str) -> None:
    if not condition:
        raise ConfigError(field_name, value, remedy)


def _require_at_least(config: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        _require(math.isfinite(value) and value >= least, name, value, f"must be at least {least:g}")


def _require_fraction(config: object, *names: str) -> None:
    for name in names:
        _require(0.0 <= getattr(config, name) <= 1.0, name, getattr(config, name), "must lie between 0 and 1")


@dataclass(frozen=True)
class AsyncActorLearnerConfig:
    """Who takes part, how much is collected for an update, and how returns are estimated."""

    num_actors: int = 4
    """Actors that the rollout has room for. With fill = quota there may be more or fewer."""
    num_envs: int = 8
    """Environments per actor, the same for all actors of a run."""
    num_steps: int = 128
    """Steps of each environment in one rollout."""
    total_env_steps: int = 1_000_000
    """Length of the run; it makes total_env_steps // (num_steps * num_actors * num_envs) updates, at least 1."""
    broadcast_every: int = 1
    """Updates between two policy broadcasts."""
    max_lead_steps: int = 0
    """How many steps of each environment an actor may be ahead of what the learner has consumed of it.
    0 means 2 * broadcast_every * num_steps; broadcast_every * num_steps is lockstep."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation (Schulman et al. 2016)."""
    use_vtrace: bool = False
    """Estimate with V-trace (Espeholt et al. 2018), which corrects for the lag of the behavior policy."""
    vtrace_rho_bar: float = 1.0
    """V-trace: clip of the importance weight in the temporal difference."""
    vtrace_c_bar: float = 1.0
    """V-trace: clip of the importance weight in the trace."""
    seed: int = 0
    """Seed of parameters, minibatch order, environments and action sampling."""
    starvation_timeout: float = 60.0
    """Seconds without progress of any actor that the update still needs, after which the run is an error."""
    fill: Literal["columns", "quota"] = "columns"
    """columns: wait for every actor. quota: take whole chunks from whoever has them."""

    @property
    def columns(self) -> int:
        """Columns of the rollout buffer, `num_actors * num_envs`."""
        return self.num_actors * self.num_envs

    @property
    def rows_per_update(self) -> int:
        """Rows of one rollout over all columns."""
        return self.num_steps * self.columns

    @property
    def total_updates(self) -> int:
        """Updates in the run, at least 1."""
        return max(1, self.total_env_steps // self.rows_per_update)

    @property
    def lead_steps(self) -> int:
        """`max_lead_steps` with 0 resolved."""
        return self.max_lead_steps or 2 * self.broadcast_every * self.num_steps

    @property
    def lockstep(self) -> bool:
        """Whether every consumed row was sampled from the newest broadcast policy."""
        return self.fill == "columns" and self.lead_steps == self.broadcast_every * self.num_steps

    def validate(self) -> AsyncActorLearnerConfig:
        """Raise ConfigError for an impossible value; return self."""
        _require_at_least(self, 1, "num_actors", "num_envs", "num_steps", "total_env_steps", "broadcast_every")
        for name in ("num_actors", "num_envs", "num_steps"):
            _require(getattr(self, name) <= 65_536, name, getattr(self, name), "must be at most 65536")
        _require_at_least(self, 0, "max_lead_steps", "seed")
        _require(self.seed < 2**63, "seed", self.seed, "must be below 2**63")
        least = self.broadcast_every * self.num_steps
        _require(
            self.lead_steps >= least,
            "max_lead_steps",
            self.max_lead_steps,
            f"would deadlock: a broadcast comes after {least} steps (broadcast_every * num_steps), "
            f"so an actor must be allowed that many; use 0 (twice that), {least} (lockstep) or more",
        )
        _require_fraction(self, "gamma", "gae_lambda")
        for name in ("vtrace_rho_bar", "vtrace_c_bar", "starvation_timeout"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, name, value, "must be a positive number")
        _require(self.fill in ("columns", "quota"), "fill", self.fill, "must be columns or quota")
        return self


@dataclass(frozen=True)
class PPOConfig:
    """The update (Schulman et al. 2017)."""

    learning_rate: float = 3e-4
    """Step size of Adam, at the start where a schedule is set."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """linear: goes to 0 at total_env_steps."""
    n_epochs: int = 10
    """Passes over each rollout."""
    batch_size: int = 64
    """Rows of a minibatch; where it does not divide the rollout, rows are spread evenly over the minibatches."""
    clip_range: float = 0.2
    """Clip of the probability ratio around 1, at the start where a schedule is set."""
    clip_range_schedule: Literal["constant", "linear"] = "constant"
    """linear: goes to 0 at total_env_steps."""
    clip_range_vf: float | None = None
    """Clip of the value's change per update. None is off: a fixed clip depends on the reward's scale."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Gradients of a minibatch are scaled down to this 2-norm."""
    target_kl: float | None = None
    """Stop the epochs of an update once the approximate KL divergence of a minibatch exceeds 1.5 times this."""
    normalize_advantages: bool = True
    """Shift and scale the advantages of each minibatch to mean 0 and deviation 1."""
    adam_epsilon: float = 1e-5
    """Adam's epsilon."""

    def scheduled(self, progress: float) -> tuple[float, float]:
        """(learning rate, clip range) of an update that begins at this fraction of the run."""
        left = 1.0 - min(max(progress, 0.0), 1.0)
        rate = self.learning_rate * (left if self.learning_rate_schedule == "linear" else 1.0)
        return rate, self.clip_range * (left if self.clip_range_schedule == "linear" else 1.0)

    def validate(self) -> PPOConfig:
        """Raise ConfigError for an impossible value; return self."""
        for name in ("learning_rate", "clip_range", "max_grad_norm", "adam_epsilon", "clip_range_vf", "target_kl"):
            value = getattr(self, name)
            _require(value is None or (math.isfinite(value) and value > 0), name, value, "must be a positive number")
        _require(self.learning_rate <= 1, "learning_rate", self.learning_rate, "must be at most 1")
        _require_at_least(self, 1, "n_epochs")
        _require_at_least(self, 2, "batch_size")
        _require_at_least(self, 0, "vf_coef", "ent_coef")
        for name in ("learning_rate_schedule", "clip_range_schedule"):
            _require(
                getattr(self, name) in ("constant", "linear"), name, getattr(self, name), "must be constant or linear"
            )
        return self


@dataclass(frozen=True)
class PolicyConfig:
    """The network."""

    policy: str = ""
    """A policy of one's own as package.module:Class, named by each host's own user; empty is the built-in one."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of the hidden layers of actor and critic, which are two networks."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Nonlinearity between layers."""
    log_std_init: float = 0.0
    """Box actions: logarithm of the initial standard deviation."""
    normalize_observations: bool = False
    """Shift and scale observations by running statistics, which are part of the policy."""

    def validate(self) -> PolicyConfig:
        """Raise ConfigError for an impossible value; return self."""
        sizes = self.hidden_sizes
        _require(all(0 < size <= 65_536 for size in sizes), "hidden_sizes", sizes, "must be sizes of 1 to 65536")
        choices = ("tanh", "relu", "silu")
        _require(self.activation in choices, "activation", self.activation, f"must be one of {', '.join(choices)}")
        _require(abs(self.log_std_init) <= 20, "log_std_init", self.log_std_init, "must lie between -20 and 20")
        return self


@dataclass(frozen=True)
class EnvConfig:
    """The environment; each host names its own."""

    env: str = ""
    """Gymnasium id, or package.module:Id to import the module that registers it first."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor, as key=value."""
    vectorization: Literal["sync", "async", "vector_entry_point"] = "sync"
    """sync: one after the other in the actor's process. async: a process each, for environments that are slow, or
    that hold the interpreter for seconds in one step, which would silence the actor's heartbeats.
    vector_entry_point: the environment's own vectorized implementation."""

    def validate(self) -> EnvConfig:
        """Raise ConfigError for an impossible value; return self."""
        _require(bool(self.env), "env", self.env, "name an environment, for example CartPole-v1")
        choices = ("sync", "async", "vector_entry_point")
        _require(
            self.vectorization in choices, "vectorization", self.vectorization, f"must be one of {', '.join(choices)}"
        )
        return self


@dataclass(frozen=True)
class TransportConfig:
    """Times and sizes on the wire. The learner's values hold for all its actors; each comes with its reason."""

    heartbeat_interval: float = 1.0
    """Seconds between heartbeats, in both directions. Lost credit and policies are repaired by the next one."""
    lease: float = 30.0
    """Seconds of silence after which a peer counts as gone. Longer than any pause of a healthy process,
    and than the largest frame (1 MiB) takes on the slowest link."""
    connect_timeout: float = 60.0
    """Actor: seconds to wait for a learner to answer the first Hello; then exit code 75."""
    rejoin_timeout: float = 300.0
    """Actor: seconds to wait for a learner that went silent to come back; then exit code 75."""
    wait_for_actors: float = 0.0
    """Learner: seconds to wait for the first actor; 0 is without end. `zmqrl train` uses 60."""
    env_step_timeout: float = 600.0
    """Seconds that one env.step may take and still count as progress."""
    chunk_steps: int = 0
    """Steps of an environment per message; divides num_steps. 0 is num_steps, or its largest divisor that
    keeps a message below max_chunk_bytes."""
    max_chunk_bytes: int = 1 << 20
    """Upper size of a message that chunk_steps = 0 aims at. Larger ones delay credit and heartbeats behind them."""
    reorder_chunks: int = 16
    """Chunks of one actor that the learner holds while an earlier one is missing."""
    hole_timeout: float = 5.0
    """Seconds after which a missing chunk that was asked for again is given up: the trajectory is cut there."""
    shutdown_timeout: float = 5.0
    """Seconds in which actors may answer Shutdown before the learner ends without their goodbye."""

    def validate(self) -> TransportConfig:
        """Raise ConfigError for an impossible value; return self."""
        for name in ("heartbeat_interval", "lease", "connect_timeout", "rejoin_timeout", "env_step_timeout"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, name, value, "must be a positive number of seconds")
        _require_at_least(self, 0, "wait_for_actors", "hole_timeout", "shutdown_timeout", "chunk_steps")
        _require_at_least(self, 1, "reorder_chunks")
        _require_at_least(self, 1024, "max_chunk_bytes")
        least = 2 * self.heartbeat_interval
        _require(self.lease >= least, "lease", self.lease, f"must be at least two heartbeats ({least:g} s)")
        return self


@dataclass(frozen=True)
class RunConfig:
    """Where a run computes, what it keeps, and when it ends early."""

    run_dir: str = ""
    """Folder of the run; empty is runs/<env>-<time>."""
    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda or cuda:N, for the learner. Actors compute on the CPU."""
    learner_threads: int = 1
    """Threads of the learner's tensor operations on the CPU. One is fastest for small networks, and leaves the
    other cores to actors."""
    stop_at_return: float | None = None
    """End the run once the mean return of the last 100 finished episodes reaches this."""
    checkpoint_every: int = 50
    """Updates between two checkpoints; 0 is only at the end."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints stay, beside the best one."""
    tensorboard: bool = True
    """Write TensorBoard event files into the run folder."""
    log_interval: float = 5.0
    """Seconds between two progress lines where the output is not a terminal."""

    def validate(self) -> RunConfig:
        """Raise ConfigError for an impossible value; return self."""
        kind, _, index = self.device.partition(":")
        right = self.device in ("auto", "cpu", "cuda") or (kind == "cuda" and index.isdigit())
        _require(right, "device", self.device, "must be auto, cpu, cuda or cuda:N")
        _require_at_least(self, 1, "learner_threads", "keep_checkpoints")
        _require_at_least(self, 0, "checkpoint_every")
        _require(self.log_interval > 0, "log_interval", self.log_interval, "must be a positive number of seconds")
        stop = self.stop_at_return
        _require(stop is None or math.isfinite(stop), "stop_at_return", stop, "must be a finite number")
        return self
