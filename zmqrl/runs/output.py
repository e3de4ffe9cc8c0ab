"""What is left to do with an output stream that failed."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TextIO


def silence(stream: TextIO | None) -> None:
    """Let what is still written to this stream go nowhere, its buffer included, which would fail again at exit."""
    with suppress(AttributeError, OSError, ValueError):  # closed already, or no file
        number = stream.fileno()  # type: ignore[union-attr]
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
