"""The data doctor: what is wrong with a data set, by its numbers, its texts and its pixels."""

from ocrlab.audit.finding import KINDS, SEVERITIES, Finding
from ocrlab.audit.survey import check

__all__ = ["KINDS", "SEVERITIES", "Finding", "check"]
