"""The examples run as they stand, from anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(arguments: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tried_here() -> None:
    assert sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".md")) == [
        "cartpole.py",
        "own_environment.py",
        "two_hosts.md",
    ]


def test_cartpole_by_the_api(tmp_path: Path) -> None:
    lines = run([str(EXAMPLES / "cartpole.py")], tmp_path).splitlines()
    assert lines[-1].startswith("goal reached: mean return ")
    assert len((EXAMPLES / "cartpole.py").read_text().splitlines()) < 50


def test_an_environment_of_ones_own(tmp_path: Path) -> None:
    """With the very words of its docstring."""
    text = (EXAMPLES / "own_environment.py").read_text()
    command = text[text.index("zmqrl train") : text.index('"""', 10)].replace("\\\n", " ").split()
    output = run(["-m", *command], tmp_path)
    assert "reached 0.9" in output.splitlines()[-1]


def test_two_hosts_names_flags_that_exist() -> None:
    text = (EXAMPLES / "two_hosts.md").read_text()
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["zmqrl"]:
            flags = [word for word in words[2:] if word.startswith("--")]
            shown = subprocess.run(
                [sys.executable, "-m", "zmqrl", words[1], "--help"], capture_output=True, text=True, timeout=60
            ).stdout
            assert all(flag in shown for flag in flags), line
