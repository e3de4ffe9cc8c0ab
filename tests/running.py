"""Whole runs in this program: what tests start, and what they get back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from zmqrl.accounts import ActorStats, SlotAccount
from zmqrl.config import AsyncActorLearnerConfig, PolicyConfig, PPOConfig, TransportConfig
from zmqrl.envs import VectorEnvironment
from zmqrl.learner import learner_loop
from zmqrl.policies import make_policy
from zmqrl.ppo import PPOTrainer
from zmqrl.progress import LearnerReport, UpdateRecord
from zmqrl.supervisor import spawn_actor
from zmqrl.transport.bus import LearnerBus

BUSES = ("memory", "inproc", "ipc", "tcp")

FAST = TransportConfig(heartbeat_interval=0.1, lease=10.0, connect_timeout=20.0)


@dataclass
class Outcome:
    """What a whole run left."""

    trainer: PPOTrainer
    report: LearnerReport
    stats: list[ActorStats]
    accounts: dict[int, SlotAccount]
    records: list[UpdateRecord] = field(default_factory=list)

    def assert_balanced(self) -> None:
        """Both identities of law 1, for each actor and in sum."""
        for agent_id, account in self.accounts.items():
            disposed = account.consumed + account.queued + sum(account.refused.values()) + account.rolled_back
            assert account.received == disposed, (agent_id, account)
        for stats in self.stats:
            assert stats.steps_taken == stats.steps_received + sum(stats.steps_lost.values()), stats
            assert "unacknowledged" not in stats.steps_lost, stats
        assert sum(stats.steps_received for stats in self.stats) == sum(a.received for a in self.accounts.values())
        assert self.report.env_steps_consumed == sum(account.consumed for account in self.accounts.values())


def run_training(
    bus: LearnerBus,
    config: AsyncActorLearnerConfig,
    make_environments: Callable[[], VectorEnvironment],
    *,
    ppo: PPOConfig | None = None,
    policy: PolicyConfig | None = None,
    on_update: Callable[[UpdateRecord], str | None] | None = None,
    prepare: Callable[[PPOTrainer], None] = lambda trainer: None,
    look: Callable[[PPOTrainer], None] = lambda trainer: None,
) -> Outcome:
    """A learner in this thread and its actors in others. Both identities of law 1 are asserted of every run.

    prepare, look: called with the trainer before the run, and after each update.
    """
    with make_environments() as probe:
        spaces = probe.observation_space, probe.action_space
    trainer = PPOTrainer(
        make_policy(*spaces, policy or PolicyConfig(), seed=config.seed), ppo or PPOConfig(), seed=config.seed
    )
    prepare(trainer)
    records: list[UpdateRecord] = []

    def note(record: UpdateRecord) -> str | None:
        records.append(record)
        look(trainer)
        return on_update(record) if on_update else None

    actors = [spawn_actor(bus, make_environments) for _ in range(config.num_actors)]
    _, report = learner_loop(config, trainer, bus, on_update=note)
    stats = [actor.join(30.0) for actor in actors]
    outcome = Outcome(trainer, report, stats, bus.accounts(), records)
    outcome.assert_balanced()
    return outcome
