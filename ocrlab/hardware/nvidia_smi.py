"""nvidia-smi, which answers where NVML cannot be loaded; only ever called in a child, as it hangs with the driver."""

from __future__ import annotations

import subprocess
import threading
from signal import SIGKILL
from typing import Any

from ocrlab.hardware.nvml import process_name

SECONDS = 10.0
MOST = 1 << 18  # bytes that it may print: of thousands of processes
MIB = 1 << 20
SCALES = {"total": MIB, "used": MIB, "free": MIB, "power": 1000, "power_limit": 1000}  # bytes; milliwatts as NVML's
COLUMNS = {  # nvidia-smi --help-query-gpu
    "name": "name", "uuid": "uuid", "total": "memory.total", "used": "memory.used", "free": "memory.free",
    "utilisation": "utilization.gpu", "temperature": "temperature.gpu", "power": "power.draw",
    "power_limit": "power.limit",
}  # fmt: skip


def run(words: list[str], seconds: float) -> dict[str, Any]:
    """Return {"status", "said"} of nvidia-smi, {"missing"}, {"error"}, or {"hung"} where it had to be killed."""
    try:
        child = subprocess.Popen(
            ["nvidia-smi", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except FileNotFoundError:
        return {"missing": True}
    except OSError as error:
        return {"error": str(error)}
    timer = threading.Timer(seconds, child.kill)
    timer.start()
    with child:
        assert child.stdout is not None, "its output is a pipe"
        output = child.stdout.read(MOST)
        if len(output) == MOST:
            child.kill()
    timer.cancel()
    if child.returncode == -SIGKILL and len(output) < MOST:
        return {"hung": seconds}
    return {"status": child.returncode, "said": output.decode(errors="replace")}


def cards(seconds: float = SECONDS) -> dict[str, Any]:
    """Return the cards as nvidia-smi lists them, in the form of `nvml.cards`, or why it does not."""
    rows = _query(f"--query-gpu={','.join(COLUMNS.values())}", seconds)
    if isinstance(rows, str):
        return {"loaded": False, "error": rows}
    records: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}  # of a card, by its uuid
    for row in rows:
        name, uuid, *texts = row
        numbers[uuid] = len(records)
        figures = zip(list(COLUMNS)[2:], map(_number, texts), strict=True)
        card = {key: int(figure * SCALES.get(key, 1)) for key, figure in figures if figure is not None}
        records.append({"name": name, **card, "processes": []})
    applications = _query("--query-compute-apps=gpu_uuid,pid,used_memory", seconds)
    for uuid, pid, used in applications if isinstance(applications, list) else []:
        number = 0 if len(records) == 1 else numbers.get(uuid)  # in MIG mode the uuid is that of a slice
        if number is not None and pid.isdigit():
            size = int(used) * MIB if used.isdigit() else None
            process = {"pid": int(pid), "bytes": size, "name": process_name(int(pid))}
            records[number]["processes"].append(process)
    return {"loaded": False, "cards": records}


def _query(query: str, seconds: float) -> list[list[str]] | str:
    """Return the rows that answer a query, or the reason why there are none."""
    answer = run([query, "--format=csv,noheader,nounits"], seconds)
    if "hung" in answer:
        return f"nvidia-smi has not answered for {seconds:.0f} s: the driver hangs"
    if "said" not in answer:
        return f"neither libnvidia-ml.so.1 nor nvidia-smi: {answer.get('error', 'not installed')}"
    text = answer["said"].strip()
    if answer["status"] > 0:
        return f"nvidia-smi: {text[:200]}"
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    if any(len(row) != query.count(",") + 1 for row in rows):
        return f"nvidia-smi answers what it was not asked: {text[:60]!r}"
    return rows


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A], [Not Supported]
        return None
