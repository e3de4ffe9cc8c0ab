"""The learner's side over sockets: ROUTER, PULL and XPUB, all owned by one thread that never stops reading.

    ROUTER  <-> DEALER   joining, refusals, credit, resend requests, heartbeats, admin commands
    PULL    <-  PUSH     experience
    XPUB     -> SUB      policies, a state heartbeat, Shutdown

What is decided about a message is in `intake.py`; here it is moved. If the thread stopped reading while the trainer
computes, queues would fill and links would drop; what it reads is bounded by the actors' credit instead.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import zmq

from zmqrl.codec import (
    HEADER_BYTES,
    TOPIC_CONTROL,
    TOPIC_POLICY,
    TOPIC_STATE,
    ExperienceLayout,
    Message,
    Subscribed,
    decode,
    encode,
    private_topic,
)
from zmqrl.config import TransportConfig
from zmqrl.errors import AddressError, DecodeError
from zmqrl.messages import PolicyBroadcast, Shutdown
from zmqrl.session import Command, CommandResult, GetPolicy, Goodbye, Heartbeat, Hello, Terms, Welcome
from zmqrl.transport.actor_bus import SocketActorBus, connect_actor
from zmqrl.transport.admission import Sender
from zmqrl.transport.endpoints import (
    EXPERIENCE_SUFFIX,
    POLICY_SUFFIX,
    Address,
    JoinString,
    address_to_bind,
    is_loopback,
    outward_host,
)
from zmqrl.transport.intake import Intake
from zmqrl.transport.sockets import (
    BACKLOG,
    CONTROL_MESSAGE_BYTES,
    Listener,
    SharedContext,
    Wakeup,
    listen,
    open_socket,
    raise_descriptor_limit,
    read_frames,
)

log = logging.getLogger(__name__)

READ_AT_ONCE = 128
"""Messages read from one socket before the others have their turn."""

FRAMES_KEPT = 4
"""No message to the learner has more, with the routing id in front."""

LAST_WORDS_MS = 500
"""Linger at the end, for Farewell and Shutdown that are on their way; a peer that reads takes none of it."""

_SUBSCRIPTION = re.compile(rb"([\x00\x01])a/(\d{1,19})-(\d{1,19})/")
"""An actor's private topic: subscribed to (1) when it joins, ended (0) when its link does."""


def bind_learner(
    address: str,
    transport: TransportConfig | None = None,
    *,
    run_id: str = "",
    epoch: int = 1,
    env: str = "",
    insecure: bool = False,
) -> SocketLearnerBus:
    """Bind the three sockets of a learner, all at once or none; actors are admitted once the bus is opened.

    address: tcp://host:port (and the two ports after it; 0 for any free ones), ipc://path or inproc://name.
    Raises AddressError.
    """
    control = address_to_bind(address)
    if not control.local and not insecure:
        raise AddressError(
            f"{control} can be reached from other machines, and this version has no keys: whoever reaches it could "
            "join the run or feed it; bind tcp://127.0.0.1 and forward its three ports over ssh, or say --insecure "
            "if the network is your own"
        )
    ports = [0, 0, 0] if control.port == 0 else [control.port, control.port + 1, control.port + 2]
    if max(ports) > 65_535:
        raise AddressError(f"{control}: the two ports after it are needed too; choose one of at most 65533")
    wanted = [
        ("control", control),
        ("experience", control.beside(ports[1], EXPERIENCE_SUFFIX)),
        ("policies", control.beside(ports[2], POLICY_SUFFIX)),
    ]
    raise_descriptor_limit()
    listeners: list[Listener] = []
    try:
        for role, place in wanted:
            listeners.append(listen(place, role))
        return SocketLearnerBus(listeners, transport or TransportConfig(), run_id or secrets.token_hex(16), epoch, env)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise


