"""The front door: what is listed can be imported, is in order, and is documented."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import zmqrl

SOURCE = Path(zmqrl.__file__)


def test_the_list_is_in_order_and_without_twins() -> None:
    assert zmqrl.__all__ == sorted(set(zmqrl.__all__))


@pytest.mark.parametrize("name", zmqrl.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(zmqrl, name)
    assert name in dir(zmqrl)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__doc__, f"{name} has no docstring"


def test_type_checkers_see_the_same_names() -> None:
    blocks = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    typed = {alias.name for node in ast.walk(blocks[0]) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(typed | {"__version__"}) == zmqrl.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'learn'"):
        getattr(zmqrl, "learn")  # noqa: B009


def test_importing_the_package_loads_none_of_it() -> None:
    code = "import sys, zmqrl; print(sorted(name for name in sys.modules if name.startswith('zmqrl.')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == "[]"


def test_the_version_is_that_of_the_package_and_of_the_changelog() -> None:
    root = SOURCE.parents[1]
    assert f'version = "{zmqrl.__version__}"' in (root / "pyproject.toml").read_text()
    assert f"## [{zmqrl.__version__}]" in (root / "CHANGELOG.md").read_text()
