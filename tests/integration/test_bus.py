"""Both ends of the bus together, over every transport: the same behaviour, also when links break and peers die."""

from __future__ import annotations

import math
import os
import secrets
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from zmqrl.accounts import ActorStats
from zmqrl.codec import HEADER_BYTES, ExperienceLayout, decode, encode, encode_experience, private_topic
from zmqrl.config import TransportConfig
from zmqrl.errors import AddressError, NoLearner, Refused
from zmqrl.messages import Experience, PolicyBroadcast, SetLearningRate, Shutdown
from zmqrl.session import (
    Command,
    CommandResult,
    Credit,
    GetPolicy,
    Heartbeat,
    Hello,
    Refuse,
    Rejected,
    Resend,
    Terms,
    Welcome,
)
from zmqrl.spaces import BoxSpec, DiscreteSpec
from zmqrl.transport import bind_learner, connect_actor, memory_buses
from zmqrl.transport.bus import ActorBus, LearnerBus
from zmqrl.transport.endpoints import parse_address

KINDS = ("memory", "inproc", "ipc", "tcp")
FAST = TransportConfig(heartbeat_interval=0.05, lease=10.0, connect_timeout=10.0, rejoin_timeout=10.0, hole_timeout=2.0)
PATIENCE = 10.0
"""Seconds after which something that should happen at once is a failure."""

OBSERVATIONS, ACTIONS = BoxSpec("float32", (3,), -math.inf, math.inf), DiscreteSpec(2)
T, N = 4, 2
ROWS = T * N
LAYOUT = ExperienceLayout(OBSERVATIONS, ACTIONS, N, T)

Bind = Callable[..., LearnerBus]


@pytest.fixture
def bind(tmp_path: Path) -> Iterator[Bind]:
    """A learner's bus of a kind, closed at the end."""
    with ExitStack() as stack:

        def make(kind: str, transport: TransportConfig = FAST, **more: Any) -> LearnerBus:
            addresses = {"inproc": "inproc://bus", "ipc": f"ipc://{tmp_path}/bus", "tcp": "tcp://127.0.0.1:0"}
            if kind == "memory":
                return stack.enter_context(memory_buses(transport, **more))
            return stack.enter_context(bind_learner(addresses[kind], transport, **more))

        yield make


def hello(incarnation: int | None = None, **change: Any) -> Hello:
    number = secrets.randbits(63) if incarnation is None else incarnation
    return replace(Hello(1, "0.1.0", "actor", number, "host", 1, N, OBSERVATIONS, ACTIONS), **change)


def open_bus(bus: LearnerBus, *, num_actors: int = 2, lead: int = 64, fill: str = "columns") -> None:
    config = bus.transport
    times = (config.heartbeat_interval, config.lease, config.rejoin_timeout)
    terms = Terms(
        bus.run_id, bus.epoch, num_actors, N, 8, T, lead, fill, 5, OBSERVATIONS, ACTIONS, {}, (), *times, bus.env
    )
    bus.open(terms)
    bus.publish(PolicyBroadcast(0, b"version 0"))


def chunk(number: int = 0, version: int = 0) -> Experience:
    """`number` stands in each reward."""
    return Experience(
        agent_id=0,
        observations=np.zeros((T + 1, N, 3), np.float32),
        actions=np.zeros((T, N), np.int64),
        rewards=np.full((T, N), number, np.float32),
        terminated=np.zeros((T, N), bool),
        truncated=np.zeros((T, N), bool),
        valid=np.ones((T, N), bool),
        log_probs=np.zeros((T, N), np.float32),
        versions=np.full(T, version),
        final_index=np.zeros((0, 2), np.int32),
        final_observations=np.zeros((0, 3), np.float32),
        episode_index=np.zeros((0, 2), np.int32),
        episode_returns=np.zeros(0),
        episode_lengths=np.zeros(0, np.int64),
    )


