"""The staleness valve: may this actor run on? Pure arithmetic; it opens no socket and reads no clock."""

from __future__ import annotations


class ActorThrottle:
    """Bounds how many steps of each of its environments an actor is ahead of its credit.

    Credit is the number of rows (steps of each environment) that the learner has consumed of this actor, in
    total over the session. The total is what makes it safe: an allowance per policy version would let
    production outrun consumption for ever, and a total survives lost messages, since each newer one says all.

    Each credit names the policy version that came out of the rows it covers, and counts once that version or a
    newer one is loaded. Otherwise an actor could act on with the old policy in the moment between the two
    messages, and lockstep would not be lockstep.
    """

    def __init__(self, max_lead_steps: int) -> None:
        self.restart(max_lead_steps)

    def restart(self, max_lead_steps: int) -> None:
        """A new session, perhaps with another bound: both sides count from 0."""
        self.max_lead_steps = max_lead_steps
        self.taken = 0
        self.usable = 0
        self._loaded_version = -1
        self._waiting: dict[int, int] = {}  # version -> rows; holds only versions not loaded yet

    def step(self) -> None:
        """One step of each environment was taken."""
        self.taken += 1

    def credit(self, rows: int, version: int) -> None:
        """`rows` have been consumed in total; usable once `version` is loaded."""
        if version <= self._loaded_version:
            self.usable = max(self.usable, rows)
        elif rows > self.usable:
            self._waiting[version] = max(rows, self._waiting.get(version, 0))

    def loaded(self, version: int) -> None:
        """A policy of this version is in use."""
        self._loaded_version = max(self._loaded_version, version)
        for due in [waiting for waiting in self._waiting if waiting <= self._loaded_version]:
            self.usable = max(self.usable, self._waiting.pop(due))

    @property
    def lead(self) -> int:
        """Steps of each environment taken and not yet credited."""
        return self.taken - self.usable

    def may_act(self) -> bool:
        """Whether one more step keeps the lead within `max_lead_steps`; never before a policy is loaded."""
        return self._loaded_version >= 0 and self.lead < self.max_lead_steps
