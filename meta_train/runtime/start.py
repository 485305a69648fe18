"""Initial theta of a run: that of the optimizer, or of an exported file."""

import hashlib

import lopt
from lopt.errors import UserError
from lopt.files.dataclass_json import differences, to_dict
from lopt.pretrained import resolve
from meta_train.config.config import MetaTrainConfig
from meta_train.outer.trainer import initial_theta
from tasks.base import Theta


def start_theta(config: MetaTrainConfig) -> Theta:
    """Theta before the first outer update.

    Raises:
        UserError: If `config.init` cannot be read, or is another optimizer than that of
            the run.
    """
    system = config.systems[0]
    if not config.init:
        return initial_theta(system, config.seed)
    ours = system.learned_optimizer
    if ours is None or system.theta_owner != ours:
        raise UserError(
            "--init needs a run that only trains a learned optimizer; got "
            f"{type(system).__name__}. Omit --init."
        )
    optimizer, theta = lopt.load_theta(config.init)
    if optimizer != ours:
        if type(optimizer) is type(ours):
            how = "; ".join(differences(to_dict(ours), to_dict(optimizer)))
        else:
            how = f"{type(ours).__name__} -> {type(optimizer).__name__}"
        raise UserError(
            f"--init must name an optimizer like that of the run; {config.init} "
            f"differs (run -> file: {how}). Try --optimizer {type(optimizer).__name__} "
            "and its hyperparameters."
        )
    return theta


def start_event(config: MetaTrainConfig) -> str:
    """Entry of the history of a run that starts from a file."""
    digest = hashlib.sha256(resolve(config.init).read_bytes()).hexdigest()
    return f"initialized from {config.init} (SHA-256 {digest[:12]})"
