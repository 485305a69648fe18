"""Parsing of command-line flags into dataclasses."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro
from tyro.constructors import (
    MISSING_NONPROP,
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

Options = TypeVar("Options")


def parse(
    kind: type[Options],
    arguments: Sequence[str],
    *,
    prog: str,
    description: str,
    default: Options | None = None,
) -> Options:
    """Parse flags, one for each field of a dataclass.

    The help of a flag is the docstring below its field, wrapped to the terminal.

    Args:
        kind: Dataclass to create.
        arguments: Command-line arguments after the name of the command.
        prog: Name of the command in the help.
        description: Description in the help. Lines must fit into 80 columns, and are
            joined unless they are indented or separated by an empty line.
        default: Values of the fields whose flag is not given.
    """
    registry = ConstructorRegistry()
    registry.struct_rule(_dataclass_rule)
    return tyro.cli(
        kind,
        args=arguments,
        prog=prog,
        description=description,
        default=MISSING_NONPROP if default is None else default,
        registry=registry,
    )


def _dataclass_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Like the rule of tyro, which breaks help texts where the source does."""
    kind = info.type
    if not dataclasses.is_dataclass(kind):
        return None
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = tuple(
        StructFieldSpec(
            name=field.name,
            type=hints[field.name],
            default=_default(field, info.default),
            helptext=functools.partial(_help, kind, field.name),
        )
        for field in dataclasses.fields(kind)
    )
    return StructConstructorSpec(instantiate=kind, fields=fields)


def _default(field: dataclasses.Field[Any], parent: Any) -> Any:
    if dataclasses.is_dataclass(parent):
        return getattr(parent, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    is_missing = field.default is dataclasses.MISSING
    return MISSING_NONPROP if is_missing else field.default


def _help(kind: type, name: str) -> str | None:
    """Find the docstring of a field, on one line."""
    parents = (each for each in kind.__mro__ if dataclasses.is_dataclass(each))
    return next((doc for each in parents if (doc := _field_docs(each).get(name))), None)


@functools.cache
def _field_docs(kind: type) -> dict[str, str]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except OSError:  # no source, as for classes of an interactive session
        return {}
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, doc in itertools.pairwise(tree.body):
        match field, doc:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found
