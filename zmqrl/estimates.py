"""What the learner's network says about a complete rollout, and the advantages that follow from it.

Legend: T rows, B columns of a rollout, R rows taken together. Everything is evaluated once per rollout, by the
network as it is then, so that no estimate mixes two networks and actors need no critic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from zmqrl.advantages import compute_advantages, compute_vtrace_advantages
from zmqrl.config import AsyncActorLearnerConfig
from zmqrl.policies import Policy
from zmqrl.rollout import Rollout, merge_time, take
from zmqrl.spaces import Tree, map_tree

EvaluateFn = Callable[..., tuple[Tensor, Tensor, Tensor]]
"""(policy, observations, actions, **row_extras) -> (log_probs [R], entropy [R], values [R])."""

ValueFn = Callable[..., Tensor]
"""(policy, observations, **row_extras) -> values [R]."""

EVALUATION_ROWS = 8192
"""Rows evaluated at once when a rollout is complete: bounds the memory of large observations."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the learner's current network says about a rollout; constants for the update."""

    values: Tensor
    """[T, B]."""
    next_values: Tensor
    """[T, B]: V' of `advantages`: 0 where terminated, else of the true successor; 0 also in an invalid last row."""
    log_probs: Tensor
    """[T, B]: of the actions, under the current policy."""


def policy_evaluate(policy: Policy, observations: Tree, actions: Tree) -> tuple[Tensor, Tensor, Tensor]:
    """The default EvaluateFn: the policy's own method."""
    return policy.evaluate_actions(observations, actions)


def _policy_value(policy: Policy, observations: Tree) -> Tensor:
    return policy.value(observations)


@torch.no_grad()
def evaluate_rollout(
    policy: Policy, rollout: Rollout, evaluate_fn: EvaluateFn | None = None, value_fn: ValueFn | None = None
) -> Evaluation:
    """Values, successors' values and log-probs of all rows, from one network at one moment."""
    evaluate, value = evaluate_fn or policy_evaluate, value_fn or _policy_value
    shape = rollout.rewards.shape
    observations, actions = (map_tree(merge_time, tree) for tree in (rollout.observations, rollout.actions))
    log_probs, values = [], []
    for rows in _slices(shape.numel()):
        log_prob, _, row_values = evaluate(policy, take(observations, rows), take(actions, rows))
        log_probs.append(log_prob)
        values.append(row_values)
    all_values = torch.cat(values).view(shape)
    next_values = torch.zeros_like(all_values)
    next_values[:-1] = all_values[1:]  # right wherever the next row's observation is the successor
    for rows in _slices(len(rollout.successor_index)):
        t, b = rollout.successor_index[rows].unbind(1)
        next_values[t, b] = value(policy, take(rollout.successor_observations, rows))
    next_values.masked_fill_(rollout.terminated, 0.0)
    return Evaluation(all_values, next_values, torch.cat(log_probs).view(shape))


def _slices(rows: int) -> list[slice]:
    return [slice(first, first + EVALUATION_ROWS) for first in range(0, rows, EVALUATION_ROWS)]


def estimate(config: AsyncActorLearnerConfig, rollout: Rollout, evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    """(advantages, value targets), each [T, B], by GAE or V-trace."""
    values = (rollout.rewards, evaluation.values, evaluation.next_values, rollout.boundary)
    if not config.use_vtrace:
        return compute_advantages(*values, gamma=config.gamma, gae_lambda=config.gae_lambda)
    return compute_vtrace_advantages(
        *values,
        rollout.log_probs,
        evaluation.log_probs,
        gamma=config.gamma,
        rho_bar=config.vtrace_rho_bar,
        c_bar=config.vtrace_c_bar,
    )


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - var(returns - values) / var(returns), from minus infinity to 1; 0 if all returns are equal."""
    if returns.numel() < 2:
        return 0.0
    variance = float(returns.var(correction=0))
    return 0.0 if variance == 0.0 else 1.0 - float((returns - values).var(correction=0)) / variance


def ratio_error(log_probs: Tensor, behavior_log_probs: Tensor, valid: Tensor) -> float:
    """Max |ratio - 1| over the valid rows, between the learner's policy and the one that acted."""
    error = torch.expm1(log_probs - behavior_log_probs).abs()
    return float(torch.where(valid, error, 0.0).max())
