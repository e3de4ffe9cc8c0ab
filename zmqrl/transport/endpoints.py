"""Addresses and the join string, parsed and printed.

A learner has three sockets and one address, that of its control socket. Over TCP the others are on ports of their
own, which the Welcome tells; over ipc and inproc their names follow from the first by a suffix.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, urlencode

from zmqrl.errors import AddressError, UsageError

JOIN_VARIABLE = "ZMQRL_JOIN"

MAX_IPC_PATH = 107
"""Bytes of a path in the kernel's socket address, without the zero at its end."""

MAX_JOIN_BYTES = 64 << 10

EXPERIENCE_SUFFIX = ".experience"
POLICY_SUFFIX = ".policy"

_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]+)?\]|\*")


@dataclass(frozen=True)
class Address:
    """Where one socket is. `host` and `port` for tcp, `path` for ipc and inproc."""

    scheme: Literal["tcp", "ipc", "inproc"]
    host: str = ""
    """Without the brackets of IPv6."""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.scheme != "tcp":
            return f"{self.scheme}://{self.path}"
        return f"tcp://[{self.host}]:{self.port}" if self.ipv6 else f"tcp://{self.host}:{self.port}"

    @property
    def ipv6(self) -> bool:
        """Whether the host is an IPv6 number."""
        return ":" in self.host

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.scheme != "tcp" or is_loopback(self.host)

    def beside(self, port: int, suffix: str) -> Address:
        """Another socket of the same learner."""
        return replace(self, port=port) if self.scheme == "tcp" else replace(self, path=self.path + suffix)


def is_loopback(host: str) -> bool:
    """Whether this host, given as a number, is the machine itself."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    return False


def parse_address(text: str) -> Address:
    """tcp://host:port, ipc://path or inproc://name; AddressError otherwise."""
    scheme, mark, rest = text.strip().partition("://")
    if not mark or scheme not in ("tcp", "ipc", "inproc"):
        hint = "write tcp://host:port or ipc://path"
        if not mark and _looks_like_tcp(text.strip()):
            hint = f"did you mean tcp://{text.strip()}?"
        raise AddressError(f"{text!r} is no address: {hint}")
    if scheme == "tcp":
        host, port = _host_and_port(text, rest)
        return Address("tcp", host, port)
    if not rest or "?" in rest:
        raise AddressError(f"{text!r}: {scheme}:// needs a name after it, without a question mark")
    if scheme == "inproc":
        return Address("inproc", path=rest)
    longest = rest + EXPERIENCE_SUFFIX
    if len(os.fsencode(longest)) > MAX_IPC_PATH:
        raise AddressError(
            f"ipc://{rest}: the socket file {longest} would have {len(os.fsencode(longest))} bytes in its path and "
            f"{MAX_IPC_PATH} are possible; choose a shorter folder"
        )
    return Address("ipc", path=rest)


def _looks_like_tcp(text: str) -> bool:
    """host:port, and no path."""
    host, colon, port = text.rpartition(":")
    return bool(colon and port.isascii() and port.isdigit() and _HOST.fullmatch(host))


def _host_and_port(text: str, rest: str) -> tuple[str, int]:
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise AddressError(f"{text!r} ends in no port: write tcp://host:port with a port of 0 to 65535")
    if not host:
        raise AddressError(
            f"{text!r} names no host: write tcp://127.0.0.1:{port} for this machine only, "
            f"or tcp://0.0.0.0:{port} for all its network interfaces"
        )
    if not _HOST.fullmatch(host):
        hint = "; an IPv6 address stands in brackets, as in tcp://[::1]:5555" if ":" in host else ""
        raise AddressError(f"{text!r}: {host!r} is no host name or address{hint}")
    return host.strip("[]"), int(port)


def address_to_bind(text: str) -> Address:
    """The address with its host as the number of one of this machine's interfaces.

    `localhost` is 127.0.0.1 and `*` is 0.0.0.0; a name is looked up. Raises AddressError.
    """
    address = parse_address(text)
    if address.scheme != "tcp":
        return address
    number = {"*": "0.0.0.0", "localhost": "127.0.0.1"}.get(address.host) or _number_of(address.host)
    return replace(address, host=number)


def _number_of(host: str) -> str:
    if ":" in host:
        return host
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError):
        raise AddressError(f"the host name {host!r} is not known here; bind an address of this machine") from None


def require_known_host(text: str) -> None:
    """AddressError if the address to be connected to has a host name that this machine cannot look up."""
    address = parse_address(text)
    if address.scheme != "tcp":
        return
    try:
        socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise AddressError(f"{text}: the host name {address.host!r} is not known here") from None


def outward_host(host: str) -> str:
    """How other machines reach what is bound to `host`: for a wildcard the address of the default route.

    Nothing is sent: connecting a datagram socket only asks the routing table.
    """
    if host not in ("0.0.0.0", "::"):
        return host
    family, anywhere = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((anywhere, 9))
        return str(probe.getsockname()[0])
    return "::1" if ":" in host else "127.0.0.1"


# --- the join string -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JoinString:
    """The one line an actor joins with: where the learner is, and what its environments should be by default."""

    address: str
    """Of the control socket: tcp://host:port, ipc://path or inproc://name."""
    env: str = ""
    """Environment id; used only if gymnasium knows it already."""
    num_envs: int = 0
    """0 where the learner did not say."""
    run_id: str = ""

    def __str__(self) -> str:
        facts = {"env": self.env, "num_envs": self.num_envs or "", "run_id": self.run_id}
        query = urlencode({name: value for name, value in facts.items() if value}, quote_via=quote, safe="/:")
        address = self.address.replace("tcp://", "zmqrl://", 1)
        return f"{address}?{query}" if query else address


def parse_join(text: str) -> JoinString:
    """zmqrl://host:port?env=...&num_envs=...&run_id=..., or a bare address; UsageError otherwise.

    Facts that a newer learner adds are ignored.
    """
    line = text.strip()
    place, _, query = line.partition("?")
    try:
        address = str(parse_address(place.replace("zmqrl://", "tcp://", 1)))
    except AddressError as error:
        raise UsageError(f"this is no join string: {error}") from None
    facts = dict(parse_qsl(query))
    num_envs = facts.get("num_envs", "0")
    if not num_envs.isascii() or not num_envs.isdigit() or int(num_envs) > 65_536:
        raise UsageError(f"the join string says num_envs={num_envs[:40]}, which is no number of environments")
    return JoinString(address, facts.get("env", ""), int(num_envs), facts.get("run_id", ""))


def read_join(text_or_path: str) -> JoinString:
    """The join string in a file, on standard input (`-`), in $ZMQRL_JOIN (where the argument is empty), or itself."""
    source = text_or_path.strip() or os.environ.get(JOIN_VARIABLE, "").strip()
    if not source:
        raise UsageError(f"no learner named: give its join file with --join, or set ${JOIN_VARIABLE}")
    if "://" in source or (_looks_like_tcp(source) and not Path(source).exists()):
        return parse_join(source)
    name = "standard input" if source == "-" else source
    try:
        text = sys.stdin.read(MAX_JOIN_BYTES) if source == "-" else _read_file(source)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"the join file {name} cannot be read: {reason}") from None
    lines = text.split()
    if not lines:
        raise UsageError(f"the join file {name} is empty; the learner writes it once it is bound")
    return parse_join(lines[0])


def _read_file(path: str) -> str:
    with Path(path).open(encoding="utf-8") as file:
        return file.read(MAX_JOIN_BYTES)
