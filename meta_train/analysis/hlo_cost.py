"""FLOPs, memory traffic and collectives of a compiled program, from its HLO text.

XLA's cost analysis counts the body of a loop once, regardless of the trip count. Here
the body is multiplied by the trip count that the compiler has determined.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple


class ProgramCost(NamedTuple):
    """ProgramCost of one call of a compiled function.

    Attributes:
        flops: Floating-point operations. A loop of unknown trip count is counted once.
            A conditional counts as its most expensive branch.
        bytes: Memory of arguments, results and temporaries during the call.
    """

    flops: float
    bytes: int


def cost(compiled: Any) -> ProgramCost:
    """Compute the cost of one call of a compiled function.

    Args:
        compiled: Compiled function, as from ``jax.jit(f).lower(...).compile()``.
    """
    memory = compiled.memory_analysis()
    # Donated arguments share their memory with results: count it once.
    size = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )
    return ProgramCost(flops=count_flops(compiled.as_text()), bytes=size)


class Work(NamedTuple):
    """Work of one call; a loop of unknown trip count is counted once.

    Attributes:
        products: FLOPs of matrix products and convolutions.
        others: FLOPs of all other operations.
        moved: Bytes read and written by operations. A fusion is one operation.
        operations: Number of operations launched.
    """

    products: float = 0.0
    others: float = 0.0
    moved: float = 0.0
    operations: float = 0.0

    @property
    def flops(self) -> float:
        """Total FLOPs."""
        return self.products + self.others

    def plus(self, other: "Work") -> "Work":
        """Add the work of `other`."""
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, num: float) -> "Work":
        """Multiply the work by `num`."""
        return Work(*(num * a for a in self))


class Collective(NamedTuple):
    """Collective operation of a program.

    Attributes:
        operation: HLO name, such as ``all-reduce``.
        num_bytes: Bytes of the result on each device.
    """

    operation: str
    num_bytes: int


class _Instruction(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    op: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)


_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"^(\w+)\[([\d,]*)\]\S* ([\w\-]+)\((.*)$")
_TUPLE = re.compile(r"^\((.*?)\) ([\w\-]+)\((.*)$")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"branch_computations=\{([^}]*)\}|true_computation=(\S+?), "
    r"false_computation=([^\s,]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_COLLECTIVE = re.compile(
    "(all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(-start)?"
)

_FLOATS = {"f16", "bf16", "f32", "f64"}
_WIDTHS = {"pred": 1, "bf16": 2}
_ELEMENTWISE = re.compile(
    "abs|add|atan2|cbrt|ceil|clamp|cosine|divide|erf|exponential(-minus-one)?|floor|"
    "log(-plus-one)?|logistic|maximum|minimum|multiply|negate|power|remainder|"
    "round-nearest-even|rsqrt|sign|sine|sqrt|subtract|tanh?"
)
# Operations counted as free: they name existing values or complete asynchronous ones.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("partition-id", "replica-id", "copy-done", "all-reduce-done", "all-gather-done"),
}


def count_flops(text: str) -> float:
    """Count the floating-point operations of an optimized HLO module."""
    return count_work(text).flops


def count_work(text: str) -> Work:
    """Count FLOPs, bytes moved and operations of an optimized HLO module.

    Elementwise operations count one FLOP per element of a floating-point result.
    """
    computations, entry = _parse(text)
    known: dict[tuple[str, bool], Work] = {}

    def count(name: str, *, fused: bool = False) -> Work:
        if (name, fused) not in known:
            known[name, fused] = Work()
            instructions = computations.get(name, {})
            total = Work()
            for i in instructions.values():
                total = total.plus(work(i, instructions, fused=fused))
            known[name, fused] = total
        return known[name, fused]

    def work(i: _Instruction, others: dict[str, _Instruction], *, fused: bool) -> Work:
        names = _CALLED.findall(i.attributes)
        if i.op == "while":
            trips = _TRIPS.search(i.attributes)
            body = [count(name) for name in names]
            return _sum(body).times(int(trips[1]) if trips else 1)
        if i.op == "conditional":
            branches = [count(name) for name in _branches(i.attributes)]
            return max(branches, key=lambda w: w.flops, default=Work())
        if i.op == "call":
            return _sum([count(name, fused=fused) for name in names])
        done = flops(i, others, _sum([count(name, fused=True) for name in names]))
        if fused or i.op in _FREE:
            return done
        moved = _moved(i, others, computations)
        return done._replace(moved=moved, operations=1.0)

    def flops(i: _Instruction, others: dict[str, _Instruction], called: Work) -> Work:
        if i.op in ("reduce", "reduce-window", "scatter", "select-and-scatter"):
            operand = others.get(i.operands[0])
            return called.times(operand.size if operand else i.size)
        if i.op == "dot":
            return Work(products=2.0 * i.size * _contracted(i, others))
        if i.op == "convolution":
            kernel = others[i.operands[1]]
            features = max(_features(i, kernel), 1)
            return Work(products=2.0 * i.size * kernel.size / features)
        if _ELEMENTWISE.fullmatch(i.op) and i.dtype in _FLOATS:
            return Work(others=float(i.size))
        return called

    return count(entry)


def find_collectives(text: str) -> list[Collective]:
    """List the collectives of an optimized HLO module.

    A collective inside a loop is listed once.
    """
    computations, _ = _parse(text)
    return [
        Collective(found[1], i.num_bytes)
        for instructions in computations.values()
        for i in instructions.values()
        if (found := _COLLECTIVE.fullmatch(i.op))
    ]


def _sum(works: Sequence[Work]) -> Work:
    total = Work()
    for work in works:
        total = total.plus(work)
    return total


def _moved(
    i: _Instruction,
    others: dict[str, _Instruction],
    computations: dict[str, dict[str, _Instruction]],
) -> float:
    """Count the bytes that an operation reads and writes.

    A slice, gather or slice update counts the bytes of the slice rather than those of
    the whole array, also inside a fusion.
    """
    if i.op in ("dynamic-slice", "gather", "slice"):
        return 2.0 * i.num_bytes
    if i.op == "dynamic-update-slice":
        return 2.0 * others[i.operands[1]].num_bytes
    called = _CALLED.findall(i.attributes) if i.op == "fusion" else []
    inside = computations.get(called[0], {}) if called else {}
    written, replaced = float(i.num_bytes), ""
    for inner in inside.values():
        if inner.is_root and inner.op == "dynamic-update-slice":
            written = float(inside[inner.operands[1]].num_bytes)
            replaced = inner.operands[0]
    read = 0.0
    for place, operand in enumerate(i.operands):
        whole = float(others[operand].num_bytes) if operand in others else 0.0
        read += _read_inside(inside, place, whole, replaced)
    return read + written


def _read_inside(
    inside: dict[str, _Instruction], place: int, whole: float, replaced: str
) -> float:
    own = [
        i.name
        for i in inside.values()
        if i.op == "parameter" and i.attributes.startswith(f"{place})")
    ]
    if not own:
        return whole
    if own[0] == replaced:
        return 0.0
    users = [i for i in inside.values() if own[0] in i.operands]
    if users and all(
        i.op in ("dynamic-slice", "gather") and i.operands[0] == own[0] for i in users
    ):
        return float(sum(i.num_bytes for i in users))
    return whole


def _parse(text: str) -> tuple[dict[str, dict[str, _Instruction]], str]:
    computations: dict[str, dict[str, _Instruction]] = {}
    entry = current = ""
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            current = head[2]
            computations[current] = {}
            entry = current if head[1] else entry
            continue
        instruction = _instruction(line)
        if instruction is not None and current:
            computations[current][instruction.name] = instruction
    return computations, entry


def _instruction(line: str) -> _Instruction | None:
    matched = _LINE.match(line)
    if not matched:
        return None
    is_root, name, rest = bool(matched[1]), matched[2], matched[3]
    array = _ARRAY.match(rest)
    if array:
        dtype, dims, op, rest = array.groups()
        shape, num_bytes = _dims(dims), _num_bytes(dtype, dims)
    else:
        several = _TUPLE.match(rest)
        if not several:
            return None
        types, op, rest = several.groups()
        dtype, shape = "tuple", ()
        num_bytes = sum(_num_bytes(*found) for found in _SHAPE.findall(types))
    operands = tuple(re.findall(r"%([\w.\-]+)", rest.split(")")[0]))
    return _Instruction(name, dtype, shape, num_bytes, op, operands, rest, is_root)


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def _num_bytes(dtype: str, dims: str) -> int:
    bits = re.search(r"\d+", dtype)
    width = _WIDTHS.get(dtype) or (max(int(bits[0]) // 8, 1) if bits else 0)
    return width * math.prod(_dims(dims))


def _branches(attributes: str) -> Sequence[str]:
    found = _BRANCHES.search(attributes)
    if not found:
        return ()
    names = found[1].split(",") if found[1] else [found[2], found[3]]
    return [name.strip().lstrip("%") for name in names]


def _contracted(i: _Instruction, others: dict[str, _Instruction]) -> int:
    dims = _CONTRACTED.search(i.attributes)
    left = others.get(i.operands[0])
    if not dims or left is None:
        return 1
    return math.prod(left.shape[int(n)] for n in dims[1].split(",") if n)


def _features(i: _Instruction, kernel: _Instruction) -> int:
    """Look up the number of output features of a convolution kernel."""
    labels = re.search(r"dim_labels=\w+_(\w+)->", i.attributes)
    return kernel.shape[labels[1].index("o")] if labels else 1
