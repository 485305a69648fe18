"""Conversion of frozen dataclasses to and from JSON values."""

import dataclasses
import math
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, cast

from lopt.errors import UserError

Kind = TypeVar("Kind")


def to_dict(value: Any) -> Any:
    """Convert `value` to JSON values.

    A dataclass becomes ``{"type": class_name, **fields}``, a tuple a list and a path a
    string.

    Raises:
        UserError: If a float is not finite.
        TypeError: If a value has another type.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
        return {"type": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"hyperparameters must be finite; got {value}.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is not a hyperparameter: {value!r}")


def from_dict(value: Any, types: Mapping[str, type]) -> Any:
    """Invert `to_dict`.

    Lists become tuples. Paths remain strings.

    Args:
        value: JSON values from `to_dict`.
        types: Dataclasses by name. Other classes are never instantiated.

    Raises:
        UserError: If a type or a field is unknown, or a field has the wrong type.
    """
    if isinstance(value, Mapping):
        name = str(value.get("type"))
        if name not in types:
            raise UserError(
                f"{name!r} is not known to this version of lopt; "
                f"it knows {', '.join(sorted(types))}. "
                "Try importing the module that registers it, or a newer version of "
                "lopt."
            )
        fields = {k: from_dict(v, types) for k, v in value.items() if k != "type"}
        _check_fields(types[name], fields)
        return types[name](**fields)
    if isinstance(value, list):
        return tuple(from_dict(item, types) for item in value)
    return value


def _check_fields(kind: type, fields: Mapping[str, Any]) -> None:
    """Validate the names of fields against `kind`, and their values by annotation."""
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := set(fields) - known:
        raise UserError(
            f"{kind.__name__} has no {', '.join(sorted(unknown))}; it has "
            f"{', '.join(sorted(known))}. It was written by another version."
        )
    # Dataclasses do not validate the types of their fields: a string in place of a
    # number would fail later, or not at all.
    annotations = typing.get_type_hints(kind)
    for name, value in fields.items():
        wanted = annotations[name]
        if not _fits(value, wanted):
            shown = wanted.__name__ if isinstance(wanted, type) else str(wanted)
            finite = " and finite" if wanted is float else ""
            raise UserError(
                f"`{name}` of {kind.__name__} must be {shown}{finite}; got {value!r}."
            )


def _fits(value: Any, annotation: Any) -> bool:
    """Check `value` against an annotation; unsupported annotations match anything."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _fits(value, parts[0])
    if origin in (typing.Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return value in parts
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if parts[-1] is Ellipsis:
            parts = parts[:1] * len(value)
        return len(parts) == len(value) and all(map(_fits, value, parts))
    if not isinstance(annotation, type) or origin is not None:
        return True
    if annotation is Path:  # `to_dict` writes paths as strings
        return isinstance(value, str | Path)
    if annotation in (int, float) and isinstance(value, bool):
        return False
    if annotation is float:
        # Integers are valid floats within int32, the range that JAX accepts.
        largest = 2**31 - 1 if isinstance(value, int) else sys.float_info.max
        return isinstance(value, int | float) and -largest <= value <= largest
    return isinstance(value, annotation)


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """List the differing fields of two `to_dict` results as ``path: old -> new``.

    A missing key is equivalent to `None`.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(dict.fromkeys([*old, *new]))
        pairs = [(f"{path}.{k}".lstrip("."), old.get(k), new.get(k)) for k in keys]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [
            (f"{path}.{i}", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))
        ]
    else:
        return [] if old == new else [f"{path}: {old} -> {new}"]
    return [line for name, a, b in pairs for line in differences(a, b, name)]


def convert(old: Any, kind: type[Kind], **fields: Any) -> Kind:
    """Create a `kind` from the fields that it shares with `old`.

    Args:
        old: Object whose attributes are copied.
        kind: Dataclass to create.
        **fields: Values that override those of `old`. Names that are not fields of
            `kind` are ignored.
    """
    names = [field.name for field in dataclasses.fields(cast(Any, kind))]
    shared = {name: getattr(old, name) for name in names if hasattr(old, name)}
    return kind(**shared | {n: v for n, v in fields.items() if n in names})
