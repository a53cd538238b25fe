"""Notebooks: run with parameters, their outcome and results."""
