"""A function of every parameter alone as a list of instructions for native code."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, Primitive

# Their places here are their codes; instructions.h has the same list.
OPERATIONS = (
    *("layers", "add", "sub", "mul", "div", "max", "min"),
    *("neg", "abs", "sqrt", "rsqrt", "exp"),
)


class Program(NamedTuple):
    """What native code needs to know of a function.

    Places are rows with a number for each parameter: first arrays, then scalars among
    the weights, then constants, then what instructions write.

    Attributes:
        instructions: One after the other: the operation, how many places it reads, how
            many it writes, and which.
        constants: Numbers that stand in the function.
        results: Where they are at last.
        scalars: Which of the weights are scalars.
        layers: Which of the weights are kernels and biases, in turns.
        num_places: How many there are in all.
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
    is_mean: bool,
) -> Program | None:
    """Returns the instructions, or none if native code cannot do what they say.

    Args:
        function: Called with a way to apply layers, arrays and weights; or with arrays
            alone, if the mean squares of its results are wanted.
        num_arrays: How many arrays it takes.
        treedef: Of the weights.
        shapes: Of the weights.
        is_mean: Whether mean squares are wanted.
    """

    # Traced for a single parameter: what it has of every array is a number.
    def of_one(arrays, leaves):
        if is_mean:
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


# They carry out what is inside of them once.
_CALLS = ("jit", "closed_call", "custom_jvp_call", "custom_vjp_call")

_layers_p = Primitive("layers")
_layers_p.multiple_results = True


@_layers_p.def_abstract_eval
def _(*operands, **_):
    return [operands[0]] * operands[-1].shape[0]


def _apply(rows: Sequence[Any], layers: Sequence[tuple[Any, Any]]) -> Sequence[Any]:
    return _layers_p.bind(*rows, *itertools.chain(*layers))


class _Weight(NamedTuple):
    """A kernel or a bias."""

    leaf: int


class _Constant(NamedTuple):
    """A number, in hexadecimal digits: zero is not its negative, nor the value 0."""

    digits: str


_Value: TypeAlias = int | _Constant | _Weight
"""What there is for each parameter is counted, inputs first."""


class _UnsupportedError(Exception):
    """Native code cannot do something that a function does."""


class _Step(NamedTuple):
    operation: str
    operands: tuple[_Value, ...]
    results: tuple[int, ...]


def _read(
    traced: Any, values: Sequence[_Value], fresh: Iterator[int], steps: list[_Step]
) -> list[_Value]:
    """Returns the values of the results; appends what is to be done to `steps`."""
    jaxpr = traced.jaxpr
    known = dict(zip(jaxpr.invars, values, strict=True))
    known |= zip(jaxpr.constvars, map(_constant, traced.consts), strict=True)
    find = lambda x: _constant(x.val) if isinstance(x, Literal) else known[x]
    for equation in jaxpr.eqns:
        name, operands = equation.primitive.name, [*map(find, equation.invars)]
        if name in _CALLS:
            inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
            found = _read(inner, operands, fresh, steps)
        elif name == "convert_element_type" and _are_single(equation.outvars):
            found = operands
        else:
            found = [next(fresh) for _ in equation.outvars]
            if name == "square" or equation.params.get("y") == 2:  # integer_pow
                name, operands = "mul", operands * 2
            if name not in OPERATIONS or not _are_single(equation.outvars):
                raise _UnsupportedError(name)
            steps.append(_Step(name, tuple(operands), tuple(found)))
        known |= zip(equation.outvars, found, strict=True)
    return [find(x) for x in jaxpr.outvars]


def _constant(number: Any) -> _Constant:
    if jnp.ndim(number):
        raise _UnsupportedError("an array stands in the function")
    return _Constant(float(number).hex())


def _are_single(variables: Sequence[Any]) -> bool:
    return all(v.aval.dtype == jnp.float32 for v in variables)


def _place(
    steps: Sequence[_Step],
    results: Sequence[_Value],
    num_known: int,
    scalars: tuple[int, ...],
) -> Program:
    """Gives every number a place, which it leaves when it is used no more."""
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
        # Not before there is room for what is written: nothing is read from there.
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
