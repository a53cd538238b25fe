"""Run one fault in this process, or list them all.

python -m ocrlab.fault_lab --list [--json]
python -m ocrlab.fault_lab NAME [--start-method fork|spawn|forkserver]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing

from ocrlab.fault_lab import FAULTS
from ocrlab.fault_lab.fault import ALL


def main() -> None:
    """Parse the command line and fail."""
    parser = argparse.ArgumentParser(prog="python -m ocrlab.fault_lab", description="Run one program that fails.")
    parser.add_argument("name", nargs="?", choices=sorted(FAULTS), metavar="NAME", help="see --list")
    parser.add_argument(
        "--start-method", choices=ALL, help="how child processes are started (default: Python's default)"
    )
    parser.add_argument("--list", action="store_true", help="list the programs")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    args = parser.parse_args()
    if args.list:
        print(json.dumps([fault.record() for fault in FAULTS.values()], indent=1) if args.json else listing())
    elif args.name is None:
        parser.error("a NAME is needed; --list shows all")
    else:
        if args.start_method:
            multiprocessing.set_start_method(args.start_method)
        FAULTS[args.name].run()


def listing() -> str:
    """Return one line for each fault."""
    rows = ((f.family, f.name, f.ends, (*f.causes, "-")[0], f.does) for f in FAULTS.values())
    return "\n".join(f"{row[0]:<14} {row[1]:<20} {row[2]:<8} {row[3]:<24} {row[4]}" for row in rows)


if __name__ == "__main__":
    main()
