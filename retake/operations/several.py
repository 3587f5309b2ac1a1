"""An order for several ids: each is handled as if it were the only one, and has its own result."""

from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import Any, NamedTuple, Protocol, TypeVar

from retake.errors import RetakeError, naming_thread_shortage
from retake.exit_codes import ExitCode, most_severe

_BY_SEVERITY = (
    ExitCode.INTERRUPTED,
    ExitCode.BUG,
    ExitCode.CONFIG,
    ExitCode.TRY_LATER,
    ExitCode.FAILED,
    ExitCode.BAD_STATE,
    ExitCode.OK,
)
"""Exit codes, the most severe first. A refusal is the least severe, since nothing was changed."""

_log = getLogger(__name__)


class Item(NamedTuple):
    """An id, and the channel that it belongs to."""

    name: str
    channel: str | None


class ItemAnswer(Protocol):
    """The result for one item."""

    @property
    def document(self) -> Mapping[str, Any]: ...

    @property
    def exit_code(self) -> int: ...


T = TypeVar("T", bound=ItemAnswer)


def each(items: Sequence[Item], work: Callable[[Item], T], failed: Callable[[str, int], T]) -> list[T]:
    """Call `work` for each item, and return all results. An error affects only its item: `failed` makes a result from
    its message and exit code. After Ctrl-C the remaining items are not done."""
    results: list[T] = []
    stopped = False
    for item in items:
        try:
            with naming_thread_shortage():
                found = failed("not done: interrupted before it", ExitCode.INTERRUPTED) if stopped else work(item)
        except RetakeError as error:
            found = failed(str(error), error.exit_code)
        except KeyboardInterrupt:
            stopped = True
            found = failed("interrupted by Ctrl-C; `status` says how it stands", ExitCode.INTERRUPTED)
        except Exception:  # noqa: BLE001  a bug in one must not keep the others from being done
            _log.exception("%s: this is a bug in Retake; nothing is lost", item.name)
            found = failed("a bug in Retake; the traceback is in the log", ExitCode.BUG)
        results.append(found)
    return results


def several_document(items: Sequence[Item], results: Sequence[ItemAnswer]) -> dict[str, Any]:
    """Return the JSON document of all results, with the most severe of their exit codes."""
    told = [
        {"id": item.name, "channel": item.channel, "exit_code": it.exit_code, **it.document}
        for item, it in zip(items, results, strict=True)
    ]
    done = sum(it.exit_code == ExitCode.OK for it in results)
    code = most_severe((it.exit_code for it in results), _BY_SEVERITY)
    return {"results": told, "done": done, "exit_code": code}
