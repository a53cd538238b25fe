"""The one run folder of all ranks: rank 0 makes it, and its status file names the rank that failed first."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ocrlab import run_folder
from ocrlab.errors import RunError
from ocrlab.run_folder import watcher_link
from ocrlab.run_folder.exception_record import describe
from ocrlab.run_folder.launcher import RankRecord, Ranks, brief, others_word, secondary
from ocrlab.run_folder.owner_process import signals_exit
from ocrlab.training.distributed.collectives import about_rank, broadcast, gather

VISIBLE_WITHIN = 20.0  # seconds until a file that rank 0 has made must be seen on every machine


@contextlib.contextmanager
def open_shared(member: RankRecord, runs: str, slug: str, again: Path | None) -> Iterator[run_folder.RunFolder]:
    """Open the one run folder of all ranks: rank 0 makes and closes it, the others get its path."""
    ranks = member.ranks
    if not ranks.several:
        with run_folder.run(runs, slug, again=again) as folder:
            watcher_link.report_run(folder.path)
            yield folder
        return
    with contextlib.ExitStack() as stack:
        place: dict[str, str] = {}
        if ranks.first:
            try:
                folder = stack.enter_context(run_folder.run(runs, slug, again=again))
                place = {"path": str(folder.path), "started": folder.started}
                watcher_link.report_run(folder.path)
            except Exception as error:
                broadcast(ranks, {"error": brief(error)})
                raise
        place = broadcast(ranks, place)
        if "error" in place:
            raise about_rank(0, RunError("Rank 0 has no run folder", got=place["error"]))
        if not ranks.first:
            stack.enter_context(signals_exit())
            folder = run_folder.RunFolder(Path(place["path"]), place["started"])
        _check_visible(ranks, folder)
        member.keep(folder.flight)
        try:
            yield folder
        except (Exception, SystemExit) as error:
            cause = _first_cause(error, folder, ranks)
            if cause is error:
                raise
            raise cause from error


def _check_visible(ranks: Ranks, folder: run_folder.RunFolder) -> None:
    """Raise RunError on every rank where one of them cannot use the run folder; a network's folders take a moment."""
    end, status = time.monotonic() + VISIBLE_WITHIN, folder.path / ".RUNNING"
    while not status.exists() and time.monotonic() < end:
        time.sleep(0.1)
    why = "it cannot be written" if not os.access(folder.flight, os.W_OK) else ""
    problems = gather(ranks, (why if status.exists() else "it is not there", os.uname().nodename))
    for rank, (problem, host) in enumerate(problems):
        if problem:
            error = RunError(
                f"Rank {rank} on {host} cannot use the run folder of rank 0",
                got=f"{folder.path}: {problem}",
                need="a folder that all machines share",
                do="Choose one with runs=DIR",
            )
            raise about_rank(rank, error)


def _first_cause(error: BaseException, folder: run_folder.RunFolder, ranks: Ranks) -> BaseException:
    """Return the error of the rank that failed first, where this one has only lost its connection to it.

    A launcher may have ended this one meanwhile, as it ends all when one has failed.
    """
    stopped = isinstance(error, SystemExit)
    if not stopped and not secondary(describe(error)):
        return error
    word = others_word(folder.flight, ranks.rank)
    if stopped and not word:
        return error
    lost = f"Rank {ranks.rank} was ended by another one: the connection to another rank broke"
    if word:
        return RunError(lost, got=word)
    line = str(error).partition("\n")[0].partition(". This is typically")[0]
    return RunError(lost, got=line, do="A rank without a report was killed or ended by itself; the launcher names it")
