"""Calls of foreign code: a bug in a pipeline of your own becomes an error that names the method and the line."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from traceback import walk_tb
from types import FrameType, NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from retake.errors import RetakeError, StateError, message_of, redact
from retake.foreign_text import one_line
from retake.operations import port
from retake.operations.attempts import StepAttempt
from retake.operations.finding import Finding
from retake.operations.port import OrderPlan, PipelineState
from retake.paid.caps import Today

_T = TypeVar("_T")

_MAX_CAUSE = 300  # characters of a foreign error
_MAX_TEXT = 1000  # characters of a text in a result
_MAX_TOLD = 100  # sentences of a kind in a state
_NOT_ITS_OWN = {*sys.stdlib_module_names, "retake"}
"""The packages whose lines say nothing about a pipeline's bug."""


class PipelineFault(StateError):
    """A pipeline of your own has a bug. The message says what it raised or returned, and where."""


def asked(pipeline: object, method: str, wanted: Any, call: Callable[[], _T]) -> _T:
    """Return the result of `call`, which calls this method of the pipeline.

    Its texts are cut to what fits a page. Raises PipelineFault for every exception except RetakeError and
    KeyboardInterrupt, even for SystemExit, and for a result that is not of the type `wanted`.
    """
    where = f"{type(pipeline).__name__}.{method}"
    try:
        found = call()
    except (RetakeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PipelineFault(f"{where} failed: {cause_of(error)}") from error
    if wrong := next(misfits(found, wanted), ""):
        raise PipelineFault(f"{where}: {wrong}")
    return cast("_T", cut(found))


def state_told(
    pipeline: object, method: str, today: Today | StateError | None, call: Callable[[], PipelineState]
) -> PipelineState:
    """Return the state that `call` returns, with no more sentences than fit a page. For a bug, return a state that
    reports it, so that the other pipelines are still shown."""
    try:
        found = asked(pipeline, method, PipelineState, call)
    except PipelineFault as error:
        seen = today if isinstance(today, Today) else None
        return PipelineState("its state cannot be told", readable=False, needs=(str(error),), today=seen)
    return found._replace(needs=found.needs[:_MAX_TOLD], notes=found.notes[:_MAX_TOLD])


def cut(value: Any) -> Any:
    """Return `value` with the texts in the tuples of the port cut, and without lone surrogates, which no link can have.

    An OrderPlan stays as it is, because its `lost` is handed back; so do documents, such as paid calls.
    """
    if type(value) is str:
        return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", value[:_MAX_TEXT])
    if type(value) in (list, tuple):
        return type(value)(map(cut, value))
    if type(value).__module__ in _OF_THE_PORT and isinstance(value, tuple) and not isinstance(value, OrderPlan):
        return type(value)(*map(cut, value))
    return value


def cause_of(error: BaseException) -> str:
    """Return the message of an exception raised by foreign code on one line, with the place where it was raised."""
    text = one_line(redact(f"{type(error).__name__}: {message_of(error)}"))[:_MAX_CAUSE]
    return text + place_in(walk_tb(error.__traceback__))


def place_in(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return the innermost line of foreign code among `frames`, the outermost first, for a message: " (line N of
    FILE)", or "" without any."""
    own = [(line, frame.f_code.co_filename) for frame, line in frames if _is_foreign(frame)]
    return f" (line {own[-1][0]} of {own[-1][1]})" if own else ""


def _is_foreign(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package not in _NOT_ITS_OWN and not frame.f_code.co_filename.startswith("<")


def misfits(value: object, wanted: Any, path: str = "the value") -> Iterator[str]:
    """Yield why `value` is not of the type `wanted`: a class, or one of the annotations that the port uses."""
    kind, parts = get_origin(wanted) or wanted, get_args(wanted)
    if kind in (Union, UnionType):
        if value is None and NoneType in parts:
            return
        of_parts = [[*misfits(value, it, path)] for it in parts if it is not NoneType]
        if all(of_parts):
            yield from of_parts[0] if len(of_parts) == 1 else [_must_be(value, wanted, path)]
    elif kind is Any:
        return
    elif not _is_of(value, kind):
        yield _must_be(value, wanted, path)
    elif isinstance(value, tuple | list) and kind in _LISTS:
        for number, it in enumerate(value):
            yield from misfits(it, parts[0], f"{path}[{number}]")
    elif isinstance(value, datetime) and value.tzinfo is None:
        yield f"{path} has no time zone"
    elif kind.__module__ in _OF_THE_PORT and hasattr(kind, "_fields"):
        for name, hint in _hints(kind).items():
            yield from misfits(getattr(value, name), hint, f"{path}.{name}".removeprefix("the value."))


_LISTS = (tuple, list, Sequence)
_OF_THE_PORT = (port.__name__, StepAttempt.__module__, Finding.__module__, "retake.checking.examination")
"""The modules whose tuples pipelines make. The last one is not imported, because only `check` needs it."""
_SURROGATES = re.compile("[\ud800-\udfff]")

_MODULES = re.compile(r"\b(?:\w+\.)+(?=\w)")
_hints = cache(get_type_hints)


def _is_of(value: object, kind: Any) -> bool:
    if kind in _LISTS:
        return isinstance(value, tuple | list)
    return callable(value) if kind is Callable else isinstance(value, kind)


def _must_be(value: object, wanted: Any, path: str) -> str:
    name = wanted.__name__ if isinstance(wanted, type) and not get_args(wanted) else _MODULES.sub("", str(wanted))
    return f"{path} is of type {type(value).__name__}, and must be {name}"
