"""The learner: fill a rollout, estimate, update, broadcast; at the end Shutdown to everyone.

Legend: T = num_steps, B = num_actors * num_envs columns. What arrives beyond an update's quota stays queued.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from zmqrl.config import AsyncActorLearnerConfig
from zmqrl.estimates import EvaluateFn, ValueFn, estimate, evaluate_rollout
from zmqrl.messages import SaveCheckpoint, SetLearningRate, Shutdown
from zmqrl.ppo import PPOTrainer
from zmqrl.progress import LearnerReport, TrainingStats, UpdateRecord
from zmqrl.rollout import RolloutBuffer
from zmqrl.session import Command
from zmqrl.spaces import sampled
from zmqrl.starvation import StarvationWatch
from zmqrl.terms import terms_of
from zmqrl.transport.bus import LearnerBus

WAKE_INTERVAL = 0.5
"""Seconds between two looks at commands and liveness while no experience comes."""


def learner_loop(
    config: AsyncActorLearnerConfig,
    trainer: PPOTrainer,
    bus: LearnerBus,
    *,
    evaluate_fn: EvaluateFn | None = None,
    value_fn: ValueFn | None = None,
    on_update: Callable[[UpdateRecord], str | None] | None = None,
    report: LearnerReport | None = None,
) -> tuple[PPOTrainer, LearnerReport]:
    """Train until the run's env steps are consumed, `on_update` returns a reason to stop, or a Shutdown comes.

    evaluate_fn(policy, observations, actions) -> (log_probs, entropy, values) and value_fn(policy, observations)
    -> values default to the policy's own methods. Continues at `trainer.counters`. `report` is filled in as it
    goes, for a caller who wants it after an error. Every actor is told Shutdown whichever way it ends.
    Raises StarvationError, TrainingError, or what `on_update` raises.
    """
    loop = _Loop(config.validate(), trainer, bus, report or LearnerReport())
    counters, report = trainer.counters, loop.report
    try:
        bus.open(terms_of(config, trainer.policy, bus))
        bus.publish(trainer.policy_broadcast(counters.version))
        while counters.updates < config.total_updates and loop.fill():
            rollout = loop.buffer.rollout(trainer.device)
            with report.phase("estimating"):
                evaluation = evaluate_rollout(trainer.policy, rollout, evaluate_fn, value_fn)
                advantages, returns = estimate(config, rollout, evaluation)
            with report.phase("updating"):
                training = trainer.train_step(
                    rollout,
                    evaluation,
                    advantages,
                    returns,
                    progress=counters.updates / config.total_updates,
                    evaluate_fn=evaluate_fn,
                    # V-trace advantages are corrected for the behavior policy already
                    old_log_probs=evaluation.log_probs if config.use_vtrace else None,
                )
            record = loop.count(training)
            if on_update is not None and (reason := on_update(record)):
                report.stopped_because = reason
                break
        report.stopped_because = report.stopped_because or "all env steps consumed"
    except BaseException as error:
        report.stopped_because = f"{type(error).__name__}: {error}"
        raise
    finally:
        loop.decline_commands()
        bus.shutdown(report.stopped_because)
    return trainer, report


class _Loop:
    """The loop's locals, and the sentences it is made of."""

    def __init__(
        self, config: AsyncActorLearnerConfig, trainer: PPOTrainer, bus: LearnerBus, report: LearnerReport
    ) -> None:
        self.config, self.trainer, self.bus, self.report = config, trainer, bus, report
        self.buffer = RolloutBuffer(
            config.num_steps,
            config.num_actors,
            config.num_envs,
            trainer.policy.observation_space,
            sampled(trainer.policy.action_space),
            fill=config.fill,
            pin=trainer.device.type == "cuda",
        )
        self.began = time.monotonic()
        waits = (config.starvation_timeout, bus.transport.env_step_timeout, bus.transport.wait_for_actors)
        self.watch = StarvationWatch(*waits, now=self.began)
        self.save_requests: list[Command] = []
        self.first_update = trainer.counters.updates

    def fill(self) -> bool:
        """Take experience until the rollout is complete; False if a Shutdown came before that."""
        self.buffer.clear()
        self.watch.restart(time.monotonic())
        while not self.buffer.full:
            if not self.obey():
                return False
            needed = self.buffer.needed()
            with self.report.phase("waiting"):
                experience = self.bus.receive(needed, WAKE_INTERVAL)
            if experience is None:
                self.watch.check(self.bus.slots(), needed, time.monotonic())
                continue
            with self.report.phase("placing"):
                self.buffer.add(experience)
            if self.config.fill == "quota":
                self.bus.give_credit(self.trainer.counters.version)
        return True

    def obey(self) -> bool:
        """Carry out what admins ask for; False for Shutdown."""
        for command in self.bus.commands():
            match command.message:
                case Shutdown(reason):
                    self.report.stopped_because = reason
                    self.bus.answer(command.request, True, "the run ends")
                    return False
                case SetLearningRate(rate):
                    self.trainer.set_learning_rate(rate)
                    self.bus.answer(command.request, True, f"learning rate is {rate:g} from the next update on")
                case SaveCheckpoint():
                    self.save_requests.append(command)
                case _:
                    self.bus.answer(command.request, False, "not while the run goes on; end it and use --resume")
        return True

    def decline_commands(self) -> None:
        """Nobody waits for an answer that will not come."""
        for command in (*self.save_requests, *self.bus.commands()):
            self.bus.answer(command.request, False, "the run has ended")

    def count(self, training: TrainingStats) -> UpdateRecord:
        """The rollout has been used: count it, publish what came of it, and say so."""
        counters, report, buffer = self.trainer.counters, self.report, self.buffer
        self.bus.mark_consumed()
        returns, lengths = buffer.episodes()
        lags = counters.version - buffer.versions()
        report.add_episodes(returns, lengths)
        report.add_lags(lags)
        counters.env_steps += buffer.env_steps
        counters.episodes += len(returns)
        with report.phase("publishing"):
            self.publish()
        report.updates_completed, report.env_steps_consumed = counters.updates, counters.env_steps
        report.episodes_completed, report.broadcasts_sent = counters.episodes, counters.broadcasts
        report.last_policy_version = counters.version
        requests, self.save_requests = tuple(self.save_requests), []
        alive = sum(slot.alive for slot in self.bus.slots())
        seconds = time.monotonic() - self.began
        episodes = returns, lengths
        return UpdateRecord.of(report, training, episodes, lags, self.config.total_updates, seconds, alive, requests)

    def publish(self) -> None:
        """Every `broadcast_every` updates: the new policy to all, and credit for what it came from.

        Counted from where this loop began, since it began by publishing its policy.
        """
        counters = self.trainer.counters
        if (counters.updates - self.first_update) % self.config.broadcast_every == 0:
            counters.version += 1
            counters.broadcasts += 1
            self.bus.publish(self.trainer.policy_broadcast(counters.version))
            if self.config.fill == "columns":
                self.bus.give_credit(counters.version)
        self.bus.announce(counters.updates, counters.env_steps)