class SocketLearnerBus(Intake):
    """See `zmqrl.transport.bus.LearnerBus`; made by `bind_learner`."""

    def __init__(
        self, listeners: list[Listener], transport: TransportConfig, run_id: str, epoch: int, env: str
    ) -> None:
        super().__init__(transport, run_id, epoch, env)
        self._listeners = listeners
        control, experience, policy = listeners
        self._control_address = control.address
        self.experience_port, self.policy_port = experience.address.port, policy.address.port
        self._tasks: deque[Callable[[], None]] = deque()
        self._policy_frames: tuple[PolicyBroadcast, list[Any]] | None = None
        self._closing = False
        self._wakeup = Wakeup()
        self._shared = SharedContext()
        self._context = self._shared.enter()
        listening: dict[int, int] = {zmq.IPV6: int(control.address.ipv6), zmq.BACKLOG: BACKLOG}
        try:
            self._router = open_socket(
                self._context,
                zmq.ROUTER,
                # an actor that is gone is an error of the call and not a silent drop
                {zmq.ROUTER_MANDATORY: 1, zmq.MAXMSGSIZE: CONTROL_MESSAGE_BYTES, **listening},
            )
            self._pull = open_socket(self._context, zmq.PULL, {zmq.RCVHWM: 64, **listening})
            self._xpub = open_socket(
                self._context,
                zmq.XPUB,
                # The mark counts whole policies, which all subscribers share: a stuck one pins at most eight.
                {zmq.XPUB_VERBOSER: 1, zmq.SNDHWM: 8, zmq.RCVHWM: 1000, zmq.MAXMSGSIZE: 4096, **listening},
            )
            control.attach(self._router)
            policy.attach(self._xpub)
            self._pull_attached = control.address.scheme == "inproc"  # which has no limit to wait for
            if self._pull_attached:
                experience.attach(self._pull)
        except BaseException:
            self._close_sockets()
            self._wakeup.close()
            raise
        self._thread = threading.Thread(target=self._run, name="zmqrl-learner-io", daemon=True)
        self._thread.start()

    # --- the learner's loop ------------------------------------------------------------------------------

    @property
    def control_address(self) -> Address:
        """Where the control socket is bound."""
        return self._control_address

    @property
    def join_string(self) -> str:
        """What an actor joins with; names this machine where all its interfaces are bound."""
        address = self._control_address
        if address.scheme == "tcp":
            address = replace(address, host=outward_host(address.host))
        terms = self._admission.terms
        return str(JoinString(str(address), self.env, terms.num_envs if terms else 0, self.run_id))

    def connect(self, hello: Hello) -> SocketActorBus:
        """An actor of this program, over the same sockets."""
        shared = self._shared if self._control_address.scheme == "inproc" else None
        return connect_actor(self.join_string, hello, self.transport, shared=shared)

    def open(self, terms: Terms) -> None:
        """Bind the experience socket, whose largest message follows from the shapes, and admit actors."""
        encode(Welcome(0, 0, 0, 0, terms))  # a manifest too large to travel is found here, and not at each Hello
        self._do(partial(self._attach_pull, ExperienceLayout.of(terms).max_body_bytes))
        super().open(terms)

    def deliver(self, sender: Sender, message: Message) -> None:
        """Send on the control socket."""
        self._do(partial(self._send, sender, message))

    def broadcast(self, message: PolicyBroadcast | Shutdown) -> None:
        """Send on XPUB."""
        # encoded here, since the checksum of a large policy takes a while and the I/O thread has others to answer
        if isinstance(message, Shutdown):
            frames = encode(message, TOPIC_CONTROL)
        else:
            self._policy_frames = message, encode(message)
            frames = [TOPIC_POLICY, *self._policy_frames[1][1:]]
        self._do(partial(self._send_to_all, frames))

    def close(self) -> None:
        """Give back the thread, sockets, ports and socket files."""
        if not self._closing:
            self._closing = True
            self._wakeup.ring()
            self._thread.join()
            self._wakeup.close()
            for listener in self._listeners:
                listener.close()

    def _do(self, task: Callable[[], None]) -> None:
        """Have the I/O thread do something; if this is that thread, it looks again before it waits."""
        self._tasks.append(task)
        if threading.current_thread() is not self._thread:
            self._wakeup.ring()

    # --- the I/O thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        beat = self.transport.heartbeat_interval
        timers = [
            _Timer(beat, self._send_state),
            _Timer(beat / 4, lambda: self.tick(time.monotonic())),
        ]
        readers = (
            (self._router, self._on_control),
            (self._pull, self._on_experience),
            (self._xpub, self._on_subscription),
        )
        poller = zmq.Poller()
        poller.register(self._wakeup.fileno(), zmq.POLLIN)
        for readable, _ in readers:
            poller.register(readable, zmq.POLLIN)
        try:
            while not self._closing:
                wait = min(timer.due for timer in timers) - time.monotonic()
                events = dict(poller.poll(max(0, 1 + int(wait * 1000))))
                self._wakeup.clear()
                self._run_tasks()
                for source, hear in readers:
                    if source in events:
                        self._read(source, hear)
                now = time.monotonic()
                for timer in timers:
                    self._guarded(timer.run_if_due, now)
                self._run_tasks()
        finally:
            self._run_tasks()
            self._close_sockets()

    def _run_tasks(self) -> None:
        while self._tasks:
            self._guarded(self._tasks.popleft())

    def _read(self, source: zmq.Socket[bytes], hear: Callable[[list[zmq.Frame]], None]) -> None:
        for _ in range(READ_AT_ONCE):
            frames = read_frames(source, FRAMES_KEPT)
            if frames is None:
                return
            self._guarded(hear, frames)

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        """Nothing that one message causes may end the thread, which all others depend on."""
        try:
            action(*arguments)
        except Exception:
            self._rejected["internal"] += 1
            log.exception("an error of zmqrl while handling a message; the message is dropped")

    def _on_control(self, frames: list[zmq.Frame]) -> None:
        now = time.monotonic()
        sender = frames[0].bytes
        try:
            self._handle(decode(frames[1:]), sender, frames[-1], now)
        except DecodeError as error:
            self.refuse_message(error, sender, now)

    def _handle(self, message: Message, sender: bytes, frame: zmq.Frame, now: float) -> None:
        match message:
            case Heartbeat():
                self.hear_heartbeat(message, sender, now)
            case Hello():
                self.hear_hello(message, sender, now)
            case GetPolicy():
                self.hear_get_policy(message, sender)
            case Goodbye():
                self.hear_goodbye(message, sender, now)
            case Command() if self._control_address.local or is_loopback(_peer(frame)):
                self.hear_command(message, sender)
            case Command():
                text = "refused: commands are taken from this machine only; run zmqrl ctl on the learner's host"
                self.deliver(sender, CommandResult(message.request, False, text))
            case _:
                raise DecodeError("malformed", f"a {type(message).__name__} is not for the learner")

    def _on_experience(self, frames: list[zmq.Frame]) -> None:
        self.hear_experience(frames, time.monotonic())

    def _on_subscription(self, frames: list[zmq.Frame]) -> None:
        # Seeing it here proves that what is published from now on reaches this actor; so tell it.
        if match := _SUBSCRIPTION.fullmatch(frames[0].bytes):
            slot, incarnation = int(match[2]), int(match[3])
            if match[1] == b"\x01":
                self._send_to_all(encode(Subscribed(self.epoch), private_topic(slot, incarnation)))
            else:
                self.hear_link_lost(slot, incarnation, time.monotonic())

    def _send(self, sender: bytes, message: Message) -> None:
        cached = self._policy_frames
        frames = cached[1] if cached is not None and cached[0] is message else encode(message)
        try:
            self._router.send_multipart([sender, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            log.debug("an actor does not read; it is told again at its next heartbeat")
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise

    def _send_to_all(self, frames: list[Any]) -> None:
        self._xpub.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def _send_state(self) -> None:
        self._send_to_all(encode(self.state(), TOPIC_STATE))

    def _attach_pull(self, largest: int) -> None:
        if not self._pull_attached:
            self._pull.setsockopt(zmq.MAXMSGSIZE, max(largest, HEADER_BYTES))
            self._listeners[1].attach(self._pull)
            self._pull_attached = True

    def _close_sockets(self) -> None:
        for name, linger in (("_router", LAST_WORDS_MS), ("_xpub", LAST_WORDS_MS), ("_pull", 0)):
            opened = getattr(self, name, None)
            if opened is not None:
                opened.close(linger)
        self._shared.leave()


class _Timer:
    """Something to do every so many seconds."""

    def __init__(self, interval: float, action: Callable[[], None]) -> None:
        self._interval, self._action = interval, action
        self.due = 0.0

    def run_if_due(self, now: float) -> None:
        if now >= self.due:
            self.due = now + self._interval
            self._action()


def _peer(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
