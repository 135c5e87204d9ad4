# SPDX-License-Identifier: Apache-2.0
"""Arrays of any library as memory that the C library reads and writes, without a copy where that can be.

Understood are NumPy arrays (of ml_dtypes too), PyTorch tensors, anything with ``__dlpack__`` (CuPy, JAX, …) and
anything with the buffer protocol. Tensors of a GPU pass through pinned memory.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any, NamedTuple

import numpy as np

from .errors import InvalidArgument

# Names of the element types, as the session's kv_type says them, and their size.
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1, "fp8": 1}

_NAMES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "int8",
    "float8_e4m3fn": "fp8", "float8_e4m3": "fp8",
}  # fmt: skip


# NumPy has no such types of its own: their bits in integers are taken for them.
_BITS = {"bf16": "uint16", "fp8": "uint8"}


class View(NamedTuple):
    """Dense row-major memory: valid for as long as `keep` lives."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    keep: Any


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _torch_view(x: Any) -> View:
    name = str(x.dtype).removeprefix("torch.")
    if x.device.type != "cpu":
        import torch

        pinned = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.device.type == "cuda")
        pinned.copy_(x)
        x = pinned
    x = x.detach().contiguous()
    return View(x.data_ptr(), tuple(x.shape), _NAMES.get(name, name), x)


def _numpy_view(x: Any) -> View:
    if not x.dtype.isnative:
        raise InvalidArgument(f"an array of {x.dtype} is not in this machine's byte order: use x.astype(x.dtype.newbyteorder('='))")
    x = np.ascontiguousarray(x)
    return View(x.ctypes.data, x.shape, _NAMES.get(x.dtype.name, x.dtype.name), x)


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# (code, bits) of DLPack: 0 integers, 2 floats, 4 bfloat, 10 float8_e4m3fn.
_DLPACK = {(2, 32): "f32", (2, 16): "f16", (4, 16): "bf16", (0, 8): "int8", (10, 8): "fp8"}
_DLPACK_CPU = (1, 3)  # memory of the processor, pinned memory


def _dlpack_view(x: Any) -> View:
    capsule = x.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    if tensor.device_type not in _DLPACK_CPU:
        raise InvalidArgument(f"a {type(x).__name__} on a device: copy it to the processor's memory, or give it as a PyTorch tensor")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dtype = _DLPACK.get((tensor.dtype.code, tensor.dtype.bits))
    if dtype is None or tensor.dtype.lanes != 1:
        raise InvalidArgument(f"a {type(x).__name__} of a type that no session has (DLPack {tensor.dtype.code}, {tensor.dtype.bits} bits)")
    if tensor.strides and tensor.data:
        dense = 1
        for i in reversed(range(tensor.ndim)):
            if shape[i] > 1 and tensor.strides[i] != dense:
                raise InvalidArgument(f"a {type(x).__name__} that is not dense and row-major: copy it first")
            dense *= shape[i]
    return View((tensor.data or 0) + tensor.byte_offset, shape, dtype, (capsule, x))


def view(x: Any, name: str) -> View:
    """x as dense row-major memory. An array that is not dense is copied."""
    if _is_torch(x):
        return _torch_view(x)
    if isinstance(x, (np.ndarray, np.generic)):
        return _numpy_view(np.asarray(x))
    if hasattr(x, "__dlpack__"):
        return _dlpack_view(x)
    try:
        memory = memoryview(x)
    except TypeError:
        raise InvalidArgument(
            f"{name} is a {type(x).__name__}: give a NumPy array, a PyTorch tensor, or something with DLPack or the buffer protocol"
        ) from None
    return _numpy_view(np.asarray(memory))


def expect(x: Any, name: str, dtype: str, shape: tuple[int, ...]) -> View:
    """x as memory of this type with as many elements as `shape`: its last dimensions are those of `shape`, or it is flat."""
    v = view(x, name)
    if v.dtype not in (dtype, _BITS.get(dtype)):
        raise InvalidArgument(f"{name} holds {v.dtype}, this session needs {dtype}: convert it first")
    if math.prod(v.shape) != math.prod(shape) or (v.shape != shape and len(v.shape) != 1):
        raise InvalidArgument(f"{name} has the shape {list(v.shape)}, not {list(shape)}")
    return v


def widened(x: Any, name: str) -> View:
    """x as float32: of float16 and bfloat16 arrays of PyTorch and NumPy a copy, since every value of theirs is one of float32, too."""
    if _is_torch(x) and str(x.dtype) in ("torch.float16", "torch.bfloat16"):
        return _torch_view(x.float())
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype.name in ("float16", "bfloat16"):
        return _numpy_view(np.asarray(x).astype(np.float32))
    found = view(x, name)
    if found.dtype != "f32":
        raise InvalidArgument(
            f"{name} holds {found.dtype}: it must be float32, or float16 or bfloat16 of PyTorch or NumPy, whatever the session's type"
        )
    return found


def new_like(q: Any, shape: tuple[int, ...]) -> tuple[Any, int]:
    """A float32 array in the processor's memory, of the same library as q (else NumPy), and its address."""
    if _is_torch(q):
        import torch

        out = torch.empty(shape, dtype=torch.float32)
        return out, out.data_ptr()
    array = np.empty(shape, dtype=np.float32)
    return array, array.ctypes.data


def given_back(q: Any, out: Any) -> Any:
    """out on the device of q."""
    return out.to(q.device) if _is_torch(q) and q.device.type != "cpu" else out
