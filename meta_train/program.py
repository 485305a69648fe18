"""What a compiled program costs, read from the program itself.

XLA's own count takes the body of a loop once, however often it runs; here it is
multiplied by the trip count that the compiler has found.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple


class Cost(NamedTuple):
    """Of one call.

    Attributes:
        flops: Floating-point operations; a loop of unknown length counts once, and of
            the branches of a conditional the dearest.
        bytes: Memory while it runs: arguments, results and temporaries.
    """

    flops: float
    bytes: int


def cost(compiled: Any) -> Cost:
    """Returns what a compiled function costs."""
    memory = compiled.memory_analysis()
    # Donated arguments are results too.
    size = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )
    return Cost(flops=count_flops(compiled.as_text()), bytes=size)


class _Instruction(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    op: str
    operands: tuple[str, ...]
    attributes: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"^(\w+)\[([\d,]*)\]\S* ([\w\-]+)\((.*)$")
_TUPLE = re.compile(r"^\((.*?)\) ([\w\-]+)\((.*)$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"branch_computations=\{([^}]*)\}|true_computation=(\S+?), "
    r"false_computation=([^\s,]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")

_FLOATS = {"f16", "bf16", "f32", "f64"}
_ELEMENTWISE = re.compile(
    "abs|add|atan2|cbrt|ceil|clamp|cosine|divide|erf|exponential(-minus-one)?|floor|"
    "log(-plus-one)?|logistic|maximum|minimum|multiply|negate|power|remainder|"
    "round-nearest-even|rsqrt|sign|sine|sqrt|subtract|tanh?"
)


def count_flops(text: str) -> float:
    """Counts the floating-point operations of an optimized HLO module."""
    computations, entry = _parse(text)
    known: dict[str, float] = {}

    def count(name: str) -> float:
        if name not in known:
            known[name] = 0.0
            instructions = computations.get(name, {})
            known[name] = sum(flops(i, instructions) for i in instructions.values())
        return known[name]

    def flops(i: _Instruction, others: dict[str, _Instruction]) -> float:
        called = sum(count(name) for name in _CALLED.findall(i.attributes))
        if i.op == "while":
            trips = _TRIPS.search(i.attributes)
            return called * (int(trips[1]) if trips else 1)
        if i.op == "conditional":
            return max((count(name) for name in _branches(i.attributes)), default=0.0)
        if i.op in ("reduce", "reduce-window", "scatter", "select-and-scatter"):
            operand = others.get(i.operands[0])
            return called * (operand.size if operand else i.size)
        if i.op == "dot":
            return 2.0 * i.size * _contracted(i, others)
        if i.op == "convolution":
            kernel = others[i.operands[1]]
            return 2.0 * i.size * kernel.size / max(_features(i, kernel), 1)
        if _ELEMENTWISE.fullmatch(i.op) and i.dtype in _FLOATS:
            return float(i.size)
        return called

    return count(entry)


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
    name, rest = matched[1], matched[2]
    array = _ARRAY.match(rest)
    if array:
        dtype, dims, op, rest = array.groups()
        shape = tuple(int(n) for n in dims.split(",") if n)
    else:
        several = _TUPLE.match(rest)
        if not several:
            return None
        dtype, shape = "tuple", ()
        _, op, rest = several.groups()
    operands = tuple(re.findall(r"%([\w.\-]+)", rest.split(")")[0]))
    return _Instruction(name, dtype, shape, op, operands, rest)


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
    """Returns how many outputs a convolution's kernel has."""
    labels = re.search(r"dim_labels=\w+_(\w+)->", i.attributes)
    return kernel.shape[labels[1].index("o")] if labels else 1
