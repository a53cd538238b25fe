"""From what a failure left behind to a verdict: causes in order, each with its evidence; standard library only.

    read.py       a log, run folder, notebook or stdin becomes an Incident
    log.py        text becomes numbered lines without terminal noise
    catalogue.py  what is known of each cause, from catalogue.toml
    oom.py        the numbers inside an out-of-memory message
    versions.py   a GPU generation against the CUDA that a wheel was built for
    exits.py      exit codes and signals, measured or written in a log
    evidence.py   everything that speaks for a cause, with its place
    classify.py   the first cause in time, follow-ups and wrappers ruled out
    verdict.py    the verdict in words and on disk
"""

from __future__ import annotations
