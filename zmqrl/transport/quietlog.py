"""Log lines about what others send: the first of each kind at once, then at most one a minute with a count."""

from __future__ import annotations

import logging

LOG_INTERVAL = 60.0
"""Seconds between two lines about the same kind of message of the same sender."""

MAX_KINDS = 1024
"""Kinds that are remembered; a sender can invent names without end."""


class QuietLog:
    """Bounds both the lines and the memory that a misbehaving peer can cause."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lines: dict[tuple[str, str], tuple[float, int]] = {}

    def refused(self, who: str, reason: str, text: str, now: float) -> None:
        """A message `who` sent (or got refused) was dropped for `reason`."""
        said_at, silent = self._lines.get((who, reason), (now - LOG_INTERVAL, 0))
        if now - said_at < LOG_INTERVAL:
            self._lines[who, reason] = said_at, silent + 1
            return
        if len(self._lines) >= MAX_KINDS:
            self._lines.clear()
        self._lines[who, reason] = now, 0
        more = f" ({silent} more since the last such line)" if silent else ""
        self._log.warning("refused from %s: %s: %s%s", who, reason, text, more)
