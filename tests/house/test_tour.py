"""The tour leads somewhere, and stays a ten-minute read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "docs" / "tour.md"
SEVEN = ("messages", "transport/bus", "actor", "learner", "advantages", "ppo")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
    *sorted((ROOT / "launch").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_files_of_the_tour_are_on_it_in_order() -> None:
    stops = re.findall(r"^\| \d \| \[([^\]]+)\]", TOUR.read_text(), re.MULTILINE)
    assert stops == ["README.md", *(f"zmqrl/{name}.py" for name in SEVEN)]


def test_the_seven_files_stay_a_ten_minute_read() -> None:
    files = [ROOT / "README.md", *(ROOT / "zmqrl" / f"{name}.py" for name in SEVEN)]
    lines = {path.name: sum(bool(line.strip()) for line in path.read_text().splitlines()) for path in files}
    assert sum(lines.values()) <= 900, lines
