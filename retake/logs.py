"""Logging to stderr: JSON lines for machines, short coloured lines for a terminal, and never a secret.

Modules log with `logging.getLogger(__name__)`. Fields go into `extra`, or are bound around a piece of work with `bind`.
The JSON formatter is imported with the first record, so that a silent tick does not pay for it.

Logging never raises: a script whose parent is gone writes into a broken pipe, and must still get from the paid call to
the saved id.
"""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TextIO

from retake.clock import parse_stamp
from retake.errors import RetakeError, SettingsError, hide, redact, written_forms
from retake.foreign_text import json_lines, one_line, several_lines

if TYPE_CHECKING:
    from pathlib import Path

DIAGNOSE_VARIABLE = "RETAKE_DIAGNOSE"
"""The environment variable that turns on diagnostic mode, in a tick and in the scripts that it runs."""

DIAGNOSIS = "retake.diagnosis"
"""The logger of diagnostic mode, with the children `http`, `bucket` and `decision`. It logs at level DEBUG."""

_bound: ContextVar[Mapping[str, Any]] = ContextVar("retake_log_fields")

_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_RESERVED_NAMES = _RECORD | {"timestamp", "level", "logger"}
"""Names that records or lines use themselves: a field with such a name gets a trailing underscore."""

_CHATTY = (
    *("asyncio", "b2sdk", "botocore", "google", "googleapiclient", "httpcore", "httpx"),
    *("PIL", "redis", "runwayml", "telegram", "urllib3", "uvicorn"),
)
"""Libraries that log every call at INFO or DEBUG, some with URLs or headers."""

_SILENT = ("aio_pika", "aiormq")
"""Libraries that log each failure with a traceback; Retake's own client logs it in one line."""

_SECRET_VARIABLES = ("_KEY", "_SECRET", "_TOKEN", "_PASSWORD", "_KEY_ID")
_MIN_SECRET_LENGTH = 6
_MASK = "…"

_masked: set[str] = set()
"""Secrets that `mask` has added."""


