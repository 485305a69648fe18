"""Frozen dataclasses to plain JSON values and back: a type name and the fields."""

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
    """Returns `value` as JSON values; a dataclass becomes ``{"type": ..., fields}``."""
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
    """Inverts `to_dict`; only the dataclasses in `types` are ever made."""
    if isinstance(value, Mapping):
        name = str(value.get("type"))
        if name not in types:
            raise UserError(
                f"{name!r} is not known to this version of lopt; "
                f"it knows {', '.join(sorted(types))}. "
                "A newer version may: try `pip install --upgrade lopt`."
            )
        fields = {k: from_dict(v, types) for k, v in value.items() if k != "type"}
        _check_fields(types[name], fields)
        return types[name](**fields)
    if isinstance(value, list):
        return tuple(from_dict(item, types) for item in value)
    return value


def _check_fields(kind: type, fields: Mapping[str, Any]) -> None:
    """Raises unless `kind` has such fields, and they may have such values."""
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := set(fields) - known:
        raise UserError(
            f"{kind.__name__} has no {', '.join(sorted(unknown))}; it has "
            f"{', '.join(sorted(known))}. It was written by another version."
        )
    # Classes do not look at the types of their fields: a text for a number would only
    # be noticed where it is used, or never.
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
    """Whether `value` is what an annotation says; those unknown here allow all."""
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
    if annotation is Path:  # which is written as a text
        return isinstance(value, str | Path)
    if annotation in (int, float) and isinstance(value, bool):
        return False
    if annotation is float:
        # Whole numbers stand for themselves, as far as jax takes them.
        largest = 2**31 - 1 if isinstance(value, int) else sys.float_info.max
        return isinstance(value, int | float) and -largest <= value <= largest
    return isinstance(value, annotation)


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Lists the fields in which two descriptions differ, as ``path: old -> new``."""
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
    """Returns a `kind` with `fields`, and what else it has in common with `old`.

    Fields that `kind` does not have are left out.
    """
    names = [field.name for field in dataclasses.fields(cast(Any, kind))]
    shared = {name: getattr(old, name) for name in names if hasattr(old, name)}
    return kind(**shared | {n: v for n, v in fields.items() if n in names})
