"""Finding a run by what a person types: the id of a run or of a generation, or the beginning of one."""

from typing import NamedTuple

from retake.errors import RunError
from retake.operations.pipelines import Operations
from retake.operations.port import OperatedPipeline
from retake.runs import Ledger
from retake.runs.run import Run, UnknownRun

PREFIX = "run-"
"""What the id of each run begins with."""

SHOWN = 14
"""So much of a run's id is shown in tables: enough for `show` and `report` to find it."""

_SEARCHED = 100_000
_NAMED = 10  # of several that an id's beginning may mean


class Found(NamedTuple):
    """What was meant: one run, or all runs of a generation, by attempt."""

    pipeline: OperatedPipeline
    ledger: Ledger
    runs: list[Run]

    @property
    def task_id(self) -> str:
        return self.runs[-1].task_id

    @property
    def item_id(self) -> str:
        """The task without the name of its channel."""
        return self.task_id.rpartition("/")[2]


def find(operations: Operations, text: str) -> Found:
    """Return the run or the generation called that, or beginning like that. Raises UnknownRun, RunError for several."""
    found = _runs_called(operations, text) if text.startswith(PREFIX) else _runs_of_generation(operations, text)
    if not found:
        raise UnknownRun(f"there is no run and no generation {text!r} on record; `runs` lists the last ones")
    if len(found) > 1:
        named = ", ".join(sorted(it.runs[0].run_id if text.startswith(PREFIX) else it.task_id for it in found)[:_NAMED])
        raise RunError(f"{text!r} may mean several: {named}; write more of the id, or name the --channel")
    return found[0]


def _runs_of_generation(operations: Operations, text: str) -> list[Found]:
    """The generation as its channel calls it ("20260101-0930"), or as the ledger does ("CHANNEL/20260101-0930")."""
    found = []
    for pipeline in operations.pipelines:
        ledger = operations.ledger(pipeline)
        names = {text, f"{pipeline.channel}/{text}"} if pipeline.channel else {text}
        runs = [run for name in sorted(names) for run in ledger.of_task(name) if run.pipeline in ("", pipeline.name)]
        if runs:
            found.append(Found(pipeline, ledger, runs))
    return found or _runs_of_task(operations, text) or _generations_beginning(operations, text)


def _runs_of_task(operations: Operations, text: str) -> list[Found]:
    """A task of another pipeline on the same ledger."""
    found = ((pipeline, ledger, ledger.of_task(text)) for pipeline, ledger in operations.ledgers())
    return [Found(pipeline, ledger, runs) for pipeline, ledger, runs in found if runs]


def _generations_beginning(operations: Operations, text: str) -> list[Found]:
    """The generations whose id begins like that, or channel and id; those of other pipelines too."""
    if not text.strip():
        return []
    found = []
    for pipeline, ledger in operations.ledgers():
        runs = ledger.runs(limit=_SEARCHED_IN_BUCKET if operations.ledger_url(pipeline) is None else _SEARCHED)
        tasks = dict.fromkeys((run.task_id, run.pipeline) for run in runs if _begins(run.task_id, text))
        for task_id, name in [*tasks][:_NAMED]:
            of_it = _pipeline_named(operations, name, pipeline)
            if not operations.named or of_it.name == name:
                found.append(Found(of_it, ledger, ledger.of_task(task_id)))
    return found


def _begins(task_id: str, text: str) -> bool:
    return task_id.startswith(text) or ("/" not in text and task_id.rpartition("/")[2].startswith(text))


_SEARCHED_IN_BUCKET = 500  # of its last runs, each of which is a document to be read


def _runs_called(operations: Operations, text: str) -> list[Found]:
    found = []
    for pipeline, ledger in operations.ledgers():
        try:
            runs = [ledger.get(text)]
        except UnknownRun:
            runs = _beginning(operations, pipeline, ledger, text)
        found += [Found(_pipeline_named(operations, run.pipeline, pipeline), ledger, [run]) for run in runs]
    return found


def _beginning(operations: Operations, pipeline: OperatedPipeline, ledger: Ledger, text: str) -> list[Run]:
    """The runs whose id begins like that. In a bucket their names tell; a database is asked for all it has."""
    if operations.ledger_url(pipeline) is None:
        if not text.isascii() or "/" in text or "\\" in text:
            return []
        names = [entry.key for entry in pipeline.bucket.list(f"runs/{text}")]
        ids = [name.removeprefix("runs/").removesuffix(".json") for name in names]
        return [ledger.get(run_id) for run_id in ids[:_NAMED]]
    return [run for run in ledger.runs(limit=_SEARCHED) if run.run_id.startswith(text)][:_NAMED]


def _pipeline_named(operations: Operations, name: str, other: OperatedPipeline) -> OperatedPipeline:
    return next((it for it in operations.pipelines if it.name == name), other)
