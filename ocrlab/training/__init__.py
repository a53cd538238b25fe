"""Training: `fit.py` runs it, `module.py` wires it, `pages.py` is the path that validation and prediction share."""
