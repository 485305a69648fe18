"""Import of optimizers that other projects have released.

The files are those of google/learned_optimization and of amoudgl/celo. Their names of
tensors, such as ``ff_mod_stack/~/w0__3``, are Haiku's.
"""

import difflib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from lopt.base import LearnedOptimizer, Theta
from lopt.errors import UserError, one_line
from lopt.files import haiku_theta
from lopt.files.dataclass_json import from_dict, to_dict
from lopt.files.format import named_leaves, save
from lopt.files.msgpack_arrays import read_arrays

_CELO = "https://github.com/amoudgl/celo"
_GOOGLE = "https://github.com/google/learned_optimization"
_MIT, _APACHE = "MIT (amoudgl/celo)", "Apache-2.0 (google/learned_optimization)"
_READS_RUN = (
    "num_steps is the length of the run to be trained: the optimizer reads the "
    "fraction of it that has passed, and averages of the loss over up to that many "
    "steps"
)
_READS_STEP = (
    "num_steps is the length of the run to be trained: the optimizer reads the number "
    "of the step, which stops at num_steps"
)
_READS_NOTHING = "num_steps is not used: the optimizer does not read time or progress"


Conversion: TypeAlias = Callable[
    [haiku_theta.Tensors], tuple[LearnedOptimizer, haiku_theta.Weights]
]


@dataclass(frozen=True)
class Format:
    """Format of released files.

    Attributes:
        kind: Kind of files, as from `haiku_theta.kind_of`.
        convert: Function from the tensors to an optimizer and its `theta`.
        sources: Projects that write it.
        licenses: Licenses of these projects.
        horizon: Meaning of `num_steps`, for the card.
    """

    kind: str
    convert: Conversion
    sources: tuple[str, ...]
    licenses: tuple[str, ...]
    horizon: str


def import_theta(
    name: str,
    path: str | Path,
    out: str | Path | None = None,
    *,
    horizons: Sequence[int] | None = None,
    **fields: Any,
) -> tuple[LearnedOptimizer, Theta]:
    """Import an optimizer that another project has released.

    Args:
        name: Name of a format in `FORMATS`, such as ``celo``.
        path: Msgpack file that Flax wrote, such as ``theta.state``.
        out: File to write, for `lopt.load`; an existing file is replaced.
        horizons: Shortest and longest horizon of meta-training, which the file does not
            contain. If given, `lopt.load` warns of others.
        **fields: Hyperparameters of the architecture that are not determined by the
            file, such as `learning_rate` of `Celo2`.

    Returns:
        The optimizer and its outer parameters, as from `lopt.load_theta`.

    Raises:
        UserError: If the format or a field is unknown, or the file cannot be read or
            has another format.
    """
    found = _find_format(name)
    arrays = _without_checkpoint(read_arrays(path))
    kind = haiku_theta.kind_of(arrays)
    if kind != found.kind:
        others = [each for each, format_ in FORMATS.items() if format_.kind == kind]
        hint = f"Try `lopt import {others[0]}`." if others else "Try another file."
        raise UserError(
            f"{path} must be a file of {found.kind} for the format {name}; its tensors "
            f"are those of {kind or 'no known optimizer'}. {hint}"
        )
    try:
        tensors = haiku_theta.Tensors(arrays)
        optimizer, theta = found.convert(tensors)
        tensors.check_taken()
        _check_shapes(optimizer, theta)
    except Exception as error:  # shapes from a file may raise any exception
        raise UserError(
            f"{path} must have the tensors of {found.kind}; {one_line(error)}. It may "
            "be damaged: copy or download it again."
        ) from error
    optimizer = _with_fields(optimizer, fields)
    theta = jax.tree.map(jnp.asarray, theta)
    if out is not None:
        save(out, optimizer, theta, _card(found, name, Path(path), horizons))
    return optimizer, theta


