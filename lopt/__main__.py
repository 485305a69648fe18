"""The `lopt` command: a table of sub-commands, each imported only when called."""

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

from lopt.errors import UserError, find, is_for_user
from lopt.folders import cache_folder

COMMANDS = {
    "meta-train": ("meta_train.cli:meta_train", "Meta-train a learned optimizer."),
    "export": ("meta_train.cli:export", "Export a run as one optax optimizer."),
    "show": ("lopt.show_cli:show", "Show what an exported optimizer is."),
    "plot": ("meta_train.plot_cli:plot", "Draw how a run is going."),
    "evaluate": (
        "evaluation.cli:evaluate",
        "Compare optimizers with tuned baselines on tasks they never saw.",
    ),
    "report": ("evaluation.cli:report", "Draw the report of an evaluation again."),
    "tune": (
        "evaluation.tuner_cli:tune",
        "Compare black-box tuners with meta-training on a preset.",
    ),
    "estimators": (
        "meta_train.cli:estimators",
        "Compare estimators on a preset: bias, variance, cost.",
    ),
    "plan": ("meta_train.plan_cli:plan", "Say what a run on a TPU pod will need."),
    "data": ("tasks.cli:data", "List, prepare and verify datasets."),
    "tasks": ("evaluation.task_cli:tasks", "List the tasks and what else there is."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `lopt COMMAND ...` and returns the exit code; 2 for a user's mistake."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    name, *rest = arguments
    try:
        rest = _take_data_dir(rest)
        target, _ = find("command", name, COMMANDS)
        tune_cpu_compiler()
        _keep_programs()
        module, function = target.split(":")
        return getattr(importlib.import_module(module), function)(rest)
    except SystemExit as ended:  # after help was asked for, or a flag is wrong
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not is_for_user(error):
            raise
        print(f"lopt {name}: {error}", file=sys.stderr)
        return 2


def _take_data_dir(arguments: Sequence[str]) -> list[str]:
    """Hands `--data-dir`, which every command takes, on to whatever loads data."""
    rest = list(arguments)
    for i, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in ("--data-dir", "--data_dir"):
            value = value if equals else "".join(arguments[i + 1 : i + 2])
            if not value:
                raise UserError(f"`{flag}` must be followed by a directory; got none.")
            os.environ["LOPT_DATA_DIR"] = value
            del rest[i : i + (1 if equals else 2)]
            break
    return rest


_CPU_OPTIONS = {
    # Loops over less than 128 KB of state are compiled as one function. Their
    # operations are otherwise dispatched one by one, at about a microsecond each:
    # updates of the toy problem are twice as fast this way, larger ones do not change.
    "--xla_backend_extra_options": "xla_cpu_small_while_loop_byte_threshold=131072",
    # Half the time to compile of the default, 3, for the same speed.
    "--xla_backend_optimization_level": "2",
    # The compiler takes half of the widest registers of a CPU with AVX-512 otherwise:
    # steps of learned optimizers on large tensors are 4 to 14 % faster this way.
    "--xla_cpu_prefer_vector_width": "512",
}


def tune_cpu_compiler() -> None:
    """Sets the options above before jax starts, unless the user has set them."""
    flags = os.environ.get("XLA_FLAGS", "")
    for option, value in _CPU_OPTIONS.items():
        if option not in flags:
            flags = f"{flags} {option}={value}".strip()
    os.environ["XLA_FLAGS"] = flags


def _keep_programs() -> None:
    """Lets a command find what an earlier one has compiled, unless the user chose."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(cache_folder("programs")))
    with contextlib.suppress(OSError):  # then there is no cache
        os.makedirs(folder, exist_ok=True)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(2**30))


def _usage() -> str:
    lines = [
        "usage: lopt COMMAND [...]",
        "",
        "Meta-train learned optimizers and use them as optax transformations.",
        "",
        "commands:",
        *(f"  {name:<12}{help_}" for name, (_, help_) in COMMANDS.items()),
        "",
        "`lopt COMMAND --help` says more. Every command takes --data-dir, where",
        "datasets are; LOPT_DATA_DIR by default, or else the directory of TFDS.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
