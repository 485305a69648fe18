"""Properties of hyperparameter optimization methods, table 3."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, Job, conclude
from evaluation.paper.method_table import COLUMNS, ROWS, entries


@dataclass(frozen=True)
class Methods(Experiment):
    """The entries of the table for every method that the library has."""

    name = "methods"
    figure = "table 3"
    claim = "The methods of the library have the properties in the table."
    shows = "Seventeen methods; parallel, tunes what, online, unbiased."
    differs = (
        "Gradient-based methods are parallel here, as they have populations. The "
        "library lacks SHAC, Freeze-Thaw BO, STN, IFT, HD and MARTHE. Each entry is "
        "proved by the test that PROOFS names, or follows from the definition."
    )
    scales: ClassVar = {"smoke": {}, "small": {}, "paper": {}}
    minutes: ClassVar = {"smoke": 0.1, "small": 0.1, "paper": 0.1}

    @override
    def jobs(self):
        return [
            Job(f"rows/{r.part}", lambda r=r: entries(r.part)) for r in ROWS if r.part
        ]

    @override
    def check(self, results):
        parts, lacking = [], []
        for name, paper, part in ROWS:
            if not part:
                lacking.append(name)
                continue
            known = dict(zip(COLUMNS, (c == "y" for c in paper), strict=True))
            ours = results[f"rows/{part}"]
            other = [c for c in COLUMNS if ours[c] != known[c]]
            text = (
                f"{name} differs in {', '.join(other)}" if other else f"{name} as there"
            )
            parts.append((text, not [c for c in other if c != "parallel"]))
        verdict = conclude(parts)
        return verdict._replace(
            evidence=f"{verdict.evidence} Lacking: {', '.join(lacking)}."
        )

    @override
    def draw(self, results):
        figure, (axis,) = looks.axes(1, size=7.0)
        axis.set_axis_off()
        marks = {True: "yes", False: "no"}
        cells = [
            [marks[results[f"rows/{r.part}"][c]] if r.part else "-" for c in COLUMNS]
            for r in ROWS
        ]
        table = axis.table(
            cells, rowLabels=[r.name for r in ROWS], colLabels=COLUMNS, loc="center"
        )
        table.auto_set_font_size(False)
        table.set_fontsize(8)
        for (row, column), cell in table.get_celld().items():
            if column >= 0 and cell.get_text().get_text() == "yes":
                cell.set_facecolor("#d7ead7")
            cell.set_edgecolor("0.8")
            cell.set_height(0.052 if row else 0.06)
        return figure
