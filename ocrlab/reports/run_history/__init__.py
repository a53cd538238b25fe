"""The runs of a folder, all at once: what became of each, in which settings they differ, and what fails again.

fingerprint.py     the name of a failure, the same on every machine
config_reader.py   config.yaml as flat values (with PyYAML)
run_list.py        one folder after the other as a Run
query.py           filters, sorting, the settings that differ, and groups of the same failure

The standard library, and PyYAML where it is installed: five thousand runs are listed in two seconds.
"""

from __future__ import annotations
