"""The runs of a folder, all at once: what became of each, in which settings they differ, and what fails again.

files.py         a file of a run, opened with suspicion: bounded, no links, no pipes
fingerprint.py   the name of a failure, the same on every machine
settings.py      config.yaml as flat values (with PyYAML)
listing.py       one folder after the other as a Run
choose.py        filters, sorting, and the settings that differ
failures.py      failures of one fingerprint as a group

The standard library, and PyYAML where it is installed: five thousand runs are listed in two seconds.
"""

from __future__ import annotations
