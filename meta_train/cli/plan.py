"""Command line of `lopt plan`: memory and time estimates for a TPU pod."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Table

from lopt.errors import UserError
from meta_train.cli.preset import parse_preset

if TYPE_CHECKING:
    from meta_train.analysis.resource_plan import Chip, Resources

SCHEMA = 1


@dataclass(frozen=True)
class _PlanOptions:
    topology: str = "v5e:4x4"
    """TPU topology: generation and shape."""
    num_pairs: int | None = None
    """Population size over all devices; 4 per device by default."""
    platform: Literal["tpu", "cpu"] = "tpu"
    """Compile for the TPU topology, or for this machine, where the estimate is compared
    with a measurement."""
    out: Path | None = None
    """Output directory of figure and JSON file; runs/plan/PRESET by default."""


def plan(arguments: Sequence[str]) -> int:
    """Run `lopt plan PRESET --topology v5e:16x16 [--num-pairs N]`."""
    name, config, options = parse_preset(
        "plan",
        arguments,
        _PlanOptions,
        "Compile the step of a preset for a TPU pod, and report its resources.\n\n"
        "No TPU is needed. The extra `tpu` installs the compiler.",
    )
    # Do not search for accelerators: planning runs on the host.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    from meta_train.analysis import resource_plan as planning
    from meta_train.runtime.progress import ProgressReport
    from meta_train.runtime.run_directory import check_writable

    is_tpu = options.platform == "tpu"
    generation = options.topology.partition(":")[0]
    devices = planning.tpu_devices(options.topology) if is_tpu else jax.devices()
    num_pairs = options.num_pairs or 4 * len(devices)
    if num_pairs < 1:
        raise UserError(f"--num-pairs must be at least 1; got {num_pairs}. Try 64.")
    out = options.out or Path("runs/plan") / name
    check_writable(out, flag="--out")
    config = replace(config, estimator=config.estimator.resized(num_pairs))
    trainer = config.make_trainer()
    with ProgressReport("planning", 3) as progress:
        progress.note("loading and compiling")
        data = trainer.load()
        progress.advance("loaded")
        need = planning.estimate_resources(trainer, data, devices)
        progress.advance("compiled")
        chip = (
            planning.CHIPS[generation] if is_tpu else planning.local_chip(need.memory)
        )
        measured = None if is_tpu else planning.measure(trainer, data)
        progress.advance("estimated")
    where = options.topology if is_tpu else "this machine"
    console = progress.console
    console.print(_table(need, chip, where, measured))
    console.print(_scaling_table(need, chip), "")
    progress.say(f"Assumed: {planning.ASSUMPTIONS[options.platform]}.")
    if need.memory > chip.memory:
        progress.say(
            f"It does not fit. Try --num-pairs {need.largest_population(chip)}."
        )
    _write(out, name, where, need, chip, measured)
    progress.say(f"Figure and numbers: {out / 'plan.png'}, {out / 'plan.json'}")
    return 0


def _table(
    need: "Resources", chip: "Chip", where: str, measured: float | None
) -> Table:
    table = Table(title=f"One outer update on {where}", box=None, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    own = need.population // need.num_devices
    rows = {
        "devices": f"{need.num_devices:,}",
        "pairs": f"{need.population:,}, {own:,} on each",
        "memory of a device": f"{_bytes(need.memory)}, "
        f"{need.memory / chip.memory:.1%} of {_bytes(chip.memory)}",
        "  population": _bytes(need.members),
        "  data, theta and so on": _bytes(need.arguments - need.members),
        "  temporaries": _bytes(need.temporaries),
        "work of a device": f"{need.work.flops / 1e9:.3g} GFLOP, "
        f"{need.work.products / max(need.work.flops, 1.0):.0%} in products",
        "  moved": _bytes(need.work.moved),
        "  operations": f"{need.work.operations:,.0f}",
        "exchanged": _exchanged(need),
        "estimated time": f"{1e3 * need.seconds(chip):.3g} ms",
        "largest population": f"{need.largest_population(chip):,} pairs",
    }
    if measured is not None:
        ratio = need.seconds(chip) / measured
        rows["measured time"] = f"{1e3 * measured:.3g} ms, estimate / this {ratio:.2f}"
    for label, value in rows.items():
        table.add_row(label, value)
    return table


def _exchanged(need: "Resources") -> str:
    if not need.collectives:
        return "nothing"
    return ", ".join(
        f"{c.operation} of {_bytes(c.num_bytes)}" for c in need.collectives
    )


def _sizes(need: "Resources") -> list[int]:
    sizes = [1]
    while sizes[-1] * 4 < need.num_devices:
        sizes.append(sizes[-1] * 4)
    return list(dict.fromkeys([*sizes, need.num_devices]))


def _scaling_table(need: "Resources", chip: "Chip") -> Table:
    table = Table(title="As many pairs on each device, on more devices", box=None)
    for name in ("devices", "pairs", "ms", "pairs / s", "efficiency"):
        table.add_column(name, justify="right")
    own, alone = need.population // need.num_devices, need.seconds(chip, 1)
    for num in _sizes(need):
        seconds = need.seconds(chip, num)
        table.add_row(
            f"{num:,}",
            f"{own * num:,}",
            f"{1e3 * seconds:.3g}",
            f"{own * num / seconds:,.0f}",
            f"{alone / seconds:.0%}",
        )
    return table


def _write(
    out: Path,
    name: str,
    where: str,
    need: "Resources",
    chip: "Chip",
    measured: float | None,
) -> None:
    from matplotlib.figure import Figure

    sizes = _sizes(need)
    own = need.population // need.num_devices
    rates = [own * n / need.seconds(chip, n) for n in sizes]
    content = {
        "schema": SCHEMA,
        "preset": name,
        "where": where,
        **need._asdict(),
        "work": need.work._asdict(),
        "collectives": [c._asdict() for c in need.collectives],
        "chip": chip._asdict(),
        "seconds": need.seconds(chip),
        "measured_seconds": measured,
        "largest_population": need.largest_population(chip),
        "scaling": dict(zip(sizes, rates, strict=True)),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "plan.json").write_text(json.dumps(content, indent=1) + "\n")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    axis.plot(sizes, [rates[0] * n for n in sizes], "--", color="0.6", label="linear")
    axis.plot(sizes, rates, "o-", color="C0", label=f"{own} pairs on each device")
    axis.set(xscale="log", yscale="log", xlabel="devices", ylabel="pairs per second")
    axis.set_title(f"{name} on {where}, estimated")
    axis.legend(frameon=False)
    figure.savefig(out / "plan.png", dpi=120)


def _bytes(num: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if num < 1_000 or unit == "GB":
            break
        num /= 1_000
    return f"{num:.3g} {unit}"
