"""Meta-objective surfaces."""

import numpy as np
import pytest

from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.analysis.surface import meta_surface
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from meta_train.outer.outer_optimizer import OuterAdam
from meta_train.outer.trainer import Trainer
from tasks.synthetic.quadratic import RandomQuadratic

SYSTEM = InnerTraining(RandomQuadratic(dim=4), ScheduledSGD())


def test_the_surface_has_the_meta_loss_of_each_theta(key):
    axes = (np.linspace(-6.0, 3.0, 3), np.linspace(-8.0, -4.0, 2))
    data, theta = SYSTEM.load(), SYSTEM.init_theta(key)
    surface = meta_surface(SYSTEM, data, theta, axes, 60, 2, key)
    assert surface.shape == (3, 2)
    trainer = Trainer((SYSTEM,), PES(Truncation(10, 60)), OuterAdam(), 1)
    for i, j in ((0, 1), (1, 0)):
        point = np.asarray([axes[0][i], axes[1][j]], np.float32)
        expected = trainer.meta_loss((data,), point, 60, 2, key)[0]
        np.testing.assert_allclose(surface[i, j], expected, rtol=1e-5)
    assert surface[2].min() > 1e3  # the learning rate exp(3) diverges
    with pytest.raises(ValueError, match="one entry for each of the 2 numbers"):
        meta_surface(SYSTEM, data, theta, axes[:1], 60, 2, key)
