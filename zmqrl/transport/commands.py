"""Commands on their way to the learner's loop: from admins, and from this process itself."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import Any

from zmqrl.messages import ControlMessage
from zmqrl.session import Command

MAX_COMMANDS = 64
"""Admin commands that wait for an answer of the loop, which looks between two chunks; a person types fewer."""

Origin = tuple[Any, int]
"""Who sent a command, and under which number of its own."""


class CommandQueue:
    """What the loop has to obey, in the order in which it came, under numbers of this queue.

    A signal handler runs between any two steps of the main thread, also while that thread takes commands. So `post`
    and `take` hold no lock, and change the queue only by single operations that cannot be interrupted.
    """

    def __init__(self) -> None:
        self._waiting: deque[Command] = deque()
        self._numbers = itertools.count()
        self._origins: dict[int, Origin] = {}  # of commands not answered yet
        self._origins_lock = threading.Lock()

    def post(self, message: ControlMessage) -> None:
        """From this process; from any thread, and from a signal handler at any moment. Nobody is told its result."""
        self._waiting.append(Command(next(self._numbers), message))

    def hear(self, command: Command, sender: Any) -> bool:
        """From an admin; False if too many wait. The same one sent again before it is answered is queued once."""
        origin = (sender, command.request)
        with self._origins_lock:
            if origin in self._origins.values():
                return True
            if len(self._origins) >= MAX_COMMANDS:
                return False
            number = next(self._numbers)
            self._origins[number] = origin
        self._waiting.append(Command(number, command.message))
        return True

    def take(self) -> list[Command]:
        """All that came since the last call."""
        taken = []
        while self._waiting:  # only this method takes any away
            taken.append(self._waiting.popleft())
        return taken

    def answered(self, number: int) -> Origin | None:
        """Whom to tell what became of a command, once; None if nobody waits for it."""
        with self._origins_lock:
            return self._origins.pop(number, None)
