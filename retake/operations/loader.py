"""Loads the pipelines of your own named in the setting PIPELINES, for the console and the dashboard."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from functools import partial, reduce
from typing import Any, NoReturn, cast

from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import RetakeError, SettingsError, StateError
from retake.operations.finding import Finding, of_error
from retake.operations.foreign_calls import PipelineFault, cause_of
from retake.operations.guarded_pipeline import GuardedPipeline
from retake.operations.own_pipeline import OwnPipeline
from retake.operations.pipelines import Terms
from retake.operations.port import ItemOrder, OperatedPipeline, OrderPlan, PaidWork, PipelineState, Present
from retake.operations.read_limit import read_within
from retake.paid.caps import Today

_MEMBERS = sorted({*OperatedPipeline.__annotations__, *(it for it in vars(OperatedPipeline) if not it.startswith("_"))})


class PipelineNotLoaded(SettingsError):
    """A pipeline that PIPELINES names cannot be loaded."""


def load_pipeline(name: str, target: str, bucket: Bucket, clock: Clock) -> OperatedPipeline:
    """Import `target` ("MODULE:ATTRIBUTE"), call it with the whole bucket and the clock, and return the result.

    Modules in the current directory can be imported as well as installed ones. What they print goes to stderr, because
    stdout is for the answer, and the current directory stays the same, because the bucket's name may be relative to it.
    What is called has READ_S seconds; an import has no limit, because some modules must be imported by the main thread.
    Raises PipelineNotLoaded, whatever goes wrong. A bug in a method of the pipeline is a PipelineFault when that method
    is called.
    """
    with suppress(OSError):  # the directory is gone, and nothing can be imported from it
        if "" not in sys.path and (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # last, so that no file there shadows a library
    module, _, attribute = target.partition(":")
    tried = partial(_tried, name, target)
    with redirect_stdout(sys.stderr), _same_directory():
        absent = f"{module} cannot be imported, from the current directory or as installed"
        found = tried(absent, lambda: importlib.import_module(module))
        where = getattr(found, "__file__", None) or module
        make = tried(f"{where} has no such attribute", lambda: reduce(getattr, attribute.split("."), found))
        if not callable(make):
            _refuse(name, target, f"{attribute} in {where} cannot be called: it must take the bucket and the clock")
        called = f"{attribute} in {where}"
        made = tried(f"{called} failed", lambda: read_within((name, target), called, lambda: make(bucket, clock)))
        wrong = tried(
            f"what {called} returned fails", lambda: read_within((name, target), called, lambda: [*_wrong(made, name)])
        )
        if wrong:
            _refuse(name, target, f"{called} returned no pipeline of operators: {'; '.join(wrong)}")
        try:
            return GuardedPipeline(made)
        except RetakeError as error:
            _refuse(name, target, str(error))


@contextmanager
def _same_directory() -> Iterator[None]:
    """Go back to the current directory after the block, unless that is gone."""
    try:
        here = os.getcwd()
    except OSError:
        yield
        return
    with chdir(here):
        yield


def _tried(name: str, target: str, what: str, work: Callable[[], Any]) -> Any:
    """Return the result of `work`, which runs foreign code. Raises PipelineNotLoaded for whatever that raises, even
    SystemExit, but not for Ctrl-C."""
    try:
        return work()
    except KeyboardInterrupt:
        raise
    except PipelineFault as error:
        _refuse(name, target, str(error))
    except BaseException as error:  # noqa: BLE001
        _refuse(name, target, f"{what}: {cause_of(error)}")


def _refuse(name: str, target: str, why: str) -> NoReturn:
    raise PipelineNotLoaded(
        f'PIPELINES.{name}: "{target}" cannot be used: {why}. Correct that, or remove the setting'
    ) from None


def _wrong(made: object, name: str) -> Iterator[str]:
    """Yield what `made` lacks to be a pipeline named `name`."""
    if missing := [it for it in _MEMBERS if not hasattr(made, it)]:
        yield f"{type(made).__name__} has no {', '.join(missing)} (docs/add-a-pipeline.md)"
        return
    it = cast("OperatedPipeline", made)
    methods = [it for it in _MEMBERS if callable(getattr(OperatedPipeline, it, None))]
    if useless := [method for method in methods if not callable(getattr(made, method))]:
        yield f"not a method: {', '.join(useless)}"
    if it.name != name:
        yield f"its name is {it.name!r}, and must be {name!r}"
    if it.channel is not None:
        yield "its channel must be None"
    if it.prefix != f"{name}/":
        yield f"its prefix is {it.prefix!r}, and must be {f'{name}/'!r}: what it keeps has a folder of its own"


def load_pipelines(targets: Mapping[str, str], bucket: Bucket, clock: Clock) -> list[OperatedPipeline]:
    """Load the pipelines in `targets`. One that cannot be loaded is replaced by a stand-in that says so, so that the
    others can still be seen and acted on."""

    def one(name: str, target: str) -> OperatedPipeline:
        try:
            return load_pipeline(name, target, bucket, clock)
        except PipelineNotLoaded as error:
            return UnloadedPipeline(name, bucket, clock, error)

    return [one(name, target) for name, target in targets.items()]


def with_own_ledgers(terms: Terms, pipelines: list[OperatedPipeline]) -> Terms:
    """Return `terms` with the ledgers that these pipelines declare for themselves."""
    own = {it.name: ledger for it in pipelines if (ledger := getattr(it, "own_ledger", None))}
    return terms._replace(own_ledgers={**terms.own_ledgers, **own})


class UnloadedPipeline(OwnPipeline):
    """Stands in for a pipeline that cannot be loaded. Its state says why; methods that need its documents raise that
    error."""

    def __init__(self, name: str, whole: Bucket, clock: Clock, error: PipelineNotLoaded) -> None:
        super().__init__(name, whole, clock)
        self._error = error

    def describe(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        return PipelineState("cannot be loaded", readable=False, needs=(str(self._error),))

    def present(self) -> Sequence[Present]:
        return []  # it has nothing that could be acted on, so it must not block orders about the others

    def paid_since(self, day: str) -> PaidWork:
        raise self._error

    def check(self) -> Iterator[Finding]:
        yield of_error("pipelines", self._error)

    def plan(self, order: ItemOrder) -> OrderPlan:
        raise self._error
