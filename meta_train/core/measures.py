"""Quantities that the meta-loss of inner training can be.

This module does not import JAX, so that the command line can list them quickly.
"""

from typing import Literal, TypeAlias

Measure: TypeAlias = Literal["train-loss", "validation-loss", "validation-error"]
