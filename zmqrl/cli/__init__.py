"""The command: verbs, and what an error looks like and exits with.

A verb is a module with `main(argv) -> int`, imported when it is called. Nothing heavy is imported here: the list
of verbs has to come at once.
"""

from __future__ import annotations

import difflib
import errno
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from zmqrl.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, ZmqrlError


class Verb(NamedTuple):
    """Where a verb lives, and what it does in one line."""

    module: str
    summary: str


VERBS = {
    "train": Verb("train", "learner and actors as processes of this machine"),
    "learner": Verb("learner", "a learner that actors join, from this host or others"),
    "actor": Verb("actor", "an actor that joins a learner"),
    "eval": Verb("evaluate", "episodes with a trained policy, without training"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code (see `zmqrl.errors`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(arguments[0] if arguments else "", arguments)
        finally:
            if sys.stdout:
                sys.stdout.flush()  # while it can still be said that it fails
    except BrokenPipeError:  # whoever read has seen enough
        _silence_output()
        return EXIT_FAILED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _silence_output()
        place = f" {error.filename}" if error.filename else ""
        print(f"zmqrl: error: cannot write{place}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED


def _silence_output() -> None:
    from zmqrl.runs.output import silence

    silence(sys.stdout)


def _run(name: str, arguments: Sequence[str]) -> int:
    if name in ("--help", "-h", "help"):
        print(overview())
        return EXIT_OK
    if name == "--version":
        from zmqrl import __version__

        print(f"zmqrl {__version__}")
        return EXIT_OK
    if name not in VERBS:
        print(f"zmqrl: error: {_unknown(name)}", file=sys.stderr)
        return EXIT_USAGE
    try:
        verb = import_module(f"zmqrl.cli.{VERBS[name].module}")
        return int(verb.main(arguments[1:]))
    except ZmqrlError as error:
        print(f"zmqrl {name}: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"zmqrl {name}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def overview() -> str:
    """What `zmqrl --help` prints."""
    lines = [f"  {name:<9} {verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: zmqrl VERB [options]",
            "",
            "PPO with one learner and any number of actors, over ZeroMQ.",
            "",
            *lines,
            "",
            "zmqrl VERB --help lists the options of a verb. First try: zmqrl train --env CartPole-v1",
        ]
    )


def _unknown(name: str) -> str:
    known = ", ".join(VERBS)
    if not name:
        return f"a verb is missing, one of: {known}"
    if name.startswith("-"):
        return f"a verb comes before {name}, one of: {known}"
    nearest = difflib.get_close_matches(name, VERBS, n=1, cutoff=0.0)[0]
    return f"unknown verb {name!r}; did you mean {nearest!r}? There are: {known}"
