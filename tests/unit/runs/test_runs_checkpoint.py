"""A checkpoint gives back every bit, or a sentence; and there is always one, whenever the process dies."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from zmqrl.errors import CheckpointError
from zmqrl.runs import RunFolder
from zmqrl.runs.checkpoint import load_checkpoint, newest_checkpoint, prune, save_checkpoint

FACTS = {"config": {"PPOConfig": {"n_epochs": 3, "target_kl": None}}, "counters": {"updates": 5}, "text": "größer"}


def tensors() -> dict[str, Tensor]:
    everything = torch.arange(12, dtype=torch.float32)
    return {
        "weights": everything[:6],
        "view of the same memory": everything[3:9].view(2, 3).t(),
        "statistics": torch.tensor([1e-300, math.pi], dtype=torch.float64),
        "steps": torch.tensor(7.0),
        "count": torch.tensor([2**62], dtype=torch.int64),
        "random state": torch.get_rng_state(),
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "odd": torch.tensor([math.nan, math.inf, -0.0]),
        "none": torch.zeros(0, 3),
    }


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(str(tmp_path / "run"), "A-v0")


@pytest.fixture
def saved(folder: RunFolder) -> Path:
    path = folder.checkpoint(5)
    save_checkpoint(path, tensors(), FACTS)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_every_bit_comes_back(saved: Path) -> None:
    loaded, facts = load_checkpoint(saved)
    assert facts == FACTS
    assert loaded.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        ours, theirs = (one.contiguous().reshape(-1).view(torch.uint8) for one in (tensor, loaded[name]))
        assert torch.equal(ours, theirs), name


def test_equal_states_have_equal_digests_and_others_have_not(folder: RunFolder, saved: Path) -> None:
    def digest(path: Path) -> str:
        with safe_open(path, framework="pt") as file:
            return str(file.metadata()["sha256"])

    save_checkpoint(folder.checkpoint(6), dict(reversed(tensors().items())), dict(reversed(FACTS.items())))
    assert digest(folder.checkpoint(6)) == digest(saved)
    save_checkpoint(folder.checkpoint(7), tensors() | {"steps": torch.tensor(8.0)}, FACTS)
    save_checkpoint(folder.checkpoint(8), tensors() | {"none": torch.zeros(3, 0)}, FACTS)
    save_checkpoint(folder.checkpoint(9), tensors(), {**FACTS, "text": ""})
    assert len({digest(path) for path in folder.saved_updates().values()}) == 4


def test_facts_are_strict_json(folder: RunFolder) -> None:
    with pytest.raises(ValueError):
        save_checkpoint(folder.checkpoint(1), tensors(), {"mean": math.nan})
    with pytest.raises(TypeError):
        save_checkpoint(folder.checkpoint(1), tensors(), {"path": Path("x")})
    assert not folder.saved_updates()


def test_a_truncated_file_is_refused_wherever_it_ends(saved: Path) -> None:
    whole = saved.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for size in [
        0,
        1,
        7,
        8,
        9,
        header // 2,
        header - 1,
        header,
        header + 1,
        (header + len(whole)) // 2,
        len(whole) - 1,
    ]:
        saved.write_bytes(whole[:size])
        refusal(saved)
    saved.write_bytes(whole + b"\0")
    refusal(saved)
    saved.write_bytes(whole)
    load_checkpoint(saved)


def test_any_flipped_bit_is_noticed(folder: RunFolder) -> None:
    path = folder.checkpoint(1)
    save_checkpoint(path, {"a": torch.arange(3.0), "b": torch.tensor([7])}, {"updates": 1})
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        refusal(path)


def test_a_zeroed_tail_is_noticed(saved: Path) -> None:
    whole = saved.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    saved.write_bytes(whole[:header] + bytes(len(whole) - header))
    assert "damaged" in refusal(saved)


def test_other_files_are_refused_with_the_reason(folder: RunFolder) -> None:
    path = folder.checkpoint(1)
    assert "No such file" in refusal(path)
    path.write_text("{}")
    assert "damaged, or no checkpoint" in refusal(path)
    save_file({"a": torch.zeros(1)}, path)
    assert "no zmqrl checkpoint" in refusal(path)
    save_file({"a": torch.zeros(1)}, path, metadata={"zmqrl_format": "2"})
    assert "has format 2, and this zmqrl reads format 1" in refusal(path)
    save_file({"a": torch.zeros(1)}, path, metadata={"zmqrl_format": "1"})
    assert "damaged" in refusal(path)
    path.unlink()
    path.mkdir()
    refusal(path)


def test_a_full_disk_is_a_clear_error_and_the_old_file_stays(saved: Path, monkeypatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*No space left on device"):
        save_checkpoint(saved, {"a": torch.zeros(1)}, {})
    assert load_checkpoint(saved)[1] == FACTS
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_the_newest_whole_checkpoint_is_found_and_damaged_ones_are_told(folder: RunFolder, saved: Path) -> None:
    save_checkpoint(folder.checkpoint(4), {"a": torch.zeros(1)}, {})
    save_checkpoint(folder.best_checkpoint, {"a": torch.zeros(1)}, {})
    folder.checkpoint(6).write_bytes(saved.read_bytes()[:100])
    folder.checkpoint(7).touch()
    told: list[str] = []
    assert newest_checkpoint(folder, told.append) == saved
    assert ["update-00000007" in told[0], "update-00000006" in told[1], len(told)] == [True, True, 2]


def test_no_checkpoint_is_an_error(folder: RunFolder) -> None:
    with pytest.raises(CheckpointError, match="holds no whole checkpoint"):
        newest_checkpoint(folder)
    folder.checkpoint(1).touch()
    with pytest.raises(CheckpointError, match="holds no whole checkpoint"):
        newest_checkpoint(folder, lambda sentence: None)


def test_pruning_keeps_the_newest_and_the_named(folder: RunFolder) -> None:
    kept = {folder.best_checkpoint, folder.named_checkpoint("mine"), folder.checkpoint(9), folder.checkpoint(10)}
    for path in [*kept, folder.checkpoint(1), folder.checkpoint(8), folder.checkpoints / ".best.safetensors.new"]:
        path.touch()
    prune(folder, 2)
    assert set(folder.checkpoints.iterdir()) == kept


SAVE_FOR_EVER = """
import os, sys
from pathlib import Path
import torch
from zmqrl.runs import RunFolder
from zmqrl.runs.checkpoint import prune, save_checkpoint

