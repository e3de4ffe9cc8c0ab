"""Proximal policy optimization (Schulman et al. 2017): the loss, and the trainer that minimizes it.

Legend: T rows, B columns of a rollout, R rows of a minibatch.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zmqrl.config import PPOConfig
from zmqrl.errors import ConfigError, TrainingError
from zmqrl.estimates import EvaluateFn, Evaluation, explained_variance, policy_evaluate, ratio_error
from zmqrl.messages import PolicyBroadcast
from zmqrl.optimizer import FlatAdam, replace_tensors
from zmqrl.policies import Policy
from zmqrl.progress import Counters, TrainingStats
from zmqrl.rollout import Rollout, Rows, valid_rows


class LossTerms(NamedTuple):
    """Scalars of one minibatch; `loss` is what is minimized."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    loss: Tensor


def ppo_loss(
    log_probs: Tensor,
    entropy: Tensor,
    values: Tensor,
    old_log_probs: Tensor,
    old_values: Tensor,
    advantages: Tensor,
    returns: Tensor,
    *,
    clip_range: float,
    clip_range_vf: float | None,
    vf_coef: float,
    ent_coef: float,
) -> LossTerms:
    """The clipped surrogate (equation 7), the value error and the entropy bonus (equation 9), as means over [R].

        ratio = exp(log_prob - old_log_prob)
        loss  = - mean min(ratio * A, clip(ratio, 1 - clip_range, 1 + clip_range) * A)
                + vf_coef * mean (R - V)^2 - ent_coef * mean entropy

    With `clip_range_vf`, V moves at most that far from the old value. `approx_kl` is mean((ratio - 1) - log ratio),
    the low-variance estimate of Schulman (2020, "Approximating KL Divergence").
    """
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.exp()
    bound = advantages.add(advantages.abs(), alpha=clip_range)  # (1 + clip) * A if A > 0 else (1 - clip) * A
    policy_loss = -torch.minimum(ratio * advantages, bound).mean()
    if clip_range_vf is not None:
        values = old_values + (values - old_values).clamp(-clip_range_vf, clip_range_vf)
    value_loss = nn.functional.mse_loss(values, returns)
    mean_entropy = entropy.mean()
    loss = policy_loss.add(value_loss, alpha=vf_coef).sub(mean_entropy, alpha=ent_coef)
    with torch.no_grad():
        approx_kl = (torch.expm1(log_ratio) - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > clip_range).float().mean()
    return LossTerms(policy_loss, value_loss, mean_entropy, approx_kl, clip_fraction, loss)


def normalize(advantages: Tensor) -> Tensor:
    """[R] with mean 0 and deviation 1; 0 where all rows are equal, and one row alone as it is."""
    if advantages.numel() < 2:
        return advantages
    return nn.functional.layer_norm(advantages, advantages.shape, eps=1e-16)  # one kernel instead of four


TABLE = ("policy loss", "value loss", "entropy", "approximate KL", "clip fraction", "loss", "gradient norm")
"""What is kept of each minibatch until the end of the update: the fields of LossTerms, and one more."""


RANDOM_STATE = "random.minibatches"
"""Name in a checkpoint."""


