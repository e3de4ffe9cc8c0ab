"""GAE and V-trace against the published sums, for every kind of row."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference
import torch

from zmqrl.advantages import compute_advantages, compute_vtrace_advantages

ROW_KINDS = ("running", "terminated", "truncated", "both", "cut", "invalid")


class Case:
    """Random arrays [T, B] in which each row is of a kind, drawn at random or fixed at one row."""

    def __init__(self, T: int, B: int, seed: int = 0, kinds: np.ndarray | None = None) -> None:
        random = np.random.default_rng(seed)
        if kinds is None:
            kinds = random.choice(len(ROW_KINDS), size=(T, B), p=[0.9, 0.02, 0.02, 0.02, 0.02, 0.02])
        kind = np.array(ROW_KINDS)[kinds]
        valid = kind != "invalid"
        terminated = (kind == "terminated") | (kind == "both")
        boundary = kind != "running"
        boundary[:-1] |= ~valid[1:]
        boundary[-1] = True
        self.rewards = random.normal(size=(T, B)).astype(np.float32)
        self.values = random.normal(size=(T, B)).astype(np.float32) * 3
        self.next_values = random.normal(size=(T, B)).astype(np.float32) * 3  # of true successors, at boundaries
        running = ~boundary[:-1]
        self.next_values[:-1][running] = self.values[1:][running]
        self.next_values[terminated] = 0.0
        self.boundary = boundary
        self.behavior = random.normal(size=(T, B)).astype(np.float32) * 0.5 - 1
        self.target = self.behavior + random.normal(size=(T, B)).astype(np.float32) * 0.5

    def arrays(self) -> list[np.ndarray]:
        return [self.rewards, self.values, self.next_values, self.boundary]

    def tensors(self) -> list[torch.Tensor]:
        return [torch.from_numpy(array) for array in self.arrays()]

    def log_probs(self) -> list[torch.Tensor]:
        return [torch.from_numpy(self.behavior), torch.from_numpy(self.target)]


def assert_within_bar(result: torch.Tensor, expected: np.ndarray) -> None:
    assert result.dtype == torch.float32
    bar = 1e-5 * max(1.0, float(np.abs(expected).max()))
    assert float(np.abs(result.numpy().astype(np.float64) - expected).max()) <= bar


@pytest.mark.parametrize(("T", "B"), [(1, 1), (1, 5), (2, 3), (7, 4), (64, 3), (100, 8), (257, 4)])
@pytest.mark.parametrize(("gamma", "lambda_"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0)])
def test_gae_equals_the_published_sum(T: int, B: int, gamma: float, lambda_: float) -> None:
    case = Case(T, B, seed=T)
    expected = reference.gae(*case.arrays(), gamma, lambda_)
    for result, right in zip(compute_advantages(*case.tensors(), gamma, lambda_), expected, strict=True):
        assert_within_bar(result, right)


@pytest.mark.parametrize(("T", "B"), [(1, 1), (2, 3), (7, 4), (100, 8), (257, 4)])
@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 0.5), (0.7, 1.3)])
def test_vtrace_equals_the_published_sum(T: int, B: int, rho_bar: float, c_bar: float) -> None:
    case = Case(T, B, seed=T)
    expected = reference.vtrace(*case.arrays(), case.behavior, case.target, 0.99, rho_bar, c_bar)
    results = compute_vtrace_advantages(*case.tensors(), *case.log_probs(), 0.99, rho_bar, c_bar)
    for result, right in zip(results, expected, strict=True):
        assert_within_bar(result, right)


@pytest.mark.parametrize("pair", list(itertools.product(range(len(ROW_KINDS)), repeat=2)))
def test_every_kind_of_row_before_every_other(pair: tuple[int, int]) -> None:
    kinds = np.zeros((5, 2), int)
    kinds[1:3, 0] = pair
    kinds[3:5, 1] = pair
    case = Case(5, 2, seed=1, kinds=kinds)
    assert_within_bar(compute_advantages(*case.tensors(), 0.99, 0.95)[0], reference.gae(*case.arrays(), 0.99, 0.95)[0])
    right = reference.vtrace(*case.arrays(), case.behavior, case.target, 0.99, 1.0, 1.0)
    for result, expected in zip(
        compute_vtrace_advantages(*case.tensors(), *case.log_probs(), 0.99), right, strict=True
    ):
        assert_within_bar(result, expected)


def test_nothing_behind_a_boundary_reaches_the_rows_before_it() -> None:
    case = Case(9, 1, kinds=np.zeros((9, 1), int))
    case.boundary[4] = True
    before = compute_advantages(*case.tensors(), 0.99, 0.95)[0]
    case.rewards[5:] += 1000.0
    case.values[5:] -= 1000.0
    after = compute_advantages(*case.tensors(), 0.99, 0.95)[0]
    assert torch.equal(before[:5], after[:5])
    assert not torch.equal(before[5:], after[5:])


@pytest.mark.parametrize(
    ("last_next_value", "expected"),
    [(0.0, [1.01715, 0.03950, -1.00000]), (2.0, [2.76854, 1.90169, 0.98000])],
    ids=["terminated", "truncated"],
)
def test_worked_numbers_of_gae(last_next_value: float, expected: list[float]) -> None:
    rewards, values = torch.ones(3, 1), torch.full((3, 1), 2.0)
    next_values = torch.tensor([[2.0], [2.0], [last_next_value]])
    boundary = torch.tensor([[False], [False], [True]])
    advantages, returns = compute_advantages(rewards, values, next_values, boundary, 0.99, 0.95)
    assert advantages.flatten().tolist() == pytest.approx(expected, abs=5e-6)
    assert torch.equal(returns, advantages + values)


def test_worked_numbers_of_vtrace() -> None:
    def column(*numbers: float) -> torch.Tensor:
        return torch.tensor(numbers).reshape(-1, 1)

    advantages, targets = compute_vtrace_advantages(
        rewards=column(1.0, 0.0, -1.0, 2.0),
        values=column(0.5, 0.6, 0.7, 0.8),
        next_values=column(0.6, 0.7, 0.8, 0.9),
        boundary=torch.tensor([[False], [False], [False], [True]]),
        behavior_log_probs=column(-0.5, -1.0, -0.7, -0.2),
        target_log_probs=column(-0.2, -1.5, -0.4, -0.6),
        gamma=0.99,
        rho_bar=1.0,
        c_bar=1.0,
    )
    assert targets.flatten().tolist() == pytest.approx([1.93496, 0.94440, 1.17962, 2.20164], abs=5e-6)
    assert advantages.flatten().tolist() == pytest.approx([1.43496, 0.34440, 0.47962, 1.40164], abs=5e-6)


def test_on_policy_vtrace_is_gae_with_lambda_1() -> None:
    case = Case(100, 6, seed=3)
    behavior, _ = case.log_probs()
    gae_advantages, gae_returns = compute_advantages(*case.tensors(), 0.99, 1.0)
    advantages, targets = compute_vtrace_advantages(*case.tensors(), behavior, behavior, 0.99)
    torch.testing.assert_close(advantages, gae_advantages, rtol=0, atol=1e-5 * float(gae_advantages.abs().max()))
    torch.testing.assert_close(targets, gae_returns, rtol=0, atol=1e-5 * float(gae_returns.abs().max()))


def test_the_clips_of_vtrace_act_apart() -> None:
    case = Case(50, 4, seed=5)
    case.target = case.behavior + 1.0  # every ratio is e, so that both clips act
    first = compute_vtrace_advantages(*case.tensors(), *case.log_probs(), 0.99, 1.0, 1.0)
    wide_rho = compute_vtrace_advantages(*case.tensors(), *case.log_probs(), 0.99, 2.0, 1.0)
    wide_c = compute_vtrace_advantages(*case.tensors(), *case.log_probs(), 0.99, 1.0, 2.0)
    assert_within_bar((wide_rho[1] - torch.from_numpy(case.values)) / 2, (first[1].numpy() - case.values))
    last = -1  # the last row has no trace behind it: c_bar must not matter there
    assert torch.equal(wide_c[1][last], first[1][last])
    assert not torch.equal(wide_c[1][:last], first[1][:last])


def test_inputs_stay_as_they_are() -> None:
    case = Case(33, 2)
    tensors = case.tensors()
    copies = [tensor.clone() for tensor in tensors]
    compute_advantages(*tensors, 0.99, 0.95)
    compute_vtrace_advantages(*tensors, *case.log_probs(), 0.99)
    assert all(torch.equal(one, other) for one, other in zip(tensors, copies, strict=True))


def test_float64_stays_float64() -> None:
    case = Case(100, 4)
    doubles = [torch.from_numpy(array.astype(np.float64)) for array in case.arrays()[:3]]
    boundary = torch.from_numpy(case.boundary)
    advantages, _ = compute_advantages(*doubles, boundary, 0.99, 0.95)
    expected, _ = reference.gae(*case.arrays(), 0.99, 0.95)
    assert advantages.dtype == torch.float64
    assert float(np.abs(advantages.numpy() - expected).max()) < 1e-12
    probabilities = [torch.from_numpy(array.astype(np.float64)) for array in (case.behavior, case.target)]
    targets = compute_vtrace_advantages(*doubles, boundary, *probabilities, gamma=0.99)[1]
    right = reference.vtrace(*case.arrays(), case.behavior, case.target, 0.99, 1.0, 1.0)[1]
    assert float(np.abs(targets.numpy() - right).max()) < 1e-12
