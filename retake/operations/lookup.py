"""Find a run by what a person types: the id of a run or of a generation, or the beginning of one."""

import re
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple, TypeVar

from retake.errors import RunError
from retake.operations.pipelines import Listings, Operations
from retake.operations.port import OperatedPipeline
from retake.operations.run_pages import MAX_SEARCHED, search
from retake.runs import Ledger
from retake.runs.listing import RunsWanted, open_listing
from retake.runs.run import Run, UnknownRun, is_run_id

PREFIX = "run-"
"""The beginning of every run id."""

SHORT_ID_LENGTH = 14
"""Characters of a run id shown in tables, enough for `show` and `report` to find the run."""

_BEGINNING = re.compile(r"run-[0-9a-f]{0,16}")
_T = TypeVar("_T")

_MAX_NAMED = 10  # candidates listed for an ambiguous id


class Found(NamedTuple):
    """The run that was meant, or all runs of a generation by attempt."""

    pipeline: OperatedPipeline
    ledger: Ledger
    runs: list[Run]

    @property
    def task_id(self) -> str:
        return self.runs[-1].task_id

    @property
    def item_id(self) -> str:
        """The task id without the channel."""
        return self.task_id.rpartition("/")[2]


def find(operations: Operations, text: str, listings: Callable[[], Listings] | None = None) -> Found:
    """Return the run or generation whose id is `text` or begins with it. `listings` returns those of `operations`, if
    they have been read already. Raises UnknownRun; RunError if there are several."""
    if text.startswith(PREFIX):
        found = _runs_called(operations, text)
    else:
        found = _runs_of_generation(operations, text) or _generations_beginning(
            operations, text, listings or operations.listings
        )
    if not found:
        raise UnknownRun(f"there is no run and no generation {text!r} on record; `runs` lists the last ones")
    if len(found) > 1:
        ids = sorted(it.runs[0].run_id if text.startswith(PREFIX) else it.task_id for it in found)
        named = ", ".join(ids[:_MAX_NAMED])
        raise RunError(f"{text!r} may mean several: {named}; write more of the id, or name the --channel")
    return found[0]


def _runs_of_generation(operations: Operations, text: str) -> list[Found]:
    """Find a generation by its id in the channel ("20260101-0930") or in the ledger ("CHANNEL/20260101-0930")."""
    called = _in_each_ledger(operations, lambda it, ledger: Found(it, ledger, ledger.of_task(text)))
    by_ledger = {operations.ledger_name(it.pipeline): it for it in called}

    def in_channel(pipeline: OperatedPipeline) -> Found:
        _, ledger, short = by_ledger[operations.ledger_name(pipeline)]
        longer = ledger.of_task(f"{pipeline.channel}/{text}") if pipeline.channel else []
        every = sorted([*short, *longer], key=lambda run: run.task_id)
        return Found(pipeline, ledger, [run for run in every if run.pipeline in ("", pipeline.name)])

    found = [it for it in operations.each(in_channel) if it.runs]
    return found or [it for it in called if it.runs]  # a task of another pipeline on the same ledger


def _in_each_ledger(operations: Operations, look: Callable[[OperatedPipeline, Ledger], _T]) -> list[_T]:
    """Return what `look` finds in each ledger, given the first of the pipelines that write to it."""
    ledgers = operations.ledgers()  # opened here, rather than in each thread
    of = {pipeline.name: ledger for pipeline, ledger in ledgers}
    return operations.each(lambda it: look(it, of[it.name]), [pipeline for pipeline, _ in ledgers])


def _generations_beginning(operations: Operations, text: str, listings: Callable[[], Listings]) -> list[Found]:
    """Find generations whose id, or CHANNEL/id, begins with `text`, including those of other pipelines unless one was
    named."""
    if not text.strip():
        return []
    wanted = RunsWanted(pipeline=operations.pipelines[0].name if operations.named else None)
    searched = search(listings(), wanted, text).runs
    tasks = {(it.name, run.task_id, run.pipeline): it for it, run in searched if _begins(run.task_id, text)}
    found = []
    for (_, task_id, name), writer in islice(tasks.items(), _MAX_NAMED):
        ledger = operations.ledger(writer)
        found.append(Found(_pipeline_named(operations, name, writer), ledger, ledger.of_task(task_id)))
    return found


def _begins(task_id: str, text: str) -> bool:
    return task_id.startswith(text) or ("/" not in text and task_id.rpartition("/")[2].startswith(text))


def _runs_called(operations: Operations, text: str) -> list[Found]:
    def look(writer: OperatedPipeline, ledger: Ledger) -> list[Found]:
        try:
            runs = [ledger.get(text)]
        except UnknownRun:
            # A complete id is looked up, the beginning of one is searched.
            runs = [] if is_run_id(text) else _beginning(operations, writer, ledger, text)
        return [Found(_pipeline_named(operations, run.pipeline, writer), ledger, [run]) for run in runs]

    return [it for found in _in_each_ledger(operations, look) for it in found]


def _beginning(operations: Operations, pipeline: OperatedPipeline, ledger: Ledger, text: str) -> list[Run]:
    """Return the runs whose id begins with `text`. In a bucket the keys are enough; a database is searched."""
    if operations.ledger_url(pipeline) is None:
        if not _BEGINNING.fullmatch(text):
            return []
        names = [entry.key for entry in pipeline.bucket.list(f"runs/{text}")]
        ids = [name.removeprefix("runs/").removesuffix(".json") for name in names]
        return [ledger.get(run_id) for run_id in [it for it in ids if is_run_id(it)][:_MAX_NAMED]]
    listing = open_listing(operations.ledger_url(pipeline), pipeline.bucket, operations.ledger_setting(pipeline))
    named = listing.named(RunsWanted(), text, MAX_SEARCHED)
    return listing.runs([run_id for run_id in named if run_id.startswith(text)][:_MAX_NAMED])


def _pipeline_named(operations: Operations, name: str, other: OperatedPipeline) -> OperatedPipeline:
    return next((it for it in operations.pipelines if it.name == name), other)
