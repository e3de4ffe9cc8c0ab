"""The policy: raw observations in, environment actions out, and everything in between is part of it.

Legend: N environments of an actor, R rows of a minibatch or rollout. Observations and actions are trees of tensors.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from zmqrl.config import PolicyConfig
from zmqrl.policies.distributions import environment_actions, make_distribution
from zmqrl.policies.encoders import FlattenEncoder, make_mlp
from zmqrl.policies.normalization import RunningMeanStd
from zmqrl.policies.parameters import FlatParameters
from zmqrl.spaces import SpaceSpec, Tree

POLICY_GAIN = 0.01
"""Of the last layer: actions start almost uniform, respectively centred, whatever the observation."""


class Policy(nn.Module):
    """Base class of policies; one of your own implements `act`, `evaluate_actions` and `value`.

    It is constructed as `Class(observation_space, action_space, config)`, with the spaces of one environment.
    `act` runs on the CPU of the actors, the rest on the learner's device. Parameters are float32; running
    statistics are buffers, written in place. What follows is set by `make_policy`.
    """

    observation_space: SpaceSpec
    """Of one environment."""
    action_space: SpaceSpec
    """Of one environment."""
    config: PolicyConfig
    """What it was built from."""
    flat: FlatParameters
    """All parameters and buffers as one run of bytes."""

    def act(self, observations: Tree, generator: torch.Generator, deterministic: bool = False) -> tuple[Tree, Tensor]:
        """(actions [N, ...] as sampled, log_probs [N]) for observations [N, ...]; all randomness is the generator's.

        Called under `torch.inference_mode`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method act")

    def evaluate_actions(self, observations: Tree, actions: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """(log_probs [R], entropy [R], values [R]) of actions as sampled, with gradients."""
        raise NotImplementedError(f"{type(self).__name__} has no method evaluate_actions")

    def value(self, observations: Tree) -> Tensor:
        """[R]: expected discounted return from here on."""
        raise NotImplementedError(f"{type(self).__name__} has no method value")

    def environment_actions(self, actions: Tree) -> Tree:
        """Sampled actions (tensors) as arrays that the environment takes: bounds, start and dtype of its space."""
        return environment_actions(self.action_space, actions)

    def described(self) -> dict[str, Any]:
        """Its configuration as plain data for the wire, without the name of a class: each host names its own."""
        fields = asdict(self.config)
        del fields["policy"]
        return {**fields, "hidden_sizes": list(self.config.hidden_sizes)}

    def update_statistics(self, observations: Tree) -> None:
        """Take the valid observations [R, ...] of an update into running statistics; does nothing by default.

        Called once per update, after its last optimizer step: actors and learner normalize alike in between.
        """


class ActorCriticPolicy(Policy):
    """The built-in policy: two MLPs over flattened, possibly normalized, observations."""

    def __init__(
        self,
        observation_space: SpaceSpec,
        action_space: SpaceSpec,
        config: PolicyConfig,
        generator: torch.Generator | None = None,
    ) -> None:
        """generator: of the initial weights; torch's default one without it."""
        super().__init__()
        generator = generator or torch.default_generator
        self.encoder = FlattenEncoder(observation_space)
        self.distribution = make_distribution(action_space, config.log_std_init)
        self.normalizer = RunningMeanStd(self.encoder.size) if config.normalize_observations else None
        sizes, activation, inputs = config.hidden_sizes, config.activation, self.encoder.size
        self.actor = make_mlp(inputs, sizes, self.distribution.size, activation, POLICY_GAIN, generator)
        self.critic = make_mlp(inputs, sizes, 1, activation, 1.0, generator)

    def act(self, observations: Tree, generator: torch.Generator, deterministic: bool = False) -> tuple[Tree, Tensor]:
        """See `Policy.act`."""
        return self.distribution.sample(self.actor(self._features(observations)), generator, deterministic)

    def evaluate_actions(self, observations: Tree, actions: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """See `Policy.evaluate_actions`."""
        features = self._features(observations)
        log_probs, entropy = self.distribution.evaluate(self.actor(features), actions)
        return log_probs, entropy, self.critic(features).squeeze(-1)

    def value(self, observations: Tree) -> Tensor:
        """See `Policy.value`."""
        values: Tensor = self.critic(self._features(observations)).squeeze(-1)
        return values

    def update_statistics(self, observations: Tree) -> None:
        """See `Policy.update_statistics`; does nothing unless observations are normalized."""
        if self.normalizer is not None:
            self.normalizer.update(self.encoder(observations))

    def _features(self, observations: Tree) -> Tensor:
        rows: Tensor = self.encoder(observations)
        return rows if self.normalizer is None else self.normalizer(rows)
