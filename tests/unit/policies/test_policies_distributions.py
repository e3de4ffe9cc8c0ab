"""Log-probs and entropies against independent formulas, samples against their probabilities, and the way out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zmqrl.errors import UnsupportedSpace
from zmqrl.policies.distributions import (
    Categorical,
    DiagonalGaussian,
    environment_actions,
    make_distribution,
)
from zmqrl.spaces import (
    BoxSpec,
    DictSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
    TupleSpec,
    sampled,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_categorical_log_probs_and_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5], [30.0, 0.0, -30.0]])
    actions = torch.tensor([2, 0, 1])
    log_probs, entropy = Categorical(3).evaluate(logits, actions)
    for row in range(3):
        weights = [math.exp(x) for x in logits[row].tolist()]
        probabilities = [weight / sum(weights) for weight in weights]
        expected = -sum(p * math.log(p) for p in probabilities)
        assert float(log_probs[row]) == pytest.approx(math.log(probabilities[int(actions[row])]), rel=1e-6)
        assert float(entropy[row]) == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_categorical_samples_have_their_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = 200_000
    actions, log_probs = Categorical(4).sample(probabilities.log().expand(rows, 4), seeded(), False)
    frequencies = torch.bincount(actions, minlength=4) / rows
    deviations = (probabilities * (1 - probabilities) / rows).sqrt()
    assert bool(((frequencies - probabilities).abs() < 4 * deviations).all())
    torch.testing.assert_close(log_probs, probabilities.log()[actions])


def test_categorical_never_takes_an_impossible_action() -> None:
    logits = torch.tensor([0.0, -math.inf, 1.0]).expand(50_000, 3)
    actions, _ = Categorical(3).sample(logits, seeded(1), False)
    assert not bool((actions == 1).any())


def test_standard_normal_log_prob_of_3() -> None:
    log_probs, entropy = DiagonalGaussian((1,), 0.0).evaluate(torch.zeros(1, 1), torch.tensor([[3.0]]))
    assert log_probs.item() == pytest.approx(-5.41894, abs=5e-6)
    assert entropy.item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e), abs=1e-6)


def test_gaussian_log_probs_and_entropy_are_sums_over_dimensions() -> None:
    gaussian = DiagonalGaussian((2, 3), -0.5)
    with torch.no_grad():
        gaussian.log_std.copy_(torch.linspace(-1, 1, 6))
    random = np.random.default_rng(0)
    mean, actions = random.normal(size=(5, 6)), random.normal(size=(5, 2, 3))
    log_probs, entropy = gaussian.evaluate(torch.tensor(mean).float(), torch.tensor(actions).float())
    deviation = np.exp(np.linspace(-1, 1, 6))
    density = np.exp(-((actions.reshape(5, 6) - mean) ** 2) / (2 * deviation**2)) / (deviation * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(log_probs.detach().numpy(), np.log(density).sum(axis=1), rtol=1e-5)
    expected = 0.5 * np.log(2 * math.pi * math.e * deviation**2).sum()
    np.testing.assert_allclose(entropy.detach().numpy(), np.full(5, expected), rtol=1e-6)


def test_gaussian_samples_have_their_moments() -> None:
    gaussian = DiagonalGaussian((2,), math.log(0.5))
    mean = torch.tensor([1.0, -2.0]).expand(100_000, 2)
    with torch.inference_mode():
        actions, _ = gaussian.sample(mean, seeded(), False)
    error = 0.5 / math.sqrt(100_000)
    assert bool(((actions.mean(0) - mean[0]).abs() < 4 * error).all())
    assert bool(((actions.std(0) - 0.5).abs() < 4 * error).all())


@pytest.mark.parametrize("distribution", [Categorical(4), DiagonalGaussian((2, 2), 0.3)])
def test_sampled_log_probs_are_the_evaluated_ones(distribution: Categorical | DiagonalGaussian) -> None:
    outputs = torch.randn(64, 4, generator=seeded(2))
    for deterministic in (False, True):
        actions, log_probs = distribution.sample(outputs, seeded(3), deterministic)
        assert torch.equal(log_probs, distribution.evaluate(outputs, actions)[0])


def test_sampling_is_the_generators_alone_and_deterministic_is_the_mode() -> None:
    logits = torch.randn(100, 5, generator=seeded())
    one, other = (Categorical(5).sample(logits, seeded(7), False)[0] for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, Categorical(5).sample(logits, seeded(8), False)[0])
    assert torch.equal(Categorical(5).sample(logits, seeded(), True)[0], logits.argmax(-1))
    mean = logits.reshape(-1, 5)
    assert torch.equal(DiagonalGaussian((5,), 1.0).sample(mean, seeded(), True)[0], mean)


# --- the way out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("space", "first"), [(DiscreteSpec(3, -1), -1), (DiscreteSpec(1, 2, "int32"), 2)])
def test_discrete_actions_travel_from_0_and_the_environment_gets_its_start(space: DiscreteSpec, first: int) -> None:
    assert sampled(space) == DiscreteSpec(space.n, 0, "int64")
    applied = environment_actions(space, torch.arange(space.n))
    assert applied.tolist() == list(range(first, first + space.n))
    assert applied.dtype == space.dtype


def test_box_actions_are_clipped_only_on_the_way_out() -> None:
    space = BoxSpec("float64", (2,), (-1.0, 0.0), (1.0, math.inf))
    assert sampled(space) == BoxSpec("float32", (2,), -math.inf, math.inf)
    actions = torch.tensor([[3.0, -2.0], [-0.5, 100.0]])
    applied = environment_actions(space, actions)
    assert applied.tolist() == [[1.0, 0.0], [-0.5, 100.0]]
    assert (applied.dtype, applied.shape) == (np.float64, (2, 2))
    assert actions.tolist() == [[3.0, -2.0], [-0.5, 100.0]]


def test_box_of_no_dimension_and_of_integers() -> None:
    assert environment_actions(BoxSpec("float32", (), -1.0, 1.0), torch.tensor([0.5, 4.0])).tolist() == [0.5, 1.0]
    applied = environment_actions(BoxSpec("int32", (1,), -2.0, 2.0), torch.tensor([[0.6], [-9.0]]))
    assert (applied.tolist(), applied.dtype) == ([[1], [-2]], np.int32)


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (MultiDiscreteSpec((3, 2), (2,)), r"MultiDiscrete\(\[3, 2\]\)"),
        (MultiBinarySpec((4,)), "MultiBinary"),
        (DictSpec((("a", DiscreteSpec(2)),)), r"Dict\(a: Discrete\(2\)\)"),
        (TupleSpec((DiscreteSpec(2),)), "Tuple"),
        (BoxSpec("bool", (2,), 0, 1), r"Box\(2,\) bool"),
    ],
)
def test_other_spaces_are_refused_by_name_with_a_remedy(space: SpaceSpec, name: str) -> None:
    with pytest.raises(UnsupportedSpace, match=f"action space {name}.*wrap"):
        make_distribution(space, 0.0)
