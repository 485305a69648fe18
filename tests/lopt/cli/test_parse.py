"""Help and error texts at 80 columns."""

import itertools
import re
import subprocess
import sys

import pytest

from evaluation.baselines import BASELINES
from evaluation.suites import SUITES
from lopt.cli import output
from lopt.cli.main import COMMANDS, main
from lopt.cli.output import complain

HELP = [
    ["--help"],
    *([name, "--help"] for name in COMMANDS),
    *(["data", name, "--help"] for name in ("list", "prepare", "verify")),
    *([name, "demo", "--help"] for name in ("meta-train", "estimators", "plan")),
    *(["meta-train", "demo", "--optimizer", name, "--help"] for name in ("HyperLSTM",)),
    ["tune", "quadratic-schedule", "--help"],
]


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_help_fits_into_80_columns(arguments, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LOPT_DATA_DIR", "/data")
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    # No line of a help text ends before the first word of the next one would fit.
    boxed = [line[2:-2].rstrip() for line in lines if line.startswith("│")]
    for line, after in itertools.pairwise(boxed):
        indents = [len(x) - len(x.lstrip()) for x in (line, after)]
        is_text = re.search(r"[a-z,]$", line) and re.match(r" +[a-z`]", after)
        if (
            is_text
            and indents[1]
            and indents[0] in (0, indents[1])
            and "--" not in line
        ):
            assert len(line) + 1 + len(after.split()[0]) > 76, f"{line}|{after}"


def test_the_help_of_evaluate_lists_suites_and_baselines(capsys):
    main(["evaluate", "--help"])
    text = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", text) for name in (*SUITES, *BASELINES))


def test_long_errors_are_wrapped_between_words_on_a_terminal(monkeypatch, capsys):
    error = "lopt: " + "word-with-hyphens " * 12 + "/a/path" * 20
    complain(error)
    assert capsys.readouterr().err == f"{error}\n"
    monkeypatch.setattr(output.sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    complain(error)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert " ".join(lines) == error


@pytest.mark.parametrize("command", ["meta-train quadratic-schedule", "evaluate"])
def test_a_reader_may_exit_after_one_line_of_help(command):
    shell = f"{sys.executable} -m lopt {command} --help | head -1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"usage: lopt {command}")
    assert done.stderr == ""
