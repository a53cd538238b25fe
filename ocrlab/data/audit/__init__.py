"""The data doctor: what is wrong with a data set, by its numbers, its texts and its pixels."""

from ocrlab.data.audit.audit_job import check
from ocrlab.data.audit.finding import KINDS, SEVERITIES, Finding

__all__ = ["KINDS", "SEVERITIES", "Finding", "check"]
