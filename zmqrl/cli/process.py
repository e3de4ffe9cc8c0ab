"""What the processes of a run have in common: how they begin, and what a signal does to them."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from zmqrl.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED
from zmqrl.supervisor import STARTED_VARIABLE, die_with_parent

SIGNALS = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}
"""What asks a process to end, and the exit code of one that did."""


def begin_process() -> None:
    """First of all: end when the launcher does, if there is one, and log to standard error, in UTC."""
    die_with_parent()
    handler = logging.StreamHandler()
    handler.setFormatter(_UtcFormatter("%(asctime)sZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(handlers=[handler])


AT_ONCE = 0.2
"""Seconds within which signals count as one: `timeout -s INT` signals its child, and then the child's group."""


class _UtcFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)


class Signals:
    """SIGINT and SIGTERM: the first asks the process to end in order, the second ends it at once.

    `ask` is called with the first one. Until it is set there is nothing to put in order: the signal then raises
    KeyboardInterrupt or SystemExit. `insist` is called with the exit code at each further one that comes at least
    AT_ONCE after the first.
    """

    def __init__(self) -> None:
        self.ask: Callable[[signal.Signals], None] | None = None
        self.insist: Callable[[int], None] = os._exit
        self.first: signal.Signals | None = None
        self._first_at = 0.0
        self._silent = STARTED_VARIABLE in os.environ
        """The launcher of this process says it."""
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """Of a process that ended in order."""
        return SIGNALS[self.first] if self.first else EXIT_OK

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.first:
            if time.monotonic() - self._first_at >= AT_ONCE:
                self._say_once()
                self.insist(SIGNALS[signal.Signals(number)])
            return
        self.first, self._first_at = signal.Signals(number), time.monotonic()
        if self.ask:
            self.ask(self.first)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(EXIT_TERMINATED)

    def _say_once(self) -> None:
        if not self._silent:
            self._silent = True
            with suppress(OSError):  # not by print, which the signal may have interrupted
                os.write(2, b"ended at once; what was not saved is lost\n")

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
