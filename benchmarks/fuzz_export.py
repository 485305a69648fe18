"""Fuzz the loading of exported optimizers.

    python -m benchmarks.fuzz_export [--num N] [--seed S]

Mutates `.safetensors` files of every registered optimizer, at the level of bytes and
of the format. Loading a mutated file must either raise a one-line `UserError` or
recover the content of the file exactly.
"""

import functools
import json
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import tyro

import lopt
from lopt.base import LearnedOptimizer
from lopt.files import format as file_format
from lopt.files.dataclass_json import to_dict
from lopt.registry import OPTIMIZERS
from meta_train.runtime.progress import ProgressReport

REFUSED, RIGHT = "refused cleanly", "right values"
WRONG, CRASHED, SLOW = "wrong values", "other exceptions", "too slow"
CARD = {"tasks": [{"type": "MLP", "width": 32}], "horizons": [5, 9], "seed": 1}
# Generous, because tracing `init_theta` takes seconds for hundreds of layers.
SECONDS_EACH = 30.0

_DEEP = json.loads("[" * 200 + "]" * 200)
_ODD_VALUES = [
    *(0, 1, -1, 2, 5, 999, 10**4, 10**9, 2**63, 10**300, -(10**30)),
    *(0.5, 1e-3, 1.0, 1e308, float("nan"), float("inf"), -0.0, True, False, None),
    *(
        "",
        "8",
        "nan",
        "PerParameterMLP",
        "os.system",
        "\x1b[2J\n",
        "\ud800",
        "x" * 9999,
    ),
    *([], {}, [1], [0.5, 0.9], ["a"], [[]], [0.9] * 2000, _DEEP, {"type": "Alien"}),
    *({"type": "ScheduledSGD"}, {"type": "PerParameterMLP", "width": 3}, {"a": {}}),
]
_DTYPES = ["float16", "float64", "int32", "uint8", "bool", "complex64", "float32"]
_STORED_DTYPES = ["BF16", "F8_E4M3", "F4", "F64", "F16", "I32", "U64", "C64", "X"]


class File(NamedTuple):
    """A file and its expected content.

    Attributes:
        data: Bytes of the file.
        header: Header of `lopt`, as loading must recover it.
        tensors: Tensors by name, as loading must recover them.
    """

    data: bytes
    header: dict[str, Any]
    tensors: dict[str, np.ndarray]


def originals(folder: Path, names: Iterable[str] = OPTIMIZERS) -> list[File]:
    """Export the untrained optimizers in `names` to `folder` and read the files."""
    found = []
    for name in names:
        kind = OPTIMIZERS[name]
        path = folder / f"{name}.safetensors"
        theta = jax.jit(kind().init_theta)(jax.random.key(0))
        lopt.save(path, kind(), theta, CARD)
        with safetensors.safe_open(path, framework="numpy") as file:
            header = json.loads(file.metadata()["lopt"])
        data = path.read_bytes()
        found.append(File(data, header, safetensors.numpy.load(data)))
    return found


def mutate(original: File, rng: np.random.Generator) -> tuple[str, File]:
    """Apply a random mutation; return its name and the mutated file."""
    mutation = _MUTATIONS[rng.integers(len(_MUTATIONS))]
    return mutation.__name__.strip("_"), mutation(original, rng)


def judge(mutant: File, path: Path) -> tuple[str, str]:
    """Load a mutated file with each public loader and classify the outcome.

    Args:
        mutant: File to load, with its expected content.
        path: Where to write it; overwritten.

    Returns:
        The outcome (`REFUSED`, `RIGHT`, `WRONG`, `CRASHED` or `SLOW`) and the reason,
        which may be empty.
    """
    path.write_bytes(mutant.data)
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_EACH)
    try:
        # Warnings about horizons and overflow are expected.
        with warnings.catch_warnings(action="ignore"):
            lopt.load(path, num_steps=10)
            return _compare(mutant, *lopt.load_theta(path), lopt.read_card(path))
    except lopt.UserError as error:
        is_sentence = "\n" not in str(error) and len(str(error)) < 2000
        return (REFUSED if is_sentence else CRASHED), str(error)
    except _TooSlowError:
        return SLOW, f"more than {SECONDS_EACH} s"
    except KeyboardInterrupt:
        raise
    # Panics in the Rust code of safetensors derive from `BaseException`.
    except BaseException as error:
        return CRASHED, f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class _TooSlowError(BaseException):
    """Timeout; a `BaseException`, so that `except Exception` does not catch it."""


