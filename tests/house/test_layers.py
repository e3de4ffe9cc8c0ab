"""Imports point downwards, each outside library has one room, and what the laws forbid occurs nowhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "zmqrl"
FILES = sorted(PACKAGE.rglob("*.py"))

FLOORS = {
    "errors": -1, "spaces": 0,
    "config": 1, "messages": 1, "accounts": 1, "throttle": 1, "presets": 1,
    "session": 2,
    "codec": 3, "progress": 3,
    "transport": 4, "envs": 4, "policies": 4, "rollout": 4, "advantages": 4, "optimizer": 4,
    "estimates": 5, "chunks": 5, "starvation": 5,
    "ppo": 6, "terms": 6,
    "actor": 7, "learner": 7,
    "joining": 8, "evaluation": 8, "runs": 8,
    "supervisor": 9,
    "cli": 10,
}  # fmt: skip
"""A file may import its own room, and what is on a lower floor."""

HOMES = {
    "zmq": ("transport",),
    "msgpack": ("codec",),
    "gymnasium": ("envs",),
    "torch": (
        *("policies", "rollout", "advantages", "optimizer", "estimates", "ppo"),
        *("actor", "learner", "evaluation", "runs/checkpoint", "cli"),
    ),
    "safetensors": ("runs/checkpoint",),
    "tensorboard": ("runs/writers",),
    "google": ("runs/writers",),
    "numpy": tuple(FLOORS),
}
"""Who may import an outside library."""

ONLY_THE_BUS = ("chunks", "starvation", "progress", "terms", "actor", "learner", "joining")
"""Of transport they may know `bus`, its protocols and plain data, and nothing that opens a socket."""

RIGHT_WING = ("estimates", "ppo")
"""What learns knows no socket and no environment; the floors say so for the rest of that wing."""

FORBIDDEN_MODULES = {
    "pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve",  # law 6
    "triton", "torch.optim", "torch._dynamo", "torch._inductor",  # law 9
}  # fmt: skip

FORBIDDEN_ATTRIBUTES = {
    "torch.load": 6, "torch.save": 6, "torch.compile": 9, "torch.optim": 9, "torch._dynamo": 9,
    "send_pyobj": 6, "recv_pyobj": 6,
}  # fmt: skip


class Import(NamedTuple):
    line: int
    module: str


def name_of(path: Path) -> str:
    """`transport/bus` for zmqrl/transport/bus.py, `transport` for its __init__."""
    inside = path.relative_to(PACKAGE).with_suffix("")
    return "/".join(part for part in inside.parts if part != "__init__")


def imports_of(path: Path) -> Iterator[Import]:
    """All imports of a file, wherever they stand: at the top, in functions, for type checkers."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the whole name of the module"
            module = node.module or ""
            yield Import(node.lineno, module)
            yield from (Import(node.lineno, f"{module}.{alias.name}") for alias in node.names)


def room(name: str) -> str:
    return name.split("/")[0]


def test_every_file_has_a_floor() -> None:
    unknown = {room(name_of(path)) for path in FILES} - FLOORS.keys() - {"", "__main__"}
    assert not unknown, f"give a floor to {unknown}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_downwards(path: Path) -> None:
    name = name_of(path)
    if name in ("", "__main__"):  # the front doors stand outside of the house
        return
    for line, module in imports_of(path):
        parts = module.split(".")
        if parts[0] != "zmqrl" or len(parts) == 1 or parts[1] == "__version__":
            continue
        place = f"zmqrl/{name}.py:{line} imports {module}"
        assert parts[1] in FLOORS, f"{place}: import from the module, not from the front door"
        assert parts[1] == room(name) or FLOORS[parts[1]] < FLOORS[room(name)], f"{place}: not on a lower floor"
        if name in ONLY_THE_BUS and parts[1] == "transport":
            assert parts[2:3] == ["bus"], f"{place}: of transport only the bus"
        if name in RIGHT_WING:
            assert parts[1] not in ("transport", "envs", "codec"), f"{place}: the wings do not meet here"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_outside_library_has_its_room(path: Path) -> None:
    name = name_of(path)
    for line, module in imports_of(path):
        library = module.split(".")[0]
        if library == "zmqrl" or library in sys.stdlib_module_names:
            continue
        place = f"zmqrl/{name}.py:{line} imports {module}"
        assert library in HOMES, f"{place}: no dependency of zmqrl"
        assert name in HOMES[library] or room(name) in HOMES[library], f"{place}: it belongs to {HOMES[library]}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_executable_and_nothing_compiled(path: Path) -> None:
    for line, module in imports_of(path):
        parts = module.split(".")
        prefixes = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
        assert not prefixes & FORBIDDEN_MODULES, f"{path}:{line} imports {module}"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            law = FORBIDDEN_ATTRIBUTES.get(dotted) or FORBIDDEN_ATTRIBUTES.get(node.attr)
            assert law is None, f"{path}:{node.lineno}: {dotted} (law {law})"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert ast.unparse(node.value) == "False", f"{path}:{node.lineno}: allow_pickle (law 6)"


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after this statement."""
    code = f"{statement}\nimport sys; print('MODULES', *{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("module", ["transport", "codec", "cli", "cli.options", "supervisor", "runs", "throttle"])
def test_what_needs_no_torch_loads_none(module: str) -> None:
    assert not loaded_by(f"import zmqrl.{module}") & {"torch", "gymnasium", "tensorboard"}


@pytest.mark.parametrize("module", ["rollout", "advantages", "estimates", "ppo", "policies"])
def test_what_learns_knows_no_socket(module: str) -> None:
    assert not loaded_by(f"import zmqrl.{module}") & {"zmq", "gymnasium", "msgpack"}


def test_environments_need_neither_torch_nor_sockets() -> None:
    assert not loaded_by("import zmqrl.envs") & {"torch", "zmq"}


def test_help_loads_nothing_heavy() -> None:
    heavy = {"torch", "gymnasium", "zmq", "numpy", "msgpack"}
    assert not loaded_by("from zmqrl.cli import main; assert main(['--help']) == 0") & heavy