torch.set_num_threads(1)
folder = RunFolder(Path(sys.argv[1]))
for first in map(int, sys.stdin):  # each line: save from this update on, in a process of its own
    child = os.fork()
    if child == 0:
        for update in range(first, first + 100000):
            save_checkpoint(folder.checkpoint(update), {"a": torch.full((30_000,), float(update))}, {"updates": update})
            save_checkpoint(folder.best_checkpoint, {"a": torch.full((30_000,), float(update))}, {"updates": update})
            prune(folder, 2)
            os.write(1, b"%d %d\\n" % (os.getpid(), update))
    os.waitpid(child, 0)
    os.write(1, b"ended\\n")
"""


def test_kill_9_while_saving_never_loses_what_was_saved(folder: RunFolder) -> None:
    command = [sys.executable, "-c", SAVE_FOR_EVER, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as saver:
        assert saver.stdin is not None and saver.stdout is not None
        update = 0
        for attempt in range(20):
            saver.stdin.write(f"{update + 1}\n")
            for line in saver.stdout:
                pid, update = map(int, line.split())
                if update % 3 == 0:
                    threading.Event().wait(attempt * 0.0005)  # into the next save, further each time
                    os.kill(pid, signal.SIGKILL)
                    break
            for line in saver.stdout:
                if line == "ended\n":
                    break
                update = int(line.split()[1])
            newest = newest_checkpoint(folder, lambda sentence: pytest.fail(sentence))
            saved, facts = load_checkpoint(newest)
            assert facts["updates"] in (update, update + 1)
            assert torch.equal(saved["a"], torch.full((30_000,), float(facts["updates"])))
            assert load_checkpoint(folder.best_checkpoint)[1]["updates"] in (update, update + 1)
        saver.stdin.close()
        assert saver.wait(30) == 0
