"""`logfs` with locks that check their order, for the mounts of tests: python -m tests.support.daemon mount -f …

What breaks a rule is in the log of the daemon, which the fixtures of mounts look at.
"""

from __future__ import annotations

import sys

from logfs.cli import main

if __name__ == "__main__":
    sys.exit(main())
