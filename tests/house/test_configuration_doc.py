"""docs/configuration.md is what the configuration classes say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from zmqrl.cli.options import CONFIG_CLASSES, configuration_page, field_documentation, verb_options

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == configuration_page() + "\n", "run `make docs`"


@pytest.mark.parametrize("kind", [*CONFIG_CLASSES, *verb_options().values()])
def test_every_field_is_documented(kind: type) -> None:
    assert list(field_documentation(kind)) == [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize("flag", ["--bind TEXT", "--spaces TEXT", "--join TEXT", "--episodes N"])
def test_options_of_one_verb_are_on_the_page(flag: str) -> None:
    assert f"| `{flag}` |" in PAGE.read_text()


def test_no_two_classes_share_a_field() -> None:
    names = [field.name for kind in CONFIG_CLASSES for field in dataclasses.fields(kind)]
    assert len(names) == len(set(names))
