"""The error for what a user can put right; the command line shows its text alone."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")


class UserError(ValueError):
    """Says what must hold, what came and what to try."""

    is_for_user = True


def is_for_user(error: BaseException) -> bool:
    """Whether an error's text is all that a user needs to see of it."""
    return getattr(error, "is_for_user", False)


def find(kind: str, name: str, known: Mapping[str, Value]) -> Value:
    """Returns ``known[name]``, or says which name is nearest."""
    if name in known:
        return known[name]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {nearest[0]!r}?" if nearest else f"Try {', '.join(known)}."
    raise UserError(f"there is no {kind} {name!r}. {hint}")
