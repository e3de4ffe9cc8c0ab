"""The two one-way sockets of an actor: PUSH for experience, SUB for what is broadcast."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from zmqrl.codec import (
    TOPIC_CONTROL,
    TOPIC_POLICY,
    TOPIC_STATE,
    Message,
    decode,
    decode_policy_header,
    private_topic,
)
from zmqrl.errors import DecodeError
from zmqrl.session import Welcome
from zmqrl.transport.endpoints import EXPERIENCE_SUFFIX, POLICY_SUFFIX, Address
from zmqrl.transport.quietlog import QuietLog
from zmqrl.transport.sockets import POLICY_MESSAGE_BYTES, read_frames

MAX_FRAMES = 4100
"""Of a policy of 4 GiB in frames of 1 MiB."""


class Streams:
    """Connected anew for each Welcome: what the old sockets still held belongs to a session that may be over."""

    def __init__(
        self,
        open_socket: Callable[[int, dict[int, int]], zmq.Socket[bytes]],
        control: Address,
        incarnation: int,
        quiet: QuietLog,
    ) -> None:
        self._open_socket, self._control, self._incarnation, self._quiet = open_socket, control, incarnation, quiet
        self._push: zmq.Socket[bytes] | None = None
        self._sub: zmq.Socket[bytes] | None = None

    def connect(self, welcome: Welcome) -> None:
        """To where this Welcome says that the other two sockets are."""
        self.close()
        # IMMEDIATE: nothing is queued for a learner that is not there; each chunk is asked for again
        self._push = self._open_socket(zmq.PUSH, {zmq.IMMEDIATE: 1, zmq.SNDHWM: 16})
        self._push.connect(str(self._control.beside(welcome.experience_port, EXPERIENCE_SUFFIX)))
        self._sub = self._open_socket(zmq.SUB, {zmq.RCVHWM: 8, zmq.MAXMSGSIZE: POLICY_MESSAGE_BYTES})
        own_topic = private_topic(welcome.slot, self._incarnation)
        for topic in (TOPIC_POLICY, TOPIC_STATE, TOPIC_CONTROL, own_topic):
            self._sub.setsockopt(zmq.SUBSCRIBE, topic)
        self._sub.connect(str(self._control.beside(welcome.policy_port, POLICY_SUFFIX)))

    def close(self) -> None:
        """Close both sockets."""
        for opened in (self._push, self._sub):
            if opened is not None:
                opened.close(0)
        self._push = self._sub = None

    def interests(self, sending: bool) -> list[tuple[Any, int]]:
        """What poll waits for; for room or a connection only if there is something to send."""
        interests: list[tuple[Any, int]] = []
        if self._sub is not None:
            interests.append((self._sub, zmq.POLLIN))
        if self._push is not None and sending:
            interests.append((self._push, zmq.POLLOUT))
        return interests

    def push(self, frames: list[Any]) -> bool:
        """Send a chunk; False if there is no room or no connection."""
        if self._push is None:
            return False
        try:
            self._push.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def read(self) -> Iterator[Message]:
        """All that was broadcast; of policies only the newest, since joining the frames of the others is in vain."""
        newest: tuple[tuple[int, int], list[zmq.Frame]] | None = None
        while self._sub is not None and (frames := read_frames(self._sub, MAX_FRAMES)) is not None:
            try:
                if frames[0].bytes != TOPIC_POLICY:
                    yield decode(frames)
                    continue
                header = decode_policy_header(frames)
            except DecodeError as error:
                self._refuse(error)
                continue
            age = header.epoch, header.version
            if newest is None or age > newest[0]:
                newest = age, frames
        if newest is not None:
            try:
                yield decode(newest[1])
            except DecodeError as error:
                self._refuse(error)

    def _refuse(self, error: DecodeError) -> None:
        self._quiet.refused("the learner", error.reason, str(error), time.monotonic())
