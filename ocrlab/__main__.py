"""`python -m ocrlab` is the command `ocrlab`."""

from __future__ import annotations

import os
import sys

LIBRARY = os.path.dirname(os.__file__)
# Python searches the working folder and PYTHONPATH first: a random.py there would end even the doctor.
sys.path.sort(key=lambda place: place not in (LIBRARY, os.path.join(LIBRARY, "lib-dynload")))

from ocrlab.cli import main  # noqa: E402 - only now can it be imported

if __name__ == "__main__":
    sys.exit(main())
