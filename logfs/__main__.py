"""Entry point of `python -m logfs`, which is the `logfs` command."""

from __future__ import annotations

import sys

from logfs.cli import main

if __name__ == "__main__":
    sys.exit(main())