def _stop(*_: Any) -> None:
    raise _TooSlowError


def _compare(
    mutant: File, optimizer: LearnedOptimizer, theta: Any, card: dict[str, Any]
) -> tuple[str, str]:
    """Compare the loaded optimizer, `theta` and card with the expected content."""
    header = mutant.header
    said = {**header["hyperparameters"], "type": header["architecture"]}
    if to_dict(optimizer) != _complete(said):
        return WRONG, f"{optimizer} instead of {said}"
    tensors = {n: np.asarray(x) for n, x in file_format.named_leaves(theta)}
    if tensors.keys() != mutant.tensors.keys():
        return WRONG, f"tensors {sorted(tensors)}"
    for name, tensor in mutant.tensors.items():
        same_kind = tensor.dtype == tensors[name].dtype
        if not (same_kind and np.array_equal(tensor, tensors[name])):
            return WRONG, f"tensor {name}"
    expected = {**header["card"], **header}
    del expected["card"], expected["sha256"]
    # Compare as JSON text, because NaN does not equal itself.
    shown = {name: card.get(name) for name in expected}
    if json.dumps(shown) != json.dumps(expected):
        return WRONG, f"card {card}"
    return RIGHT, _use(optimizer)


@functools.cache
def _use(optimizer: LearnedOptimizer) -> str:
    """Trace one update, which raises if a hyperparameter has an invalid value.

    Nothing is computed. The empty string is the reason to report with `RIGHT`.
    """

    def step(params, key):
        transformation = optimizer.as_optax(optimizer.init_theta(key), 10)
        state = transformation.init(params)
        return transformation.update(params, state, params, value=jnp.ones(()))

    jax.eval_shape(step, {"w": jnp.ones((2, 3))}, jax.random.key(0))
    return ""


def _complete(value: Any) -> Any:
    """Add the default values of fields that a description omits."""
    if not isinstance(value, dict):
        return value
    defaults = to_dict(OPTIMIZERS[value["type"]]())
    return {**defaults, **{k: _complete(v) for k, v in value.items()}}


def _bytes_mutation(
    change: Callable[[bytearray, np.random.Generator], None],
) -> Callable[[File, np.random.Generator], File]:
    """Turn an in-place change of raw bytes into a mutation.

    The expected content remains that of the original.
    """

    def mutation(original: File, rng: np.random.Generator) -> File:
        data = bytearray(original.data)
        change(data, rng)
        return File(bytes(data), original.header, original.tensors)

    mutation.__name__ = change.__name__
    return mutation


def _place(data: bytearray, rng: np.random.Generator) -> int:
    """Draw an index into `data`."""
    # At least half of the draws fall into the header, which holds the structure.
    length = int.from_bytes(data[:8], "little")
    return int(
        rng.integers(min(8 + length, len(data)) if rng.random() < 0.5 else len(data))
    )


def _range(data: bytearray, rng: np.random.Generator) -> slice:
    """Draw a slice of 1 to 64 bytes, which may extend past the end of `data`."""
    start = _place(data, rng)
    return slice(start, start + int(rng.integers(1, 65)))


@_bytes_mutation
def _flip_bits(data: bytearray, rng: np.random.Generator) -> None:
    for _ in range(rng.integers(1, 5)):
        data[_place(data, rng)] ^= 1 << int(rng.integers(8))


@_bytes_mutation
def _set_bytes(data: bytearray, rng: np.random.Generator) -> None:
    for _ in range(rng.integers(1, 5)):
        data[_place(data, rng)] = int(rng.integers(256))


