"""`zmqrl actor`: one line on each host joins a learner and acts until the run is over."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import FrameType

from zmqrl.cli.options import Options, parse
from zmqrl.config import EnvConfig, TransportConfig
from zmqrl.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, Refused, UsageError
from zmqrl.messages import ActorStats
from zmqrl.supervisor import stats_as_json
from zmqrl.transport import connect_actor
from zmqrl.transport.endpoints import JoinString, read_join


@dataclass(frozen=True)
class ActorOptions:
    """This actor."""

    join: str = ""
    """Join string, the file that holds it, or - for standard input. Empty: the environment variable ZMQRL_JOIN."""
    num_envs: int = 0
    """Environments of this actor: as many as the learner was told. 0: as the join string says."""
    policy: str = ""
    """The learner's --policy, if it has one of its own: package.module:Class, imported here."""
    json: bool = False
    """End with what this actor did as one line of JSON."""


LEARNERS_TO_SAY = frozenset(field.name for field in fields(TransportConfig)) - {"connect_timeout"}
"""Times and sizes that the Welcome brings, so that they hold for all actors alike."""


def main(argv: Sequence[str]) -> int:
    """Run `zmqrl actor`; returns the exit code."""
    options = parse(
        "actor", argv, (EnvConfig, TransportConfig), ActorOptions, omit=LEARNERS_TO_SAY, complete_later=(EnvConfig,)
    )
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    with _Leaving() as leaving:
        join = read_join(options[ActorOptions].join)
        stats = _act(options, join, leaving)
    if stats is None:
        return EXIT_OK
    print(stats_as_json(stats) if options[ActorOptions].json else _summary(stats), flush=True)
    return leaving.exit_code


class _Leaving:
    """SIGINT and SIGTERM: finish the step, send what is recorded, say goodbye. The second one ends at once."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.acting = False
        self.first = 0

    def __enter__(self) -> _Leaving:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.first:
            os._exit(128 + number)
        self.first = number
        self.event.set()
        if not self.acting:  # nothing to hand over yet
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(EXIT_TERMINATED)

    @property
    def exit_code(self) -> int:
        """Of an actor that left in order."""
        return {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}.get(self.first, EXIT_OK)


def _act(options: Options, join: JoinString, leaving: _Leaving) -> ActorStats | None:
    """None if the run is over already."""
    env, own = options[EnvConfig], options[ActorOptions]
    config = replace(env, env=env.env or join.env).validate()
    num_envs = own.num_envs or join.num_envs
    if num_envs < 1:
        raise UsageError("--num-envs is missing: as many environments as the learner was told (its --num-envs)")

    import torch

    from zmqrl.joining import run_actor
    from zmqrl.envs import make_envs

    torch.set_num_threads(1)

    def connect(hello: object) -> object:
        bus = connect_actor(str(join), hello, options[TransportConfig], on_waiting=_say)
        leaving.acting = True
        _say(f"joined {join.address} as actor {bus.welcome.slot}: {num_envs} x {config.env}")
        return bus

    try:
        return run_actor(connect, lambda: make_envs(config, num_envs), policy_class=own.policy, leave=leaving.event)
    except Refused as refusal:
        if refusal.code != "finished":
            raise
        _say(f"the run is over: {refusal}")
        return None


def _say(text: str) -> None:
    print(f"zmqrl actor: {text}", file=sys.stderr, flush=True)


def _summary(stats: ActorStats) -> str:
    lost = ", ".join(f"{steps} {reason}" for reason, steps in stats.steps_lost.items()) or "none"
    return (
        f"actor {stats.agent_id}: {stats.steps_taken:,} env steps, {stats.steps_received:,} received by the learner, "
        f"lost: {lost}; {stats.episodes:,} episodes; {stats.seconds:.1f} s, {stats.seconds_waiting:.1f} s of them waiting"
    )
