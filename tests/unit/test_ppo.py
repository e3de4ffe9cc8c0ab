"""The loss against its formula, the update's bookkeeping, and whether it learns."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import reference
import torch
from torch import Tensor

from zmqrl.advantages import compute_advantages
from zmqrl.config import PolicyConfig, PPOConfig
from zmqrl.errors import CheckpointError, ConfigError, TrainingError
from zmqrl.estimates import Evaluation, evaluate_rollout
from zmqrl.optimizer import FlatAdam
from zmqrl.policies import Policy, make_policy
from zmqrl.ppo import LossTerms, PPOTrainer, normalize, ppo_loss
from zmqrl.progress import TrainingStats
from zmqrl.rollout import Rollout
from zmqrl.spaces import BoxSpec, DiscreteSpec

OBSERVATIONS = BoxSpec("float32", (3,), -math.inf, math.inf)


def policy_of(actions: str = "discrete", **fields: object) -> Policy:
    space = DiscreteSpec(3) if actions == "discrete" else BoxSpec("float32", (2,), -1.0, 1.0)
    config = PolicyConfig(hidden_sizes=(8,), **fields)
    return make_policy(OBSERVATIONS, space, config, seed=0)


def rollout_of(policy: Policy, T: int = 16, B: int = 4, seed: int = 0, invalid: float = 0.0) -> Rollout:
    """Random observations, acted upon by the policy itself; a reward depends on the observation."""
    generator = torch.Generator().manual_seed(seed)
    observations = torch.randn(T, B, 3, generator=generator)
    with torch.no_grad():
        actions, log_probs = policy.act(observations.flatten(0, 1), generator)
    terminated = torch.rand(T, B, generator=generator) < 0.1
    valid = torch.rand(T, B, generator=generator) >= invalid
    boundary = terminated | ~valid
    boundary[:-1] |= ~valid[1:]
    boundary[-1] = True
    last = [[T - 1, b] for b in range(B) if bool(valid[-1, b]) and not bool(terminated[-1, b])]
    return Rollout(
        observations=observations,
        actions=actions.unflatten(0, (T, B)),
        rewards=observations[..., 0] + 0.1 * torch.randn(T, B, generator=generator),
        terminated=terminated,
        boundary=boundary,
        valid=valid,
        log_probs=log_probs.unflatten(0, (T, B)),
        versions=torch.zeros(T, B, dtype=torch.int64),
        successor_index=torch.tensor(last, dtype=torch.int64).reshape(-1, 2),
        successor_observations=torch.randn(len(last), 3, generator=generator),
    )


def step(trainer: PPOTrainer, rollout: Rollout, **options: object) -> TrainingStats:
    evaluation = evaluate_rollout(trainer.policy, rollout)
    advantages, returns = compute_advantages(
        rollout.rewards, evaluation.values, evaluation.next_values, rollout.boundary, 0.99, 0.95
    )
    return trainer.train_step(rollout, evaluation, advantages, returns, **options)


def trainer_of(policy: Policy | None = None, **fields: object) -> PPOTrainer:
    return PPOTrainer(policy or policy_of(), PPOConfig(**fields), seed=0)


# --- the loss ------------------------------------------------------------------------------------------


def loss_inputs(rows: int = 6) -> list[Tensor]:
    random = np.random.default_rng(0)
    numbers = random.normal(size=(7, rows)) * 0.3
    numbers[5] *= 4  # advantages of both signs
    return [torch.tensor(row, dtype=torch.float64) for row in numbers]


def terms_of(inputs: list[Tensor], clip_range_vf: float | None = None) -> LossTerms:
    return ppo_loss(*inputs, clip_range=0.2, clip_range_vf=clip_range_vf, vf_coef=0.5, ent_coef=0.01)


@pytest.mark.parametrize("clip_range_vf", [None, 0.1])
def test_loss_is_the_published_formula(clip_range_vf: float | None) -> None:
    inputs = loss_inputs(50)
    log_probs, entropy, values, old_log_probs, old_values, advantages, returns = (x.numpy() for x in inputs)
    terms = terms_of(inputs, clip_range_vf)
    ratio = np.exp(log_probs - old_log_probs)
    surrogate = np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages).mean()
    if clip_range_vf is not None:
        values = old_values + np.clip(values - old_values, -clip_range_vf, clip_range_vf)
    error = ((returns - values) ** 2).mean()
    assert terms.policy_loss.item() == pytest.approx(-surrogate, rel=1e-12)
    assert terms.value_loss.item() == pytest.approx(error, rel=1e-12)
    assert terms.entropy.item() == pytest.approx(entropy.mean(), rel=1e-12)
    assert terms.loss.item() == pytest.approx(-surrogate + 0.5 * error - 0.01 * entropy.mean(), rel=1e-12)
    assert terms.approx_kl.item() == pytest.approx((ratio - 1 - np.log(ratio)).mean(), rel=1e-12)
    clipped = np.abs(ratio - 1) > 0.2
    assert 0 < clipped.mean() < 1
    assert terms.clip_fraction.item() == pytest.approx(clipped.mean(), rel=1e-6)


@pytest.mark.parametrize("clip_range_vf", [None, 0.1])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["log_probs", "entropy", "values"])
def test_gradient_is_the_finite_difference(which: int, clip_range_vf: float | None) -> None:
    inputs = loss_inputs()
    inputs[which].requires_grad_()
    terms_of(inputs, clip_range_vf).loss.backward()
    gradient, shift = inputs[which].grad, 1e-6
    assert gradient is not None
    for row in range(6):
        up, down = ([x.detach().clone() for x in inputs] for _ in range(2))
        up[which][row] += shift
        down[which][row] -= shift
        difference = (terms_of(up, clip_range_vf).loss - terms_of(down, clip_range_vf).loss).item() / (2 * shift)
        assert gradient[row].item() == pytest.approx(difference, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("advantage", "ratio", "flows"), [(1, 1.3, False), (1, 0.7, True), (-1, 1.3, True), (-1, 0.7, False)]
)
def test_a_row_is_clipped_only_where_it_gains(advantage: float, ratio: float, flows: bool) -> None:
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    zero = torch.zeros(1)
    terms_of([log_prob, zero, zero, zero, zero, torch.tensor([float(advantage)]), zero]).loss.backward()
    assert log_prob.grad is not None
    assert bool(log_prob.grad.any()) == flows


def test_normalize_leaves_nothing_undefined() -> None:
    rows = torch.tensor([1.0, 2.0, 6.0])
    expected = (rows.numpy() - 3) / rows.numpy().std()
    np.testing.assert_allclose(normalize(rows).numpy(), expected, rtol=1e-6)
    assert normalize(torch.tensor([5.0])).tolist() == [5.0]
    assert normalize(torch.full((4,), 3.0)).tolist() == [0.0] * 4


# --- once per rollout ----------------------------------------------------------------------------------


def test_each_row_is_bootstrapped_from_its_own_successor() -> None:
    policy = policy_of()
    rollout = rollout_of(policy, T=6, B=2)
    observations = rollout.observations
    terminated = torch.zeros(6, 2, dtype=torch.bool)
    terminated[1, 0] = True
    index = torch.tensor([[3, 0], [5, 0], [2, 1], [5, 1]])
    finals = torch.randn(4, 3)
    rollout = dataclasses.replace(rollout, terminated=terminated, successor_index=index, successor_observations=finals)
    evaluation = evaluate_rollout(policy, rollout)
    with torch.no_grad():
        explicit = {(t, b): policy.value(finals[row : row + 1]).item() for row, (t, b) in enumerate(index.tolist())}
        for t in range(6):
            for b in range(2):
                assert evaluation.values[t, b].item() == pytest.approx(
                    policy.value(observations[t, b : b + 1]).item(), abs=1e-6
                )
                if (t, b) == (1, 0):
                    right = 0.0
                elif (t, b) in explicit:
                    right = explicit[t, b]
                else:
                    right = policy.value(observations[t + 1, b : b + 1]).item()
                assert evaluation.next_values[t, b].item() == pytest.approx(right, abs=1e-6)
    assert not evaluation.values.requires_grad
    torch.testing.assert_close(evaluation.log_probs, rollout.log_probs, rtol=0, atol=1e-6)


def test_functions_of_ones_own_are_asked() -> None:
    policy = policy_of()
    rollout = rollout_of(policy)

    def evaluate(asked: Policy, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert asked is policy
        return torch.full((64,), -2.0), torch.zeros(64), observations[:, 0]

    evaluation = evaluate_rollout(policy, rollout, evaluate, lambda _, observations: observations[:, 1])
    assert torch.equal(evaluation.values, rollout.observations[..., 0])
    assert bool((evaluation.log_probs == -2.0).all())
    t, b = rollout.successor_index.unbind(1)
    assert torch.equal(evaluation.next_values[t, b], rollout.successor_observations[:, 1])


# --- the optimizer -------------------------------------------------------------------------------------


def test_adam_is_the_published_algorithm() -> None:
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=50), [random.normal(size=50) for _ in range(20)]
    weights = torch.tensor(start, dtype=torch.float32)
    adam = FlatAdam(weights, epsilon=1e-5)
    for gradient in gradients:
        adam.step(weights, torch.tensor(gradient, dtype=torch.float32), 0.01, torch.zeros(()))
    expected = reference.adam(start, gradients, 0.01, 0.9, 0.999, 1e-5)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=0, atol=2e-6)
    assert float(adam.steps) == 20


def test_adam_does_nothing_where_it_is_told_of_a_failure() -> None:
    weights, gradients = torch.ones(4), torch.ones(4)
    adam = FlatAdam(weights, epsilon=1e-5)
    adam.step(weights, torch.full((4,), math.nan), 0.01, torch.ones(()))
    assert (weights.tolist(), float(adam.steps)) == ([1.0] * 4, 0.0)
    assert not bool(adam.first_moment.any()) and not bool(adam.second_moment.any())
    adam.step(weights, gradients, 0.01, torch.zeros(()))
    assert weights.tolist() == pytest.approx([0.99] * 4, abs=1e-6)


# --- an update -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("T", "B", "batch_size", "sizes"),
    [
        (65, 1, 64, [32, 33]),
        (130, 1, 64, [43, 43, 44]),
        (127, 1, 64, [63, 64]),
        (63, 1, 64, [63]),
        (200, 1, 64, [50, 50, 50, 50]),
        (16, 4, 64, [64]),
        (1, 1, 64, [1]),
        (3, 1, 2, [3]),
        (5, 1, 2, [2, 3]),
        (65, 1, 2, [2] * 31 + [3]),
    ],
)
def test_rows_are_spread_evenly_and_each_is_used_once_per_epoch(
    T: int, B: int, batch_size: int, sizes: list[int]
) -> None:
    policy = policy_of()
    rollout = rollout_of(policy, T=T, B=B)
    seen: list[list[float]] = []

    def evaluate(policy: Policy, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen.append(observations[:, 0].tolist())
        return policy.evaluate_actions(observations, actions)

    stats = step(trainer_of(policy, batch_size=batch_size, n_epochs=3), rollout, evaluate_fn=evaluate)
    assert all(math.isfinite(value) for value in dataclasses.asdict(stats).values())
    assert math.isfinite(float(policy.flat.weights.sum()))
    assert (stats.minibatches, stats.epochs) == (3 * len(sizes), 3)
    everything = sorted(rollout.observations[..., 0].flatten().tolist())
    for epoch in range(3):
        parts = seen[epoch * len(sizes) : (epoch + 1) * len(sizes)]
        assert sorted(len(part) for part in parts) == sizes
        assert sorted(itertools.chain(*parts)) == everything
    if T * B > 3:
        assert seen[0] != seen[len(sizes)]  # another order in each epoch


def test_invalid_rows_are_used_nowhere() -> None:
    config = {"batch_size": 16, "n_epochs": 2}
    results = []
    for garbage in (0.0, 1e6):
        policy = policy_of(normalize_observations=True)
        rollout = rollout_of(policy, invalid=0.3)
        invalid = ~rollout.valid
        assert bool(invalid.any())
        unused = invalid.clone()  # that of an invalid row behind a valid one is the valid one's successor
        unused[1:] &= invalid[:-1] | rollout.terminated[:-1]
        assert bool(unused.any())
        rollout.observations[unused] += garbage
        rollout.rewards[invalid] += garbage
        rollout.log_probs[invalid] -= garbage
        trainer = trainer_of(policy, **config)
        stats = step(trainer, rollout)
        results.append((stats, trainer.parameters_sha256()))
        assert int(policy.flat.tensors()["normalizer.count"]) == int(rollout.valid.sum())
    assert results[0] == results[1]


def test_a_rollout_without_a_valid_row_changes_only_the_count() -> None:
    trainer = trainer_of()
    rollout = rollout_of(trainer.policy)
    before = trainer.parameters_sha256()
    stats = step(trainer, dataclasses.replace(rollout, valid=torch.zeros_like(rollout.valid)))
    assert (stats.epochs, stats.minibatches, trainer.counters.updates) == (0, 0, 1)
    assert all(math.isfinite(value) for value in dataclasses.asdict(stats).values())
    assert trainer.parameters_sha256() == before


@pytest.mark.parametrize("actions", ["discrete", "box"])
def test_the_first_ratio_is_1_and_a_lag_shows(actions: str) -> None:
    trainer = trainer_of(policy_of(actions), n_epochs=2)
    rollout = rollout_of(trainer.policy)
    assert step(trainer, rollout).ratio_error < 1e-5
    shifted = dataclasses.replace(rollout, log_probs=evaluate_rollout(trainer.policy, rollout).log_probs - 0.1)
    assert step(trainer, shifted).ratio_error == pytest.approx(math.exp(0.1) - 1, rel=1e-4)


def test_the_ratio_is_1_at_the_log_probs_that_are_given() -> None:
    trainer = trainer_of(n_epochs=1, batch_size=64)
    rollout = rollout_of(trainer.policy)
    lagged = dataclasses.replace(rollout, log_probs=rollout.log_probs - 0.5)
    now = evaluate_rollout(trainer.policy, lagged).log_probs
    assert step(trainer, lagged, old_log_probs=now).approx_kl == pytest.approx(0.0, abs=1e-9)
    assert step(trainer, lagged).approx_kl > 0.1


def test_kl_stops_before_the_step_and_counts_what_was_run() -> None:
    policy = policy_of()
    trainer = trainer_of(policy, target_kl=1e-9, learning_rate=0.01, batch_size=16, n_epochs=5)
    stats = step(trainer, rollout_of(policy))
    assert (stats.minibatches, stats.epochs) == (1, 1)  # the first has ratio 1, the second is beyond the target
    assert stats.approx_kl > 0.0  # that of the minibatch which stopped it is part of the mean
    assert float(trainer.state()[0]["adam.steps"]) == 1.0
    whole = step(trainer_of(target_kl=1e9, batch_size=16, n_epochs=5), rollout_of(policy_of()))
    assert (whole.minibatches, whole.epochs) == (20, 5)


def test_kl_beyond_the_target_from_the_start_trains_nothing() -> None:
    trainer = trainer_of(target_kl=0.01)
    rollout = rollout_of(trainer.policy)
    before = trainer.parameters_sha256()
    stats = step(trainer, dataclasses.replace(rollout, log_probs=rollout.log_probs - 1.0))
    assert (stats.minibatches, stats.epochs, stats.grad_norm) == (0, 0, 0.0)
    assert stats.approx_kl == pytest.approx(math.e - 2, rel=1e-3)
    assert trainer.parameters_sha256() == before


def test_the_gradient_is_clipped_by_its_norm() -> None:
    moved = []
    for limit in (1e-3, 1e9):
        trainer = trainer_of(n_epochs=1, batch_size=64, max_grad_norm=limit)
        stats = step(trainer, rollout_of(trainer.policy))
        assert stats.grad_norm > 0.1  # before clipping
        moved.append(float(trainer.state()[0]["adam.first_moment"].norm()) / 0.1)
        assert moved[-1] == pytest.approx(min(limit, stats.grad_norm), rel=1e-3)


def test_explained_variance() -> None:
    trainer = trainer_of(n_epochs=1)
    rollout = rollout_of(trainer.policy)
    advantages = torch.randn(rollout.rewards.shape)
    returns = torch.randn(rollout.rewards.shape)
    for values, targets, right in (
        (returns, returns, 1.0),
        (torch.zeros_like(returns), returns, 0.0),
        (-returns, returns, -3.0),
        (returns, torch.ones_like(returns), 0.0),
    ):
        evaluation = Evaluation(values, values, rollout.log_probs)
        found = trainer.train_step(rollout, evaluation, advantages, targets).explained_variance
        assert found == pytest.approx(right, abs=1e-6)


def test_statistics_change_after_the_last_epoch_only() -> None:
    policy = policy_of(normalize_observations=True)
    rollout = rollout_of(policy)
    counts = []

    def evaluate(policy: Policy, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        counts.append(int(policy.flat.tensors()["normalizer.count"]))
        return policy.evaluate_actions(observations, actions)

    trainer = trainer_of(policy, n_epochs=2, batch_size=16)
    step(trainer, rollout, evaluate_fn=evaluate)
    step(trainer, rollout, evaluate_fn=evaluate)
    assert counts == [0] * 8 + [64] * 8
    mean = rollout.observations.flatten(0, 1).double().mean(0)
    torch.testing.assert_close(policy.flat.tensors()["normalizer.mean"], mean)


def test_parameters_stay_views_of_the_flat_buffer() -> None:
    trainer = trainer_of(policy_of(normalize_observations=True))
    for seed in range(2):
        step(trainer, rollout_of(trainer.policy, seed=seed))
    trainer.policy.flat.check()
    twin = policy_of(normalize_observations=True)
    twin.flat.load(trainer.policy_broadcast(7).parameters)
    assert twin.flat.sha256() == trainer.parameters_sha256()
    assert all(
        torch.equal(a, b) for a, b in zip(twin.state_dict().values(), trainer.policy.state_dict().values(), strict=True)
    )
    assert trainer.policy_broadcast(7).version == 7


# --- schedules -----------------------------------------------------------------------------------------


def test_linear_schedules_follow_the_progress() -> None:
    trainer = trainer_of(
        n_epochs=1, learning_rate=0.01, learning_rate_schedule="linear", clip_range=0.4, clip_range_schedule="linear"
    )
    rollout = rollout_of(trainer.policy)
    stats = [step(trainer, rollout, progress=progress) for progress in (0.0, 0.25, 0.5, 1.0)]
    assert [one.learning_rate for one in stats] == pytest.approx([0.01, 0.0075, 0.005, 0.0])
    assert [one.clip_range for one in stats] == pytest.approx([0.4, 0.3, 0.2, 0.0])
    before = trainer.policy.flat.weights.clone()
    step(trainer, rollout, progress=1.0)
    assert torch.equal(trainer.policy.flat.weights, before)


def test_a_rate_that_is_set_ends_the_schedule() -> None:
    trainer = trainer_of(n_epochs=1, learning_rate_schedule="linear")
    rollout = rollout_of(trainer.policy)
    trainer.set_learning_rate(0.02)
    assert [step(trainer, rollout, progress=progress).learning_rate for progress in (0.1, 0.9)] == [0.02, 0.02]
    for wrong in (0.0, -1.0, 1.5, math.nan, math.inf):
        with pytest.raises(ConfigError, match="learning_rate"):
            trainer.set_learning_rate(wrong)
    assert step(trainer_of(n_epochs=1), rollout, progress=0.9).learning_rate == 3e-4


# --- what is not finite --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["rewards", "log_probs", "observations"])
def test_inputs_that_are_not_finite_change_nothing(field: str, value: float) -> None:
    trainer = trainer_of(policy_of(normalize_observations=True), batch_size=16)
    step(trainer, rollout_of(trainer.policy))
    before, facts = trainer.state()
    rollout = rollout_of(trainer.policy, seed=1)
    getattr(rollout, field)[5, 2] = value
    if field == "observations" and math.isinf(value):
        rollout.observations[5, 2] = math.nan  # an infinite one saturates, and stays finite
    with pytest.raises(TrainingError, match=r"update 2: the .* of row \d, column 2 is .*; nothing has been changed"):
        step(trainer, rollout)
    after, facts_after = trainer.state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert facts == facts_after


@pytest.mark.parametrize(
    ("output", "quantity"),
    [(0, "policy loss"), (1, "entropy"), (2, "value loss")],
    ids=["log_prob", "entropy", "value"],
)
@pytest.mark.parametrize("at_once", [True, False], ids=["read at once", "read at the end, as on a GPU"])
def test_a_minibatch_that_is_not_finite_is_named_and_the_update_undone(
    output: int, quantity: str, at_once: bool
) -> None:
    trainer = trainer_of(batch_size=16, n_epochs=3)
    trainer._reads_each_minibatch = at_once
    rollout = rollout_of(trainer.policy)
    before = trainer.state()[0]
    states: list[dict[str, Tensor]] = []

    def evaluate(policy: Policy, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states.append(trainer.state()[0])
        outputs = list(policy.evaluate_actions(observations, actions))
        if len(states) == 7:
            outputs[output] = outputs[output] * math.nan
        return outputs[0], outputs[1], outputs[2]

    with pytest.raises(TrainingError, match=f"update 1, epoch 2, minibatch 3: the {quantity} is nan"):
        step(trainer, rollout, evaluate_fn=evaluate)
    after = trainer.state()[0]
    assert len(states) == (7 if at_once else 12)
    assert not torch.equal(states[0]["adam.first_moment"], states[6]["adam.first_moment"])
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert trainer.counters.updates == 0
    trained = step(trainer, rollout)  # and goes on as if nothing had been
    assert trained == step(trainer_of(batch_size=16, n_epochs=3), rollout)


def test_a_gradient_that_is_not_finite_is_named() -> None:
    trainer = trainer_of(batch_size=64, n_epochs=1)
    before = trainer.parameters_sha256()

    def evaluate(policy: Policy, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_probs, entropy, values = policy.evaluate_actions(observations, actions)
        return log_probs, entropy, values + (values - values.detach()).abs().sqrt()  # finite, with an infinite slope

    with pytest.raises(TrainingError, match="epoch 1, minibatch 1: the gradient norm is nan"):
        step(trainer, rollout_of(trainer.policy), evaluate_fn=evaluate)
    assert trainer.parameters_sha256() == before


# --- continuation --------------------------------------------------------------------------------------


def test_a_restored_trainer_goes_on_bit_for_bit() -> None:
    def fresh() -> PPOTrainer:
        return trainer_of(policy_of("box", normalize_observations=True), batch_size=16, n_epochs=3)

    def run(trainer: PPOTrainer, updates: range) -> list[TrainingStats]:
        fixed = policy_of("box", normalize_observations=True)
        return [step(trainer, rollout_of(fixed, seed=update), progress=update / 10) for update in updates]

    straight = fresh()
    run(straight, range(3))
    straight.set_learning_rate(0.005)
    straight.counters.env_steps, straight.counters.version = 192, 3
    tensors, facts = straight.state()
    facts = json.loads(json.dumps(facts, allow_nan=False))
    resumed = PPOTrainer(policy_of("box", normalize_observations=True), straight.config, seed=99)
    run(resumed, range(5, 6))  # it has a history of its own, of which nothing may remain
    resumed.load_state(tensors, facts)
    assert resumed.parameters_sha256() == straight.parameters_sha256()
    assert resumed.counters == straight.counters
    assert run(straight, range(3, 6)) == run(resumed, range(3, 6))
    assert resumed.counters.updates == 6
    one, other = straight.state(), resumed.state()
    assert one[1] == other[1]
    assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])
    resumed.policy.flat.check()


def test_a_state_is_a_copy() -> None:
    trainer = trainer_of(n_epochs=1)
    tensors, _ = trainer.state()
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    step(trainer, rollout_of(trainer.policy))
    assert all(torch.equal(tensors[name], copies[name]) for name in tensors)


def test_the_state_of_another_network_is_refused_and_changes_nothing() -> None:
    trainer = trainer_of()
    before = trainer.parameters_sha256()
    tensors, facts = trainer_of(policy_of("box")).state()
    with pytest.raises(CheckpointError, match="of another network"):
        trainer.load_state(tensors, facts)
    own, _ = trainer_of(make_policy(OBSERVATIONS, DiscreteSpec(3), PolicyConfig(hidden_sizes=(8,)), seed=5)).state()
    with pytest.raises(CheckpointError, match="lacks a count"):
        trainer.load_state(own, {"counters": {}, "learning_rate": None})
    assert trainer.parameters_sha256() == before


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    def digest(seed: int) -> str:
        trainer = PPOTrainer(policy_of(), PPOConfig(batch_size=16), seed=seed)
        step(trainer, rollout_of(trainer.policy))
        return trainer.parameters_sha256()

    assert digest(0) == digest(0) != digest(1)


# --- the whole -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", ["discrete", "box"])
def test_it_learns_a_contextual_bandit(actions: str) -> None:
    """The best action depends on the observation; a policy that ignores it gets about half of the reward at most."""
    policy = policy_of(actions)
    trainer = trainer_of(policy, learning_rate=0.01, batch_size=128, n_epochs=4, ent_coef=0.0)
    generator = torch.Generator().manual_seed(0)

    def play(deterministic: bool) -> tuple[Rollout, float]:
        rollout = rollout_of(policy, T=16, B=32, seed=int(torch.randint(2**31, (), generator=generator)))
        with torch.no_grad():
            flat = rollout.observations.flatten(0, 1)
            chosen, log_probs = policy.act(flat, generator, deterministic)
        if actions == "discrete":
            rewards = (chosen == flat.argmax(-1)).float()
        else:
            rewards = 1.0 - (chosen - flat[:, :2]).abs().mean(-1)
        ends = torch.ones_like(rollout.terminated)
        unflatten = {"actions": chosen, "log_probs": log_probs, "rewards": rewards}
        return dataclasses.replace(
            rollout, terminated=ends, boundary=ends, **{k: v.unflatten(0, (16, 32)) for k, v in unflatten.items()}
        ), rewards.mean().item()

    before = play(deterministic=True)[1]
    for _ in range(60):
        step(trainer, play(deterministic=False)[0])
    assert before < 0.6
    assert play(deterministic=True)[1] > 0.85


def test_an_update_loads_neither_compiler_nor_triton() -> None:
    script = """