@_bytes_mutation
def _set_text(data: bytearray, rng: np.random.Generator) -> None:
    letters = b'0123456789{}[]",:\\ eE.-+nulltrue\x00\xff'
    data[_place(data, rng)] = letters[rng.integers(len(letters))]


@_bytes_mutation
def _truncate(data: bytearray, rng: np.random.Generator) -> None:
    del data[_place(data, rng) :]


@_bytes_mutation
def _insert(data: bytearray, rng: np.random.Generator) -> None:
    start = _place(data, rng)
    data[start:start] = rng.bytes(int(rng.integers(1, 65)))


@_bytes_mutation
def _append(data: bytearray, rng: np.random.Generator) -> None:
    data += rng.bytes(int(rng.integers(1, 65)))


@_bytes_mutation
def _delete(data: bytearray, rng: np.random.Generator) -> None:
    del data[_range(data, rng)]


@_bytes_mutation
def _clear(data: bytearray, rng: np.random.Generator) -> None:
    where = _range(data, rng)
    data[where] = bytes(len(data[where]))


@_bytes_mutation
def _swap(data: bytearray, rng: np.random.Generator) -> None:
    first, second = _range(data, rng), _range(data, rng)
    data[first], data[second] = data[second], data[first]


@_bytes_mutation
def _length(data: bytearray, rng: np.random.Generator) -> None:
    """Replace the header length, which is stored in the first eight bytes."""
    now = int.from_bytes(data[:8], "little")
    near = [now - 1, now + 1, now + 8, 0, 1, len(data), 2**31, 2**63, 2**64 - 1]
    data[:8] = int(near[rng.integers(len(near))]).to_bytes(8, "little")


def _storage(original: File, rng: np.random.Generator) -> File:
    """Mutate the safetensors header: a dtype, shape, offset, name or the metadata."""
    size = int.from_bytes(original.data[:8], "little")
    outer = json.loads(original.data[8 : 8 + size])
    name = rng.choice([n for n in outer if n != "__metadata__"])
    what = rng.choice(["dtype", "shape", "data_offsets", "name", "metadata"])
    if what == "name":
        outer[f"{name}x" if rng.random() < 0.5 else "\x00"] = outer.pop(name)
    elif what == "dtype":
        outer[name]["dtype"] = str(rng.choice(_STORED_DTYPES))
    elif what == "metadata":
        nested = {"lopt": "[" * 10**5}
        outer["__metadata__"] = nested if rng.random() < 0.2 else _odd(rng)
    else:
        _edit(outer[name][what], rng)
    text = json.dumps(outer).encode()
    data = len(text).to_bytes(8, "little") + text + original.data[8 + size :]
    return File(data, original.header, original.tensors)


def _header(original: File, rng: np.random.Generator) -> File:
    """Edit the header of `lopt` without updating its checksum."""
    header = json.loads(json.dumps(original.header))
    _edit(header, rng)
    data = _written(header, original.tensors)
    return File(data, original.header, original.tensors)


def _signed_header(original: File, rng: np.random.Generator) -> File:
    """Edit the header and update the checksum, so that the edit is expected content."""
    header = json.loads(json.dumps(original.header))
    # Prefer hyperparameters: most other entries belong to the card or to `versions`,
    # which are not validated.
    _edit(header if rng.random() < 0.3 else header["hyperparameters"], rng)
    return _signed(header, original.tensors)


def _signed_tensors(original: File, rng: np.random.Generator) -> File:
    """Change one tensor and update the checksum."""
    tensors = {name: tensor.copy() for name, tensor in original.tensors.items()}
    name = str(rng.choice(sorted(tensors)))
    tensor = tensors.pop(name)
    what = rng.integers(7)
    if what == 0:
        tensors[f"{name}x"] = tensor
    elif what == 1:
        odd = [np.nan, np.inf, -np.inf, 1e38, 0.0]
        tensor.reshape(-1)[rng.integers(tensor.size)] = odd[rng.integers(len(odd))]
        tensors[name] = tensor
    elif what == 2:
        tensors[name] = tensor.astype(str(rng.choice(_DTYPES)))
    elif what == 3:
        tensors[name] = tensor.reshape(-1)[: rng.integers(tensor.size + 1)].copy()
    elif what == 4:
        tensors[name] = tensor[None]
    elif what == 5:
        tensors |= {name: tensor, "more": tensor}
    return _signed(json.loads(json.dumps(original.header)), tensors)


