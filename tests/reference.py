"""The published formulas, slow and literal, in float64 with plain loops. Every estimate is compared with these."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def gae(
    rewards: Array, values: Array, next_values: Array, boundary: Array, gamma: float, lambda_: float
) -> tuple[Array, Array]:
    """GAE as the published sum: A_t = sum over l of (gamma * lambda)^l * delta_{t+l}, up to the first boundary."""
    rewards, values, next_values = (np.asarray(array, np.float64) for array in (rewards, values, next_values))
    T, B = rewards.shape
    advantages = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            discount = 1.0
            for k in range(t, T):
                delta = rewards[k, b] + gamma * next_values[k, b] - values[k, b]
                advantages[t, b] += discount * delta
                if boundary[k, b]:
                    break
                discount *= gamma * lambda_
    return advantages, advantages + values


def vtrace(
    rewards: Array,
    values: Array,
    next_values: Array,
    boundary: Array,
    behavior_log_probs: Array,
    target_log_probs: Array,
    gamma: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Array, Array]:
    """V-trace as the published sum: v_t = V_t + sum over k of gamma^(k-t) * (c_t ... c_{k-1}) * rho_k * delta_k."""
    rewards, values, next_values = (np.asarray(array, np.float64) for array in (rewards, values, next_values))
    log_ratio = np.asarray(target_log_probs, np.float64) - np.asarray(behavior_log_probs, np.float64)
    T, B = rewards.shape
    targets = values.copy()
    advantages = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            trace = 1.0
            for k in range(t, T):
                ratio = math.exp(log_ratio[k, b])
                delta = rewards[k, b] + gamma * next_values[k, b] - values[k, b]
                targets[t, b] += trace * min(rho_bar, ratio) * delta
                if boundary[k, b]:
                    break
                trace *= gamma * min(c_bar, ratio)
        for t in range(T):
            following = next_values[t, b] if boundary[t, b] else targets[t + 1, b]
            rho = min(rho_bar, math.exp(log_ratio[t, b]))
            advantages[t, b] = rho * (rewards[t, b] + gamma * following - values[t, b])
    return advantages, targets


def adam(weights: Array, gradients: list[Array], rate: float, beta1: float, beta2: float, epsilon: float) -> Array:
    """Kingma and Ba 2015, algorithm 1, one gradient after the other."""
    weights = np.asarray(weights, np.float64).copy()
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for step, gradient in enumerate((np.asarray(g, np.float64) for g in gradients), start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        corrected_first = first / (1 - beta1**step)
        corrected_second = second / (1 - beta2**step)
        weights -= rate * corrected_first / (np.sqrt(corrected_second) + epsilon)
    return weights
