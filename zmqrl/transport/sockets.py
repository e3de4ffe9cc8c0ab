"""What the two socket buses share: options of the sockets with their reasons, listening, waking, and leaving."""

from __future__ import annotations

import errno
import os
import random
import resource
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zmq

from zmqrl.errors import AddressError
from zmqrl.transport.endpoints import Address

BACKLOG = 4096
"""A job array starts at once; the usual 100 would make many of them wait for a retry."""

LINK_OPTIONS: dict[int, int] = {
    # Close at once: whatever matters is acknowledged by messages of ours, and an infinite linger blocks the end.
    zmq.LINGER: 0,
    # PING and PONG by libzmq's own thread. Its timer is reset by whole frames only, so the timeout exceeds
    # the time of the largest frame (1 MiB) at 100 kB/s.
    zmq.HEARTBEAT_IVL: 5_000,
    zmq.HEARTBEAT_TIMEOUT: 30_000,
    zmq.HEARTBEAT_TTL: 30_000,
    zmq.HANDSHAKE_IVL: 10_000,
    # For address translators that forget quiet connections.
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,
    zmq.TCP_KEEPALIVE_INTVL: 15,
    zmq.TCP_KEEPALIVE_CNT: 4,
}

ZERO_COPY_BYTES = 128 << 10
"""Smaller frames are copied when sent. Measured over loopback: at 70 kB copying is 1.1 to 1.4 times as fast as keeping
the buffer alive and having pyzmq's own thread release it, from 300 kB on it is 1.2 to 1.5 times as slow. A buffer
that was handed to a socket is never written again."""

CONTROL_MESSAGE_BYTES = 1 << 20
POLICY_MESSAGE_BYTES = 4 << 20
"""Frames have at most 1 MiB; the rest is room for a later version."""


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, options: dict[int, int]) -> zmq.Socket[bytes]:
    """A socket with the options of all links and these."""
    opened = context.socket(kind)
    opened.copy_threshold = ZERO_COPY_BYTES
    for option, value in (LINK_OPTIONS | options).items():
        opened.setsockopt(option, value)
    return opened


def reconnect_options() -> dict[int, int]:
    """Back-off from 0.1 to 5 s, spread so that a thousand actors do not knock at the same moment."""
    return {zmq.RECONNECT_IVL: random.randint(50, 150), zmq.RECONNECT_IVL_MAX: random.randint(4_000, 6_000)}


# --- listening -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listener:
    """A listening descriptor of our own, and the address it really has.

    libzmq would take over the socket file of another learner without a word, and fixes MAXMSGSIZE when it binds, which
    is before the shapes are known. So we listen ourselves, and hand the descriptor over (ZMQ_USE_FD) later.
    """

    address: Address
    handle: socket.socket | None
    """None for inproc, where nothing can be reserved."""

    def attach(self, bound: zmq.Socket[bytes]) -> None:
        """Bind the ZeroMQ socket to it, which owns the descriptor from then on."""
        if self.handle is not None:
            bound.setsockopt(zmq.USE_FD, self.handle.detach())
        try:
            bound.bind(str(self.address))
        except zmq.ZMQError as error:
            raise AddressError(f"{self.address} cannot be bound: {error.strerror}") from None

    def close(self) -> None:
        """Close the descriptor if it was not handed over, and remove its file."""
        if self.handle is not None:
            self.handle.close()
        if self.address.scheme == "ipc":
            with suppress(FileNotFoundError):
                os.unlink(self.address.path)


def listen(address: Address, role: str) -> Listener:
    """Listen at this address; port 0 is a free port. Raises AddressError with the reason and a remedy."""
    match address.scheme:
        case "inproc":
            return Listener(address, None)
        case "ipc":
            return Listener(address, _listen_to_file(address, role))
        case "tcp":
            handle = _listen_to_port(address, role)
            return Listener(Address("tcp", address.host, handle.getsockname()[1]), handle)


