"""Where metrics go: metrics.jsonl, a TensorBoard event file, and a line on the terminal.

The two files are append-only and cut back to the checkpoint's update when a run is resumed, so that each is one
curve whose steps increase strictly.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from zmqrl.progress import shown_return
from zmqrl.runs.folder import strict_json
from zmqrl.runs.output import silence

if TYPE_CHECKING:
    from zmqrl.progress import UpdateRecord

Metrics = Mapping[str, float | int | None]


class MetricsFile:
    """metrics.jsonl: one object per update with `update`, `env_steps`, `seconds` and the metrics."""

    def __init__(self, path: Path, *, after_update: int = 0) -> None:
        """Go on after this update of an earlier session; points beyond it are cut off. 0 begins anew."""
        end, self._earlier_seconds = _last_point(path, after_update)
        _cut(path, end)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: UpdateRecord, metrics: Metrics) -> None:
        """Append a point; it is in the file when this returns. `seconds` counts over all sessions of the run."""
        seconds = self._earlier_seconds + record.wall_seconds
        point = {"update": record.update, "env_steps": record.env_steps, "seconds": seconds, **metrics}
        self._file.write(strict_json(point) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _last_point(path: Path, last_update: int) -> tuple[int, float]:
    """(bytes up to and including the last whole point that is not beyond `last_update`, its `seconds`)."""
    end, seconds = 0, 0.0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                try:
                    point = json.loads(line)
                    beyond = point["update"] > last_update
                    now = float(point["seconds"])
                except (ValueError, KeyError, TypeError):  # the line that a killed process did not finish
                    break
                if beyond or not line.endswith(b"\n"):
                    break
                end, seconds = end + len(line), now
    return end, seconds


def _cut(path: Path, size: int) -> None:
    if path.exists():
        os.truncate(path, size)


class TensorBoardWriter:
    """One event file per run; the step of a point is its env steps. Metrics without a value get no point.

    Written through TensorBoard's own record format, without its background thread.
    """

    def __init__(self, path: Path, *, after_env_steps: int = 0) -> None:
        """Go on after this env step of an earlier session; points beyond it are cut off. 0 begins anew."""
        end = _end_of_events(path, after_env_steps)
        _cut(path, end)
        self._file = path.open("ab")
        self._records = RecordWriter(self._file)
        if end == 0:
            self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, record: UpdateRecord, metrics: Metrics) -> None:
        """Append a point of each metric; they are in the file when this returns."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items() if value is not None]
        self._write(Event(wall_time=time.time(), step=record.env_steps, summary=Summary(value=values)))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _end_of_events(path: Path, last_step: int) -> int:
    """Bytes up to and including the last whole event that is not beyond `last_step`; 0 where the run begins anew.

    A record is its length (8 bytes), a checksum of that (4), an Event, and a checksum of the event (4).
    """
    if last_step == 0 or not path.exists():
        return 0
    data = path.read_bytes()
    end = 0
    while end + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, end)
        if length == 0 or end + 16 + length > len(data):  # what a killed process or machine did not finish
            break
        try:
            event = Event.FromString(data[end + 12 : end + 12 + length])
        except DecodeError:
            break
        if event.step > last_step:
            break
        end += 16 + length
    return end


class ConsoleLine:
    """Progress for a person: one line that changes in a terminal, elsewhere a line with the time now and then.

    Uses no colour, and no control character but the carriage return of the changing line; a terminal that says
    TERM=dumb gets plain lines as well. A stream that is closed, or full, is shown nothing more, and training goes on.
    """

    RATE_UPDATES = 30
    """Updates over which the rate and the time left are measured."""

    LEAST_FIRST = ("lag", "actors", "left", "rate", "steps", "return")
    """In which order parts are left out where the line is too long for the terminal."""

    def __init__(
        self,
        log_interval: float = 5.0,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`log_interval`: seconds between two plain lines. `stream` is standard output if None."""
        self._stream: TextIO | None = stream or sys.stdout
        self._clock = clock
        self._log_interval = log_interval
        self._live = _is_terminal(self._stream) and os.environ.get("TERM", "dumb") != "dumb"
        self._width = 0
        self._shown_at: float | None = None
        self._pending = ""
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=self.RATE_UPDATES)

    def show(self, record: UpdateRecord) -> None:
        """Show this update, at once in a terminal, elsewhere if `log_interval` has passed."""
        self._recent.append((record.wall_seconds, record.env_steps, record.update))
        parts = self._parts(record)
        text = "  ".join(parts.values())
        if self._live:
            room = shutil.get_terminal_size().columns - 1
            for name in self.LEAST_FIRST:
                if len(text) > room:
                    parts.pop(name, None)
                    text = "  ".join(parts.values())
            self._write("\r" + text.ljust(min(self._width, room)))
            self._width = len(text)
        elif self._shown_at is None or self._clock() - self._shown_at >= self._log_interval:
            self._print(text)
        else:
            self._pending = text

    def close(self) -> None:
        """End the line; elsewhere show the last update if it was not."""
        if self._live and self._width:
            self._write("\n")
        elif self._pending:
            self._print(self._pending)
        self._width = 0

    def _print(self, text: str) -> None:
        self._write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}  {text}\n")
        self._shown_at, self._pending = self._clock(), ""

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # whoever read has gone, the disk is full, or the stream is closed
            silence(self._stream)
            self._stream = None

    def _parts(self, record: UpdateRecord) -> dict[str, str]:
        seconds, steps, updates = (last - first for first, last in zip(self._recent[0], self._recent[-1], strict=True))
        returns = record.mean_episode_return
        parts = {
            "update": f"update {record.update}/{record.total_updates}",
            "steps": f"{record.env_steps:,} env steps",
            "rate": f"{steps / seconds:,.0f}/s" if seconds > 0 else "",
            "return": "no episode finished yet" if returns is None else f"mean return {shown_return(returns)}",
            "lag": f"lag {record.lag_mean:.1f}",
            "actors": f"{record.actors_alive} actors" if record.actors_alive != 1 else "1 actor",
        }
        if seconds > 0 and updates > 0:
            parts["left"] = f"{_duration((record.total_updates - record.update) * seconds / updates)} left"
        return {name: part for name, part in parts.items() if part}


def _is_terminal(stream: TextIO | None) -> bool:
    with suppress(OSError, ValueError):  # closed
        return stream is not None and stream.isatty()
    return False


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