def setup_logging(
    stream: TextIO | None,
    *,
    human: bool,
    level: int | str = logging.INFO,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Send every record of `level` and above to `stream` (None: nowhere), for people if `human`, else as JSON lines.

    Values of `environ` whose names mark them as secrets are masked. If it sets RETAKE_DIAGNOSE, requests, bucket
    operations and decisions are logged too. Colours are used if `stream` is a terminal that supports them and NO_COLOR
    is not set. Python's warnings become records too. May be called again.
    """
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    diagnose = environ.get(DIAGNOSE_VARIABLE, "").strip() not in ("", "0")
    logging.getLogger(DIAGNOSIS).setLevel(logging.DEBUG if diagnose else logging.NOTSET)
    root.addHandler(_Handler(stream, human, environ))


def log_into(folder: "Path", *, environ: Mapping[str, str] = os.environ) -> None:
    """Also append every record to `folder`/combined.log, and errors to `folder`/error.log, as JSON lines.

    Call it after `setup_logging`, which undoes it. Several processes may append to the same files. Raises SettingsError
    if they cannot be written.
    """
    root = logging.getLogger()
    for name, level in (("combined.log", logging.NOTSET), ("error.log", logging.ERROR)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stream = open(folder / name, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        except OSError as error:
            raise SettingsError(f"--logs: {folder / name} cannot be written ({error.strerror})") from None
        handler = _FileHandler(stream, False, environ)
        handler.setLevel(level)
        root.addHandler(handler)


@contextmanager
def bind(**fields: Any) -> Iterator[None]:
    """Add these fields, except None values, to every record in the `with` block. New threads start without them."""
    token = _bound.set({**_bound.get({}), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def mask(values: Iterable[str]) -> None:
    """Mask these secrets, whose variables' names do not mark them as such, in every record and error from now on."""
    _masked.update(value.strip() for value in values if len(value.strip()) >= _MIN_SECRET_LENGTH)
    hide(form for value in _masked for form in written_forms(value))  # vendors may quote them encoded
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            handler.remask()


def diagnosing() -> bool:
    """Return whether requests, bucket operations and decisions are logged."""
    return logging.getLogger(DIAGNOSIS).isEnabledFor(logging.DEBUG)


def part_of_secret(text: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `text` is, or is part of, a secret that `environ` holds or `mask` was given."""
    named = (it for name, it in environ.items() if name.upper().endswith(_SECRET_VARIABLES))
    return len(text) >= _MIN_SECRET_LENGTH and any(text in it for it in (*named, *_masked))


def masked(value: Any, environ: Mapping[str, str] = os.environ) -> Any:
    """Return `value` as JSON types, with the secrets of `environ`, credentials and the queries of URLs masked."""
    return _clean(value, _secrets(environ))


def alert(code: str, message: str, /, **fields: Any) -> None:
    """Log a record of level CRITICAL for a person; programs route it by its field `alert`, which is `code`."""
    _log("retake.alert", logging.CRITICAL, message, {**fields, "alert": code})


def relay(line: str) -> None:
    """Log a line that a subprocess wrote to its stderr.

    A JSON line of `setup_logging` keeps its time, level, logger and fields. Anything else (from a crash, a library)
    becomes a warning of the logger "script". Blank lines are dropped.
    """
    if not line.strip():
        return
    try:
        fields = json.loads(line)
        level = logging.getLevelNamesMapping()[fields.pop("level")]
        name, message = str(fields.pop("logger")), str(fields.pop("message"))
        created = parse_stamp(fields.pop("timestamp")).timestamp()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        _log("script", logging.WARNING, line.rstrip(), {})
    else:
        _log(name, level, message, fields, created)


def _log(name: str, level: int, message: str, fields: Mapping[str, Any], created: float | None = None) -> None:
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        record = logging.LogRecord(name, level, "", 0, message, None, None)
        record.created = record.created if created is None else created
        record.__dict__.update(_renamed(fields))
        logger.handle(record)


def _renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_" if name in _RESERVED_NAMES else name: value for name, value in fields.items()}


def _has_colours(stream: TextIO, environ: Mapping[str, str]) -> bool:
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class _Handler(logging.Handler):
    """Cleans and formats each record and writes it as one line. Never raises."""

    def __init__(self, stream: TextIO | None, human: bool, environ: Mapping[str, str]) -> None:
        super().__init__()
        self._stream = stream
        self._human = human
        self._colour = stream is not None and human and _has_colours(stream, environ)
        self._environ = environ
        self.remask()

    def remask(self) -> None:
        """Mask the secrets that are known now."""
        self._secrets = _secrets(self._environ)

    def emit(self, record: logging.LogRecord) -> None:
        if self._stream is None:
            return
        try:
            line = self._line(record)
        except Exception as error:  # noqa: BLE001  # an argument that does not fit, an object whose repr raises
            line = self._line(_unloggable(record, error))
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError) as error:  # the reader is gone, the disk full, or the stream closed
            forget_unwritten(self._stream, for_good=isinstance(error, BrokenPipeError))

    def _line(self, record: logging.LogRecord) -> str:
        clean = _cleaned(record, self._secrets)
        return _for_people(clean, self._colour) if self._human else json_lines(self._json().format(clean))

    def _json(self) -> logging.Formatter:
        if self.formatter is None:
            formatter = _json_logger().BaseJsonFormatter(
                "%(timestamp)s %(levelname)s %(name)s %(message)s",
                rename_fields={"levelname": "level", "name": "logger"},
            )
            formatter.jsonify_log_record = partial(json.dumps, ensure_ascii=False)
            self.formatter = formatter
        return self.formatter


@cache
def _json_logger() -> Any:
    """Return the module `pythonjsonlogger.core`, loaded without its package.

    The package also imports encoders for types that no cleaned record has, which costs more than all other logging.
    """
    from importlib.machinery import PathFinder
    from types import ModuleType

    package, name = PathFinder.find_spec("pythonjsonlogger"), "pythonjsonlogger.core"
    found = PathFinder.find_spec(name, package.submodule_search_locations) if package else None
    if not found or not found.loader:  # not installed as files
        from pythonjsonlogger import core as imported

        return imported
    core = ModuleType(name)
    core.__spec__ = found
    found.loader.exec_module(core)
    return core


class _FileHandler(_Handler):
    """A handler that owns its stream and closes it."""

    def close(self) -> None:
        super().close()
        if self._stream is not None:
            with suppress(OSError, ValueError):
                self._stream.close()


def _unloggable(record: logging.LogRecord, error: Exception) -> logging.LogRecord:
    message = f"a log record of {record.name}, line {record.lineno}, could not be shown: {type(error).__name__}"
    return logging.LogRecord(record.name, max(record.levelno, logging.WARNING), "", 0, message, None, None)


def open_streams() -> None:
    """Open os.devnull in place of each standard stream that this process was started without.

    Otherwise the next file opened, even the lock of a lease, gets the stream's descriptor, which a script uses for its
    own stream. The descriptor is not closed with the stream object: in a fork it may belong to something else by then.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(nothing, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115


def forget_unwritten(stream: TextIO, for_good: bool) -> None:
    """Discard the stream's buffer, which would fail again at exit and turn the exit code into 120.

    With `for_good` (a pipe without a reader) the stream stays redirected to os.devnull, so that no later write fails.
    """
    with suppress(OSError, ValueError):
        number = stream.fileno()
        kept, nothing = os.dup(number), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, number)
            stream.flush()
            if not for_good:
                os.dup2(kept, number)
        finally:
            os.close(kept)
            os.close(nothing)


def _cleaned(record: logging.LogRecord, secrets: re.Pattern[str] | None) -> logging.LogRecord:
    """Return a copy of `record` with its message formatted, the bound fields added, and secrets masked.

    A bug keeps its traceback, in one field. For an error raised on purpose the message is enough.
    """
    fields = {name: value for name, value in _bound.get({}).items() if value is not None}
    fields.update((name, value) for name, value in vars(record).items() if name not in _RECORD)
    if record.exc_info and (error := record.exc_info[1]):
        if isinstance(error, RetakeError):
            fields["error"] = f"{type(error).__name__}: {error}"
        else:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    if record.stack_info:
        fields["stack"] = record.stack_info
    message = _clean_text(record.getMessage(), secrets)
    clean = logging.LogRecord(record.name, record.levelno, "", 0, message, None, None)
    clean.created = record.created
    clean.__dict__.update(_clean(_renamed(fields), secrets), timestamp=_stamp(record.created))
    return clean


def _stamp(created: float) -> str:
    """Return the time in ISO 8601, UTC, to the millisecond."""
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _clean(value: Any, secrets: re.Pattern[str] | None, depth: int = 0) -> Any:
    """Return `value` as JSON types, without secrets. Anything nested more than eight levels deep becomes text."""
    if isinstance(value, Mapping) and depth < 8:
        return {_clean_text(str(key), secrets): _clean(part, secrets, depth + 1) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) and depth < 8:
        return [_clean(part, secrets, depth + 1) for part in value]
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    clean = _clean_text(text, secrets)
    if clean != text:
        return clean
    if value is None or isinstance(value, bool) or (isinstance(value, float) and abs(value) < 1e300):
        return value
    return int(value) if isinstance(value, int) else clean  # an IntEnum becomes its number


def _clean_text(text: str, secrets: re.Pattern[str] | None) -> str:
    # Exact values first: `redact` may recognise only part of one and leave the rest.
    return redact(secrets.sub(_MASK, text) if secrets else text)


def _secrets(environ: Mapping[str, str]) -> re.Pattern[str] | None:
    """Return a pattern that matches the secrets in `environ`, also as quoted in Python, JSON or a URL; None without
    secrets."""
    forms = set()
    for name, value in environ.items():
        if name.upper().endswith(_SECRET_VARIABLES) and len(value.strip()) >= _MIN_SECRET_LENGTH:
            forms |= written_forms(value) | written_forms(value.strip())
    for value in _masked:
        forms |= written_forms(value)
    if not forms:
        return None
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))


_COLOURS = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31"}


def _for_people(record: logging.LogRecord, colour: bool) -> str:
    """Return "12:31:05  imagine   message" in local time, with the channel, if any, before the step. The level is named
    from WARNING on, and details follow on further lines."""
    fields = vars(record)
    what = str(fields.get("step") or record.name.rpartition(".")[2])
    what = f"{fields['channel']}/{what}" if fields.get("channel") else what
    word = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
    told = [word + str(record.msg), *(str(fields[name]) for name in ("error", "traceback", "stack") if name in fields)]
    text = "\n          ".join(line for part in told for line in part.rstrip().split("\n"))
    paint = _COLOURS.get(record.levelno) if colour else None
    body = f"{one_line(what):<8}  {several_lines(text)}"
    clock = time.strftime("%H:%M:%S", time.localtime(record.created))
    return f"{clock}  \x1b[{paint}m{body}\x1b[0m" if paint else f"{clock}  {body}"
