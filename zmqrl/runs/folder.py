"""The run folder: the one place that knows file names, and how a file is written so that it is whole or absent."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zmqrl.errors import UsageError

SUFFIX = ".safetensors"
_UPDATE_NAME = re.compile(r"update-(\d+)" + re.escape(SUFFIX))
_SAVED_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class RunFolder:
    """The files of one run:

    config.json     the resolved configuration; serves as --config of another run
    join            the join string, readable by its owner only
    report.json     what came of it
    metrics.jsonl   one line per update
    checkpoints/    update-00000050.safetensors, best.safetensors, named-<name>.safetensors
    logs/           <process>.log
    tensorboard/    one event file
    """

    path: Path

    @classmethod
    def create(cls, run_dir: str, env: str, *, resume: bool = False) -> RunFolder:
        """The folder of a new run, or with `resume` of one that is to go on; UsageError if it cannot be that.

        An empty `run_dir` is a new runs/<env>-<UTC time>. A folder in which a run was prepared and never made an
        update is as good as new.
        """
        if resume:
            return cls.open(run_dir)._complete()
        if not run_dir:
            return cls(_new_folder(Path("runs"), env))._complete()
        folder = cls(Path(run_dir))
        if folder.begun:
            raise UsageError(f"{folder.path} holds a run; continue it with --resume, or name another --run-dir")
        if folder.path.exists() and not folder.path.is_dir():
            raise UsageError(f"--run-dir {folder.path} is a file")
        if folder.path.is_dir() and any(folder.path.iterdir()) and not folder.config_file.exists():
            raise UsageError(f"{folder.path} is not empty, and holds no run; name another --run-dir")
        return folder._complete()

    @classmethod
    def open(cls, run_dir: str) -> RunFolder:
        """The folder of an existing run; UsageError if it is none."""
        folder = cls(Path(run_dir))
        if not run_dir or not folder.config_file.is_file():
            raise UsageError(f"{run_dir or 'an empty name'} is not the folder of a run: it holds no config.json")
        return folder

    def _complete(self) -> RunFolder:
        try:
            for folder in (self.path, self.checkpoints, self.logs, self.tensorboard):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the run folder {self.path}: {error.strerror}") from None
        return self

    @property
    def begun(self) -> bool:
        """Whether an update has been made here."""
        return self.report_file.exists() or _has_content(self.metrics_file) or any(self.checkpoints.glob("*" + SUFFIX))

    @property
    def config_file(self) -> Path:
        """JSON: fields by class of configuration."""
        return self.path / "config.json"

    @property
    def next_config_file(self) -> Path:
        """JSON: the configuration with which a resumed run wants to go on, until its learner has agreed."""
        return self.path / ".config.next.json"

    @property
    def join_file(self) -> Path:
        """Text: the join string. Mode 0600, for it holds a key."""
        return self.path / "join"

    @property
    def report_file(self) -> Path:
        """JSON, see `report`."""
        return self.path / "report.json"

    @property
    def metrics_file(self) -> Path:
        """JSON lines, see `metrics`."""
        return self.path / "metrics.jsonl"

    @property
    def logs(self) -> Path:
        """Folder of what processes print."""
        return self.path / "logs"

    @property
    def tensorboard(self) -> Path:
        """Folder for `tensorboard --logdir`."""
        return self.path / "tensorboard"

    @property
    def event_file(self) -> Path:
        """TensorBoard's events; one file for the whole run, so that a resumed run is one curve."""
        return self.tensorboard / "events.out.tfevents.0000000000.zmqrl"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def best_checkpoint(self) -> Path:
        """The one with the best mean return so far."""
        return self.checkpoints / f"best{SUFFIX}"

    def checkpoint(self, update: int) -> Path:
        """The checkpoint after this update."""
        return self.checkpoints / f"update-{update:08d}{SUFFIX}"

    def named_checkpoint(self, name: str) -> Path:
        """The checkpoint an admin named; UsageError for a name that is none."""
        if not _SAVED_NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!r} cannot name a checkpoint: use 1 to 64 of A-Z a-z 0-9 . _ -")
        return self.checkpoints / f"named-{name}{SUFFIX}"

    def saved_updates(self) -> dict[int, Path]:
        """Checkpoints by their update, the newest first; their content is not looked at."""
        found = ((_UPDATE_NAME.fullmatch(path.name), path) for path in self.checkpoints.iterdir())
        return dict(sorted(((int(match[1]), path) for match, path in found if match), reverse=True))

    def write_config(self, config: Mapping[str, Mapping[str, Any]], file: Path | None = None) -> None:
        """Save the resolved configuration, without the folder's own name: the file serves other runs too.

        file: `config_file` if None.
        """
        sections = {kind: {k: v for k, v in values.items() if k != "run_dir"} for kind, values in config.items()}
        write_json(file or self.config_file, sections)

    def write_join(self, join_string: str) -> None:
        """Save the join string, readable by its owner only."""
        write_aside(self.join_file, f"{join_string}\n".encode(), mode=0o600)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Be the only learner that writes here; UsageError if another process does. Ends with the process, too."""
        with (self.path / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"another process is running in {self.path}; name another --run-dir") from None
            yield


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _new_folder(parent: Path, env: str) -> Path:
    """Make a folder that nobody else has; two commands of one second get two."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", env) or "run"
    stem = f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for number in range(1, 1000):
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot make the run folder {path}: {error.strerror}; name another --run-dir") from None
        return path
    raise UsageError(f"{parent} holds a thousand runs of this second; name another --run-dir")


# --- writing -------------------------------------------------------------------------------------------


def write_aside(path: Path, data: bytes | memoryview, *, mode: int = 0o644) -> None:
    """Replace the file in one step: written beside it, synced, renamed, and the folder synced. Raises OSError.

    Whenever the process or machine dies, the name holds the old content or the new, never a part.
    """
    aside = path.with_name(f".{path.name}.new")
    try:
        with suppress(FileNotFoundError):
            aside.unlink()  # left by a process that was killed; its mode may be another
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file in one step; non-finite numbers become null. Raises OSError, or TypeError for other data."""
    write_aside(path, (strict_json(data, indent=2) + "\n").encode())


def strict_json(data: Any, *, indent: int | None = None) -> str:
    """JSON that any parser reads: NaN and infinities, which JSON lacks, are null."""
    return json.dumps(without_nonfinite(data), indent=indent, allow_nan=False)


def without_nonfinite(data: Any) -> Any:
    """The same data with None for each NaN and infinity, and lists for tuples."""
    if isinstance(data, Mapping):
        return {key: without_nonfinite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [without_nonfinite(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data
