"""Reading of arrays from Flax msgpack files of other projects."""

import math
import os
import stat
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from lopt.errors import UserError, one_line

_LARGEST_FILE = 2**28  # bytes
_MOST_ENTRIES, _DEEPEST, _LONGEST_NAME, _HIGHEST_RANK = 1000, 8, 200, 8
_ARRAY = 1  # code of the msgpack extension type with which Flax writes arrays


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read a nested dictionary of float32 arrays that Flax wrote.

    The file is data: nothing in it is executed. Its size, the number and depth of its
    entries and the sizes that it states are bounded or checked before anything is
    allocated.

    Args:
        path: File as written by `flax.serialization.to_bytes`.

    Returns:
        The arrays, by the keys of their path joined by slashes. Numbers and strings,
        such as the step of a checkpoint, are ignored.

    Raises:
        UserError: If the file cannot be read.
    """
    data = _read_bytes(Path(path))
    try:
        arrays = _Reader(data).arrays()
    # `msgpack` raises several kinds of exceptions for bytes that it did not write.
    except Exception as error:
        cause = "it ends too early" if isinstance(error, _ENDED) else one_line(error)
        raise UserError(
            f"{path} must be a whole msgpack file as Flax writes it, with float32 "
            f"arrays; it cannot be read ({cause}). It may be truncated or of another "
            "format: copy or download it again."
        ) from error
    return arrays


def _read_bytes(path: Path) -> bytes:
    try:
        # Opening a FIFO would block; `stat` comes first for that reason.
        about = path.stat()
        kind = stat.filemode(about.st_mode)[0]
        if not stat.S_ISREG(about.st_mode):
            kind = "a directory" if kind == "d" else "a device, socket or pipe"
            raise UserError(
                f"{path} must be a msgpack file such as `theta.state`; got {kind}. "
                "Try the path of the file."
            )
        if about.st_size > _LARGEST_FILE:
            raise UserError(
                f"{path} must have at most {_LARGEST_FILE:,} bytes; got "
                f"{about.st_size:,}. Try the file of a learned optimizer."
            )
        with path.open("rb") as file:
            return file.read(about.st_size)
    except OSError as error:
        raise UserError(
            f"{path} must be a readable file; got: {os.strerror(error.errno or 0)}. "
            "Try the path of a `theta.state`."
        ) from error


_ENDED = (msgpack.OutOfData, IndexError)


class _Reader:
    """Reader of nested maps whose leaves are arrays, in one pass."""

    def __init__(self, data: bytes):
        self._data = data
        self._num_entries = 0
        # Lengths that exceed the data end it early, before anything is allocated.
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=max(len(data), 1),
            max_str_len=_LONGEST_NAME,
            max_array_len=0,
            max_map_len=_MOST_ENTRIES,
        )
        self._unpacker.feed(data)

    def arrays(self) -> dict[str, np.ndarray]:
        """Read the arrays by name."""
        if not self._next_is_map():
            raise ValueError("it does not start with a map")
        found = self._read_map("", _DEEPEST)
        rest = len(self._data) - self._unpacker.tell()
        if rest:
            raise ValueError(f"{rest:,} bytes follow its end")
        return found

    def _next_is_map(self) -> bool:
        first = self._data[self._unpacker.tell()]
        return first & 0xF0 == 0x80 or first in (0xDE, 0xDF)

    def _read_map(self, prefix: str, depth: int) -> dict[str, np.ndarray]:
        if not depth:
            raise ValueError(f"maps are nested more than {_DEEPEST} deep")
        found: dict[str, np.ndarray] = {}
        for _ in range(self._unpacker.read_map_header()):
            self._num_entries += 1
            if self._num_entries > _MOST_ENTRIES:
                raise ValueError(f"it has more than {_MOST_ENTRIES:,} entries")
            key = None if self._next_is_map() else self._unpacker.unpack()
            if not isinstance(key, str):
                raise ValueError(f"a key is {key!r}, not a string")
            name = f"{prefix}{key}"
            if self._next_is_map():
                new = self._read_map(f"{name}/", depth - 1)
            else:
                value = self._unpacker.unpack()
                is_other = isinstance(value, str | int | float)
                new = {} if is_other else {name: _array(name, value)}
            if known := found.keys() & new.keys():
                raise ValueError(f"{min(known)} is there twice")
            found |= new
        return found


def _array(name: str, value: Any) -> np.ndarray:
    """Decode an array from its shape, its dtype and its bytes."""
    if not isinstance(value, msgpack.ExtType) or value.code != _ARRAY:
        raise ValueError(f"{name} is a {type(value).__name__}, not an array")
    shape, dtype, content = msgpack.unpackb(
        value.data,
        max_str_len=_LONGEST_NAME,
        max_bin_len=len(value.data),
        max_array_len=_HIGHEST_RANK,
        max_map_len=0,
        max_ext_len=0,
    )
    sizes = shape if isinstance(shape, list) else [shape]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"{name} has the shape {shape!r}")
    if dtype != "float32":
        raise ValueError(f"{name} has the dtype {dtype!r}, not float32")
    if not isinstance(content, bytes) or len(content) != 4 * math.prod(sizes):
        raise ValueError(
            f"{name} has {len(content):,} bytes instead of {4 * math.prod(sizes):,}"
        )
    # Flax writes arrays in little-endian order on all platforms that JAX supports.
    return np.frombuffer(content, "<f4").reshape(sizes).astype(np.float32)
