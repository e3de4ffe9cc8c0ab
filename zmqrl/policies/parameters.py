"""A module's parameters and state as one run of bytes: broadcasting them is one memcpy out, loading one memcpy in.

    [ parameters, float32, each at a multiple of 64 bytes | buffers of the state_dict, each with its own dtype ]
      ^ weights: one flat tensor, which the optimizer steps as a whole

Every parameter and buffer of the module is a view of these bytes. What replaces tensors instead of writing into
them breaks the views: `module.to(...)`, `module.half()`, `zero_grad(set_to_none=True)`, `buffer = new` in a
module's own code (write `buffer.copy_(new)`). `check()` finds out.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor, nn

from zmqrl.errors import UsageError, ZmqrlError
from zmqrl.session import ManifestEntry
from zmqrl.spaces import DTYPES

ALIGNMENT = 64
"""Bytes; a cache line, and enough for every dtype and vector instruction."""


class FlatParameters:
    """Owns the bytes of one module and keeps the module's tensors bound to them.

    Parameters must be float32; buffers may have any dtype that travels (`spaces.DTYPES`). Buffers that are not
    part of the state_dict are left alone.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._gradients: Tensor | None = None
        parameters = dict(module.named_parameters())  # a shared one is listed once
        persistent = module.state_dict(keep_vars=True).keys()
        buffers = {name: buffer for name, buffer in module.named_buffers() if name in persistent}
        for name, parameter in parameters.items():
            if parameter.dtype != torch.float32:
                raise UsageError(f"parameter {name} of {type(module).__name__} is {parameter.dtype}; use float32")
        tensors = parameters | buffers
        entries, offset, self._weight_bytes = [], 0, 0
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in DTYPES:
                raise UsageError(f"buffer {name} of {type(module).__name__} is {dtype}; use one of {', '.join(DTYPES)}")
            entries.append(ManifestEntry(name, dtype, tuple(tensor.shape), offset))
            offset += math.ceil(tensor.nbytes / ALIGNMENT) * ALIGNMENT
            if name in parameters:
                self._weight_bytes = offset
        self._entries = tuple(entries)
        devices = {tensor.device for tensor in tensors.values()} or {torch.device("cpu")}
        if len(devices) > 1:
            raise UsageError(f"{type(module).__name__} is spread over several devices; build it on one")
        self._bytes = torch.zeros(offset, dtype=torch.uint8, device=devices.pop())
        for entry in entries:
            self._view(self._bytes, entry).copy_(tensors[entry.name].detach())
        self._bind()

    # --- what it holds ---

    @property
    def weights(self) -> Tensor:
        """[W] float32: all parameters, and zeros between them."""
        return self._bytes[: self._weight_bytes].view(torch.float32)

    @property
    def gradients(self) -> Tensor:
        """[W] float32: each parameter's `grad` is a view of it, at the parameter's place. Made when first used."""
        if self._gradients is None:
            self._gradients = torch.zeros(self._weight_bytes // 4, device=self._bytes.device)
            self._bind_gradients(self._gradients)
        return self._gradients

    @property
    def device(self) -> torch.device:
        """Where the bytes are."""
        return self._bytes.device

    def manifest(self) -> tuple[ManifestEntry, ...]:
        """Name (as in the state_dict), dtype, shape and first byte of each tensor, in the order of the bytes."""
        return self._entries

    def tensors(self) -> dict[str, Tensor]:
        """A view of each tensor of the manifest, by name."""
        return {entry.name: self._view(self._bytes, entry) for entry in self._entries}

    # --- in and out ---

    def dump(self) -> bytes:
        """A copy of all bytes."""
        return self._bytes.cpu().numpy().tobytes()

    def load(self, data: bytes | memoryview) -> None:
        """Replace all bytes. Another length is an error, and nothing is changed then."""
        source = np.frombuffer(data, np.uint8)
        if source.size != self._bytes.numel():
            raise ZmqrlError(
                f"parameters of {source.size} bytes do not fit this policy, which has {self._bytes.numel()}: "
                "both sides must build the same network"
            )
        if self._bytes.device.type == "cpu":
            self._bytes.numpy()[:] = source
        else:
            self._bytes.copy_(torch.from_numpy(source.copy()))

    def sha256(self) -> str:
        """Hexadecimal digest of all bytes."""
        return hashlib.sha256(self._bytes.cpu().numpy().data).hexdigest()

    def to(self, device: str | torch.device) -> None:
        """Move everything to a device and bind the module to it there. Gradients start from zero."""
        self._bytes = self._bytes.to(device)
        for name, buffer in self._module.named_buffers():
            if buffer.device != self._bytes.device:  # those outside of the state_dict
                self._set_buffer(name, buffer.to(device))
        self._gradients = None
        self._bind()

    def check(self) -> None:
        """Raise ZmqrlError, naming it, if a tensor of the module is no longer a view of the bytes."""
        bound = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        for name, view in self.tensors().items():
            if view.numel() and bound[name].data_ptr() != view.data_ptr():
                raise ZmqrlError(
                    f"{name} of {type(self._module).__name__} was replaced by another tensor; write into it instead "
                    "(copy_, add_), so that it stays part of what is broadcast and saved"
                )

    # --- binding ---

    def _bind(self) -> None:
        parameters = dict(self._module.named_parameters())
        for name, view in self.tensors().items():
            if name in parameters:
                parameters[name].grad = None
                parameters[name].data = view
            else:
                self._set_buffer(name, view)

    def _bind_gradients(self, gradients: Tensor) -> None:
        parameters = dict(self._module.named_parameters())
        as_bytes = gradients.view(torch.uint8)
        for entry in self._entries:
            if entry.name in parameters:
                parameters[entry.name].grad = self._view(as_bytes, entry)

    def _set_buffer(self, name: str, value: Tensor) -> None:
        owner, _, leaf = name.rpartition(".")
        setattr(self._module.get_submodule(owner), leaf, value)

    @staticmethod
    def _view(data: Tensor, entry: ManifestEntry) -> Tensor:
        dtype: torch.dtype = getattr(torch, entry.dtype)
        size = math.prod(entry.shape) * dtype.itemsize
        return data[entry.offset : entry.offset + size].view(dtype).view(entry.shape)
