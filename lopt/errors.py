"""The error for what a user can put right; the command line shows its text alone."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Says what must hold, what came and what to try."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a sentence with the nearest known name, or all of them."""
    known = list(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if nearest:
        return f"Did you mean {nearest[0]!r}?"
    return f"Try one of {', '.join(known)}."