def _listen_to_port(address: Address, role: str) -> socket.socket:
    handle = socket.socket(socket.AF_INET6 if address.ipv6 else socket.AF_INET)
    try:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        target = socket.getaddrinfo(address.host, address.port, handle.family, socket.SOCK_STREAM)[0][4]
        handle.bind(target)
        handle.listen(BACKLOG)
    except OSError as error:
        handle.close()
        raise AddressError(_why_not(address, role, error)) from None
    handle.setblocking(False)
    return handle


def _why_not(address: Address, role: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"address in use: {address}: port {address.port} ({role}) is taken by another process; choose another with "
            "--bind (the port and the two after it must be free), or port 0 for any free ones"
        )
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{address}: {address.host} is no address of this machine; bind one of its own, or tcp://127.0.0.1:{address.port}"
    if error.errno == errno.EACCES:
        return f"{address}: port {address.port} may not be used by this user; choose one above 1023"
    return f"{address} ({role}) cannot be bound: {error.strerror or error}"


def _listen_to_file(address: Address, role: str) -> socket.socket:
    handle = socket.socket(socket.AF_UNIX)
    try:
        handle.bind(address.path)
        handle.listen(BACKLOG)
    except OSError as error:
        handle.close()
        raise AddressError(_why_no_file(address, role, error)) from None
    handle.setblocking(False)
    return handle


def _why_no_file(address: Address, role: str, error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return f"{address} ({role}) cannot be bound: {error.strerror or error}"
    if not Path(address.path).is_socket():
        return f"address in use: {address}: a file of that name exists and is no socket; choose another name"
    with socket.socket(socket.AF_UNIX) as probe:
        answered = probe.connect_ex(address.path) == 0
    if answered:
        return f"address in use: {address}: another learner listens there ({role}); choose another name"
    return f"address in use: {address}: a learner that died left this socket file; remove it, or choose another name"


def raise_descriptor_limit() -> None:
    """Three connections per actor soon exceed the usual soft limit of 1,024, where libzmq ends the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- waking and leaving ----------------------------------------------------------------------------------


class Wakeup:
    """Wakes a thread that waits in poll: one byte in a pipe, however often it is rung."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        self._rung = False
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Readable once it was rung."""
        return self._reader

    def ring(self) -> None:
        """From any thread; after `close` it does nothing."""
        with self._lock:
            if not self._rung and self._writer >= 0:
                self._rung = True
                os.write(self._writer, b"!")

    def clear(self) -> None:
        """Called by the woken thread before it looks for work, so that no later ring is lost."""
        with self._lock:
            if self._rung:
                self._rung = False
                os.read(self._reader, 1)

    def close(self) -> None:
        """Give the descriptors back."""
        with self._lock:
            if self._writer >= 0:
                os.close(self._reader)
                os.close(self._writer)
                self._reader = self._writer = -1


class SharedContext:
    """A ZeroMQ context that ends with the last bus that uses it: over inproc both sides must share one, and
    terminating it waits for the sockets of all.
    """

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._users = 0
        self._lock = threading.Lock()

    def enter(self) -> zmq.Context[zmq.Socket[bytes]]:
        """One more bus uses it."""
        with self._lock:
            self._users += 1
        return self.context

    def leave(self) -> None:
        """One bus less, all of whose sockets are closed."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.context.term()


def read_frames(source: zmq.Socket[bytes], most: int) -> list[zmq.Frame] | None:
    """The next message without waiting, or None. Of one with more than `most` frames only that many and one more
    are kept, and the rest is drained: MAXMSGSIZE bounds each frame, not their number.
    """
    frames: list[zmq.Frame] = []
    try:
        more = True
        while more:
            frame = source.recv(zmq.NOBLOCK, copy=False)
            more = frame.more
            if len(frames) <= most:
                frames.append(frame)
    except zmq.Again:
        return None
    return frames
