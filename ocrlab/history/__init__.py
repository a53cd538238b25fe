"""The runs of a folder, all at once: what became of each, in which settings they differ, and what fails again.

files.py         a file of a run, opened with suspicion: bounded, no links, no pipes
fingerprint.py   the name of a failure, the same on every machine
settings.py      config.yaml as flat values, thousands a second
listing.py       one folder after the other as a Run
choose.py        filters, sorting, and the settings that differ
failures.py      failures of one fingerprint as a group

Standard library only, and none of it slow to import: five thousand runs are listed in a second.
"""

from __future__ import annotations
