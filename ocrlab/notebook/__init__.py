"""The only import that a notebook needs.

lab = notebook.setup(globals())                    checks the parameters; the outcome says INCOMPLETE from here on
lab.show(notebook.training.pages(lab.config))      a section: `training` holds those of 03_train
run = lab.run()                                    trains, with live progress
lab.outcome("hmean@0.5", value, limit=0.85)        judges a number against its limits
lab.finish()                                       says how it ended, and keeps the result
"""

from __future__ import annotations

from ocrlab.notebook import training
from ocrlab.notebook.lab import Lab, setup

__all__ = ["Lab", "setup", "training"]
