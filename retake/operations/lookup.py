"""Finding a run by what a person types: the id of a run or of a generation, or the beginning of one."""

from typing import NamedTuple

from retake.console.command_context import CommandContext, Pipeline
from retake.errors import RunError
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

    pipeline: Pipeline
    ledger: Ledger
    runs: list[Run]

    @property
    def task_id(self) -> str:
        return self.runs[-1].task_id

    @property
    def generation_id(self) -> str:
        """The task, without the channel's name in front."""
        return self.task_id.rpartition("/")[2]


def find(desk: CommandContext, text: str) -> Found:
    """Raises RunError: nothing is called that, or several are."""
    found = _runs_called(desk, text) if text.startswith(PREFIX) else _runs_of_generation(desk, text)
    if not found:
        raise UnknownRun(f"there is no run and no generation {text!r} on record; `runs` lists the last ones")
    if len(found) > 1:
        named = ", ".join(sorted(it.runs[0].run_id if text.startswith(PREFIX) else it.task_id for it in found)[:_NAMED])
        raise RunError(f"{text!r} may mean several: {named}; write more of the id, or name the --channel")
    return found[0]


def ledgers(desk: CommandContext) -> list[tuple[Pipeline, Ledger]]:
    """Each ledger there is, with the first of the pipelines that write to it: one for all, or one in each channel's
    part of the bucket."""
    found: list[tuple[Pipeline, Ledger]] = []
    for pipeline in desk.pipelines:
        ledger = desk.ledger(pipeline)
        if not found or found[-1][1] is not ledger:
            found.append((pipeline, ledger))
    return found


def _runs_of_generation(desk: CommandContext, text: str) -> list[Found]:
    """The generation as its channel calls it («20260101-0930»), or as the ledger does («CHANNEL/20260101-0930»)."""
    found = []
    for pipeline in desk.pipelines:
        ledger = desk.ledger(pipeline)
        names = {text, f"{pipeline.channel}/{text}"} if pipeline.channel else {text}
        runs = [run for name in sorted(names) for run in ledger.of_task(name) if run.pipeline in ("", pipeline.name)]
        if runs:
            found.append(Found(pipeline, ledger, runs))
    return found or _runs_of_task(desk, text) or _generations_beginning(desk, text)


def _runs_of_task(desk: CommandContext, text: str) -> list[Found]:
    """A task of another pipeline on the same ledger."""
    found = ((pipeline, ledger, ledger.of_task(text)) for pipeline, ledger in ledgers(desk))
    return [Found(pipeline, ledger, runs) for pipeline, ledger, runs in found if runs]


def _generations_beginning(desk: CommandContext, text: str) -> list[Found]:
    """The generations whose id begins like that, or channel and id; those of other pipelines too."""
    if not text.strip():
        return []
    found = []
    for pipeline, ledger in ledgers(desk):
        runs = ledger.runs(limit=_SEARCHED_IN_BUCKET if desk.settings.storage.ledger is None else _SEARCHED)
        tasks = dict.fromkeys((run.task_id, run.pipeline) for run in runs if _begins(run.task_id, text))
        for task_id, name in [*tasks][:_NAMED]:
            of_it = _pipeline_named(desk, name, pipeline)
            if desk.channel is None or of_it.name == name:
                found.append(Found(of_it, ledger, ledger.of_task(task_id)))
    return found


def _begins(task_id: str, text: str) -> bool:
    return task_id.startswith(text) or ("/" not in text and task_id.rpartition("/")[2].startswith(text))


_SEARCHED_IN_BUCKET = 500  # of its last runs, each of which is a document to be read


def _runs_called(desk: CommandContext, text: str) -> list[Found]:
    found = []
    for pipeline, ledger in ledgers(desk):
        try:
            runs = [ledger.get(text)]
        except UnknownRun:
            runs = _beginning(desk, pipeline, ledger, text)
        found += [Found(_pipeline_of(desk, run, pipeline), ledger, [run]) for run in runs]
    return found


def _beginning(desk: CommandContext, pipeline: Pipeline, ledger: Ledger, text: str) -> list[Run]:
    """The runs whose id begins like that. In a bucket their names tell; a database is asked for all it has."""
    if desk.settings.storage.ledger is None:
        if not text.isascii() or "/" in text or "\\" in text:
            return []
        names = [entry.key for entry in pipeline.bucket.list(f"runs/{text}")]
        ids = [name.removeprefix("runs/").removesuffix(".json") for name in names]
        return [ledger.get(run_id) for run_id in ids[:_NAMED]]
    return [run for run in ledger.runs(limit=_SEARCHED) if run.run_id.startswith(text)][:_NAMED]


def _pipeline_of(desk: CommandContext, run: Run, other: Pipeline) -> Pipeline:
    return _pipeline_named(desk, run.pipeline, other)


def _pipeline_named(desk: CommandContext, name: str, other: Pipeline) -> Pipeline:
    return next((it for it in desk.pipelines if it.name == name), other)
