"""Seeded mutations of bytes, JSON values and files."""

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator

_ODD_NUMBERS = (
    *(0, 1, -1, 2, 5, 129, 999, 10**4, 2**24, 10**9, 2**63, 10**400, -(10**30)),
    *(0.5, 1e-3, 1e30, 1e308, 5e-324, float("nan"), float("inf"), -float("inf"), -0.0),
)
_ODD_TEXTS = (
    *("", "8", "nan", "PerParameterMLP", "MLP", "RecurrentLM", "os.system", "yacht"),
    *("/dev/zero", "/etc/passwd", "/etc/passwd.csv", "../../secret", "~/secret.csv"),
    *("\x1b[2J\n", "\ud800", "\0", "x" * 9_999, "<script>", "[red]", "$x_{$", "²", "٣"),
)
_ODD_NESTED = (
    *([], {}, [1], [0.5, 0.9], ["a"], [[]], [0.9] * 2_000, {"a": {}}, [None, True]),
    *({"type": "Alien"}, {"type": "ScheduledSGD"}, {"type": "MLP", "depth": 10**5}),
    *({"type": "PerParameterMLP", "width": 3}, {"type": "MLP", "dataset": "/x.csv"}),
    {"type": "RecurrentLM", "text": "/dev/zero"},
)
ODD_VALUES = (*_ODD_NUMBERS, *_ODD_TEXTS, *_ODD_NESTED, True, False, None)
_RAW = (
    *(
        b"",
        b"[]",
        b"null",
        b"NaN",
        b"1e999",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"\0" * 64,
    ),
    *(b"[" * 10**5, b'{"a":' * 10**5, b"[" * 300 + b"]" * 300, b"9" * 10**5),
    *(b'"' + b"x" * 10**6 + b'"', b'{"a": 1, "a": 2}', b"[" + b"[]," * 10**5 + b"0]"),
    *(b'{"type": 3}', b'{"type": "MetaTrainConfig"}', b'{"step": 1}', b"{}"),
)


def odd(rng: Rng) -> Any:
    """Draw a JSON value of an unexpected type or size."""
    return copy.deepcopy(ODD_VALUES[rng.integers(len(ODD_VALUES))])


def mutate_bytes(data: bytes, rng: Rng) -> bytes:
    """Flip, replace, insert, delete, repeat or truncate a few bytes."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        _BYTES[rng.integers(len(_BYTES))](changed, rng)
    return bytes(changed)


def _place(data: bytearray, rng: Rng) -> int:
    # Half of the draws fall into the first part, which holds the structure.
    most = len(data) if rng.random() < 0.5 else min(len(data), 512)
    return int(rng.integers(most + 1))


def _flip(data: bytearray, rng: Rng) -> None:
    place = _place(data, rng)
    if place < len(data):
        data[place] ^= 1 << int(rng.integers(8))


def _set(data: bytearray, rng: Rng) -> None:
    place = _place(data, rng)
    letters = b'0123456789{}[]",:\\ eE.-+nulltrue\n\x00\xff'
    data[place : place + 1] = bytes([letters[rng.integers(len(letters))]])


def _truncate(data: bytearray, rng: Rng) -> None:
    del data[_place(data, rng) :]


def _insert(data: bytearray, rng: Rng) -> None:
    place = _place(data, rng)
    data[place:place] = rng.bytes(int(rng.integers(1, 65)))


def _delete(data: bytearray, rng: Rng) -> None:
    place = _place(data, rng)
    del data[place : place + int(rng.integers(1, 65))]


def _repeat(data: bytearray, rng: Rng) -> None:
    first, place = _place(data, rng), _place(data, rng)
    data[place:place] = data[first : first + int(rng.integers(1, 65))]


def _length(data: bytearray, rng: Rng) -> None:
    """Replace the first eight bytes, the length of a safetensors header."""
    now = int.from_bytes(data[:8], "little")
    near = [now - 1, now + 1, now + 8, 0, len(data), 10**8, 2**31, 2**63, 2**64 - 1]
    data[:8] = (near[rng.integers(len(near))] % 2**64).to_bytes(8, "little")


_BYTES: tuple[Callable[[bytearray, Rng], None], ...] = (
    *(_flip, _set, _truncate, _insert, _delete, _repeat, _length),
)


def mutate_json(value: Any, rng: Rng) -> Any:
    """Copy a JSON value and replace, delete, rename, move or add a few entries."""
    tree = json.loads(json.dumps(value))
    for _ in range(1 + rng.geometric(0.7)):
        tree = _edited(tree, rng)
    return tree


def _edited(tree: Any, rng: Rng) -> Any:
    places = list(_places(tree))
    if not places or rng.random() < 0.02:  # a scalar, or the entire value
        return odd(rng)
    parent, key = places[rng.integers(len(places))]
    match rng.integers(7):
        case 0 | 1:
            parent[key] = odd(rng)
        case 2:
            parent[key] = int(rng.integers(-2, 64))
        case 3:
            del parent[key]
        case 4:
            levels = int(rng.choice([3, 45, 60, 300]))
            for _ in range(levels):
                parent[key] = (
                    [parent[key]] if rng.random() < 0.5 else {"a": parent[key]}
                )
        case 5:
            other, from_key = places[rng.integers(len(places))]
            parent[key] = json.loads(json.dumps(other[from_key]))
        case _ if isinstance(parent, dict):
            parent[f"{key}_"] = parent.pop(key) if rng.random() < 0.5 else odd(rng)
        case _:
            parent.append(odd(rng))
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parent and the key of every nested entry."""
    if not isinstance(tree, dict | list):
        return
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        yield from _places(tree[key])


def raw_json(rng: Rng) -> bytes:
    """Draw a text that no JSON writer would produce."""
    return _RAW[rng.integers(len(_RAW))]


def dumps(value: Any) -> bytes:
    """Serialize a JSON value, including NaN, infinities and unpaired surrogates."""
    return json.dumps(value).encode()


def remove(path: Path) -> None:
    """Remove a file, link, device or directory, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace_file(path: Path, rng: Rng, *, sparse: int = 5 * 2**30) -> str:
    """Put something that is not a regular file of moderate size in place of `path`.

    Args:
        path: File to replace.
        rng: Random number generator.
        sparse: Size of a sparse file in bytes.

    Returns:
        The name of the replacement.
    """
    kinds = (
        *("missing", "directory", "fifo", "device", "endless", "loop", "outside"),
        *("sparse", "empty", "dangling"),
    )
    kind = str(rng.choice(kinds))
    remove(path)
    links = {
        **{"device": "/dev/null", "endless": "/dev/zero", "outside": "/etc/passwd"},
        **{"loop": path.name, "dangling": "nothing"},
    }
    if kind in links:
        path.symlink_to(links[kind])
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind != "missing":
        path.touch()
        os.truncate(path, sparse if kind == "sparse" else 0)
    return kind