def _signed(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> File:
    """Write a file with a valid checksum."""
    header.pop("sha256", None)
    header["sha256"] = file_format._checksum(header, tensors)
    return File(_written(header, tensors), header, tensors)


def _written(header: Any, tensors: dict[str, np.ndarray]) -> bytes:
    """Serialize the header and the tensors, as `lopt.save` does."""
    return safetensors.numpy.save(tensors, {"lopt": json.dumps(header)})


def _edit(tree: Any, rng: np.random.Generator) -> None:
    """Replace, delete, rename or add one entry of a JSON value, in place."""
    places = list(_places(tree))
    parent, key = places[rng.integers(len(places))] if places else (tree, None)
    what = rng.choice(["odd", "odd", "number", "delete", "rename", "add"])
    what = what if places else "add"
    if what == "odd":
        parent[key] = _odd(rng)
    elif what == "number":
        parent[key] = int(rng.integers(-2, 64))
    elif what == "delete":
        del parent[key]
    elif what == "rename" and isinstance(parent, dict):
        parent[f"{key}_"] = parent.pop(key)
    elif isinstance(parent, dict):
        parent["later"] = _odd(rng)
    else:
        parent.append(_odd(rng))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parent and the key of every nested entry."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    for key in keys:
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def _odd(rng: np.random.Generator) -> Any:
    return _ODD_VALUES[rng.integers(len(_ODD_VALUES))]


_MUTATIONS = (
    *(_flip_bits, _set_bytes, _set_text, _truncate, _insert, _append, _delete, _clear),
    *(_swap, _length, _storage, _header, _signed_tensors),
    # Drawn more often: the checksum is valid, so only validation can reject these.
    *([_signed_header] * 4),
)

_FORBIDDEN = ("pickle", "os.system", "os.exec", "os.spawn", "subprocess", "socket")


def _forbid(event: str, _: Any) -> None:
    """Audit hook that raises on events that loading a file must never cause."""
    if event.startswith(_FORBIDDEN):
        raise RuntimeError(f"a file made lopt call {event}")


def main(num: int = 10_000, seed: int = 0) -> int:
    """Load `num` mutated files and print the outcomes by kind of mutation.

    Args:
        num: Number of mutated files.
        seed: Random seed of the mutations.

    Returns:
        Exit code: 1 if any file gave wrong values, crashed or timed out, otherwise 0.
    """
    counts: Counter[str] = Counter()
    by_kind: dict[str, Counter[str]] = {}
    start, slowest = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as name:
        files = originals(Path(name))
        sys.addaudithook(_forbid)
        with ProgressReport("damaging files", num) as progress:
            for i in range(num):
                rng = np.random.default_rng([seed, i])
                kind, mutant = mutate(files[i % len(files)], rng)
                began = time.monotonic()
                outcome, why = judge(mutant, Path(name) / "mutant.safetensors")
                slowest = max(slowest, time.monotonic() - began)
                counts[outcome] += 1
                by_kind.setdefault(kind, Counter())[outcome] += 1
                if outcome in (WRONG, CRASHED, SLOW):
                    progress.say(f"mutation {i}, {kind}: {outcome}: {why[:300]}")
                progress.advance(f"{counts[REFUSED]} refused, {counts[RIGHT]} right")
    for kind in sorted(by_kind):
        print(f"{kind:<16}" + ", ".join(f"{n} {o}" for o, n in by_kind[kind].items()))
    for outcome in (REFUSED, RIGHT, WRONG, CRASHED, SLOW):
        print(f"{outcome:<16} {counts[outcome]:>6}")
    seconds = time.monotonic() - start
    print(f"{num} files in {seconds:.0f} s, the slowest in {slowest:.1f} s")
    return int(bool(counts[WRONG] + counts[CRASHED] + counts[SLOW]))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
