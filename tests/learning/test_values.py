"""Values of the two-state environment AB, learned through the whole pipeline, against their closed forms.

From A (after each reset) reward 0, to B; in B reward 1, stays. gamma = 0.9. Where the episode ends by truncation,
V(B) = 1 / (1 - 0.9) = 10 and V(A) = 9, whenever it is cut. Where it terminates on step 5, the rows seen in B are one
each with 4, 3, 2 and 1 steps to go, and the network cannot tell them apart; the fixed points below follow from that.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from running import run_training

from zmqrl.config import AsyncActorLearnerConfig, PolicyConfig, PPOConfig
from zmqrl.envs import VectorEnvironment, wrap_envs
from zmqrl.envs.probes import vector_probe
from zmqrl.ppo import PPOTrainer
from zmqrl.transport.bus import LearnerBus

MakeBus = Callable[..., LearnerBus]

MODES = ("next_step", "same_step", "disabled")
ESTIMATORS = {"gae 0": {"gae_lambda": 0.0}, "gae 0.95": {"gae_lambda": 0.95}, "vtrace": {"use_vtrace": True}}
TERMINATED = {"gae 0": (3.08, 2.77), "gae 0.95": (2.31, 3.08), "vtrace": (2.27, 3.09)}
UPDATES, NUM_STEPS, NUM_ENVS = 80, 128, 2


def learned_values(make_bus: MakeBus, probe: str, mode: str, estimator: str) -> tuple[float, float]:
    """(V(B), V(A)), mean over the last 20 updates, at a constant learning rate."""
    config = AsyncActorLearnerConfig(
        num_actors=1,
        num_envs=NUM_ENVS,
        num_steps=NUM_STEPS,
        max_lead_steps=NUM_STEPS,
        total_env_steps=NUM_STEPS * NUM_ENVS * UPDATES,
        gamma=0.9,
        seed=3,
        **ESTIMATORS[estimator],
    )
    ppo = PPOConfig(
        learning_rate=5e-3,
        n_epochs=6,
        batch_size=NUM_STEPS * NUM_ENVS,
        ent_coef=0.0,
        vf_coef=1.0,
        max_grad_norm=10.0,
    )
    states = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # B, A
    values: list[np.ndarray] = []

    def look(trainer: PPOTrainer) -> None:
        with torch.no_grad():
            values.append(trainer.policy.value(states).numpy())

    def environments() -> VectorEnvironment:
        return wrap_envs(vector_probe(probe, NUM_ENVS, mode))

    outcome = run_training(
        make_bus(), config, environments, ppo=ppo, policy=PolicyConfig(hidden_sizes=(16,)), look=look
    )
    assert all(record.training.ratio_error <= 1e-5 for record in outcome.records)
    value_b, value_a = np.mean(values[-20:], axis=0)
    return float(value_b), float(value_a)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("probe", ["AB-trunc-v0", "AB-early-v0"])
def test_truncation_bootstraps_from_the_true_successor(
    make_bus: MakeBus, probe: str, mode: str, estimator: str
) -> None:
    value_b, value_a = learned_values(make_bus, probe, mode, estimator)
    assert value_b == pytest.approx(10.0, rel=0.03)
    assert value_a == pytest.approx(9.0, rel=0.03)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("probe", ["AB-term-v0", "AB-both-v0"])
def test_termination_bootstraps_from_nothing(make_bus: MakeBus, probe: str, mode: str, estimator: str) -> None:
    value_b, value_a = learned_values(make_bus, probe, mode, estimator)
    right_b, right_a = TERMINATED[estimator]
    assert value_b == pytest.approx(right_b, rel=0.03)
    assert value_a == pytest.approx(right_a, rel=0.03)
