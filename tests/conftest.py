"""Whole runs in this program, and the proof that nothing outlives a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import torch

from zmqrl.config import AsyncActorLearnerConfig, PolicyConfig, PPOConfig, TransportConfig
from zmqrl.envs import VectorEnvironment
from zmqrl.learner import LearnerReport, UpdateRecord, learner_loop
from zmqrl.messages import ActorStats
from zmqrl.policies import make_policy
from zmqrl.ppo import PPOTrainer
from zmqrl.supervisor import spawn_actor
from zmqrl.transport import bind_learner, memory_buses
from zmqrl.transport.bus import LearnerBus, SlotAccount

torch.set_num_threads(1)

LEAVE_WITHIN = 10.0
"""Seconds in which everything a test started has to be gone."""


@pytest.fixture(autouse=True)
def everyone_goes_home() -> Iterator[None]:
    """No thread, child process or listening port may outlive its test."""
    before = _living()
    yield
    deadline = time.monotonic() + LEAVE_WITHIN
    while (left := _living() - before) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert not left, f"left behind: {sorted(left)}"


def _living() -> set[str]:
    threads = {f"thread {thread.name}" for thread in threading.enumerate() if not _lasting(thread.name)}
    processes = {
        f"process {child.pid} {child.name()}"
        for child in psutil.Process().children(recursive=True)
        if not _resource_keeper(child)
    }
    ports = {f"port {link.laddr}" for link in psutil.Process().net_connections() if link.status == psutil.CONN_LISTEN}
    return threads | processes | ports


def _lasting(name: str) -> bool:
    """Threads of the interpreter's own that stay once they exist."""
    return name.startswith(("MainThread", "pytest_timeout", "QueueFeederThread", "pydevd"))


def _resource_keeper(child: psutil.Process) -> bool:
    """multiprocessing keeps one tracker and one fork server per interpreter, which end with it."""
    try:
        command = " ".join(child.cmdline())
        return child.status() == psutil.STATUS_ZOMBIE or "resource_tracker" in command or "forkserver" in command
    except psutil.NoSuchProcess:
        return True


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


BUSES = ("memory", "inproc", "ipc", "tcp")

FAST = TransportConfig(heartbeat_interval=0.1, lease=10.0, connect_timeout=20.0)


@pytest.fixture
def make_bus(tmp_path: Path) -> Iterator[Callable[..., LearnerBus]]:
    """A learner's bus of any kind, closed at the end of the test."""
    with ExitStack() as stack:

        def make(kind: str = "tcp", transport: TransportConfig = FAST, **more: object) -> LearnerBus:
            addresses = {
                "inproc": "inproc://learner",
                "ipc": f"ipc://{tmp_path}/learner",
                "tcp": "tcp://127.0.0.1:0",
            }
            if kind == "memory":
                return stack.enter_context(memory_buses(transport=transport, **more))
            return stack.enter_context(bind_learner(addresses[kind], transport, **more))

        yield make


@pytest.fixture
def run_training(make_bus: Callable[..., LearnerBus]) -> Callable[..., Outcome]:
    """A learner in this thread and its actors in others, over any bus."""

    def run(
        config: AsyncActorLearnerConfig,
        make_environments: Callable[[], VectorEnvironment],
        *,
        ppo: PPOConfig | None = None,
        policy: PolicyConfig | None = None,
        bus: str = "memory",
        on_update: Callable[[UpdateRecord], str | None] | None = None,
        look: Callable[[PPOTrainer], None] = lambda trainer: None,
    ) -> Outcome:
        with make_environments() as probe:
            network = make_policy(
                probe.observation_space, probe.action_space, policy or PolicyConfig(), seed=config.seed
            )
        trainer = PPOTrainer(network, ppo or PPOConfig(), seed=config.seed)
        records: list[UpdateRecord] = []

        def note(record: UpdateRecord) -> str | None:
            records.append(record)
            look(trainer)
            return on_update(record) if on_update else None

        learner_bus = make_bus(bus)
        actors = [spawn_actor(learner_bus, make_environments) for _ in range(config.num_actors)]
        _, report = learner_loop(config, trainer, learner_bus, on_update=note)
        stats = [actor.join(30.0) for actor in actors]
        outcome = Outcome(trainer, report, stats, learner_bus.accounts(), records)
        outcome.assert_balanced()
        return outcome

    return run
