"""Compiler from elementwise JAX functions to instructions for native code."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, Primitive

# Opcodes are indices into this tuple. Keep it in sync with instructions.h.
OPERATIONS = (
    *("layers", "add", "sub", "mul", "div", "max", "min"),
    *("neg", "abs", "sqrt", "rsqrt", "exp"),
)


class Program(NamedTuple):
    """Elementwise function as a register program.

    A register ("place") holds one value for each parameter of a block. Registers are
    numbered in this order: arrays, scalar weights, constants, and intermediate values.

    Attributes:
        instructions: Concatenated instructions. Each is an opcode, the number of
            registers read, the number written, the registers read and those written.
        constants: Literals in the function.
        results: Registers that hold the results.
        scalars: Indices of the weight leaves that are scalars.
        layers: Indices of the weight leaves that are kernels and biases, alternating.
        num_places: Total number of registers.
    """

    instructions: tuple[int, ...]
    constants: tuple[float, ...]
    results: tuple[int, ...]
    scalars: tuple[int, ...]
    layers: tuple[int, ...]
    num_places: int


@functools.lru_cache(maxsize=256)
def compile_function(
    function: Callable[..., Any],
    num_arrays: int,
    *,
    treedef: Any,
    shapes: tuple[tuple[int, ...], ...],
    is_reduction: bool,
) -> Program | None:
    """Compile an elementwise function, or return `None` if it is unsupported.

    Supported are float32 functions of the primitives in `OPERATIONS`, squares, and at
    most one application of layers.

    Args:
        function: ``function(apply, arrays, weights)``, or ``function(arrays)`` if
            `is_reduction`.
        num_arrays: Number of arrays.
        treedef: Tree structure of the weights.
        shapes: Shapes of the leaves of the weights.
        is_reduction: Whether the mean squares of the results are to be computed.
    """

    # The function is traced for a single parameter, with a scalar for each array.
    def of_one(arrays, leaves):
        if is_reduction:
            return function(arrays)
        return function(_apply, arrays, treedef.unflatten(leaves))

    number = jax.ShapeDtypeStruct((), jnp.float32)
    leaves = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    traced = jax.make_jaxpr(of_one)([number] * num_arrays, leaves)
    scalars = tuple(i for i, shape in enumerate(shapes) if not shape)
    fresh = itertools.count()
    values: list[_Value] = [next(fresh) for _ in range(num_arrays)]
    values += [_Weight(i) if shape else next(fresh) for i, shape in enumerate(shapes)]
    steps: list[_Step] = []
    try:
        results = _read(traced, values, fresh, steps)
        return _place(steps, results, num_arrays + len(scalars), scalars)
    except _UnsupportedError:
        return None


# Primitives that evaluate an inner jaxpr once; `_read` inlines them.
_CALLS = ("jit", "closed_call", "custom_jvp_call", "custom_vjp_call")

_layers_p = Primitive("layers")
_layers_p.multiple_results = True


@_layers_p.def_abstract_eval
def _(*operands, **_):
    return [operands[0]] * operands[-1].shape[0]


def _apply(rows: Sequence[Any], layers: Sequence[tuple[Any, Any]]) -> Sequence[Any]:
    return _layers_p.bind(*rows, *itertools.chain(*layers))


class _Weight(NamedTuple):
    """Kernel or bias, by its index among the weight leaves."""

    leaf: int


class _Constant(NamedTuple):
    """Literal, as hexadecimal text.

    As dict keys, floats would not distinguish 0.0 from -0.0, nor from value number 0.
    """

    digits: str


_Value: TypeAlias = int | _Constant | _Weight
"""Per-parameter values are numbered by integers, inputs first."""


class _UnsupportedError(Exception):
    """The function uses an operation that native code does not support."""


class _Step(NamedTuple):
    operation: str
    operands: tuple[_Value, ...]
    results: tuple[int, ...]


def _read(
    traced: Any, values: Sequence[_Value], fresh: Iterator[int], steps: list[_Step]
) -> list[_Value]:
    """Convert a jaxpr to steps, which are appended to `steps`; return its results."""
    jaxpr = traced.jaxpr
    known = dict(zip(jaxpr.invars, values, strict=True))
    known |= zip(jaxpr.constvars, map(_constant, traced.consts), strict=True)

    def find(x):
        return _constant(x.val) if isinstance(x, Literal) else known[x]

    for equation in jaxpr.eqns:
        name, operands = equation.primitive.name, [*map(find, equation.invars)]
        if name in _CALLS:
            inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
            found = _read(inner, operands, fresh, steps)
        elif name == "convert_element_type" and _are_single(equation.outvars):
            found = operands
        else:
            found = [next(fresh) for _ in equation.outvars]
            if name == "square" or equation.params.get("y") == 2:  # `integer_pow`.
                name, operands = "mul", operands * 2
            if name not in OPERATIONS or not _are_single(equation.outvars):
                raise _UnsupportedError(name)
            steps.append(_Step(name, tuple(operands), tuple(found)))
        known |= zip(equation.outvars, found, strict=True)
    return [find(x) for x in jaxpr.outvars]


def _constant(number: Any) -> _Constant:
    if jnp.ndim(number):
        raise _UnsupportedError("the function contains an array constant")
    return _Constant(float(number).hex())


def _are_single(variables: Sequence[Any]) -> bool:
    return all(v.aval.dtype == jnp.float32 for v in variables)


def _place(
    steps: Sequence[_Step],
    results: Sequence[_Value],
    num_known: int,
    scalars: tuple[int, ...],
) -> Program:
    """Encode the steps, and allocate registers that are reused after their last use."""
    used = [*itertools.chain(*(step.operands for step in steps)), *results]
    constants = {x: None for x in used if isinstance(x, _Constant)}
    places: dict[_Value, int] = {i: i for i in range(num_known)}
    places |= {x: num_known + i for i, x in enumerate(constants)}
    first = num_places = len(places)
    free: list[int] = []
    instructions: list[int] = []
    layers: tuple[int, ...] = ()
    last = {x: i for i, step in enumerate(steps) for x in step.operands + step.results}
    last |= dict.fromkeys(results, len(steps))
    for i, (operation, operands, outputs) in enumerate(steps):
        weights = tuple(x.leaf for x in operands if isinstance(x, _Weight))
        if weights and layers:
            raise _UnsupportedError("layers are applied twice")
        layers = layers or weights
        read = [places[x] for x in operands if not isinstance(x, _Weight)]
        for x in outputs:
            if not free:
                free.append(num_places)
                num_places += 1
            places[x] = free.pop()
        written = [places[x] for x in outputs]
        code = OPERATIONS.index(operation)
        instructions += [code, len(read), len(written), *read, *written]
        # Registers are freed after the outputs are allocated, so that no instruction
        # writes to a register that it reads.
        over = {
            places[x] for x in (*operands, *outputs) if last[x] == i and x in places
        }
        free += sorted(place for place in over if place >= first)
    return Program(
        instructions=tuple(instructions),
        constants=tuple(float.fromhex(x.digits) for x in constants),
        results=tuple(places[x] for x in results),
        scalars=scalars,
        layers=layers,
        num_places=num_places,
    )
