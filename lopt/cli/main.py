"""Entry point of the `lopt` command; subcommands are imported on demand."""

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lopt.cache_directory import cache_folder, make_private
from lopt.cli.output import complain, drop_unwritten, open_standard_streams
from lopt.errors import UserError, lookup, one_line

COMMANDS = {
    "meta-train": (
        "meta_train.cli.meta_train:meta_train",
        "Meta-train a learned optimizer.",
    ),
    "export": (
        "meta_train.cli.export:export",
        "Export the learned optimizer of a run.",
    ),
    "import": (
        "lopt.cli.import_released:import_released",
        "Import a released optimizer: Celo, Celo2, VeLO, Adafactor-MLP.",
    ),
    "show": ("lopt.cli.show:show", "Show the card of an exported optimizer."),
    "plot": ("meta_train.cli.plot:plot", "Plot the metrics of one or more runs."),
    "runs": ("meta_train.cli.runs:runs", "List runs with their state and losses."),
    "evaluate": (
        "evaluation.cli.evaluate:evaluate",
        "Compare optimizers with tuned baselines on held-out tasks.",
    ),
    "report": (
        "evaluation.cli.report:report",
        "Redraw the report of an evaluation.",
    ),
    "tune": (
        "evaluation.cli.tune:tune",
        "Compare black-box tuners with meta-training on a preset.",
    ),
    "estimators": (
        "meta_train.cli.estimators:estimators",
        "Compare estimators on a preset: bias, variance, cost.",
    ),
    "reproduce": (
        "evaluation.cli.reproduce:reproduce",
        "Reproduce an experiment of the PES paper and check its claim.",
    ),
    "plan": (
        "meta_train.cli.plan:plan",
        "Estimate the resources of a run on a TPU pod.",
    ),
    "data": ("tasks.cli.data:data", "List, prepare and verify datasets."),
    "tasks": (
        "evaluation.cli.tasks:tasks",
        "List tasks, optimizers, estimators and presets.",
    ),
}

_PLUGINS = "lopt"  # group of entry points

# Top-level modules that the extra `train` installs.
_TRAIN_MODULES = {
    *("filelock", "importlib_resources", "matplotlib", "orbax", "PIL", "rich", "scipy"),
    *("sklearn", "tensorflow_datasets", "tyro", "wandb"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `lopt COMMAND ...`.

    Args:
        arguments: Command-line arguments without the program name; `sys.argv[1:]` by
            default.

    Returns:
        The exit code: 2 for a `UserError` or invalid arguments, 130 after Ctrl-C, 141
        if the reader of a pipe has exited, otherwise that of the command.
    """
    open_standard_streams()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141  # As in a shell: 128 plus the number of SIGPIPE.
    except OSError as error:
        complain(f"lopt: output cannot be written ({error.strerror}).")
        code = 1
    else:
        return code
    drop_unwritten(sys.stdout)
    return code


def _run(arguments: Sequence[str]) -> int:
    """Run a command; print a `UserError` and return 2."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    name, *rest = arguments
    try:
        directories, rest = _take_flag("--data-dir", rest)
        files, rest = _take_flag("--code", rest)
        if directories:
            os.environ["LOPT_DATA_DIR"] = directories[-1]
        target, _ = lookup("command", name, COMMANDS)
        tune_cpu_compiler()
        _keep_programs()
        _import_own_code(files)
        module, function = target.split(":")
        return getattr(importlib.import_module(module), function)(rest)
    except SystemExit as ended:  # tyro exits after `--help` and on invalid flags
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        complaint = str(error)
    except BrokenPipeError:
        raise
    except OSError as error:  # such as a full disk
        complaint = one_line(error)
    except ModuleNotFoundError as error:
        if error.name not in _TRAIN_MODULES:
            raise
        complaint = (
            f"the package {error.name} must be installed; it was not found. "
            "Try pip install '.[train]' in a clone of lopt."
        )
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        complaint = (
            f"this machine must have more memory ({one_line(error)}). Try a smaller "
            "task, or fewer of them."
        )
    complain(f"lopt {name}: {complaint}")
    return 2


def _is_out_of_memory(error: Exception) -> bool:
    """Check for Python's own error, and for that of XLA."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def _take_flag(name: str, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Remove a global flag; return its values and the other arguments."""
    values, rest, words = [], [], iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") != name:
            rest.append(word)
            continue
        value = value if equals else next(words, "")
        if not value:
            raise UserError(f"`{flag}` must be followed by a path; got none.")
        values.append(value)
    return values, rest


def _import_own_code(files: Sequence[str]) -> None:
    """Import the plugins of installed packages and the files of `--code`."""
    if not files and not importlib.metadata.entry_points(group=_PLUGINS):
        return  # Most commands start without importing JAX.
    own_code = importlib.import_module("meta_train.config.own_code")
    own_code.import_plugins()
    for file in files:
        own_code.import_file(Path(file))


_CPU_OPTIONS = {
    # Compile while loops with less than 128 KB of state as one function. XLA otherwise
    # dispatches their operations one by one, at about one microsecond each. Updates of
    # the toy problem are twice as fast; larger problems are unaffected.
    "--xla_backend_extra_options": "xla_cpu_small_while_loop_byte_threshold=131072",
    # Level 2 halves the compile time of the default, 3, at equal throughput.
    "--xla_backend_optimization_level": "2",
    # By default, XLA uses 256-bit vectors on CPUs with AVX-512. With 512 bits, steps of
    # learned optimizers on large tensors are 4 to 14 % faster.
    "--xla_cpu_prefer_vector_width": "512",
}


def tune_cpu_compiler() -> None:
    """Add `_CPU_OPTIONS` to `XLA_FLAGS`, except for flags that are already set.

    Must be called before JAX initializes its backends.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    for option, value in _CPU_OPTIONS.items():
        if option not in flags:
            flags = f"{flags} {option}={value}".strip()
    os.environ["XLA_FLAGS"] = flags


def _keep_programs() -> None:
    """Enable JAX's persistent compilation cache, limited to 1 GiB by default.

    `JAX_COMPILATION_CACHE_DIR` and `JAX_COMPILATION_CACHE_MAX_SIZE` take precedence.
    """
    # Without a private directory, commands run without a cache: cached programs are
    # machine code.
    with contextlib.suppress(OSError):
        if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
            folder = cache_folder("programs")
            if folder is None:
                return
            make_private(folder)
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
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
        "`lopt COMMAND --help` lists the flags. Every command takes --data-dir, where",
        "datasets are; LOPT_DATA_DIR by default, or else the directory of TFDS. --code",
        "FILE.py registers the tasks, optimizers and estimators of a file of yours.",
    ]
    return "\n".join(lines)
