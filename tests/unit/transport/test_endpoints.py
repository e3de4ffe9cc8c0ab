"""Addresses and join strings, in every form that people write them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from zmqrl.errors import AddressError, UsageError
from zmqrl.transport.endpoints import (
    Address,
    JoinString,
    address_to_bind,
    is_loopback,
    outward_host,
    parse_address,
    parse_join,
    read_join,
    require_known_host,
)


@pytest.mark.parametrize(
    "text",
    ["tcp://127.0.0.1:5555", "tcp://learner.example.org:0", "tcp://[::1]:5555", "ipc:///tmp/run/l", "inproc://x"],
)
def test_an_address_prints_as_it_was_written(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("127.0.0.1:5555", "did you mean tcp://127.0.0.1:5555?"),
        ("udp://127.0.0.1:5555", "write tcp://host:port"),
        ("tcp://:5555", "tcp://127.0.0.1:5555 for this machine only"),
        ("tcp://host", "ends in no port"),
        ("tcp://host:", "ends in no port"),
        ("tcp://host:http", "ends in no port"),
        ("tcp://host:65536", "port of 0 to 65535"),
        ("tcp://host:-1", "ends in no port"),
        ("tcp://::1:5555", "an IPv6 address stands in brackets"),
        ("tcp://a b:1", "no host name"),
        ("ipc://", "needs a name"),
        ("inproc://", "needs a name"),
        ("ipc:///tmp/a?b", "question mark"),
        ("ipc:///" + "x" * 107, "choose a shorter folder"),
    ],
)
def test_a_bad_address_says_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(AddressError) as error:
        parse_address(text)
    assert hint in str(error.value)


def test_the_longest_ipc_path_still_has_room_for_its_neighbours() -> None:
    longest = "/" + "x" * (107 - 1 - len(".experience"))
    assert parse_address(f"ipc://{longest}").path == longest
    with pytest.raises(AddressError):
        parse_address(f"ipc://{longest}x")


def test_names_become_numbers_for_binding() -> None:
    assert str(address_to_bind("tcp://localhost:5")) == "tcp://127.0.0.1:5"
    assert str(address_to_bind("tcp://*:5")) == "tcp://0.0.0.0:5"
    assert str(address_to_bind("tcp://[::1]:5")) == "tcp://[::1]:5"
    with pytest.raises(AddressError, match="not known here"):
        address_to_bind("tcp://no-such-host.invalid:5")


def test_a_name_to_connect_to_is_known_or_an_error() -> None:
    for known in ("tcp://localhost:5", "tcp://127.0.0.1:5", "tcp://[::1]:5", "ipc:///tmp/x"):
        require_known_host(known)
    with pytest.raises(AddressError, match=r"the host name 'no-such-host\.invalid' is not known here"):
        require_known_host("tcp://no-such-host.invalid:5")


def test_no_sentence_offers_what_only_one_program_can_use() -> None:
    with pytest.raises(AddressError) as error:
        parse_address("learner")
    assert "tcp://host:port or ipc://path" in str(error.value) and "inproc" not in str(error.value)


def test_a_file_may_be_named_like_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="did you mean tcp://learner:5555"):
        read_join("learner:5555")
    (tmp_path / "learner:5555").write_text("zmqrl://h:1")
    assert read_join("learner:5555") == JoinString("tcp://h:1")


def test_what_is_local() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.9.1", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost", ""))
    assert Address("ipc", path="/x").local
    assert not Address("tcp", "0.0.0.0", 1).local


def test_a_bound_number_is_how_others_reach_it_but_a_wildcard_is_not() -> None:
    assert outward_host("10.1.2.3") == "10.1.2.3"
    assert outward_host("0.0.0.0") not in ("0.0.0.0", "")


def test_neighbours_have_another_port_or_a_suffix() -> None:
    assert str(Address("tcp", "::1", 1).beside(7, ".policy")) == "tcp://[::1]:7"
    assert str(Address("ipc", path="/r/l").beside(0, ".policy")) == "ipc:///r/l.policy"


@pytest.mark.parametrize(
    "join",
    [
        JoinString("tcp://10.0.0.1:5555"),
        JoinString("tcp://10.0.0.1:5555", "CartPole-v1", 16, "00ff"),
        JoinString("tcp://[::1]:5555", "package.module:Env-v0"),
        JoinString("ipc:///tmp/run/learner", "ALE/Pong-v5", 8),
        JoinString("tcp://h:1", "odd & name=ü", 1),
    ],
)
def test_a_join_string_is_read_as_it_was_printed(join: JoinString) -> None:
    assert parse_join(str(join)) == join


def test_the_printed_form() -> None:
    join = JoinString("tcp://10.0.0.1:5555", "CartPole-v1", 16, "00ff")
    assert str(join) == "zmqrl://10.0.0.1:5555?env=CartPole-v1&num_envs=16&run_id=00ff"


def test_facts_of_a_newer_learner_are_ignored() -> None:
    assert parse_join("zmqrl://h:1?key=abc&env=E") == JoinString("tcp://h:1", "E")


@pytest.mark.parametrize(
    "text", ["", "hello", "zmqrl://", "http://h:1", "zmqrl://h:1?num_envs=two", "zmqrl://h:1?num_envs=-3"]
)
def test_what_is_no_join_string_is_an_error_of_usage(text: str) -> None:
    with pytest.raises(UsageError):
        parse_join(text)


def test_read_join_finds_a_file_standard_input_the_variable_or_the_string_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = JoinString("tcp://h:1", "E")
    file = tmp_path / "join"
    file.write_text("zmqrl://h:1?env=E\n")
    assert read_join(str(file)) == expected
    assert read_join("zmqrl://h:1?env=E") == expected
    monkeypatch.setattr("sys.stdin", io.StringIO("\nzmqrl://h:1?env=E\n"))
    assert read_join("-") == expected
    monkeypatch.setenv("ZMQRL_JOIN", "zmqrl://h:1?env=E")
    assert read_join("") == expected
    monkeypatch.setenv("ZMQRL_JOIN", str(file))
    assert read_join("") == expected


def test_an_unreadable_join_file_is_one_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZMQRL_JOIN", raising=False)
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text(" \n")
    binary.write_bytes(b"\xff\xfe\x00")
    for source, text in (
        (str(tmp_path / "none"), "cannot be read: No such file"),
        (str(tmp_path), "cannot be read: Is a directory"),
        (str(empty), "is empty"),
        (str(binary), "it is not text"),
        ("", "no learner named"),
    ):
        with pytest.raises(UsageError) as error:
            read_join(source)
        assert text in str(error.value)
        assert "\n" not in str(error.value)
