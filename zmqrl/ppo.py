"""Proximal policy optimization (Schulman et al. 2017): the loss, and the trainer that minimizes it.

Legend: T rows, B columns of a rollout, R rows of a minibatch.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zmqrl.config import PPOConfig
from zmqrl.errors import CheckpointError, ConfigError, TrainingError
from zmqrl.estimates import EvaluateFn, Evaluation, policy_evaluate
from zmqrl.messages import PolicyBroadcast
from zmqrl.optimizer import FlatAdam
from zmqrl.policies import Policy
from zmqrl.progress import Counters, TrainingStats
from zmqrl.rollout import Rollout, Rows, merge_time
from zmqrl.spaces import map_tree


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


# --- the trainer ---------------------------------------------------------------------------------------


TABLE = ("policy loss", "value loss", "entropy", "approximate KL", "clip fraction", "loss", "gradient norm")
"""What is kept of each minibatch until the end of the update: the fields of LossTerms, and one more."""


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

        Raises TrainingError on a number that is not finite. If it was among the inputs, nothing has been changed;
        if it came up in a minibatch, neither that minibatch nor a later one touched the parameters.
        """
        old_log_probs = rollout.log_probs if old_log_probs is None else old_log_probs
        numbers = torch.stack([merge_time(x) for x in (old_log_probs, evaluation.values, advantages, returns)])
        rows = Rows(map_tree(merge_time, rollout.observations), map_tree(merge_time, rollout.actions), numbers)
        index = merge_time(rollout.valid).nonzero().squeeze(1)
        if len(index) < rollout.valid.numel():
            rows = rows.gather(index)
        self._check_inputs(rows.numbers, index, rollout.valid.shape[1])
        rate, clip_range = self._scheduled(progress)
        table, steps, epochs = self._run_epochs(rows, rate, clip_range, evaluate_fn or policy_evaluate)
        self.policy.update_statistics(rows.observations)
        self.counters.updates += 1
        return TrainingStats(
            **{name: _mean(table[:, column]) for column, name in enumerate(LossTerms._fields) if name != "loss"},
            explained_variance=_explained_variance(rows.numbers[1], rows.numbers[3]),
            grad_norm=_mean(table[:steps, -1]),
            learning_rate=rate,
            clip_range=clip_range,
            ratio_error=_ratio_error(evaluation.log_probs, rollout.log_probs, rollout.valid),
            epochs=epochs,
            minibatches=steps,
        )

    def _run_epochs(self, rows: Rows, rate: float, clip_range: float, evaluate: EvaluateFn) -> tuple[Tensor, int, int]:
        """(table [minibatches evaluated, len(TABLE)], optimizer steps taken, epochs in which any was taken)."""
        config, weights, gradients = self.config, self.policy.flat.weights, self.policy.flat.gradients
        total = rows.numbers.shape[1]
        count = math.ceil(total / config.batch_size)
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
                f"{TABLE[column]} is {table[row, column]:g}; the parameters were left as they were before this "
                "minibatch. A lower learning rate, smaller rewards or normalized observations keep numbers finite"
            )
        return table

    def _check_inputs(self, numbers: Tensor, index: Tensor, columns: int) -> None:
        if bool(numbers.isfinite().all()):
            return
        which, row = (~numbers.isfinite()).nonzero()[0].tolist()
        name = ("log-prob of the behavior policy", "value", "advantage", "return")[which]
        t, b = divmod(int(index[row]), columns)
        raise TrainingError(
            f"update {self.counters.updates + 1}: the {name} of row {t}, column {b} is {numbers[which, row]:g}; "
            "nothing has been changed. Look at the rewards and observations of that column's environment"
        )

    # --- schedules ---

    def _scheduled(self, progress: float) -> tuple[float, float]:
        """(learning rate, clip range) of an update that begins at this fraction of the run."""
        config, left = self.config, 1.0 - min(max(progress, 0.0), 1.0)
        rate = config.learning_rate * (left if config.learning_rate_schedule == "linear" else 1.0)
        clip_range = config.clip_range * (left if config.clip_range_schedule == "linear" else 1.0)
        return self._fixed_rate if self._fixed_rate is not None else rate, clip_range

    def set_learning_rate(self, rate: float) -> None:
        """Use this rate from the next update on; ends a schedule."""
        if not 0.0 < rate <= 1.0:
            raise ConfigError("learning_rate", rate, "must be a positive number, at most 1")
        self._fixed_rate = rate

    # --- what leaves it ---

    def policy_broadcast(self, version: int) -> PolicyBroadcast:
        """The current policy's parameters and statistics, as bytes."""
        return PolicyBroadcast(version=version, parameters=self.policy.flat.dump())

    def parameters_sha256(self) -> str:
        """Digest of parameters and statistics."""
        return self.policy.flat.sha256()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors on the CPU, facts for JSON): with `load_state`, training goes on bit for bit."""
        tensors = {name: tensor.to("cpu", copy=True) for name, tensor in self._tensors().items()}
        tensors["random.minibatches"] = self._generator.get_state()
        return tensors, {"counters": asdict(self.counters), "learning_rate": self._fixed_rate}

    def load_state(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Take over what `state` gave. CheckpointError if it is of another network; nothing is changed then."""
        own = self._tensors() | {"random.minibatches": self._generator.get_state()}
        for name in own.keys() | tensors.keys():
            ours, theirs = (group[name].shape if name in group else None for group in (own, tensors))
            if ours != theirs:
                raise CheckpointError(
                    f"tensor {name} of the checkpoint has shape {_shape(theirs)}, this run's {_shape(ours)}: it is of "
                    "another network; use the configuration that is saved with the checkpoint"
                )
        try:
            counters = Counters(**{field.name: int(facts["counters"][field.name]) for field in fields(Counters)})
            fixed_rate = facts["learning_rate"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint lacks a count, or it is no number: {error}") from None
        for name, tensor in self._tensors().items():
            tensor.copy_(tensors[name])
        self._generator.set_state(tensors["random.minibatches"].cpu())
        self.counters, self._fixed_rate = counters, fixed_rate

    def _tensors(self) -> dict[str, Tensor]:
        named = {f"policy.{name}": tensor for name, tensor in self.policy.flat.tensors().items()}
        adam = self._optimizer
        named |= {"adam.first_moment": adam.first_moment, "adam.second_moment": adam.second_moment}
        return named | {"adam.steps": adam.steps}


def _mean(column: Tensor) -> float:
    return float(column.mean()) if len(column) else 0.0


def _shape(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(list(shape))


def _explained_variance(values: Tensor, returns: Tensor) -> float:
    if returns.numel() < 2:
        return 0.0
    variance = float(returns.var(correction=0))
    return 0.0 if variance == 0.0 else 1.0 - float((returns - values).var(correction=0)) / variance


def _ratio_error(log_probs: Tensor, behavior_log_probs: Tensor, valid: Tensor) -> float:
    error = torch.expm1(log_probs - behavior_log_probs).abs()
    return float(torch.where(valid, error, 0.0).max())
