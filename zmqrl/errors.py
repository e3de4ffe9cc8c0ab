"""Everything zmqrl raises on purpose, and the exit code the command gives for it.

ZmqrlError                        1  failed
├── UsageError                    2  something typed is wrong: option, file, address
│   ├── ConfigError               2  a field has an impossible value
│   ├── EnvironmentNotFound       2  no such environment here
│   ├── UnsupportedSpace          2  a space zmqrl cannot train on
│   └── AddressError              2  an address that cannot be bound or parsed
├── StarvationError               4  no actor made progress
├── TrainingError                 1  non-finite loss or gradient
├── EnvironmentFault              1  an environment gave NaN, a wrong dtype, ...
├── CheckpointError               1  a checkpoint cannot be read or written
├── DecodeError                   1  bytes that are not a message of this protocol
├── ActorFailed                   1  a spawned actor ended with an error
├── NoLearner                    75  nobody answered in time; try again later
└── Refused                          the learner said no; the code decides
full, quarantined, duplicate: 75    key, role: 77    spaces, policy, num_envs, protocol: 78
finished: 0 (the run is over, there is nothing left to do)
"""

from __future__ import annotations

from typing import ClassVar

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_STARVED = 4
EXIT_TRY_LATER = 75
EXIT_KEY_REFUSED = 77
EXIT_CONFIGURATION_REFUSED = 78
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class ZmqrlError(Exception):
    """Base of all errors raised on purpose; the text is for a person."""

    exit_code = EXIT_FAILED


class UsageError(ZmqrlError):
    """What was typed cannot be done: unknown option, unreadable file, wrong value."""

    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """A configuration field has an impossible value; names the field, the value and what is right."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} = {value!r}: {remedy}")
        self.field = field


class EnvironmentNotFound(UsageError):
    """The environment id or its module is not known on this host."""


class UnsupportedSpace(UsageError):
    """A space that cannot be trained on, by name, with a remedy."""


class AddressError(UsageError):
    """An address cannot be parsed, is in use, or is not one of this host."""


class StarvationError(ZmqrlError):
    """No actor that the update still needs made progress for `starvation_timeout`."""

    exit_code = EXIT_STARVED


class TrainingError(ZmqrlError):
    """A loss or gradient was not finite; no parameter has been touched by it."""


class EnvironmentFault(ZmqrlError):
    """An environment broke its own promise: non-finite reward or observation, wrong shape or dtype."""


class CheckpointError(ZmqrlError):
    """A checkpoint is missing, corrupt or of another run."""


class DecodeError(ZmqrlError):
    """Bytes that are not a valid message; `reason` is the label they are counted under."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ActorFailed(ZmqrlError):
    """A spawned actor ended with an error, which is the cause of this one."""


class NoLearner(ZmqrlError):
    """No learner answered within `connect_timeout`, or came back within `rejoin_timeout`."""

    exit_code = EXIT_TRY_LATER


class Refused(ZmqrlError):
    """The learner refused to let this actor join.

    code: one of the keys of `EXIT_CODES`; the text is the learner's own sentence.
    """

    EXIT_CODES: ClassVar[dict[str, int]] = {
        "full": EXIT_TRY_LATER,
        "finished": EXIT_OK,
        "quarantined": EXIT_TRY_LATER,
        "duplicate": EXIT_TRY_LATER,
        "key": EXIT_KEY_REFUSED,
        "role": EXIT_KEY_REFUSED,
        "spaces": EXIT_CONFIGURATION_REFUSED,
        "policy": EXIT_CONFIGURATION_REFUSED,
        "num_envs": EXIT_CONFIGURATION_REFUSED,
        "protocol": EXIT_CONFIGURATION_REFUSED,
    }

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.exit_code = self.EXIT_CODES.get(code, EXIT_FAILED)