def _find_format(name: str) -> Format:
    given = name.replace("_", "-").lower()
    if given in FORMATS:
        return FORMATS[given]
    nearest = difflib.get_close_matches(given, FORMATS, n=1, cutoff=0.0)
    raise UserError(
        f"a format must be one of {', '.join(FORMATS)}; got {one_line(name)!r}. Did "
        f"you mean {nearest[0]!r}?"
    )


def _check_shapes(optimizer: LearnedOptimizer, theta: haiku_theta.Weights) -> None:
    """Validate `theta`, with names of this package in the errors."""
    template = jax.eval_shape(optimizer.init_theta, jax.random.key(0))
    expected = {name: x.shape for name, x in named_leaves(template)}
    for name, array in named_leaves(theta):
        if array.shape != expected.get(name):
            raise ValueError(
                f"{name} has the shape {array.shape} instead of {expected.get(name)}"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{name} is not finite")


def _card(
    found: Format, name: str, path: Path, horizons: Sequence[int] | None
) -> dict[str, Any]:
    card: dict[str, Any] = {
        "source": " or ".join(found.sources),
        "imported_format": name,
        "imported_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "license": " and ".join(found.licenses),
        "horizon": found.horizon,
    }
    if horizons is None:
        card["horizon"] += "; the file does not tell the horizons of meta-training"
        return card
    if len(horizons) != 2 or not 1 <= horizons[0] <= horizons[1]:
        raise UserError(
            "`horizons` must be the shortest and the longest horizon of meta-training; "
            f"got {tuple(horizons)}. Try (100, 2000)."
        )
    return {**card, "horizons": [int(x) for x in horizons]}


def _with_fields(
    optimizer: LearnedOptimizer, fields: Mapping[str, Any]
) -> LearnedOptimizer:
    """Replace fields, except those that determine the shapes of `theta`."""
    described = to_dict(optimizer)
    free = {k for k in described if k not in (*_DETERMINED, "type")}
    if unknown := sorted(set(fields) - free):
        raise UserError(
            f"a field must be one of {', '.join(sorted(free))} for "
            f"{described['type']}; got {', '.join(unknown)}. Try another format."
        )
    known = {type(optimizer).__name__: type(optimizer)}
    return from_dict({**described, **fields}, known)


_DETERMINED = ("width", "depth", "lstm_width", "num_banks", "as_released")


def _without_checkpoint(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Remove the prefix of checkpoints, which have `theta` as one of their fields."""
    prefixes = [
        prefix
        for prefix in ("params/", "0/")
        if all(name.startswith(prefix) for name in arrays)
    ]
    prefix = prefixes[0] if prefixes else ""
    return {name.removeprefix(prefix): array for name, array in arrays.items()}


_BOTH = (_GOOGLE, _CELO), (_APACHE, _MIT)
_FROM_CELO = (_CELO,), (_MIT,)
FORMATS = {
    "celo": Format("Celo", haiku_theta.celo, *_FROM_CELO, _READS_RUN),
    "celo-adam": Format("Celo-Adam", haiku_theta.celo_adam, *_FROM_CELO, _READS_RUN),
    "celo2": Format("Celo2", haiku_theta.celo2, *_FROM_CELO, _READS_NOTHING),
    "celo2-base": Format("Celo2", haiku_theta.celo2_base, *_FROM_CELO, _READS_NOTHING),
    "velo": Format("VeLO", haiku_theta.velo, *_FROM_CELO, _READS_RUN),
    "velo-4000": Format("VeLO", haiku_theta.velo_4000, *_BOTH, _READS_RUN),
    "adafac-mlp": Format(
        "Adafactor-MLP", haiku_theta.adafactor_mlp, *_BOTH, _READS_STEP
    ),
    "small-fc-lopt": Format(
        "Adafactor-MLP", haiku_theta.adafactor_mlp, *_BOTH, _READS_STEP
    ),
}
"""Formats of released files by name. `velo` and `velo-4000` differ in
`VeLO.mixture_scale`, which a file does not contain."""
