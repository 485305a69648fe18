"""Entry point of `python -m lopt`."""

import sys

from lopt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
