"""The actor's side over sockets: DEALER, PUSH and SUB, all owned by one thread that stays awake in a slow env.step.

The thread walks through three phases, and back to the first whenever the learner is silent or of another epoch:

    joining      Hello is repeated until Welcome or Refuse
    subscribing  PUSH and SUB are connected; the learner's Subscribed on the private topic proves that broadcasts arrive
    joined       the current policy is fetched once, later ones are broadcast

Broadcasts and credit may be lost; each heartbeat is answered with the newest credit, and the state heartbeat names the
newest version, so the next beat repairs it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

import zmq

from zmqrl.accounts import ActorStats
from zmqrl.codec import Message, Subscribed, decode, encode
from zmqrl.config import TransportConfig
from zmqrl.errors import DecodeError, NoLearner
from zmqrl.messages import PolicyBroadcast, Shutdown
from zmqrl.session import (
    Credit,
    Farewell,
    GetPolicy,
    Goodbye,
    Heartbeat,
    Hello,
    LearnerState,
    Refuse,
    Rejected,
    Resend,
    Welcome,
)
from zmqrl.transport.endpoints import parse_address, parse_join
from zmqrl.transport.inbox import Inbox
from zmqrl.transport.quietlog import QuietLog
from zmqrl.transport.sequence import SentChunk
from zmqrl.transport.sockets import (
    POLICY_MESSAGE_BYTES,
    SharedContext,
    Wakeup,
    open_socket,
    read_frames,
    reconnect_options,
)
from zmqrl.transport.streams import MAX_FRAMES, Streams

log = logging.getLogger(__name__)

HELLO_INTERVAL = 1.0
"""Seconds between two Hellos. One is enough where the learner is there; the others find one that came later."""

WAITING_INTERVAL = 5.0
"""Seconds between two calls of `on_waiting`."""

LEAVING_INTERVAL = 0.05
"""Seconds between heartbeats while the account is settled: it ends with the answer to one of them."""

GOODBYE_INTERVAL = 0.1
GOODBYE_TIMEOUT = 2.0
"""A learner that is there answers at once; one that is not must not keep an actor from ending."""

GONE_AFTER = 2.0
"""Seconds of silence, after Shutdown and while each fast heartbeat should be answered, that mean the learner ended."""


class _Phase(Enum):
    JOINING = "joining"
    SUBSCRIBING = "subscribing"
    JOINED = "joined"


def connect_actor(
    join: str,
    hello: Hello,
    transport: TransportConfig | None = None,
    on_waiting: Callable[[str], None] | None = None,
    *,
    shared: SharedContext | None = None,
) -> SocketActorBus:
    """Join the learner at `join` (a join string or address); returns with the Welcome.

    on_waiting: called about every 5 s with a sentence for the user. shared: the context of an inproc learner.
    Raises Refused with the learner's sentence, NoLearner after `transport.connect_timeout`, UsageError.
    """
    transport = transport or TransportConfig()
    address = parse_join(join).address
    bus = SocketActorBus(address, hello, transport, shared or SharedContext())
    began = time.monotonic()
    try:
        while not bus.wait_for_answer(min(WAITING_INTERVAL, began + transport.connect_timeout - time.monotonic())):
            waited = time.monotonic() - began
            if waited >= transport.connect_timeout:
                raise NoLearner(
                    f"no learner answered at {address} within {waited:.0f} s (connect_timeout); is it running, and is "
                    "this address reachable from here?"
                )
            if on_waiting is not None:
                on_waiting(
                    f"no answer from {address} for {waited:.0f} s; waiting up to {transport.connect_timeout:g} s"
                )
    except BaseException:
        bus.close()
        raise
    return bus


class SocketActorBus(Inbox):
    """See `zmqrl.transport.bus.ActorBus`; made by `connect_actor`."""

    def __init__(self, address: str, hello: Hello, transport: TransportConfig, shared: SharedContext) -> None:
        super().__init__(hello)
        self._address = parse_address(address)
        self._rejoin_timeout = transport.rejoin_timeout
        self._lease = transport.lease
        self._beat_interval = transport.heartbeat_interval
        # shared with the loop's thread
        self._outgoing: deque[tuple[int, SentChunk]] = deque()  # with the session they belong to
        self._goodbye: Goodbye | None = None
        self._farewell = False
        self._closing = False
        # the I/O thread's own
        self._phase = _Phase.JOINING
        self._heard_at = self._rejoin_since = time.monotonic()
        self._hello_due = self._beat_due = self._goodbye_due = 0.0
        self._sent_seq = 0
        self._known_version = -1
        self._behind_since: float | None = None
        self._quiet = QuietLog(log)
        self._wakeup = Wakeup()
        self._shared = shared
        self._context = shared.enter()
        self._streams = Streams(self._open, self._address, hello.incarnation, self._quiet)
        # IMMEDIATE: nothing is queued for a learner that is not there; each message is repeated.
        self._dealer = self._open(
            zmq.DEALER, {zmq.IMMEDIATE: 1, zmq.SNDHWM: 100, zmq.RCVHWM: 100, zmq.MAXMSGSIZE: POLICY_MESSAGE_BYTES}
        )
        self._dealer.connect(str(self._address))
        self._thread = threading.Thread(target=self._run, name="zmqrl-actor-io", daemon=True)
        self._thread.start()

    # --- the actor's loop --------------------------------------------------------------------------------

    def _transmit(self, chunk: SentChunk, session: int) -> None:
        self._outgoing.append((session, chunk))
        self._wakeup.ring()

    def _leave(self) -> None:
        self._wakeup.ring()

    def _is_settled(self) -> bool:
        gone = self._shutdown is not None and time.monotonic() - self._heard_at > GONE_AFTER
        return super()._is_settled() or gone

    def goodbye(self, stats: ActorStats, reason: str = "") -> None:
        """Leave for good; returns when the learner heard it, or after two seconds."""
        with self._changed:
            if self._welcome is None or self._failure is not None:
                return
            epoch, slot = self._welcome.terms.epoch, self._welcome.slot
            self._goodbye = Goodbye(epoch, slot, self._hello.incarnation, reason, replace(stats))
            self._wakeup.ring()
            self._changed.wait_for(lambda: self._farewell or self._failure is not None, GOODBYE_TIMEOUT)

    def close(self) -> None:
        """Give back the thread and the sockets."""
        if not self._closing:
            self._closing = True
            self._wakeup.ring()
            self._thread.join()
            self._wakeup.close()

    # --- the I/O thread ----------------------------------------------------------------------------------

    def _open(self, kind: int, options: dict[int, int]) -> zmq.Socket[bytes]:
        return open_socket(self._context, kind, {zmq.IPV6: int(self._address.ipv6), **reconnect_options(), **options})

    def _run(self) -> None:
        try:
            while not self._closing:
                now = time.monotonic()
                due = self._run_timers(now)
                if self._leaving:
                    due = min(due, now + LEAVING_INTERVAL)
                    with self._changed:
                        self._changed.notify_all()  # time alone may settle the account
                events = dict(zmq.zmq_poll(self._interests(), max(0, 1 + int((due - time.monotonic()) * 1000))))
                self._wakeup.clear()
                if events.get(self._dealer, 0) & zmq.POLLIN:
                    self._read_dealer()
                for message in self._streams.read():
                    self._hear_broadcast(message, time.monotonic())
                self._send_chunks()
        except Exception as error:
            log.exception("the actor's I/O thread ended")
            self.fail(NoLearner(f"the connection to {self._address} failed: {error}"))
        finally:
            self._dealer.close(0)
            self._streams.close()
            self._shared.leave()

    def _interests(self) -> list[tuple[Any, int]]:
        """What poll waits for. POLLOUT only where something waits for room or for a connection."""
        hello_waits = self._wants_to_join() and self._hello_due <= time.monotonic()
        chunks_wait = bool(self._outgoing) and self._phase is not _Phase.JOINING
        return [
            (self._wakeup.fileno(), zmq.POLLIN),
            (self._dealer, zmq.POLLIN | (zmq.POLLOUT if hello_waits else 0)),
            *self._streams.interests(sending=chunks_wait),
        ]

    def _wants_to_join(self) -> bool:
        """One that leaves, or heard that the run is over, joins no more."""
        return self._phase is _Phase.JOINING and self._goodbye is None and not self._run_is_over

    def _run_timers(self, now: float) -> float:
        """Do what is due; returns when the next is."""
        due = self._run_joining_timers(now) if self._phase is _Phase.JOINING else self._run_session_timers(now)
        if self._goodbye is not None and not self._farewell:
            if now >= self._goodbye_due:
                self._say(self._goodbye)
                self._goodbye_due = now + GOODBYE_INTERVAL
            due = min(due, self._goodbye_due)
        return due

    def _run_joining_timers(self, now: float) -> float:
        if self._welcome is not None and now - self._rejoin_since > self._rejoin_timeout:
            self.fail(
                NoLearner(
                    f"the learner at {self._address} has been silent for {now - self._heard_at:.0f} s "
                    f"(rejoin_timeout = {self._rejoin_timeout:g})"
                )
            )
        # without a connection it stays due, and POLLOUT tells when there is one
        if self._wants_to_join() and now >= self._hello_due and self._say(self._hello_now()):
            self._hello_due = now + HELLO_INTERVAL
        return now + HELLO_INTERVAL if self._hello_due <= now else self._hello_due

    def _run_session_timers(self, now: float) -> float:
        if now - self._heard_at > self._lease:
            self._rejoin(f"silent for {self._lease:g} s", now)
            return now
        if now >= self._beat_due:
            self._beat(now)
        if self._leaving:
            self._beat_due = min(self._beat_due, now + LEAVING_INTERVAL)
        return self._beat_due

    def _say(self, message: Message) -> bool:
        """Send on the control socket; False without a connection."""
        try:
            self._dealer.send_multipart(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _beat(self, now: float) -> None:
        activity, welcome = self.activity, self._welcome
        assert welcome is not None  # since the phase is not JOINING
        self._beat_due = now + (LEAVING_INTERVAL if self._leaving else self._beat_interval)
        began = activity.step_began
        self._say(
            Heartbeat(
                epoch=welcome.terms.epoch,
                slot=welcome.slot,
                incarnation=self._hello.incarnation,
                next_seq=self._sent_seq,
                steps_taken=activity.steps_taken,
                episodes=activity.episodes,
                version=activity.version,
                in_step_seconds=0.0 if began is None else max(now - began, 1e-9),
                waiting_for_credit=activity.waiting_for_credit,
                leaving=self._leaving,
                error=activity.error,
            )
        )
        if self._phase is _Phase.SUBSCRIBING or self._known_version > self._held_version():
            if self._behind_since is None:
                self._behind_since = now
            elif now - self._behind_since >= 2 * self._beat_interval:
                self._behind_since = now
                self._get_policy()
        else:
            self._behind_since = None

    def _held_version(self) -> int:
        with self._changed:
            return self._policy.version if self._policy else -1

    def _get_policy(self) -> None:
        assert self._welcome is not None
        self._say(GetPolicy(self._welcome.terms.epoch, self._held_version()))

    def _send_chunks(self) -> None:
        while self._outgoing and self._phase is not _Phase.JOINING:
            session, chunk = self._outgoing[0]
            if session == self._session and chunk.frames:  # they are gone if it was refused while it waited here
                if not self._streams.push(chunk.frames):
                    return
                self._sent_seq = max(self._sent_seq, chunk.seq + 1)
            self._outgoing.popleft()

    def _read_dealer(self) -> None:
        while (frames := read_frames(self._dealer, MAX_FRAMES)) is not None:
            try:
                message = decode(frames)
            except DecodeError as error:
                self._quiet.refused("the learner", error.reason, str(error), time.monotonic())
                continue
            self._handle(message, time.monotonic())

    def _handle(self, message: Message, now: float) -> None:
        self._heard_at = now
        match message:
            case Credit():
                self._known_version = max(self._known_version, message.version)
                self.hear_credit(message)
            case Welcome() if self._phase is _Phase.JOINING:
                self._begin(message, now)
            case Refuse() if self._phase is _Phase.JOINING:
                self.hear_refuse(message)
            case Resend():
                self._resend(message)
            case PolicyBroadcast():
                self.hear_policy(message)
            case Shutdown():
                self.hear_shutdown(message)
            case Rejected():
                self._hear_rejected(message, now)
            case Farewell():
                with self._changed:
                    self._farewell = True
                    self._changed.notify_all()
            case _:
                pass

    def _begin(self, welcome: Welcome, now: float) -> None:
        terms = welcome.terms
        with self._changed:
            known = self._credit.received_seq
        if self.hear_welcome(welcome):
            self._outgoing.clear()
            self._sent_seq, self._known_version = 0, -1
        else:
            with self._changed:
                again = list(self._window.between(known, self._window.next_seq))
            self._outgoing.clear()
            self._outgoing.extend((self._session, chunk) for chunk in again)
        self._beat_interval, self._lease, self._rejoin_timeout = (
            terms.heartbeat_interval,
            terms.lease,
            terms.rejoin_timeout,
        )
        self._streams.connect(welcome)
        self._phase, self._beat_due, self._behind_since = _Phase.SUBSCRIBING, now, None

    def _hear_rejected(self, rejected: Rejected, now: float) -> None:
        if rejected.reason in ("stale_epoch", "unknown_actor"):
            if self._phase is not _Phase.JOINING and self._goodbye is None:
                self._rejoin(rejected.text, now)
            return
        self.hear_rejected(rejected)
        self._quiet.refused("this actor, by the learner", rejected.reason, rejected.text, now)

    def _rejoin(self, reason: str, now: float) -> None:
        log.info("saying Hello again to %s: %s", self._address, reason)
        self._phase, self._rejoin_since, self._hello_due = _Phase.JOINING, now, now

    def _resend(self, resend: Resend) -> None:
        with self._changed:
            assert self._welcome is not None
            if self._phase is _Phase.JOINING or resend.epoch != self._welcome.terms.epoch:
                return
            again = list(self._window.between(resend.first_seq, min(resend.last_seq, self._sent_seq)))
        waiting = {chunk.seq for _, chunk in list(self._outgoing)}
        self._outgoing.extendleft((self._session, chunk) for chunk in reversed(again) if chunk.seq not in waiting)

    def _hear_broadcast(self, message: Message, now: float) -> None:
        assert self._welcome is not None
        terms = self._welcome.terms
        match message:
            case LearnerState() if (message.run_id, message.epoch) != (terms.run_id, terms.epoch):
                if self._phase is not _Phase.JOINING:
                    self._rejoin(f"the learner is in epoch {message.epoch} now", now)
            case LearnerState():
                self._heard_at = now
                self._known_version = max(self._known_version, message.version)
            case Shutdown():
                self._heard_at = now
                self.hear_shutdown(message)
            case PolicyBroadcast():
                self._heard_at = now
                self.hear_policy(message)
            case Subscribed() if self._phase is _Phase.SUBSCRIBING:
                self._phase, self._behind_since = _Phase.JOINED, None
                self._get_policy()
            case _:
                pass
