"""Where files lie, which folders may become a run, and files that are whole or absent."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from zmqrl.errors import UsageError
from zmqrl.runs import RunFolder
from zmqrl.runs.folder import strict_json, write_aside, write_json


def test_a_run_without_a_name_is_called_after_environment_and_time(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (RunFolder.create("", "ALE/Pong-v5") for _ in range(2))
    assert re.fullmatch(r"runs/ALE-Pong-v5-\d{8}-\d{6}", str(first.path))
    assert first.path != second.path
    assert first.checkpoints.is_dir() and first.logs.is_dir() and first.tensorboard.is_dir()


def test_a_named_run_may_be_new_or_empty_or_only_prepared(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new/deep", "empty"):
        folder = RunFolder.create(str(tmp_path / name), "A-v0")
        folder.write_config({})
        folder.write_join("zmqrl://host:1")
        (folder.logs / "learner.log").write_text("no actor came")
        assert RunFolder.create(str(tmp_path / name), "A-v0") == folder


@pytest.mark.parametrize("trace", ["report.json", "metrics.jsonl", "checkpoints/update-00000001.safetensors"])
def test_a_run_that_has_begun_is_only_resumed(tmp_path: Path, trace: str) -> None:
    folder = RunFolder.create(str(tmp_path / "a"), "A-v0")
    folder.write_config({})
    (folder.path / trace).write_text("{}")
    with pytest.raises(UsageError, match="--resume"):
        RunFolder.create(str(tmp_path / "a"), "A-v0")
    assert RunFolder.create(str(tmp_path / "a"), "A-v0", resume=True) == folder


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"holds no (run|config\.json)"):
            RunFolder.create(str(tmp_path), "A-v0", resume=resume)
    with pytest.raises(UsageError, match="is a file"):
        RunFolder.create(str(tmp_path / "thesis.tex"), "A-v0")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot make the run folder"):
        RunFolder.create(str(tmp_path / "file" / "run"), "A-v0")


@pytest.mark.parametrize("name", ["", "absent"])
def test_opening_what_is_no_run_is_a_usage_error(tmp_path: Path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        RunFolder.open(name)


def test_checkpoints_are_found_by_update_the_newest_first(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path / "a"), "A-v0")
    paths = [folder.checkpoint(update) for update in (2, 100_000_000, 30)]
    for path in [*paths, folder.best_checkpoint, folder.named_checkpoint("update-00000007")]:
        path.touch()
    (folder.checkpoints / ".update-00000031.safetensors.new").touch()
    assert list(folder.saved_updates()) == [100_000_000, 30, 2]
    assert folder.checkpoint(50).name == "update-00000050.safetensors"


@pytest.mark.parametrize("name", ["", "a/b", "../up", "a b", "x" * 65, "ü", "a\n"])
def test_a_checkpoint_cannot_be_named_out_of_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a checkpoint"):
        RunFolder(tmp_path).named_checkpoint(name)


@pytest.mark.parametrize("name", ["..", "best", "update-00000050", ".hidden", "A-1.b_2"])
def test_a_named_checkpoint_is_never_one_of_the_others(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path)
    path = folder.named_checkpoint(name)
    assert path.parent == folder.checkpoints
    assert path not in (folder.best_checkpoint, folder.checkpoint(50))


def test_the_saved_configuration_serves_another_run(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path / "a"), "A-v0")
    folder.write_config({"RunConfig": {"run_dir": "a", "device": "cpu"}, "PPOConfig": {"n_epochs": 3}})
    assert json.loads(folder.config_file.read_text()) == {"RunConfig": {"device": "cpu"}, "PPOConfig": {"n_epochs": 3}}


def test_only_the_owner_reads_the_join_string(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path / "a"), "A-v0")
    for text in ("zmqrl://host:1?key=a", "zmqrl://host:2?key=b"):
        folder.write_join(text)
        assert folder.join_file.read_text() == text + "\n"
        assert stat.S_IMODE(folder.join_file.stat().st_mode) == 0o600


def test_a_key_is_never_in_a_file_that_others_read(tmp_path: Path, monkeypatch) -> None:
    folder = RunFolder.create(str(tmp_path / "a"), "A-v0")
    leftover = folder.path / ".join.new"
    leftover.touch(mode=0o666)
    modes: list[int] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (modes.append(stat.S_IMODE(os.stat(a).st_mode)), replace(a, b)))
    folder.write_join("zmqrl://host:1?key=a")
    assert modes == [0o600]


# --- one learner per folder ----------------------------------------------------------------------------


def test_two_processes_do_not_write_into_one_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path), "A-v0")
    code = (
        "import sys, pathlib; from zmqrl.runs import RunFolder\nwith RunFolder(pathlib.Path(sys.argv[1])).hold(): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with folder.hold():
        held = subprocess.run(command, capture_output=True, text=True, timeout=60)
    free = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert held.returncode == 1 and "another process is running in" in held.stderr
    assert (free.returncode, free.stderr) == (0, "")


# --- whole or absent -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch, step: str) -> None:
    path = tmp_path / "report.json"
    write_json(path, {"a": 1})

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left"):
        write_aside(path, b"new")
    monkeypatch.undo()
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_content_is_synced_before_the_name_and_the_name_before_the_end(tmp_path: Path, monkeypatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        events.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        events.append(f"rename {os.stat(source).st_size} bytes")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_aside(tmp_path / "file", b"12345")
    assert events == ["sync file", "rename 5 bytes", "sync folder"]


def test_json_is_strict_and_numbers_that_are_none_are_null() -> None:
    data = {"a": (1, math.nan), "b": {"c": [-math.inf, 0.5]}, "d": None, "e": True}
    assert strict_json(data) == '{"a": [1, null], "b": {"c": [null, 0.5]}, "d": null, "e": true}'
