"""From what a failure left behind to a verdict: causes in order, each with its evidence; standard library only.

load_input.py         a log, run folder, notebook or stdin becomes an Incident
log_excerpt.py        of a huge log the head, the tail and its first errors
log_lines.py          text becomes numbered lines without terminal noise
catalogue.py          what is known of each cause, from catalogue.toml
oom_message.py        the numbers inside an out-of-memory message
nvidia_smi.py         a pasted nvidia-smi table
cuda_compatibility.py a GPU generation against the CUDA that a wheel was built for
exit_codes.py         exit codes and signals, measured or written in a log
kernel_log_lines.py   lines of the Linux kernel log, and whose they are
evidence.py           everything in the texts that supports a cause, with its place
measured_facts.py     what was measured from outside
hangs/                stacks, and why a program stands still
classify.py           the first cause in time; follow-ups and wrappers ruled out
verdict_files.py      the verdict in words and on disk
cuda_kernels/         for people who write kernels: launch limits, registers, memory transactions
"""

from __future__ import annotations
