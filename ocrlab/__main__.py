"""`python -m ocrlab` is the command `ocrlab`."""

from __future__ import annotations

import sys

from ocrlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
