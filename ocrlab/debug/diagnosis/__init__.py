"""From what a failure left behind to a verdict: causes in order, each with its evidence; standard library only.

load_input.py         a log, run folder, notebook or stdin becomes an Incident
log_text.py           text becomes numbered lines without terminal noise; of a huge log an excerpt
log_records.py        these lines become typed records: exceptions with frames and chain, stacks, notebook cells
catalogue.py          the causes, from catalogue.toml; the levels of evidence
evidence.py           every line and every measured fact that supports a cause
oom_message.py        the numbers inside an out-of-memory message and an nvidia-smi table
cuda_compatibility.py a GPU generation against the CUDA that a wheel was built for
final_exception.py    the exception that ended a program, and what it makes irrelevant
hidden_errors.py      the first error of a program that hid it
confidence_caps.py    messages that need more context
first_failed_rank.py  of several ranks the one that failed first
hangs/                stacks, and why a program stands still
classify.py           one ranking of the causes; consequences and wrappers are ruled out
failure_place.py      module, operator and frame of a failure
next_steps.py         what is missing, and which experiment is left
verdict_files.py      the verdict in words and on disk
cuda_kernels/         for people who write kernels: launch limits, registers, memory transactions
"""

from __future__ import annotations
