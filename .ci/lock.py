"""Rewrite constraints.txt with the versions that pip resolves for each Python.

    python .ci/lock.py python3.11 python3.12

Creates a fresh venv for each interpreter, installs the project without constraints, and
writes versions only. Where the interpreters differ, each has a line with a marker.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def resolved(python: str) -> tuple[str, dict[str, str]]:
    """Python version of an interpreter, and the versions of the installed packages."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([python, "-m", "venv", directory], check=True)
        inside = f"{directory}/bin/python"
        install = [inside, "-m", "pip", "install", "--quiet", f"{ROOT}[dev]"]
        subprocess.run(install, check=True)
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        version = subprocess.check_output([inside, "-c", ask], text=True).strip()
        freeze = [inside, "-m", "pip", "list", "--format=freeze"]
        lines = subprocess.check_output(freeze, text=True).split()
    versions = dict(line.split("==") for line in lines)
    for name in ("lopt", "pip", "setuptools"):
        versions.pop(name, None)
    return version, versions


def main() -> None:
    """Writes the file."""
    found = [resolved(python) for python in sys.argv[1:]]
    rows = []
    for name in sorted({name for _, versions in found for name in versions}):
        pins = {versions.get(name) for _, versions in found}
        if len(pins) == 1:
            rows.append(f"{name}=={pins.pop()}")
            continue
        # The last interpreter stands for all newer ones.
        for i, (python, versions) in enumerate(found):
            compare = "==" if i < len(found) - 1 else ">="
            if name in versions:
                marker = f'python_version {compare} "{python}"'
                rows.append(f"{name}=={versions[name]} ; {marker}")
    (ROOT / "constraints.txt").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
