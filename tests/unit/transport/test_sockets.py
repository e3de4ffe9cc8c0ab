"""Listening, waking and leaving, below the two buses."""

from __future__ import annotations

import resource
import select
import socket
import threading

import pytest
import zmq

from zmqrl.errors import AddressError
from zmqrl.transport.endpoints import Address
from zmqrl.transport.sockets import (
    SharedContext,
    Wakeup,
    listen,
    open_socket,
    raise_descriptor_limit,
    read_frames,
    reconnect_options,
)


def readable(wakeup: Wakeup, timeout: float = 0.0) -> bool:
    return bool(select.select([wakeup.fileno()], [], [], timeout)[0])


def test_a_wakeup_is_one_byte_however_often_it_is_rung() -> None:
    wakeup = Wakeup()
    assert not readable(wakeup)
    for _ in range(100_000):  # a pipe holds 65,536
        wakeup.ring()
    assert readable(wakeup)
    wakeup.clear()
    assert not readable(wakeup)
    wakeup.ring()
    assert readable(wakeup)
    wakeup.close()
    wakeup.ring()
    wakeup.close()


def test_a_wakeup_wakes_another_thread() -> None:
    wakeup = Wakeup()
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(readable(wakeup, 10.0)))
    thread.start()
    wakeup.ring()
    thread.join(10.0)
    assert woken == [True]
    wakeup.close()


def test_a_shared_context_ends_with_its_last_user() -> None:
    shared = SharedContext()
    context = shared.enter()
    shared.enter()
    shared.leave()
    assert not context.closed
    shared.leave()
    assert context.closed


def test_a_listener_that_was_not_attached_gives_its_port_back() -> None:
    listener = listen(Address("tcp", "127.0.0.1", 0), "control")
    port = listener.address.port
    with pytest.raises(AddressError, match=rf"port {port} \(policies\) is taken"):
        listen(Address("tcp", "127.0.0.1", port), "policies")
    listener.close()
    listen(Address("tcp", "127.0.0.1", port), "policies").close()


def test_of_a_message_with_too_many_frames_only_some_are_kept() -> None:
    with (
        zmq.Context() as context,
        open_socket(context, zmq.PULL, {}) as pull,
        open_socket(context, zmq.PUSH, {}) as push,
    ):
        pull.bind("inproc://x")
        push.connect("inproc://x")
        assert read_frames(pull, 3) is None
        push.send_multipart([b"x"] * 1000)
        push.send_multipart([b"a", b"b"])
        frames = read_frames(pull, 3)
        assert frames is not None
        assert len(frames) == 4
        assert [frame.bytes for frame in read_frames(pull, 3) or []] == [b"a", b"b"]
        assert read_frames(pull, 3) is None


def test_sockets_never_linger_and_watch_their_link() -> None:
    with zmq.Context() as context, open_socket(context, zmq.DEALER, {zmq.SNDHWM: 7}) as dealer:
        assert dealer.getsockopt(zmq.LINGER) == 0
        assert dealer.getsockopt(zmq.SNDHWM) == 7
        assert dealer.getsockopt(zmq.HEARTBEAT_IVL) == 5000
        assert dealer.getsockopt(zmq.TCP_KEEPALIVE) == 1


def test_actors_do_not_all_knock_at_the_same_moment() -> None:
    assert len({reconnect_options()[zmq.RECONNECT_IVL] for _ in range(200)}) > 10


def test_the_descriptor_limit_is_raised_to_what_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_inproc_needs_no_listener() -> None:
    assert listen(Address("inproc", path="x"), "control").handle is None


def test_a_file_of_somebody_else_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("s") / "l"
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(path))
    with pytest.raises(AddressError, match="a learner that died"):
        listen(Address("ipc", path=str(path)), "control")
    other.listen()
    with pytest.raises(AddressError, match="another learner listens"):
        listen(Address("ipc", path=str(path)), "control")
    other.close()