class PPOTrainer:
    """Owns the policy's parameters, the optimizer and the order of minibatches."""

    def __init__(self, policy: Policy, config: PPOConfig, *, device: str | torch.device = "cpu", seed: int = 0) -> None:
        self.policy, self.config = policy, config
        self.device = torch.device(device)
        self.counters = Counters()
        policy.flat.to(self.device)
        self._optimizer = FlatAdam(policy.flat.weights, config.adam_epsilon)
        self._generator = torch.Generator().manual_seed(seed)
        self._fixed_rate: float | None = None
        # On the CPU a look at a number is free. A GPU would have to be waited for: there a failure stays on the device,
        # stops that optimizer step and all later ones, and is read at the end of the update.
        self._reads_each_minibatch = self.device.type == "cpu"

    def train_step(
        self,
        rollout: Rollout,
        evaluation: Evaluation,
        advantages: Tensor,
        returns: Tensor,
        *,
        progress: float = 0.0,
        evaluate_fn: EvaluateFn | None = None,
        old_log_probs: Tensor | None = None,
    ) -> TrainingStats:
        """One update: `n_epochs` passes over the valid rows, then the policy's running statistics.

        progress: fraction of the run done before this update, for the schedules. old_log_probs [T, B]: where the
        ratio of the loss is 1. The default, `rollout.log_probs`, is the behavior policy. V-trace advantages have
        the correction from that policy in them; give them `evaluation.log_probs`, or it is applied twice.

        Raises TrainingError on a number that is not finite; everything is then as it was before the update.
        """
        old_log_probs = rollout.log_probs if old_log_probs is None else old_log_probs
        numbers = {"log-prob": old_log_probs, "value": evaluation.values, "advantage": advantages, "return": returns}
        rows = valid_rows(rollout, numbers, f"update {self.counters.updates + 1}")
        rate, clip_range = self.config.scheduled(progress)
        rate = rate if self._fixed_rate is None else self._fixed_rate
        before, random = {name: tensor.clone() for name, tensor in self._tensors().items()}, self._generator.get_state()
        try:
            table, steps, epochs = self._run_epochs(rows, rate, clip_range, evaluate_fn or policy_evaluate)
        except TrainingError:
            replace_tensors(self._tensors(), before)
            self._generator.set_state(random)
            raise
        self.policy.update_statistics(rows.observations)
        self.counters.updates += 1
        return TrainingStats(
            **{name: _mean(table[:, column]) for column, name in enumerate(LossTerms._fields) if name != "loss"},
            explained_variance=explained_variance(rows.numbers[1], rows.numbers[3]),
            grad_norm=_mean(table[:steps, -1]),
            learning_rate=rate,
            clip_range=clip_range,
            ratio_error=ratio_error(evaluation.log_probs, rollout.log_probs, rollout.valid),
            epochs=epochs,
            minibatches=steps,
        )

    def _run_epochs(self, rows: Rows, rate: float, clip_range: float, evaluate: EvaluateFn) -> tuple[Tensor, int, int]:
        """(table [minibatches evaluated, len(TABLE)], optimizer steps taken, epochs in which any was taken)."""
        config, weights, gradients = self.config, self.policy.flat.weights, self.policy.flat.gradients
        total = rows.numbers.shape[1]
        count = max(1, min(math.ceil(total / config.batch_size), total // 2))  # no minibatch of one row
        table = torch.zeros(config.n_epochs * count, len(TABLE), device=self.device)
        failed = torch.zeros((), device=self.device)
        steps = epochs = 0
        for epoch in range(config.n_epochs if total else 0):
            order = torch.randperm(total, generator=self._generator).to(self.device)
            for minibatch in rows.gather(order).minibatches(count):
                terms = self._terms(minibatch, clip_range, evaluate)
                record = table[steps]
                torch.stack([term.detach() for term in terms], out=record[:-1])
                if config.target_kl is not None and float(terms.approx_kl) > 1.5 * config.target_kl:
                    return self._read(table[: steps + 1], count), steps, epochs
                gradients.zero_()
                terms.loss.backward()  # type: ignore[no-untyped-call]
                norm = torch.linalg.vector_norm(gradients, out=record[-1])
                if not self._reads_each_minibatch:
                    torch.maximum(failed, (~record.isfinite().all()).float(), out=failed)
                elif not math.isfinite(float(record.sum())):
                    self._read(table[: steps + 1], count)
                gradients.mul_((config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
                self._optimizer.step(weights, gradients, rate, failed)
                steps, epochs = steps + 1, epoch + 1
        return self._read(table[:steps], count), steps, epochs

    def _terms(self, rows: Rows, clip_range: float, evaluate: EvaluateFn) -> LossTerms:
        config = self.config
        old_log_probs, old_values, advantages, returns = rows.numbers
        if config.normalize_advantages:
            advantages = normalize(advantages)
        return ppo_loss(
            *evaluate(self.policy, rows.observations, rows.actions),
            old_log_probs,
            old_values,
            advantages,
            returns,
            clip_range=clip_range,
            clip_range_vf=config.clip_range_vf,
            vf_coef=config.vf_coef,
            ent_coef=config.ent_coef,
        )

    def _read(self, table: Tensor, count: int) -> Tensor:
        """The table on the CPU; TrainingError if the number of a minibatch is not finite. count: per epoch."""
        table = table.cpu()
        bad = (~table.isfinite()).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise TrainingError(
                f"update {self.counters.updates + 1}, epoch {row // count + 1}, minibatch {row % count + 1}: the "
                f"{TABLE[column]} is {table[row, column]:g}; the parameters are as they were before this "
                "update. A lower learning rate, smaller rewards or normalized observations keep numbers finite"
            )
        return table

    def set_learning_rate(self, rate: float) -> None:
        """Use this rate from the next update on; ends a schedule."""
        if not 0.0 < rate <= 1.0:
            raise ConfigError("learning_rate", rate, "must be a positive number, at most 1")
        self._fixed_rate = rate

    def policy_broadcast(self, version: int) -> PolicyBroadcast:
        """The current policy's parameters and statistics, as bytes."""
        return PolicyBroadcast(version=version, parameters=self.policy.flat.dump())

    def parameters_sha256(self) -> str:
        """Digest of parameters and statistics."""
        return self.policy.flat.sha256()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors on the CPU, facts for JSON): with `load_state`, training goes on bit for bit."""
        tensors = {name: tensor.to("cpu", copy=True) for name, tensor in self._tensors().items()}
        tensors[RANDOM_STATE] = self._generator.get_state()
        return tensors, {"counters": asdict(self.counters), "learning_rate": self._fixed_rate}

    def load_state(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Take over what `state` gave. CheckpointError if it is of another network; nothing is changed then."""
        counters = Counters.from_facts(facts.get("counters"))
        random = {RANDOM_STATE: self._generator.get_state()}
        replace_tensors(self._tensors() | random, tensors)
        self._generator.set_state(random[RANDOM_STATE])
        self.counters, self._fixed_rate = counters, facts.get("learning_rate")

    def _tensors(self) -> dict[str, Tensor]:
        return {f"policy.{name}": tensor for name, tensor in self.policy.flat.tensors().items()} | {
            f"adam.{name}": tensor for name, tensor in self._optimizer.tensors().items()
        }


def _mean(column: Tensor) -> float:
    return float(column.mean()) if len(column) else 0.0
