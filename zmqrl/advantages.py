"""How good was each action? GAE and V-trace, as pure functions of arrays `[T, B]`.

Legend: T rows in time, B columns; any float dtype, which is also the dtype of the result. For row t,

    V_t     values:       value of the observation the action was chosen from
    V'_t    next_values:  0 where the step terminated (also if it was truncated too), else the value of its own
                          true successor; V_{t+1} where no boundary stands behind row t
    b_t     boundary:     nothing behind this row belongs to it: terminated, truncated, cut, last row, or next to
                          an invalid row

`values` and `next_values` come from one network, evaluated once per rollout (`estimates.evaluate_rollout`), so no
estimate mixes two.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compute_advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, boundary: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation (Schulman et al. 2016, "High-Dimensional Continuous Control Using GAE").

        delta_t = r_t + gamma * V'_t - V_t
        A_t     = delta_t + gamma * lambda * (0 if b_t else A_{t+1})

    Returns (advantages, returns = advantages + values).
    """
    deltas = rewards + gamma * next_values - values
    advantages = _backward_sum(deltas, gamma * gae_lambda * (~boundary).to(deltas.dtype))
    return advantages, advantages + values


def compute_vtrace_advantages(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    boundary: Tensor,
    behavior_log_probs: Tensor,
    target_log_probs: Tensor,
    gamma: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace (Espeholt et al. 2018, "IMPALA", equation 1): off-policy correction with clipped importance weights.

        rho_t = min(rho_bar, pi_t / mu_t),   c_t = min(c_bar, pi_t / mu_t)
        v_t   = V_t + rho_t * delta_t + gamma * c_t * (0 if b_t else v_{t+1} - V_{t+1})
        A_t   = rho_t * (r_t + gamma * (V'_t if b_t else v_{t+1}) - V_t)

    Returns (advantages A, targets v). On-policy it is GAE with lambda = 1. The advantages already carry rho_t.
    """
    ratio = torch.exp(target_log_probs - behavior_log_probs)
    rho = ratio.clamp(max=rho_bar)
    deltas = rewards + gamma * next_values - values
    running = (~boundary).to(deltas.dtype)
    corrections = _backward_sum(rho * deltas, gamma * ratio.clamp(max=c_bar) * running)  # v_t - V_t
    following = torch.zeros_like(corrections)
    following[:-1] = corrections[1:] * running[:-1]  # v_{t+1} - V'_t: the two V of row t + 1 are one number
    return rho * (deltas + gamma * following), corrections + values


def _backward_sum(terms: Tensor, weights: Tensor) -> Tensor:
    """Solve x_t = terms_t + weights_t * x_{t+1} along dimension 0, with nothing behind the last row.

    By doubling (Hillis and Steele 1986): once x_t sums the terms of rows t .. t+s-1, and w_t is the product of the
    weights over them, adding w_t * x_{t+s} makes it sum 2s terms. 3 operations per doubling of T instead of T.
    """
    total = terms.clone()
    rows, span = total.shape[0], 1
    weights = weights[:-1]
    while span < rows:
        total[:-span] += weights * total[span:]
        weights = weights[:-span] * weights[span:]  # of the rows t that have a row t + 2 * span
        span *= 2
    return total
