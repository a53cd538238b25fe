"""The only import that a notebook needs.

lab = notebook.setup(globals())                    checks the parameters; the outcome says INCOMPLETE from here on
lab.show(notebook.training.pages(lab.config))      a section: `training` holds those of 03_train, `crash` of 06_crash
run = lab.run()                                    trains in a watched child, with live progress; the kernel lives
value = lab.run(function, *args)                   the same for any function that can be imported
lab.outcome("hmean@0.5", value, limit=0.85)        judges a number against its limits
lab.finish()                                       says how it ended, and keeps the result

In anybody's notebook, importing this also adds the cell magic %%isolated (see `isolated`).
"""

from __future__ import annotations

import sys

from ocrlab.notebook import (
    compare,
    crash,
    dataloader,
    doctor,
    isolated_magic,
    layers,
    memory,
    page_viewer,
    sanity,
    training,
)
from ocrlab.notebook.isolated_magic import register
from ocrlab.notebook.lab_session import Lab, setup

__all__ = [
    "Lab",
    "compare",
    "crash",
    "dataloader",
    "doctor",
    "layers",
    "memory",
    "page_viewer",
    "register",
    "sanity",
    "setup",
    "training",
]

if "IPython" in sys.modules:
    isolated_magic.register_here()
