"""When is waiting for experience an error? Pure arithmetic over what the bus knows; `now` is a parameter."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from zmqrl.accounts import SlotStatus
from zmqrl.errors import StarvationError

log = logging.getLogger(__name__)

REMINDER_INTERVAL = 60.0
"""Seconds between two lines that say that nobody has joined yet."""


@dataclass
class _Seen:
    """Of one slot, when it was last looked at."""

    accepted: int = 0
    steps: int = 0
    refused: int = 0
    """When a chunk was last accepted; what came later came in vain."""
    cuts: int = 0
    """Likewise."""

    def refuses(self, slot: SlotStatus) -> bool:
        """Since a chunk was last accepted, others were refused."""
        return sum(slot.refused.values()) > self.refused

    def misses(self, slot: SlotStatus) -> bool:
        """Since a chunk was last accepted, others did not arrive."""
        return slot.cuts > self.cuts


IN_VAIN = 3
"""Chunks in a row that were refused or lost, after which steps are no progress. One may be an accident, and with slow
environments the next one can take longer than `starvation_timeout`."""


class StarvationWatch:
    """Raises StarvationError once no slot that the update still needs made progress for `timeout` seconds.

    Progress of a slot is a chunk accepted; and, unless IN_VAIN were refused or lost since then, a step taken
    (heartbeats tell), or being inside one env.step for less than `env_step_timeout`: slow is not dead. Before anyone
    ever joined the limit is `wait_for_actors` (0: none).
    """

    def __init__(self, timeout: float, env_step_timeout: float, wait_for_actors: float, now: float) -> None:
        self._timeout = timeout
        self._env_step_timeout = env_step_timeout
        self._wait_for_actors = wait_for_actors
        self._last_progress = self._began = self._reminded = now
        self._seen: dict[int, _Seen] = {}
        self._anyone_joined = False

    def restart(self, now: float) -> None:
        """A new rollout is being filled: whatever came before counts as progress."""
        self._last_progress = now

    def check(self, slots: Sequence[SlotStatus], needed: Collection[int] | None, now: float) -> None:
        """Look at all slots; `needed` are those the update waits for (None: any)."""
        if slots and not self._anyone_joined:
            self._anyone_joined = True
            self._last_progress = now
        if any([self._progressed(slot) for slot in slots if needed is None or slot.agent_id in needed]):
            self._last_progress = now
        waited = now - self._last_progress
        if not self._anyone_joined:
            if self._wait_for_actors and waited > self._wait_for_actors:
                raise StarvationError(f"no actor joined within {self._wait_for_actors:g} s")
            if now - self._reminded >= REMINDER_INTERVAL:
                self._reminded = now
                log.warning("no actor has joined for %.0f s; waiting", now - self._began)
        elif waited > self._timeout:
            raise StarvationError(
                f"no experience for {waited:.0f} s (starvation_timeout = {self._timeout:g}): "
                + "; ".join(self._reasons(slots, needed))
            )

    def _progressed(self, slot: SlotStatus) -> bool:
        seen = self._seen.setdefault(slot.agent_id, _Seen())
        accepted, stepped = slot.accepted_chunks != seen.accepted, slot.steps_taken != seen.steps
        seen.accepted, seen.steps = slot.accepted_chunks, slot.steps_taken
        if accepted:
            seen.refused, seen.cuts = sum(slot.refused.values()), slot.cuts
        inside_step = slot.alive and 0 < slot.in_step_seconds < self._env_step_timeout
        lost = sum(slot.refused.values()) - seen.refused + slot.cuts - seen.cuts
        return accepted or ((stepped or inside_step) and lost < IN_VAIN)

    def _reasons(self, slots: Sequence[SlotStatus], needed: Collection[int] | None) -> list[str]:
        known = {slot.agent_id: slot for slot in slots}
        return [
            f"slot {agent_id} {self._reason(known.get(agent_id))}"
            for agent_id in sorted(known if needed is None else needed)
        ]

    def _reason(self, slot: SlotStatus | None) -> str:
        if slot is None:
            return "was never taken: no actor joined it"
        seen, where = self._seen.get(slot.agent_id, _Seen()), f"(host {slot.host}, pid {slot.pid})"
        if slot.last_error:
            return f"{where} reported: {slot.last_error}"
        if not slot.alive:
            return f"{where} is gone, silent for {slot.silent_seconds:.0f} s"
        if seen.refuses(slot):
            reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(slot.refused.items()))
            return f"{where} sends what is refused: {reasons}"
        if seen.misses(slot) or _never_arrived(slot):
            port = f"the experience port {slot.experience_port}" if slot.experience_port else "the experience port"
            return f"{where} took {slot.steps_taken} steps, but its experience does not arrive: can it reach {port}?"
        if slot.in_step_seconds:
            return f"{where} has been inside one env.step for {slot.in_step_seconds:.0f} s"
        if slot.waiting_for_credit:
            return f"{where} waits for credit"
        return f"{where} is alive but takes no steps; last heard {slot.silent_seconds:.0f} s ago"


def _never_arrived(slot: SlotStatus) -> bool:
    """It used up its credit, and nothing came of it."""
    return slot.steps_taken > 0 and slot.waiting_for_credit and not slot.accepted_chunks and not slot.refused
