"""Every metric: name, unit and meaning. Names follow Stable-Baselines3 where it has one; docs/metrics.md says more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from zmqrl.progress import UpdateRecord


class Metric(NamedTuple):
    """One curve."""

    name: str
    unit: str
    meaning: str


METRICS = (
    Metric("rollout/ep_rew_mean", "reward", "mean raw return of the last 100 finished episodes"),
    Metric("rollout/ep_len_mean", "env steps", "mean length of the last 100 finished episodes"),
    Metric("rollout/episodes", "episodes", "finished since the run began"),
    Metric("time/total_timesteps", "env steps", "consumed since the run began"),
    Metric("time/fps", "env steps/s", "consumed per second, between this update and the one before"),
    Metric("time/time_elapsed", "s", "since this learner began to wait for experience"),
    Metric("train/n_updates", "updates", "rollouts trained on since the run began"),
    Metric("train/epochs", "epochs", "passes over this rollout really made; fewer than n_epochs after target_kl"),
    Metric("train/minibatches", "steps", "optimizer steps really taken on this rollout"),
    Metric("train/policy_gradient_loss", "", "clipped surrogate loss, mean over minibatches"),
    Metric("train/value_loss", "reward^2", "squared error of values against returns, mean over minibatches"),
    Metric("train/entropy_loss", "nats", "minus the mean entropy of the policy"),
    Metric("train/approx_kl", "nats", "divergence of the updated policy from the one before, mean over minibatches"),
    Metric("train/clip_fraction", "0..1", "share of rows whose probability ratio left the clip range"),
    Metric("train/explained_variance", "-inf..1", "share of the variance of returns that values explain"),
    Metric("train/grad_norm", "", "2-norm of gradients before they are scaled to max_grad_norm"),
    Metric("train/learning_rate", "", "in use for this update"),
    Metric("train/clip_range", "", "in use for this update"),
    Metric("train/ratio_error", "", "max |ratio - 1| before the first optimizer step; in lockstep 0 but for rounding"),
    Metric("policy_lag/mean", "versions", "how far behind the policy of the consumed env steps was"),
    Metric("policy_lag/max", "versions", "the same, of the oldest env step of this rollout"),
    Metric("wait/learner_for_experience", "0..1", "share of time this learner has waited for experience"),
    Metric("actors/alive", "actors", "heard of within the lease"),
)


def metrics_of(record: UpdateRecord, previous: UpdateRecord | None = None) -> dict[str, float | int | None]:
    """A value for each of METRICS, in that order; None where there is none yet, or it is not finite.

    `previous` is the record before, of the same loop; rates are None without it.
    """
    training = record.training
    steps_per_second = None
    if previous is not None and record.wall_seconds > previous.wall_seconds:
        steps = record.env_steps - previous.env_steps
        steps_per_second = steps / (record.wall_seconds - previous.wall_seconds)
    waited = record.seconds["waiting"] / record.wall_seconds if record.wall_seconds > 0 else None
    values: dict[str, float | int | None] = {
        "rollout/ep_rew_mean": record.mean_episode_return,
        "rollout/ep_len_mean": record.mean_episode_length,
        "rollout/episodes": record.episodes,
        "time/total_timesteps": record.env_steps,
        "time/fps": steps_per_second,
        "time/time_elapsed": record.wall_seconds,
        "train/n_updates": record.update,
        "train/epochs": training.epochs,
        "train/minibatches": training.minibatches,
        "train/policy_gradient_loss": training.policy_loss,
        "train/value_loss": training.value_loss,
        "train/entropy_loss": -training.entropy,
        "train/approx_kl": training.approx_kl,
        "train/clip_fraction": training.clip_fraction,
        "train/explained_variance": training.explained_variance,
        "train/grad_norm": training.grad_norm,
        "train/learning_rate": training.learning_rate,
        "train/clip_range": training.clip_range,
        "train/ratio_error": training.ratio_error,
        "policy_lag/mean": record.lag_mean,
        "policy_lag/max": record.lag_max,
        "wait/learner_for_experience": waited,
        "actors/alive": record.actors_alive,
    }
    return {name: value if value is None or math.isfinite(value) else None for name, value in values.items()}
