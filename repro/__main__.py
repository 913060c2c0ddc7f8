"""`python -m repro` is the `repro` command, as torchrun needs it."""

import sys

from repro.cli import main

if __name__ == "__main__":
    sys.exit(main())
