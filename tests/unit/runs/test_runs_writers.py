"""metrics.jsonl and the event file read back, also after resumes and torn writes; what a terminal shows."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from test_runs_metrics import RECORD

from zmqrl.progress import UpdateRecord
from zmqrl.runs.writers import ConsoleLine, MetricsFile, TensorBoardWriter


def record(update: int, **changes: object) -> UpdateRecord:
    values = {"update": update, "env_steps": 100 * update, "wall_seconds": 0.5 * update, **changes}
    return dataclasses.replace(RECORD, **values)  # type: ignore[arg-type]


# --- metrics.jsonl -------------------------------------------------------------------------------------


def write_points(path: Path, updates: range, *, after_update: int = 0, value: float | None = 1.0) -> None:
    file = MetricsFile(path, after_update=after_update)
    for update in updates:
        file.write(record(update, wall_seconds=0.5 * (update - after_update)), {"rollout/ep_rew_mean": value})
    file.close()


def points(path: Path) -> list[dict[str, object]]:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not strict JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_a_line_per_update_that_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(record(1), {"rollout/ep_rew_mean": None, "time/fps": math.inf, "train/n_updates": 1})
    assert points(path) == [
        {
            "update": 1,
            "env_steps": 100,
            "seconds": 0.5,
            "rollout/ep_rew_mean": None,
            "time/fps": None,
            "train/n_updates": 1,
        }
    ]
    file.close()


def test_two_resumes_make_one_curve(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_points(path, range(1, 8))
    write_points(path, range(6, 9), after_update=5, value=2.0)
    write_points(path, range(8, 11), after_update=7, value=3.0)
    curve = points(path)
    assert [point["update"] for point in curve] == list(range(1, 11))
    assert [point["env_steps"] for point in curve] == [100 * update for update in range(1, 11)]
    assert [point["rollout/ep_rew_mean"] for point in curve] == [1.0] * 5 + [2.0] * 2 + [3.0] * 3
    assert [point["seconds"] for point in curve] == [0.5 * update for update in range(1, 11)]


@pytest.mark.parametrize("torn", ['{"update": 4, "env_st', '{"update": 4, "env_steps": 400, "seconds": 2.0}', "\0\0\0"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    write_points(path, range(1, 4))
    with path.open("a") as file:
        file.write(torn)
    write_points(path, range(5, 6), after_update=4)
    assert [point["update"] for point in points(path)] == [1, 2, 3, 5]


def test_a_new_run_does_not_append_to_what_lies_there(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_points(path, range(1, 4))
    write_points(path, range(1, 2), value=9.0)
    assert [point["rollout/ep_rew_mean"] for point in points(path)] == [9.0]


def test_resuming_without_the_earlier_file_begins_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_points(path, range(6, 7), after_update=5)
    assert [point["update"] for point in points(path)] == [6]


# --- TensorBoard ---------------------------------------------------------------------------------------


def write_events(path: Path, updates: range, *, after_update: int = 0, value: float = 1.0) -> None:
    writer = TensorBoardWriter(path, after_env_steps=100 * after_update)
    for update in updates:
        writer.write(record(update), {"rollout/ep_rew_mean": value, "time/fps": None, "train/n_updates": update})
    writer.close()


def scalars(path: Path) -> Iterator[tuple[str, int, float]]:
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            yield value.tag, event.step, value.tensor.float_val[0]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.0.zmqrl"
    write_events(path, range(1, 3), value=1.5)
    assert next(iter(EventFileLoader(str(path)).Load())).file_version == "brain.Event:2"
    assert list(scalars(path)) == [
        ("rollout/ep_rew_mean", 100, 1.5),
        ("train/n_updates", 100, 1.0),
        ("rollout/ep_rew_mean", 200, 1.5),
        ("train/n_updates", 200, 2.0),
    ]


def test_steps_increase_strictly_over_two_resumes(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.0.zmqrl"
    write_events(path, range(1, 8))
    write_events(path, range(6, 9), after_update=5, value=2.0)
    write_events(path, range(8, 11), after_update=7, value=3.0)
    curve = [(step, value) for tag, step, value in scalars(path) if tag == "rollout/ep_rew_mean"]
    assert [step for step, _ in curve] == list(range(100, 1100, 100))
    assert [value for _, value in curve] == [1.0] * 5 + [2.0] * 2 + [3.0] * 3


@pytest.mark.parametrize("torn", [b"\x10", bytes(11), bytes(64), b"\xff" * 40])
def test_a_torn_last_event_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "events.out.tfevents.0.zmqrl"
    write_events(path, range(1, 4))
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    write_events(path, range(4, 5), after_update=3)
    assert [step for tag, step, _ in scalars(path) if tag == "train/n_updates"] == [100, 200, 300, 400]
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize("missing", [1, 5, 20])
def test_an_event_that_was_not_finished_is_cut_off(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "events.out.tfevents.0.zmqrl"
    write_events(path, range(1, 4))
    os.truncate(path, path.stat().st_size - missing)
    write_events(path, range(4, 5), after_update=3)
    assert [step for tag, step, _ in scalars(path) if tag == "train/n_updates"] == [100, 200, 400]


def test_a_new_run_begins_a_new_event_file(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.0.zmqrl"
    write_events(path, range(1, 4))
    write_events(path, range(1, 2), value=9.0)
    assert [value for tag, _, value in scalars(path) if tag == "rollout/ep_rew_mean"] == [9.0]


# --- the terminal --------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal()


def test_plain_lines_carry_utc_and_no_control_codes(monkeypatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    stream = io.StringIO()
    console = ConsoleLine(5.0, stream=stream, clock=Clock())
    console.show(record(1))
    console.close()
    line = stream.getvalue()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  update 1/10  100 env steps  mean return 21.5  lag 0.5  2 actors\n", line
    )


def test_rate_and_time_left_are_of_recent_updates() -> None:
    stream, clock = io.StringIO(), Clock()
    console = ConsoleLine(0.001, stream=stream, clock=clock)
    for update in range(1, 4):
        clock.now = float(update)
        console.show(record(update, env_steps=12_000 * update, wall_seconds=60.0 * update))
    assert "36,000 env steps  200/s" in stream.getvalue()
    assert stream.getvalue().endswith("7m00s left\n")


def test_plain_lines_come_at_the_interval_and_the_last_one_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    console = ConsoleLine(5.0, stream=stream, clock=clock)
    for update in range(1, 9):
        clock.now = float(update)
        console.show(record(update))
    console.close()
    console.close()
    assert re.findall(r"update (\d)/", stream.getvalue()) == ["1", "6", "8"]


def test_no_episode_yet_is_said_in_words() -> None:
    stream = io.StringIO()
    ConsoleLine(stream=stream, clock=Clock()).show(record(1, mean_episode_return=None))
    assert "no episode finished yet" in stream.getvalue()
    assert "nan" not in stream.getvalue().lower() and "None" not in stream.getvalue()


def test_a_terminal_has_one_line_that_changes(terminal: Terminal) -> None:
    console = ConsoleLine(5.0, stream=terminal, clock=Clock())
    console.show(record(1, mean_episode_return=-1234.5))
    console.show(record(2, mean_episode_return=1.0))
    assert "\n" not in terminal.getvalue()
    console.close()
    first, second = terminal.getvalue().removesuffix("\n").split("\r")[1:]
    assert first.startswith("update 1/10") and second.startswith("update 2/10")
    assert len(second) >= len(first), "what the longer line left has to be overwritten"
    assert set(re.findall(r"[\x00-\x1f\x7f]", terminal.getvalue())) == {"\r", "\n"}


FULL = "update 12000/200000  1,200,000 env steps  200/s  mean return 21.5  lag 0.5  2 actors  261h06m left"
NARROW = {
    len(FULL) + 1: FULL,
    len(FULL): FULL.replace("  lag 0.5", ""),
    80: "update 12000/200000  1,200,000 env steps  200/s  mean return 21.5  261h06m left",
    60: "update 12000/200000  1,200,000 env steps  mean return 21.5",
    40: "update 12000/200000  mean return 21.5",
    20: "update 12000/200000",
}


@pytest.mark.parametrize("columns", NARROW)
def test_the_line_never_wraps_and_no_word_is_cut(terminal: Terminal, monkeypatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    console = ConsoleLine(stream=terminal, clock=Clock())
    for update in (11_999, 12_000):
        console.show(
            record(update, total_updates=200_000, wall_seconds=5.0 * update, env_steps=1000 * (update - 10_800))
        )
    assert terminal.getvalue().split("\r")[-1].rstrip() == NARROW[columns]
    assert all(len(line) < columns for line in terminal.getvalue().split("\r"))


def test_a_narrower_terminal_is_not_filled_beyond_its_edge(terminal: Terminal, monkeypatch) -> None:
    console = ConsoleLine(stream=terminal, clock=Clock())
    console.show(record(1))
    monkeypatch.setenv("COLUMNS", "30")
    console.show(record(2))
    assert len(terminal.getvalue().split("\r")[-1]) < 30


@pytest.mark.parametrize("live", [True, False])
def test_training_goes_on_when_nobody_reads_any_more(monkeypatch, live: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    reading, writing = os.pipe()
    with open(writing, "w") as stream:
        monkeypatch.setattr(stream, "isatty", lambda: live)
        console = ConsoleLine(0.0, stream=stream, clock=Clock())
        console.show(record(1))
        assert b"update 1/10" in os.read(reading, 1000)
        os.close(reading)
        console.show(record(2))
        console.show(record(3))
        console.close()
        print("what others still write to it is no error either", file=stream, flush=True)


def test_training_goes_on_with_a_full_or_closed_output() -> None:
    with open("/dev/full", "w") as full:
        ConsoleLine(0.0, stream=full, clock=Clock()).show(record(1))
    console = ConsoleLine(0.0, stream=full, clock=Clock())
    console.show(record(1))
    console.close()


def test_training_goes_on_without_standard_output(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    console = ConsoleLine(0.0, clock=Clock())
    console.show(record(1))
    console.close()


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_can_do_nothing_gets_plain_lines(terminal: Terminal, monkeypatch, term: str | None) -> None:
    monkeypatch.setenv("TERM", term) if term else monkeypatch.delenv("TERM")
    console = ConsoleLine(stream=terminal, clock=Clock())
    console.show(record(1))
    console.close()
    assert "\r" not in terminal.getvalue() and terminal.getvalue().endswith("\n")
