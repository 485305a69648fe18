"""Errors that users can fix; the command line prints them without a traceback."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

_EXTENSIBLE = ("task", "optimizer", "estimator")


class UserError(ValueError):
    """Error caused by invalid user input.

    The message states the requirement, the value received and a remedy.
    """


def lookup(kind: str, name: str, known: Mapping[str, Value]) -> Value:
    """Look up ``known[name]``.

    Args:
        kind: Kind of object, for the error message.
        name: Key to look up.
        known: Objects by name.

    Returns:
        The object registered under `name`.

    Raises:
        UserError: If `name` is unknown. The message suggests the closest name, or lists
            all names if none is close.
    """
    if name in known:
        return known[name]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"Did you mean {nearest[0]!r}?" if nearest else f"Try {', '.join(known)}."
    if kind in _EXTENSIBLE:
        hint += f" A {kind} of your own must be registered, or named as FILE.py:CLASS."
    raise UserError(f"there is no {kind} {name!r}. {hint}")


def one_line(error: object) -> str:
    """Format untrusted text as one printable line of at most 500 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 500 else f"{text[:500]}..."