def until(condition: Callable[[], bool], wait: Callable[[float], object]) -> None:
    """Wait for events by `wait` until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        wait(0.02)


def first_policy(actor: ActorBus) -> PolicyBroadcast:
    found: list[PolicyBroadcast] = []

    def look() -> bool:
        found.extend(policy for policy in [actor.take_policy()] if policy is not None)
        return bool(found)

    until(look, actor.wait)
    return found[-1]


def receive(bus: LearnerBus, count: int, slots: set[int] | None = None) -> list[Experience]:
    found: list[Experience] = []
    for _ in range(count):
        experience = bus.receive(slots, PATIENCE)
        assert experience is not None, f"only {len(found)} of {count} chunks arrived"
        found.append(experience)
    return found


def assert_balanced(bus: LearnerBus) -> None:
    for account in bus.accounts().values():
        assert account.received == (
            account.consumed + account.queued + sum(account.refused.values()) + account.rolled_back
        ), account


def leave(actor: ActorBus) -> None:
    settlement = actor.settle(PATIENCE)
    actor.goodbye(ActorStats(agent_id=actor.welcome.slot, steps_received=settlement.steps_received))


# --- over every transport --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_actor_joins_and_has_the_current_policy(bind: Bind, kind: str) -> None:
    bus = bind(kind, env="CartPole-v1")
    open_bus(bus)
    bus.publish(PolicyBroadcast(1, b"version 1"))
    with bus.connect(hello()) as actor:
        welcome = actor.welcome
        assert (welcome.slot, welcome.terms.env, welcome.terms.run_id) == (0, "CartPole-v1", bus.run_id)
        assert actor.session == 1
        policy = first_policy(actor)
        assert (policy.version, policy.epoch, bytes(policy.parameters)) == (1, bus.epoch, b"version 1")
        assert actor.take_policy() is None
        assert actor.credit.consumed_seq == 0


@pytest.mark.parametrize("kind", KINDS)
def test_joining_waits_for_the_learner_to_open(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    joined: list[int] = []

    def join() -> None:
        with bus.connect(hello(77)) as actor:
            joined.append(actor.welcome.slot)

    thread = threading.Thread(target=join)
    thread.start()
    heard = bus.wait_for_hello(PATIENCE)
    assert heard is not None
    assert (heard.incarnation, heard.observation_space) == (77, OBSERVATIONS)
    assert joined == []
    open_bus(bus)
    thread.join(PATIENCE)
    assert joined == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_hundredth_actor_joins_as_the_first_did(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus, num_actors=1)
    for number in range(100):
        with bus.connect(hello()) as actor:
            assert actor.welcome.slot == 0
            if number % 33 == 0:
                assert first_policy(actor).version == 0
            leave(actor)
    assert len(bus.actor_stats()) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_arrive_in_order_and_credit_follows_consumption(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus)
    with bus.connect(hello()) as one, bus.connect(hello()) as two:
        for number in range(10):
            one.send(chunk(number))
        for number in range(3):
            two.send(chunk(100 + number))
        assert [e.rewards[0, 0] for e in receive(bus, 10, {0})] == list(range(10))
        experiences = receive(bus, 3, {1})
        assert [(e.agent_id, e.seq, e.rewards[-1, -1]) for e in experiences] == [(1, 0, 100), (1, 1, 101), (1, 2, 102)]
        assert bus.receive(None, 0.0) is None
        assert bus.accounts()[0].queued == 10 * ROWS
        bus.mark_consumed()
        bus.publish(PolicyBroadcast(1, b"version 1"))
        bus.give_credit(1)
        until(lambda: one.credit.consumed_seq == 10, one.wait)
        assert (one.credit.version, one.credit.received_steps) == (1, 10 * ROWS)
        until(lambda: two.credit.consumed_seq == 3, two.wait)
        for actor, steps in ((one, 10 * ROWS), (two, 3 * ROWS)):
            settlement = actor.settle(PATIENCE)
            assert (settlement.steps_received, settlement.steps_lost) == (steps, {})
            leave(actor)
    assert [bus.accounts()[slot].consumed for slot in (0, 1)] == [10 * ROWS, 3 * ROWS]
    assert_balanced(bus)


@pytest.mark.parametrize("kind", KINDS)
def test_actors_take_turns(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus)
    with bus.connect(hello()) as one, bus.connect(hello()) as two:
        for number in range(4):
            one.send(chunk(number))
        two.send(chunk(9))
        until(lambda: sum(a.queued for a in bus.accounts().values()) == 5 * ROWS, one.wait)
        assert 1 in [e.agent_id for e in receive(bus, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_newest_policy_is_taken(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus)
    with bus.connect(hello()) as actor:
        first_policy(actor)
        for version in range(1, 60):
            bus.publish(PolicyBroadcast(version, bytes([version]) * 1000))
        versions: list[int] = []
        until(lambda: _take(actor, versions) == 59, actor.wait)
        assert versions == sorted(set(versions))


def _take(actor: ActorBus, versions: list[int]) -> int:
    if policy := actor.take_policy():
        assert set(policy.parameters) == {policy.version}
        versions.append(policy.version)
    return versions[-1] if versions else -1


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_of_many_frames_arrives_whole(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus)
    data = np.random.default_rng(0).bytes(9_500_000)
    with bus.connect(hello()) as early:
        first_policy(early)
        bus.publish(PolicyBroadcast(1, data))
        assert bytes(first_policy(early).parameters) == data
        with bus.connect(hello()) as late:
            assert bytes(first_policy(late).parameters) == data


@pytest.mark.parametrize("kind", KINDS)
def test_refusals_reach_the_actor_in_words(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus, num_actors=1)
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"num_envs": 7}, "num_envs", "2 environments each, this one 7"),
        ({"action_space": DiscreteSpec(3)}, "spaces", "action: learner has Discrete(2), this actor Discrete(3)"),
        ({"protocol": 9}, "protocol", "protocol 1, this actor protocol 9"),
    ]
    for change, code, text in cases:
        with pytest.raises(Refused) as refused:
            bus.connect(hello(**change))
        assert refused.value.code == code
        assert text in str(refused.value)
    with bus.connect(hello()):
        with pytest.raises(Refused) as refused:
            bus.connect(hello())
        assert (refused.value.code, refused.value.exit_code) == ("full", 75)
        assert "is taken by a living actor (fill = columns); use fill = quota" in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_chunk_is_refused_and_the_actor_goes_on(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus)
    with bus.connect(hello()) as actor:
        actor.send(replace(chunk(0), rewards=np.full((T, N), np.nan, np.float32)))
        actor.send(chunk(1))
        assert receive(bus, 1)[0].seq == 1
        bus.mark_consumed()
        bus.give_credit(1)
        until(lambda: actor.credit.consumed_seq == 2, actor.wait)
        settlement = actor.settle(PATIENCE)
        assert (settlement.steps_received, settlement.steps_lost) == (2 * ROWS, {})
        leave(actor)
    assert bus.accounts()[0].refused == {"nonfinite": ROWS}
    assert bus.slots()[0].refused == {"nonfinite": 1}
    assert_balanced(bus)


@pytest.mark.parametrize("kind", KINDS)
def test_the_learner_sees_what_an_actor_does(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus)
    with bus.connect(hello()) as actor:
        actor.activity.steps_taken = 123
        actor.activity.waiting_for_credit = True
        actor.activity.step_began = time.monotonic() - 100.0
        until(lambda: bus.slots()[0].steps_taken == 123, actor.wait)
        status = bus.slots()[0]
        assert (status.alive, status.host, status.waiting_for_credit) == (True, "host", True)
        assert 100.0 <= status.in_step_seconds < 100.0 + PATIENCE
        actor.activity.step_began = None
        until(lambda: bus.slots()[0].in_step_seconds == 0.0, actor.wait)


@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_reaches_all_also_one_in_a_slow_step_and_one_that_just_joined(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus, num_actors=3)
    step = threading.Event()
    began: list[float] = []

    def act(actor: ActorBus, slow: bool) -> None:
        with actor:
            if slow:
                actor.activity.step_began = time.monotonic()
                step.wait(PATIENCE)
                began.append(time.monotonic())
                assert actor.shutdown == Shutdown("done")
            until(lambda: actor.shutdown is not None, actor.wait)
            leave(actor)

    actors = [bus.connect(hello()) for _ in range(2)]
    ender = threading.Thread(target=bus.shutdown, args=("done",))
    threads = [threading.Thread(target=act, args=pair) for pair in zip(actors, (True, False), strict=True)]
    for thread in threads:
        thread.start()
    threads.append(threading.Thread(target=act, args=(bus.connect(hello()), False)))
    ender.start()
    threads[-1].start()
    until(lambda: actors[0].shutdown is not None, actors[0].wait)
    step.set()
    for thread in [*threads, ender]:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert len(bus.actor_stats()) == 3
    with pytest.raises(Refused) as refused:
        bus.connect(hello())
    assert (refused.value.code, refused.value.exit_code) == ("finished", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_ends_without_those_who_do_not_answer(bind: Bind, kind: str) -> None:
    bus = bind(kind, replace(FAST, shutdown_timeout=0.1))
    open_bus(bus)
    with bus.connect(hello()):
        began = time.monotonic()
        bus.shutdown("done")
        assert 0.1 <= time.monotonic() - began < PATIENCE


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewound_learner_begins_a_new_epoch_and_actors_join_again(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus)
    with bus.connect(hello()) as actor:
        assert actor.session == 1
        first_policy(actor)
        actor.send(chunk(0))
        receive(bus, 1)
        bus.mark_consumed()
        actor.send(chunk(1))
        until(lambda: bus.accounts()[0].queued == ROWS, actor.wait)
        until(lambda: actor.credit.received_seq == 2 or kind == "memory", actor.wait)
        bus.epoch += 1
        open_bus(bus)
        until(lambda: actor.welcome.terms.epoch == 2, actor.wait)  # but `session` has not been read
        actor.send(chunk(2))
        assert actor.take_policy() is None
        assert actor.session == 2
        assert actor.welcome.terms.epoch == 2
        assert first_policy(actor).epoch == 2
        actor.send(chunk(3))
        experience = receive(bus, 1)[0]
        assert (experience.seq, experience.rewards[0, 0]) == (0, 3)
        settlement = actor.settle(PATIENCE)
        lost = settlement.steps_lost
        assert settlement.steps_received + sum(lost.values()) == 4 * ROWS
        assert lost["stale_epoch"] >= ROWS
        leave(actor)
    account = bus.accounts()[0]
    assert (account.consumed, account.rolled_back, account.received) == (ROWS, ROWS, 3 * ROWS)
    assert_balanced(bus)


@pytest.mark.parametrize("kind", KINDS)
def test_an_actor_whose_learner_is_gone_is_told(bind: Bind, kind: str) -> None:
    bus = bind(kind, replace(FAST, lease=0.2, rejoin_timeout=0.2))
    open_bus(bus)
    with bus.connect(hello()) as actor:
        bus.close()

        def fails() -> bool:
            try:
                actor.send(chunk())
            except NoLearner:
                return True
            return False

        until(fails, lambda timeout: _wait_quietly(actor, timeout))
        with pytest.raises(NoLearner):
            actor.wait(0.0)
        settlement = actor.settle(PATIENCE)
        assert set(settlement.steps_lost) <= {"unacknowledged"}
        actor.goodbye(ActorStats())


def _wait_quietly(actor: ActorBus, timeout: float) -> None:
    with suppress(NoLearner):
        actor.wait(timeout)


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_ends_with_news_or_in_time(bind: Bind, kind: str) -> None:
    bus = bind(kind)
    open_bus(bus)
    with bus.connect(hello()) as actor:
        first_policy(actor)
        until(lambda: _quiet(actor), lambda timeout: None)
        threading.Thread(target=bus.publish, args=(PolicyBroadcast(1, b"x"),)).start()
        began = time.monotonic()
        actor.wait(PATIENCE)
        assert time.monotonic() - began < PATIENCE / 2
        assert actor.take_policy() is not None


def _quiet(actor: ActorBus) -> bool:
    began = time.monotonic()
    actor.wait(0.1)
    return time.monotonic() - began >= 0.1


# --- over sockets: what only a network can do ------------------------------------------------------------


class Peer:
    """Raw sockets that say whatever a test wants."""

    def __init__(self, bus: Any, incarnation: int = 4711) -> None:
        self.incarnation = incarnation
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._address = bus.control_address
        self._ports = (bus.experience_port, bus.policy_port)
        self.dealer = self._open(zmq.DEALER, self._address)
        self.push = self._open(zmq.PUSH, self._address.beside(self._ports[0], ".experience"))
        self.sub = self._open(zmq.SUB, self._address.beside(self._ports[1], ".policy"))

    def _open(self, kind: int, address: Any) -> zmq.Socket[bytes]:
        opened = self._context.socket(kind)
        opened.linger = 0
        opened.connect(str(address))
        return opened

    def say(self, message: Any) -> None:
        self.dealer.send_multipart(encode(message))

    def hear(self, kind: type) -> Any:
        deadline = time.monotonic() + PATIENCE
        while self.dealer.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            message = decode(self.dealer.recv_multipart())
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came")

    def pause(self, timeout: float) -> None:
        self.dealer.poll(int(timeout * 1000))

    def join(self) -> Welcome:
        self.say(hello(self.incarnation))
        welcome: Welcome = self.hear(Welcome)
        return welcome

    def send(self, seq: int, **change: Any) -> None:
        experience = replace(chunk(seq), seq=seq, **change)
        self.push.send_multipart(encode_experience(experience, LAYOUT, 1, self.incarnation))

    def beat(self, next_seq: int, slot: int = 0) -> None:
        self.say(Heartbeat(1, slot, self.incarnation, next_seq, 0, 0, 0, 0.0, False))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        for opened in (self.dealer, self.push, self.sub):
            opened.close()
        self._context.term()


def test_a_lost_chunk_is_asked_for_and_then_given_up(bind: Bind) -> None:
    bus = bind("tcp", replace(FAST, hole_timeout=0.3))
    open_bus(bus)
    with Peer(bus) as peer:
        peer.join()
        for seq in (0, 2, 3):
            peer.send(seq)
        assert peer.hear(Resend) == Resend(1, 1, 2)
        assert [e.seq for e in receive(bus, 3)] == [0, 2, 3]
        assert bus.accounts()[0].cuts == 1
        bus.give_credit(1)
        until(lambda: peer.hear(Credit).consumed_seq == 4, lambda timeout: None)
    bus.mark_consumed()
    assert_balanced(bus)


def test_a_chunk_lost_and_sent_again_is_as_if_it_never_was(bind: Bind) -> None:
    bus = bind("tcp")
    open_bus(bus)
    with Peer(bus) as peer:
        peer.join()
        for seq in (0, 2, 2, 1, 1):
            peer.send(seq)
        assert [e.seq for e in receive(bus, 3)] == [0, 1, 2]
        until(lambda: bus.accounts()[0].duplicates == 2, peer.pause)
    assert bus.accounts()[0].cuts == 0


def test_an_actor_answers_a_request_to_send_again(bind: Bind) -> None:
    """The learner is the raw one here: it never reads the first sending."""
    with zmq.Context() as context, ExitStack() as stack:
        router = context.socket(zmq.ROUTER)
        router.linger = 0
        stack.callback(router.close)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        pulls = [context.socket(zmq.PULL) for _ in range(2)]
        ports = [pull.bind_to_random_port("tcp://127.0.0.1") for pull in pulls]
        for pull in pulls:
            pull.linger = 0
            stack.callback(pull.close)
        actors: list[ActorBus] = []
        thread = threading.Thread(target=lambda: actors.append(connect_actor(f"tcp://127.0.0.1:{port}", hello(), FAST)))
        thread.start()
        identity = router.recv_multipart()[0]
        terms = Terms("r", 1, 1, N, 8, T, 64, "quota", 0, OBSERVATIONS, ACTIONS, {}, (), 0.05, 10.0, 10.0)
        router.send_multipart([identity, *encode(Welcome(0, 1, ports[0], ports[1], terms))])
        thread.join(PATIENCE)
        with actors[0] as actor:
            for number in range(3):
                actor.send(chunk(number))
            first = [pulls[0].recv_multipart() for _ in range(3)]
            router.send_multipart([identity, *encode(Resend(1, 1, 3))])
            assert pulls[0].poll(int(PATIENCE * 1000))
            assert [pulls[0].recv_multipart() for _ in range(2)] == first[1:]
            router.send_multipart([identity, *encode(Shutdown("enough"))])
            until(lambda: actor.shutdown is not None, actor.wait)


class Relay:
    """Forwards 127.0.0.2:port to 127.0.0.1:port, and can lose what it holds: a broken link with data under way."""

    def __init__(self, ports: list[int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._pairs: dict[socket.socket, tuple[socket.socket, int]] = {}
        self._swallowing: set[int] = set()
        self._cutting: set[int] = set()
        self.swallowed = {port: 0 for port in ports}
        self._listeners = {}
        for port in ports:
            listener = socket.create_server(("127.0.0.2", port))
            self._listeners[listener] = port
            self._selector.register(listener, selectors.EVENT_READ)
        self._running = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def swallow(self, port: int) -> None:
        """From now on nothing passes on this port, though the connection stands."""
        self._swallowing.add(port)

    def cut(self, port: int) -> None:
        """Break all connections of this port; new ones pass again."""
        self._cutting.add(port)

    def _run(self) -> None:
        while self._running:
            for key, _ in self._selector.select(0.01):
                source = key.fileobj
                assert isinstance(source, socket.socket)
                if source in self._listeners:
                    self._accept(source)
                elif source in self._pairs:
                    self._forward(source)
            for port in list(self._cutting):
                for one in [one for one, (_, at) in self._pairs.items() if at == port]:
                    self._drop(one)
                self._swallowing.discard(port)
                self._cutting.discard(port)

    def _accept(self, listener: socket.socket) -> None:
        port = self._listeners[listener]
        near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", port))
        for one, other in ((near, far), (far, near)):
            self._pairs[one] = other, port
            self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        target, port = self._pairs[source]
        try:
            data = source.recv(1 << 16)
            if data and port in self._swallowing:
                self.swallowed[port] += len(data)
                return
            if data:
                target.sendall(data)
                return
        except OSError:
            pass
        self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        other, _ = self._pairs.pop(one, (None, 0))
        if other is not None:
            self._pairs.pop(other, None)
            for end in (one, other):
                self._selector.unregister(end)
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *error: object) -> None:
        self._running = False
        self._thread.join()
        for one in list(self._pairs):
            self._drop(one)
        for listener in self._listeners:
            listener.close()
        self._selector.close()


@contextmanager
def relayed(bus: Any, transport: TransportConfig = FAST) -> Iterator[tuple[Relay, ActorBus]]:
    ports = [bus.control_address.port, bus.experience_port, bus.policy_port]
    with Relay(ports) as relay, connect_actor(f"tcp://127.0.0.2:{ports[0]}", hello(), transport) as actor:
        yield relay, actor


def test_what_a_broken_experience_link_lost_is_sent_again(bind: Bind) -> None:
    bus: Any = bind("tcp")
    open_bus(bus, lead=400)
    with relayed(bus) as (relay, actor):
        for number in range(5):
            actor.send(chunk(number))
        assert [e.seq for e in receive(bus, 5)] == list(range(5))
        relay.swallow(bus.experience_port)
        for number in range(5, 12):
            actor.send(chunk(number))
        until(lambda: relay.swallowed[bus.experience_port] > 0, actor.wait)
        relay.cut(bus.experience_port)
        assert [e.rewards[0, 0] for e in receive(bus, 7)] == list(range(5, 12))
        settlement = actor.settle(PATIENCE)
        assert (settlement.steps_received, settlement.steps_lost) == (12 * ROWS, {})
        leave(actor)
    assert bus.accounts()[0].cuts == 0
    bus.mark_consumed()
    assert bus.accounts()[0].consumed == 12 * ROWS


def test_lost_broadcasts_and_credit_are_repaired_by_heartbeats(bind: Bind) -> None:
    bus: Any = bind("tcp")
    open_bus(bus)
    with relayed(bus) as (relay, actor):
        first_policy(actor)
        actor.send(chunk(0))
        receive(bus, 1)
        bus.mark_consumed()
        relay.swallow(bus.policy_port)
        bus.publish(PolicyBroadcast(1, b"lost on the way"))
        until(lambda: relay.swallowed[bus.policy_port] > 0, actor.wait)
        bus.give_credit(1)
        # the subscription is still swallowed: credit names the version, and the control socket brings the policy
        assert first_policy(actor).version == 1
        relay.cut(bus.policy_port)
        until(lambda: actor.credit.consumed_seq == 1, actor.wait)
        bus.publish(PolicyBroadcast(2, b"heard again"))
        assert first_policy(actor).version == 2


def test_an_actor_cut_off_for_longer_than_its_lease_goes_on_where_it_was(bind: Bind) -> None:
    bus: Any = bind("tcp", replace(FAST, lease=0.3))
    open_bus(bus, num_actors=1)
    with relayed(bus) as (relay, actor):
        actor.send(chunk(0))
        receive(bus, 1)
        ports = (bus.control_address.port, bus.experience_port, bus.policy_port)
        for port in ports:
            relay.swallow(port)
        actor.send(chunk(1))
        until(lambda: not bus.slots()[0].alive, actor.wait)
        for port in ports:
            relay.cut(port)
        assert receive(bus, 1)[0].seq == 1
        until(lambda: bus.slots()[0].alive, actor.wait)
        assert actor.session == 1
        actor.send(chunk(2))
        assert receive(bus, 1)[0].seq == 2
        settlement = actor.settle(PATIENCE)
        assert (settlement.steps_received, settlement.steps_lost) == (3 * ROWS, {})
        leave(actor)


def test_a_run_that_ends_while_an_actor_is_cut_off_is_a_shutdown_for_it(bind: Bind) -> None:
    bus: Any = bind("tcp", replace(FAST, lease=0.3))
    open_bus(bus, num_actors=1)
    with relayed(bus) as (relay, actor):
        first_policy(actor)
        ports = (bus.control_address.port, bus.experience_port, bus.policy_port)
        for port in ports:
            relay.swallow(port)
        actor.send(chunk(0))
        until(lambda: not bus.slots()[0].alive, actor.wait)
        until(lambda: actor._phase.value == "joining", actor.wait)  # type: ignore[attr-defined]
        bus.shutdown("done")
        for port in ports:
            relay.cut(port)
        until(lambda: actor.shutdown is not None, actor.wait)
        actor.wait(0.0)
        actor.send(chunk(1))
        began = time.monotonic()
        settlement = actor.settle(100.0)
        stats = ActorStats(agent_id=0, steps_lost=settlement.steps_lost)
        actor.goodbye(stats)
        assert time.monotonic() - began < PATIENCE
        assert settlement.steps_lost == {"unacknowledged": 2 * ROWS}
        assert bus.actor_stats() == [stats]


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_actor_joins_a_restarted_learner_again(tmp_path: Path, epoch: int) -> None:
    """With a checkpoint it comes back in the next epoch, without one as another run of the same address."""
    address = f"ipc://{tmp_path}/bus"
    with ExitStack() as stack:
        bus = bind_learner(address, FAST)
        stack.callback(bus.close)
        open_bus(bus)
        actor = stack.enter_context(bus.connect(hello()))
        assert actor.session == 1
        first_policy(actor)
        actor.send(chunk(0))
        receive(bus, 1)
        until(lambda: actor.credit.received_seq == 1, actor.wait)
        bus.close()
        actor.send(chunk(1))
        again = stack.enter_context(bind_learner(address, FAST, epoch=epoch))
        open_bus(again)
        until(lambda: actor.session == 2, actor.wait)
        assert actor.welcome.terms.run_id == again.run_id
        assert first_policy(actor).epoch == epoch
        actor.send(chunk(2))
        assert receive(again, 1)[0].seq == 0
        settlement = actor.settle(PATIENCE)
        assert (settlement.steps_received, settlement.steps_lost) == (2 * ROWS, {"stale_epoch": ROWS})
        assert settlement.chunks_sent == 3
        leave(actor)


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_the_slot_of_an_actor_that_died_is_free_long_before_its_lease_ends(bind: Bind, kind: str) -> None:
    bus = bind(kind, replace(FAST, lease=1000.0))
    open_bus(bus, num_actors=1)
    with bus.connect(hello()) as died:  # closing without a goodbye is what the kernel does for a killed process
        first_policy(died)
    until(lambda: not bus.slots()[0].alive, lambda seconds: bus.receive(None, seconds))
    with bus.connect(hello()) as successor:
        first_policy(successor)
        assert successor.welcome.slot == 0


def test_a_new_incarnation_takes_the_slot_of_a_dead_one(bind: Bind) -> None:
    bus = bind("tcp", replace(FAST, lease=0.3))
    open_bus(bus, num_actors=1)
    with Peer(bus) as dead:
        dead.join()
        dead.send(0)
        until(lambda: bus.accounts()[0].received == ROWS, dead.pause)
        until(lambda: not bus.slots()[0].alive, dead.pause)
        with bus.connect(hello()) as actor:
            assert actor.welcome.slot == 0
            actor.send(chunk(5))
            assert [(e.seq, e.rewards[0, 0]) for e in receive(bus, 2)] == [(0, 0), (0, 5)]


NOISE = [
    [b""],
    [b"", b"", b""],
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    [b"HELO"],
    [b"HELO", b"\xc1"],
    [b"EXPR", b"\x90", b""],
    [b"EXPR", b"\xdd\xff\xff\xff\xff", b"x"],
    [b"CRED", b"\x91" * 5000],
    [b"\x01a/0-1/"],
    [b"a"] * 60,
    encode(Credit(1, 1, 1, 1, 1, 1, 1)),
    encode(Refuse("full", "you, not me")),
    encode(Heartbeat(1, 0, 1, 1, 1, 1, 1, 0.0, False)),
    encode(Shutdown("everyone")),
    encode(GetPolicy(1, -1)),
    encode(PolicyBroadcast(99, b"not yours")),
    encode_experience(chunk(), LAYOUT, 1, 0),
]


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_noise_on_all_sockets_stops_nothing(bind: Bind, kind: str) -> None:
    bus: Any = bind(kind)
    open_bus(bus)
    dice = np.random.default_rng(0)
    with bus.connect(hello()) as actor, Peer(bus) as peer:
        assert first_policy(actor).version == 0
        for number in range(20):
            noise = NOISE[number % len(NOISE)]
            random = [dice.bytes(int(size)) for size in dice.integers(0, 300, dice.integers(1, 6))]
            for message in (noise, random):
                for target in (peer.dealer, peer.push):
                    target.send_multipart(message)
                peer.sub.setsockopt(zmq.SUBSCRIBE, message[0])
            if kind == "tcp":
                for port in (bus.control_address.port, bus.experience_port, bus.policy_port):
                    with socket.create_connection(("127.0.0.1", port)) as raw:
                        raw.sendall(b"".join(message))
            actor.send(chunk(number))
            assert receive(bus, 1)[0].rewards[0, 0] == number
            bus.mark_consumed()
            bus.publish(PolicyBroadcast(number + 1, b"x"))
            bus.give_credit(number + 1)
            assert first_policy(actor).version == number + 1
            until(lambda number=number: actor.credit.consumed_seq == number + 1, actor.wait)  # type: ignore[misc]
        leave(actor)
    rejected = bus.rejected()
    assert rejected["malformed"] > 0
    assert rejected["unknown_actor"] >= 2  # an experience and a heartbeat of nobody
    assert "internal" not in rejected
    assert bus.accounts()[0].consumed == 20 * ROWS


def test_a_malformed_message_of_an_actor_is_counted_for_it_and_told(bind: Bind) -> None:
    bus = bind("tcp")
    open_bus(bus)
    with Peer(bus) as peer:
        peer.join()
        peer.dealer.send_multipart([b"BEAT", b"\xc1"])
        assert peer.hear(Rejected).reason == "malformed"
    assert bus.accounts()[0].malformed == 1


def test_a_message_too_large_costs_its_sender_the_link_and_nobody_else_anything(bind: Bind) -> None:
    bus = bind("tcp")
    open_bus(bus)
    with bus.connect(hello()) as actor, Peer(bus) as peer:
        peer.push.send_multipart([b"EXPR", b"\x90", bytes(LAYOUT.max_body_bytes + HEADER_BYTES)])
        until(lambda: _is_heard(bus, peer), actor.wait)
        actor.send(chunk(1))
        assert receive(bus, 1)[0].rewards[0, 0] == 1


def _is_heard(bus: Any, peer: Peer) -> bool:
    """What is sent before libzmq has noticed the cut goes down with the link, so it is sent again."""
    peer.push.send_multipart([b"EXPR", b"\x90", b"small"])
    return "malformed" in bus.rejected()


def test_subscribing_to_the_private_topic_is_answered(bind: Bind) -> None:
    bus: Any = bind("tcp")
    open_bus(bus)
    with Peer(bus) as peer:
        topic = private_topic(3, 99)
        peer.sub.setsockopt(zmq.SUBSCRIBE, topic)
        assert peer.sub.poll(int(PATIENCE * 1000))
        assert peer.sub.recv_multipart()[0] == topic


def test_an_admin_on_this_machine_is_heard_and_answered(bind: Bind) -> None:
    bus = bind("tcp")
    open_bus(bus)
    with Peer(bus) as peer:
        peer.say(Command(12, SetLearningRate(1e-3)))
        commands: list[Command] = []

        def look() -> bool:
            commands.extend(bus.commands())
            return bool(commands)

        until(look, peer.pause)
        assert commands[0].message == SetLearningRate(1e-3)
        bus.answer(commands[0].request, True, "set")
        assert peer.hear(CommandResult) == CommandResult(12, True, "set")


def test_no_learner_is_said_after_the_timeout_and_meanwhile(bind: Bind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqrl.transport.actor_bus.WAITING_INTERVAL", 0.1)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
    with pytest.raises(NoLearner) as error:
        connect_actor(f"zmqrl://127.0.0.1:{port}", hello(), replace(FAST, connect_timeout=0.35), said.append)
    assert error.value.exit_code == 75
    assert f"no learner answered at tcp://127.0.0.1:{port}" in str(error.value)
    assert len(said) == 3
    assert said[0].startswith(f"no answer from tcp://127.0.0.1:{port}")


def test_an_actor_may_come_before_its_learner(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/bus"
    slots: list[int] = []

    def join() -> None:
        with connect_actor(address, hello(), FAST) as actor:
            slots.append(actor.welcome.slot)

    thread = threading.Thread(target=join)
    thread.start()
    with bind_learner(address, FAST) as bus:
        open_bus(bus)
        thread.join(PATIENCE)
    assert slots == [0]


# --- addresses and what is left behind -------------------------------------------------------------------


def three_free_ports() -> int:
    """The first of three in a row, below those that the system gives to outgoing connections."""
    for first in np.random.default_rng().permutation(range(20_000, 32_000, 3)).tolist():
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return int(first)
    raise AssertionError("no three free ports in a row")


def test_port_0_gives_each_socket_a_free_port_of_its_own() -> None:
    with bind_learner("tcp://127.0.0.1:0", FAST) as bus:
        ports = {bus.control_address.port, bus.experience_port, bus.policy_port}
        assert len(ports) == 3
        assert 0 not in ports


def test_a_fixed_port_is_followed_by_the_two_after_it() -> None:
    port = three_free_ports()
    with bind_learner(f"tcp://localhost:{port}", FAST) as bus:
        assert (bus.control_address.port, bus.experience_port, bus.policy_port) == (port, port + 1, port + 2)
        assert bus.join_string.startswith(f"zmqrl://127.0.0.1:{port}?run_id=")
    bind_learner(f"tcp://localhost:{port}", FAST).close()


@pytest.mark.parametrize(("offset", "role"), [(0, "control"), (1, "experience"), (2, "policies")])
def test_a_port_in_use_is_named_and_the_others_are_given_back(offset: int, role: str) -> None:
    port = three_free_ports()
    with socket.create_server(("127.0.0.1", port + offset)):
        with pytest.raises(AddressError) as error:
            bind_learner(f"tcp://127.0.0.1:{port}", FAST)
        assert f"port {port + offset} ({role}) is taken by another process" in str(error.value)
        for other in {0, 1, 2} - {offset}:
            socket.create_server(("127.0.0.1", port + other)).close()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("tcp://0.0.0.0:0", "--insecure"),
        ("tcp://*:5555", "--insecure"),
        ("tcp://:5555", "names no host"),
        ("tcp://192.0.2.1:0", "--insecure"),
        ("tcp://127.0.0.1:65534", "the two ports after it"),
        ("ipc:///no/such/folder/bus", "cannot be bound: No such file or directory"),
    ],
)
def test_an_address_that_cannot_be_bound_says_why(address: str, text: str) -> None:
    with pytest.raises(AddressError) as error:
        bind_learner(address, FAST)
    assert text in str(error.value)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(AddressError, match="is no address of this machine"):
        bind_learner("tcp://192.0.2.1:0", FAST, insecure=True)


def test_insecure_binds_all_interfaces_and_names_this_machine() -> None:
    with bind_learner("tcp://0.0.0.0:0", FAST, insecure=True) as bus:
        host = parse_address(bus.join_string.replace("zmqrl://", "tcp://").partition("?")[0]).host
        assert host != "0.0.0.0"
        open_bus(bus)
        with bus.connect(hello()) as actor:
            assert first_policy(actor).version == 0


def test_ipv6(bind: Bind) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with bind_learner("tcp://[::1]:0", FAST) as bus:
        open_bus(bus)
        with bus.connect(hello()) as actor:
            actor.send(chunk(3))
            assert receive(bus, 1)[0].rewards[0, 0] == 3


def test_the_socket_files_of_a_living_learner_are_not_taken_over(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/bus"
    with bind_learner(address, FAST) as bus:
        with pytest.raises(AddressError, match="another learner listens there"):
            bind_learner(address, FAST)
        open_bus(bus)
        with bus.connect(hello()) as actor:
            assert first_policy(actor).version == 0
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_dead_learner_and_of_others_are_not_taken_over(tmp_path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "bus.policy"))
    stale.close()
    with pytest.raises(AddressError, match="a learner that died left this socket file"):
        bind_learner(f"ipc://{tmp_path}/bus", FAST)
    assert [file.name for file in tmp_path.iterdir()] == ["bus.policy"]
    (tmp_path / "bus.policy").unlink()
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(AddressError, match="is no socket"):
        bind_learner(f"ipc://{tmp_path}/notes", FAST)
    assert (tmp_path / "notes").read_text() == "mine"


def test_an_actor_that_heard_shutdown_does_not_wait_long_for_a_learner_that_ended(
    bind: Bind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.transport.actor_bus.GONE_AFTER", 0.2)
    bus = bind("tcp", replace(FAST, shutdown_timeout=0.1))
    open_bus(bus)
    with bus.connect(hello()) as actor:
        bus.shutdown("done")
        until(lambda: actor.shutdown is not None, actor.wait)
        bus.close()
        actor.send(chunk())
        began = time.monotonic()
        settlement = actor.settle(100.0)
        assert time.monotonic() - began < PATIENCE
        assert settlement.steps_lost == {"unacknowledged": ROWS}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_whoever_closes_first(bind: Bind, kind: str, tmp_path: Path) -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for first in ("actor", "learner"):
        bus = bind(kind)
        open_bus(bus)
        actor = bus.connect(hello())
        actor.send(chunk())
        began = time.monotonic()
        for end in (actor, bus) if first == "actor" else (bus, actor):
            end.close()
            end.close()
        assert time.monotonic() - began < 2.0
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert list(tmp_path.iterdir()) == []


def test_a_killed_learner_leaves_an_actor_that_ends_by_itself(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tests.integration.test_bus import FAST, open_bus\n"
        "from zmqrl.transport import bind_learner\n"
        "bus = bind_learner('tcp://127.0.0.1:0', FAST)\n"
        "open_bus(bus)\n"
        "print(bus.join_string, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program]
    learner = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    try:
        assert learner.stdout is not None
        join = learner.stdout.readline()
        with connect_actor(join, hello(), replace(FAST, lease=0.3)) as actor:
            actor.send(chunk())
            until(lambda: actor.credit.received_seq == 1, actor.wait)
            learner.kill()
            learner.wait(PATIENCE)
            settlement = actor.settle(0.1)
            assert settlement.steps_received == ROWS
    finally:
        learner.kill()
        learner.communicate()
