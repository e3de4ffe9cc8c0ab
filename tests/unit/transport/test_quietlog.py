"""A misbehaving peer costs one line a minute."""

from __future__ import annotations

import logging

import pytest

from zmqrl.transport.quietlog import MAX_KINDS, QuietLog


def test_the_first_of_a_kind_is_said_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    quiet = QuietLog(logging.getLogger("quiet"))
    for now in range(120):
        quiet.refused("slot 1", "nonfinite", "a NaN", float(now))
    quiet.refused("slot 2", "nonfinite", "a NaN", 119.0)
    assert [record.getMessage() for record in caplog.records] == [
        "refused from slot 1: nonfinite: a NaN",
        "refused from slot 1: nonfinite: a NaN (59 more since the last such line)",
        "refused from slot 2: nonfinite: a NaN",
    ]


def test_invented_names_do_not_fill_the_memory() -> None:
    logger = logging.getLogger("quiet.silent")
    logger.disabled = True
    quiet = QuietLog(logger)
    for number in range(3 * MAX_KINDS):
        quiet.refused(f"peer {number}", "x", "", 0.0)
    assert len(quiet._lines) <= MAX_KINDS
