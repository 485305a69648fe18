"""Augmented random search, version 1 (Mania et al., 2018, arXiv:1803.07055)."""

from dataclasses import dataclass

import jax
from typing_extensions import override

from meta_train.estimators.antithetic import Normalization
from meta_train.estimators.full_es import FullES


@dataclass(frozen=True)
class AugmentedRandomSearch(FullES):
    """Search direction of ARS V1: whole episodes, scaled by the spread of the losses.

    The estimate is ``mean_i (loss_pos_i - loss_neg_i) direction_i / loss_std`` with
    ``noise_i = std * direction_i``. Unlike `FullES`, it does not divide by
    ``2 std``, so that the learning rate of SGD is the step size of the paper. ARS V1
    has no state normalization and uses all directions.
    """

    normalize: Normalization = "loss"
    """Divide by the standard deviation of all particles' losses, which defines ARS."""

    @override
    def update_pair(self, system, data, theta, state, noise, key):
        sample, state = super().update_pair(system, data, theta, state, noise, key)
        scale = 2 * self.std
        return sample.replace(
            grad=jax.tree.map(lambda g: scale * g, sample.grad),
            squared_norm=scale**2 * sample.squared_norm,
        ), state
