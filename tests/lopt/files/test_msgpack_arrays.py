"""Msgpack files from outside: what is read, and what is refused."""

import os
import tracemalloc

import flax.serialization
import msgpack
import numpy as np
import pytest

from lopt.errors import UserError
from lopt.files.msgpack_arrays import read_arrays

TREE = {"a": {"~": {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}}, "step": 3}
WHOLE = flax.serialization.to_bytes(TREE)


def array(shape, dtype="float32", content=b"abcd"):
    data = msgpack.packb((shape, dtype, content))
    return msgpack.packb({"a": msgpack.ExtType(1, data)})


def test_arrays_are_read_by_the_path_of_their_keys(tmp_path):
    (tmp_path / "file").write_bytes(WHOLE)
    arrays = read_arrays(tmp_path / "file")
    assert list(arrays) == ["a/~/w"]
    np.testing.assert_array_equal(arrays["a/~/w"], TREE["a"]["~"]["w"])
    assert arrays["a/~/w"].flags.writeable


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends too early"),
        *((WHOLE[:n], "ends too early") for n in (1, 20, len(WHOLE) - 1)),
        (WHOLE + b"x", "1 bytes follow its end"),
        (b"a text", "does not start with a map"),
        (b'{"a": 1}', "does not start with a map"),
        (b"PK\x03\x04" + bytes(100), "does not start with a map"),
        # Sizes that the file does not have: 2**32 entries, 4 GiB of characters.
        (b"\xdf\xff\xff\xff\xff", "ends too early"),
        (b"\x81\xa1a\xdb\xff\xff\xff\xff", "ends too early"),
        (b"\x81\xa1a\xc6\xff\xff\xff\xff", "ends too early"),
        (b"\x81\xa1a\xdd\xff\xff\xff\xff", "exceeds max_array_len"),
        (b"\x81\xa1a\xc9\x7f\xff\xff\xff\x01abc", "ends too early"),
        (array([2**40]), "has 4 bytes instead of 4,398,046,511,104"),
        (array([2]), "has 4 bytes instead of 8"),
        (array([-1]), r"has the shape \[-1\]"),
        (array([0], content=b""), r"has the shape \[0\]"),
        (array([1] * 9), "exceeds max_array_len"),
        (array([1], "object"), "dtype 'object', not float32"),
        (array([1], "float64", bytes(8)), "dtype 'float64', not float32"),
        (msgpack.packb({"a": msgpack.ExtType(2, b"")}), "not an array"),
        (msgpack.packb({"a": msgpack.Timestamp(1, 1)}), "not an array"),
        (msgpack.packb({"a": b"bytes"}), "not an array"),
        (msgpack.packb({"a": None}), "not an array"),
        (msgpack.packb({1: 2}), "a key is 1, not a string"),
        (b"\x81\xa1a" * 20 + b"\x80", "nested more than 8 deep"),
        (msgpack.packb({str(i): {} for i in range(1001)}), "1,000 entries"),
        (b"\x82" + 2 * array([1])[1:], "a is there twice"),
    ],
)
def test_a_damaged_or_foreign_file_is_one_line(data, message, tmp_path):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(UserError, match=message) as error:
        read_arrays(tmp_path / "file")
    assert "\n" not in str(error.value)
    assert str(tmp_path / "file") in str(error.value)


def test_stated_sizes_are_not_allocated(tmp_path):
    (tmp_path / "file").write_bytes(b"\x81\xa1a\xc6\xff\xff\xff\xff" + bytes(1000))
    tracemalloc.start()
    with pytest.raises(UserError):
        read_arrays(tmp_path / "file")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21


def test_irregular_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(2**28 + 1)  # sparse
    for path, message in (
        (tmp_path, "got a directory"),
        (tmp_path / "fifo", "got a device, socket or pipe"),
        ("/dev/zero", "got a device, socket or pipe"),
        (tmp_path / "none", "No such file"),
        (tmp_path / "huge", "must have at most 268,435,456 bytes"),
    ):
        with pytest.raises(UserError, match=message):
            read_arrays(path)
