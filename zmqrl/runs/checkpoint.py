"""Checkpoints: one safetensors file each, which holds all a learner knows, and a proof that it is whole.

Tensors lie in the file as such. Facts (configuration, spaces, counters, ...) are JSON text in its metadata, next to
the version of this format and a SHA-256 over facts and tensors. Reading runs no code.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from zmqrl.errors import CheckpointError
from zmqrl.runs.folder import RunFolder, write_aside

FORMAT_VERSION = "1"

log = logging.getLogger(__name__)


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a checkpoint in one step: `path` holds what it held before, or all of this.

    `facts` is strict JSON: a number that is not finite is a ValueError, other data a TypeError. CheckpointError if
    the file cannot be written, for example on a full disk.
    """
    text = json.dumps(facts, allow_nan=False, sort_keys=True)
    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    metadata = {"zmqrl_format": FORMAT_VERSION, "facts": text, "sha256": _digest(own, text)}
    try:
        write_aside(path, save(own, metadata))
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoint {path}: {error.strerror}") from error


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors on the CPU, facts); CheckpointError with the file and the reason if it is not a whole checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_format(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        text = metadata["facts"]
        if _digest(tensors, text) != metadata["sha256"]:
            raise CheckpointError(f"checkpoint {path} is damaged: its content does not match its SHA-256")
        facts: dict[str, Any] = json.loads(text)
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from None
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged, or no checkpoint: {error}") from None
    return tensors, facts


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    version = metadata.get("zmqrl_format")
    if version is None:
        raise CheckpointError(f"{path} is a safetensors file, but no zmqrl checkpoint")
    if version != FORMAT_VERSION:
        raise CheckpointError(f"checkpoint {path} has format {version}, and this zmqrl reads format {FORMAT_VERSION}")


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    """SHA-256 over the facts, and name, dtype, shape and bytes of each tensor in the order of names."""
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def newest_checkpoint(folder: RunFolder, report: Callable[[str], None] = log.warning) -> Path:
    """The newest whole checkpoint of a run; each newer one that is damaged is reported in a sentence.

    CheckpointError if there is none.
    """
    for path in folder.saved_updates().values():
        try:
            load_checkpoint(path)
        except CheckpointError as error:
            report(f"{error}; going back to the one before")
            continue
        return path
    raise CheckpointError(f"{folder.checkpoints} holds no whole checkpoint")


def prune(folder: RunFolder, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints of updates, and what killed processes left; named ones stay."""
    for path in [*folder.saved_updates().values()][keep:]:
        path.unlink(missing_ok=True)
    for path in folder.checkpoints.glob(".*.new"):
        path.unlink(missing_ok=True)
