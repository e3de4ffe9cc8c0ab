"""`zmqrl actor`: one line on each host joins a learner and acts until the run is over."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from zmqrl.accounts import ActorStats
from zmqrl.cli.options import Options, parse
from zmqrl.cli.process import Signals, begin_process
from zmqrl.config import EnvConfig, TransportConfig
from zmqrl.errors import EXIT_OK, Refused, UsageError
from zmqrl.session import Hello
from zmqrl.supervisor import stats_as_json
from zmqrl.transport import connect_actor
from zmqrl.transport.endpoints import JoinString, read_join, require_known_host

if TYPE_CHECKING:
    from zmqrl.transport.bus import ActorBus


@dataclass(frozen=True)
class ActorOptions:
    """This actor."""

    join: str = ""
    """Join string, the file that holds it, or - for standard input. Empty: the environment variable ZMQRL_JOIN."""
    num_envs: int = 0
    """Environments of this actor: as many as the learner was told. 0: as the join string says."""
    policy: str = ""
    """The learner's --policy, if it has one of its own: package.module:Class, imported here (see docs/guide.md)."""
    slot: int = -1
    """The slot it would like to have, and gets if it is free. -1: any."""
    json: bool = False
    """End with what this actor did as one line of JSON."""


LEARNERS_TO_SAY = frozenset(field.name for field in fields(TransportConfig)) - {"connect_timeout"}
"""Times and sizes that the Welcome brings, so that they hold for all actors alike."""

LEAVE_WITHIN = 15.0
"""Seconds to leave after Shutdown: settling the account takes ten at most, saying goodbye two. What takes longer is
an env.step that does not end, and there is no learner any more that could use it."""


def main(argv: Sequence[str]) -> int:
    """Run `zmqrl actor`; returns the exit code."""
    begin_process()
    options = parse(
        "actor", argv, (EnvConfig, TransportConfig), ActorOptions, omit=LEARNERS_TO_SAY, complete_later=(EnvConfig,)
    )
    with Signals() as signals:
        try:
            stats = _act(options, read_join(options[ActorOptions].join), signals)
        except Refused as refusal:
            if refusal.code != "finished":
                raise
            _say(str(refusal))
            return EXIT_OK
    print(stats_as_json(stats) if options[ActorOptions].json else _summary(stats), flush=True)
    return signals.exit_code


def _act(options: Options, join: JoinString, signals: Signals) -> ActorStats:
    env, own = options[EnvConfig], options[ActorOptions]
    config = replace(env, env=env.env or join.env).validate()
    num_envs = own.num_envs or join.num_envs
    if num_envs < 1:
        raise UsageError("--num-envs is missing: as many environments as the learner was told (its --num-envs)")
    require_known_host(join.address)

    import torch

    from zmqrl.envs import make_envs
    from zmqrl.joining import run_actor

    torch.set_num_threads(1)
    leave = threading.Event()

    def ask(number: signal.Signals) -> None:
        leave.set()
        # not by print, which the signal may have interrupted
        os.write(2, f"zmqrl actor: {number.name}: leaving after this step; a second signal ends it at once\n".encode())

    def connect(hello: Hello) -> ActorBus:
        bus = connect_actor(str(join), hello, options[TransportConfig], on_waiting=_say)
        signals.ask = ask
        threading.Thread(target=_leave_in_time, args=(bus,), daemon=True, name="leaving").start()
        _say(f"joined {join.address} as actor {bus.welcome.slot}: {num_envs} x {config.env}")
        return bus

    return run_actor(connect, lambda: make_envs(config, num_envs), policy_class=own.policy, slot=own.slot, leave=leave)


def _leave_in_time(bus: ActorBus) -> None:
    """End the process if Shutdown came and it does not end by itself."""
    while bus.shutdown is None:
        time.sleep(0.5)
    time.sleep(LEAVE_WITHIN)
    _say(f"the run was over {LEAVE_WITHIN:g} s ago; leaving in the middle of an env.step")
    os._exit(EXIT_OK)


def _say(text: str) -> None:
    print(f"zmqrl actor: {text}", file=sys.stderr, flush=True)


def _summary(stats: ActorStats) -> str:
    lost = ", ".join(f"{steps} {reason}" for reason, steps in stats.steps_lost.items()) or "none"
    return (
        f"actor {stats.agent_id}: {stats.steps_taken:,} env steps, {stats.steps_received:,} received by the learner, "
        f"lost: {lost}; {stats.episodes:,} episodes; {stats.seconds:.1f} s, {stats.seconds_waiting:.1f} s of it waiting"
    )
