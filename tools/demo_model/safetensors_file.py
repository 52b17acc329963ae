"""A streaming safetensors writer and a mapped reader: no copy of the checkpoint in memory.

    with SafetensorsWriter(path, [TensorSpec("a", "BF16", (2, 3))]) as out:
        out.write("a", uint16_array)
    tensors = SafetensorsReader(path)
    tensors["a"]        # a read-only view into the mapped file, BF16 as uint16

Tensors lie in the file in the order of the specs, without holes, the first at a multiple of 64
bytes. They must be written in that order and with exactly the announced dtype and shape.
"""

import hashlib
import json
import math
import mmap
import struct
from dataclasses import dataclass

import numpy as np

STORAGE = {"BF16": np.dtype("<u2"), "F32": np.dtype("<f4"), "U8": np.dtype("u1")}
DATA_ALIGNMENT = 64
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class TensorSpec:
    """What the header says of one tensor; `dtype` is the file's name of it."""

    name: str
    dtype: str
    shape: tuple

    @property
    def nbytes(self):
        return math.prod(self.shape) * STORAGE[self.dtype].itemsize


class SafetensorsWriter:
    """Writes the header at once, then tensor after tensor; `sha256` is that of the whole file."""

    def __init__(self, path, specs, metadata=None):
        self._pending = list(specs)
        self._hash = hashlib.sha256()
        self._file = open(path, "wb")  # noqa: SIM115
        self._put(self._header(metadata or {}))

    def _header(self, metadata):
        entries, offset = {"__metadata__": metadata} if metadata else {}, 0
        for spec in self._pending:
            if spec.name in entries:
                raise ValueError(f"tensor {spec.name} is announced twice")
            entries[spec.name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [offset, offset + spec.nbytes],
            }
            offset += spec.nbytes
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % DATA_ALIGNMENT)
        return struct.pack("<Q", len(text)) + text

    def _put(self, data):
        self._hash.update(data)
        self._file.write(data)

    def write(self, name, array):
        """Appends one tensor; it must be the next one announced."""
        if not self._pending or self._pending[0].name != name:
            expected = self._pending[0].name if self._pending else "no more tensors"
            raise ValueError(f"tensor {name} written out of order, expected {expected}")
        spec = self._pending.pop(0)
        if tuple(array.shape) != tuple(spec.shape) or array.dtype != STORAGE[spec.dtype]:
            raise ValueError(
                f"tensor {name}: found {array.dtype} {array.shape}, "
                f"announced {spec.dtype} {spec.shape}"
            )
        self._put(memoryview(np.ascontiguousarray(array)).cast("B"))

    @property
    def sha256(self):
        return self._hash.hexdigest()

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _traceback):
        self._file.close()
        if kind is None and self._pending:
            raise ValueError(f"tensor {self._pending[0].name} was announced but never written")


class SafetensorsReader:
    """Views into a mapped file, by name. BF16 tensors come as uint16 bit patterns."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._data) < 8:
            raise ValueError(f"{path}: {len(self._data)} bytes are too few for a safetensors file")
        (length,) = struct.unpack("<Q", self._data[:8])
        if length > min(len(self._data) - 8, MAX_HEADER_BYTES):
            raise ValueError(f"{path}: header of {length} bytes does not fit into the file")
        self._start = 8 + length
        self._entries = json.loads(self._data[8 : self._start])
        self.metadata = self._entries.pop("__metadata__", {})

    def __contains__(self, name):
        return name in self._entries

    def __iter__(self):
        return iter(self._entries)

    def __getitem__(self, name):
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        spec = TensorSpec(name, entry["dtype"], tuple(entry["shape"]))
        if end - begin != spec.nbytes or self._start + end > len(self._data):
            raise ValueError(
                f"tensor {name}: offsets {begin}..{end} do not fit {spec.dtype} {spec.shape}"
            )
        flat = np.frombuffer(
            self._data, STORAGE[spec.dtype], math.prod(spec.shape), self._start + begin
        )
        return flat.reshape(spec.shape)
