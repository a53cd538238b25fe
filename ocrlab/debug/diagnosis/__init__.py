"""From what a failure left behind to a verdict: causes in order, each with its evidence; standard library only.

read.py          a log, run folder, notebook or stdin becomes an Incident
window.py        of a huge log the head, the tail and its first errors
log.py           text becomes numbered lines without terminal noise
catalogue.py     what is known of each cause, from catalogue.toml
oom.py           the numbers inside an out-of-memory message
smi.py           a pasted nvidia-smi table
versions.py      a GPU generation against the CUDA that a wheel was built for
exits.py         exit codes and signals, measured or written in a log
kernel_lines.py  lines of the kernel log, and whose they are
evidence.py      everything in the texts that speaks for a cause, with its place
facts.py         what was measured from outside
stacks.py        stacks, read by hang.py and its parts (spots, hang_loader, hang_locks, hang_ranks, stacktext)
classify.py      the first cause in time; follow-ups and wrappers ruled out
verdict.py       the verdict in words and on disk
launch.py, ptxas.py, nsight.py   for people who write kernels: launch limits, registers, memory transactions
"""

from __future__ import annotations
