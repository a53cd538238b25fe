"""The version of ocrlab, apart: who tells it need not go through the door of the package."""

__version__ = "0.1.0"
