"""`ocrlab kernel`: for people who write CUDA kernels: a launch against the device's limits, a profile in words."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path

from ocrlab import safe_read
from ocrlab.cli.parser import NATURAL, Answer, Parser, table
from ocrlab.debug.diagnosis.cuda_kernels import launch_limits, nsight
from ocrlab.errors import ConfigError, DataError
from ocrlab.hardware import nvidia_driver
from ocrlab.hardware.doctor import probe_runner
from ocrlab.records import SCHEMA, Check, Reading, check_record

SECONDS = 20.0  # a first cuInit wakes the device; a driver that needs longer is stuck
EXAMPLES = """
  ocrlab kernel                                                 the limits of the device in this machine
  ocrlab kernel --grid 1000 --block 32,32 --shared 65536        which limit does this launch exceed?
  ocrlab kernel --block 1024 --ptxas build.log --capability 8.6 registers and shared memory from the compiler's output
  ocrlab kernel --ncu profile.csv                               explain Nsight Compute's memory metrics

exit status: 0 = within the limits; 1 = a limit is exceeded; 2 = usage error
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    parser.add_argument("--grid", type=triple, metavar="X,Y,Z", help="grid size in blocks")
    parser.add_argument("--block", type=triple, metavar="X,Y,Z", help="block size in threads")
    parser.add_argument(
        "--shared", type=NATURAL, default=0, metavar="BYTES", help="dynamic shared memory for each block (default: 0)"
    )
    parser.add_argument(
        "--registers", type=NATURAL, default=0, metavar="N", help="registers for each thread (default: unknown)"
    )
    parser.add_argument(
        "--cooperative", action="store_true", help="cooperative launch: all blocks must be resident at once"
    )
    parser.add_argument("--ptxas", type=Path, metavar="FILE", help="check each kernel in the output of nvcc -Xptxas -v")
    parser.add_argument(
        "--capability", metavar="8.6", help="compute capability of another device (default: that of the device here)"
    )
    parser.add_argument(
        "--device", type=NATURAL, default=0, metavar="N", help="device number of the driver (default: 0)"
    )
    parser.add_argument("--ncu", type=Path, metavar="FILE", help="output of ncu --csv --page raw (or details)")


def run(args: argparse.Namespace) -> Answer:
    """Answer with the checks of every kernel, the limits alone, or a profile in words; status 1 for a broken limit."""
    if args.ncu:
        kernels = [(kernel, nsight.describe(kernel)) for kernel in nsight.read(read(args.ncu))]
        record = {"schema": SCHEMA, "kernels": [{**asdict(kernel), "words": lines} for kernel, lines in kernels]}
        return Answer(record, "\n".join("\n  ".join([kernel.kernel, *lines]) for kernel, lines in kernels))
    build = read(args.ptxas) if args.ptxas else ""
    if args.capability:
        limits = launch_limits.of_capability(args.capability)
    else:
        reading = device_limits(args.device)
        if reading.missing:
            do = "Name the compute capability of the device that is meant: --capability 8.6"
            raise ConfigError("The limits of the device are unknown", got=reading.missing, need="a CUDA driver", do=do)
        limits = launch_limits.of_device(reading.value)
    if not (args.grid or args.block or args.ptxas or args.shared or args.registers):
        rows = [(name.replace("_", " "), value) for name, value in asdict(limits).items() if value is not None]
        return Answer({"schema": SCHEMA, "limits": asdict(limits)}, table(rows))
    grid, block = args.grid or (1, 1, 1), args.block or (1, 1, 1)
    launch = launch_limits.Launch(grid, block, args.registers, 0, args.shared, args.cooperative)
    checked = {} if args.ptxas else {"launch": launch_limits.check(launch, limits)}
    for kernel in launch_limits.parse(build):
        compiled = replace(launch, registers=kernel.registers, static_shared=kernel.static_shared)
        checked[kernel.name] = launch_limits.check(compiled, limits)
        if spilled := kernel.spill_stores + kernel.spill_loads:
            usage = f"{spilled} bytes of registers live in local memory"
            checked[kernel.name].append(Check("spills", "warn", usage, "0", "Allow more registers"))
    if not checked:
        raise DataError(f"{args.ptxas} contains no kernel", need="what nvcc -Xptxas -v prints on stderr")
    failed = any(check.judgement == "fail" for checks in checked.values() for check in checks)
    parts = []
    for name, checks in checked.items():
        listed = table([(check.judgement, check.name, check.observed, check.need) for check in checks])
        advice = dict.fromkeys(check.do for check in checks if check.judgement in ("warn", "fail") and check.do)
        head = f"{name} (compute capability {limits.capability})"
        parts.append("\n".join([head, listed, *(f"  -> {do}" for do in advice)]))
    record = {name: [check_record(check) for check in checks] for name, checks in checked.items()}
    return Answer({"schema": SCHEMA, "limits": asdict(limits), "kernels": record}, "\n\n".join(parts), int(failed))


def device_limits(device: int = 0, seconds: float = SECONDS) -> Reading:
    """Return the limits of a device by the names of `launch_limits.Limits`, or why the driver does not give them.

    They are asked for in a child, because cuInit may hang or kill.
    """
    probe = Path(nvidia_driver.__file__)
    ran = probe_runner.run(sys.executable, probe, "limits", {"device": device}, deadline=seconds, own=True)
    answer = ran.answer
    if ran.ended == "deadline":
        return Reading("device_limits", missing=f"the driver gave no answer within {seconds:g} s")
    if "capability" not in answer:
        why = answer.get("raised", {}).get("message") or ran.errors or f"the child ended with {ran.signal or ran.code}"
        return Reading("device_limits", missing=why)
    return Reading("device_limits", {**answer, "block": tuple(answer["block"]), "grid": tuple(answer["grid"])})


def read(path: Path) -> str:
    """Return the text of a file; raises DataError."""
    try:
        return safe_read.read_text(path)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        raise DataError(f"{path} cannot be read", got=error.strerror, missing=gone) from error


def triple(text: str) -> tuple[int, int, int]:
    """Return `X`, `X,Y` or `X,Y,Z` as three numbers; raises argparse.ArgumentTypeError."""
    numbers = [NATURAL(word.strip()) for word in text.strip("()").split(",")]
    if len(numbers) > 3:
        raise argparse.ArgumentTypeError(f"{text!r} has more than three dimensions")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z
