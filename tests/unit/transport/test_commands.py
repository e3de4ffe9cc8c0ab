"""Commands reach the loop once each, also those of a signal handler that interrupts the loop while it takes them."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from zmqrl.messages import SetLearningRate, Shutdown
from zmqrl.session import Command
from zmqrl.transport.commands import MAX_COMMANDS, CommandQueue


def test_commands_come_in_order_under_numbers_of_the_queue() -> None:
    queue = CommandQueue()
    assert queue.hear(Command(7, SetLearningRate(0.1)), "admin")
    queue.post(Shutdown("signal"))
    assert queue.hear(Command(7, SetLearningRate(0.2)), "other")
    first, second, third = queue.take()
    assert [command.message for command in (first, second, third)] == [
        SetLearningRate(0.1),
        Shutdown("signal"),
        SetLearningRate(0.2),
    ]
    assert queue.take() == []
    assert [queue.answered(command.request) for command in (first, second, third)] == [
        ("admin", 7),
        None,
        ("other", 7),
    ]
    assert queue.answered(first.request) is None


def test_what_is_said_again_is_queued_once_and_not_even_when_there_is_no_room() -> None:
    queue = CommandQueue()
    for request in range(MAX_COMMANDS):
        assert queue.hear(Command(request, Shutdown("now")), "admin")
    assert not queue.hear(Command(MAX_COMMANDS, Shutdown("now")), "admin")
    assert queue.hear(Command(3, Shutdown("now")), "admin")
    assert len(queue.take()) == MAX_COMMANDS


def test_a_handler_may_post_between_any_two_instructions_of_the_loop() -> None:
    queue, posted = CommandQueue(), 0
    queue.post(Shutdown("0"))

    def interrupt(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal posted
        if frame.f_code is not CommandQueue.take.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and posted < 50:
            posted += 1
            queue.post(Shutdown(str(posted)))
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        taken = queue.take()
    finally:
        sys.settrace(before)
    assert posted == 50
    taken += queue.take()
    assert [command.message for command in taken] == [Shutdown(str(number)) for number in range(51)]