import sys, torch
from zmqrl.config import PolicyConfig, PPOConfig
from zmqrl.policies import make_policy
from zmqrl.estimates import evaluate_rollout
from zmqrl.ppo import PPOTrainer
from zmqrl.advantages import compute_advantages
from zmqrl.rollout import Rollout
from zmqrl.spaces import BoxSpec
space = BoxSpec("float32", (2,), -1.0, 1.0)
trainer = PPOTrainer(make_policy(space, space, PolicyConfig(normalize_observations=True), seed=0), PPOConfig())
flags, zeros = torch.zeros(4, 2, dtype=torch.bool), torch.zeros(4, 2)
rollout = Rollout(torch.randn(4, 2, 2), torch.randn(4, 2, 2), zeros, flags, flags, ~flags, zeros,
                  zeros.long(), torch.zeros(0, 2).long(), torch.zeros(0, 2))
evaluation = evaluate_rollout(trainer.policy, rollout)
estimates = compute_advantages(rollout.rewards, evaluation.values, evaluation.next_values, flags, 0.99, 0.95)
assert trainer.train_step(rollout, evaluation, *estimates).minibatches > 0
trainer.policy_broadcast(1), trainer.state(), trainer.parameters_sha256()
print(*[name for name in sys.modules if name.startswith(("triton", "torch._dynamo", "torch._inductor"))])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
