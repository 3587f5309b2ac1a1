"""Ticks that rest: what an idle tick saw is remembered on this machine, and the next one may end without looking.

A remembered look can only let a tick rest. It says nothing about what to do: if anything has changed, or is in doubt,
the tick takes a full look. Losing it costs no more than one full look, so it is kept in a file of the user's cache, is
not synced to the disk, and trouble with it is never an error.

A tick calls `rests` before it imports anything else, so this module imports hardly anything: `typing`, `json` and
`hashlib` would each cost more than everything a resting tick does.
"""

import os
import stat
import sys
import time
from itertools import islice

try:
    from _blake2 import blake2b as _blake2b
except ImportError:  # another Python; hashlib loads OpenSSL, which takes longer than a resting tick
    from hashlib import blake2b as _blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from retake.ticking.tick import Tick

BEGAN_AT = time.time()
"""When this process began, in UNIX seconds: before its code was loaded and its settings were read."""

MAX_AGE_S = 24 * 3600.0
"""Maximum age of a look in seconds, whatever WORKFLOW.full_look_minutes says."""

ABSENT = "-"
"""The version of a path where nothing exists."""

SETTLED_S = 2.0
"""Seconds that a change, by the file system's time, must precede a look. A later change could get the same time as a
change just before the look, since file systems keep times to two seconds at worst."""

MAX_BYTES = 16 * 2**20
"""Maximum size of the file of a look."""

FOLDER = "retake"
"""The folder of the user's cache."""

_FIRST_LINE = b"retake look 1"
_DIGEST_BYTES = 16
_END = 2 * _DIGEST_BYTES + 1  # bytes of the last line
_NONE = "-"
_MAX_TIME = 1e12  # UNIX seconds; excludes NaN and infinity too

_NOISE = frozenset(
    {"_", "SHLVL", "OLDPWD", "PWD", "WINDOWID", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "XDG_SESSION_ID"}
    | {"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID"}
)
"""Environment variables that differ at each start of a program, and that nothing here reads."""


class RememberedLook:
    """A look that is remembered.

    `seen` has the version of everything that was looked at, by name: files, documents. `basis` is a digest of what else
    ticks depend on (environment, settings, version of the code). `looked_at` is when the look began, and `due_at` when
    something is due next, or None if nothing is. If versions are times, `changed_at` is the last change of anything
    seen, else None. Times are in UNIX seconds.
    """

    __slots__ = ("basis", "changed_at", "due_at", "looked_at", "seen")

    def __init__(
        self,
        basis: str,
        seen: "Mapping[str, str]",
        looked_at: float,
        due_at: float | None = None,
        changed_at: float | None = None,
    ) -> None:
        self.basis, self.seen, self.looked_at, self.due_at, self.changed_at = basis, seen, looked_at, due_at, changed_at

    @property
    def settled(self) -> bool:
        """Whether the last change was safely over when the look began (see SETTLED_S)."""
        return self.changed_at is None or self.changed_at <= self.looked_at - SETTLED_S


def in_time(look: RememberedLook, now: float, longest_s: float) -> bool:
    """Return whether the look is valid at `now`: nothing is due, and it is less than `longest_s` seconds old. One from
    the future, as after a clock was set back, is not valid."""
    due = look.due_at is not None and not now < look.due_at
    return look.settled and not due and 0 <= now - look.looked_at < longest_s


def may_rest(look: RememberedLook | None, basis: str, seen: "Mapping[str, str]", now: float, longest_s: float) -> bool:
    """Return whether a tick that finds `basis` and `seen` at `now` may end: the last look found exactly the same, and
    nothing is due. False is always safe.

    A look that is `longest_s` seconds old or more is not valid.
    """
    if look is None or not look.seen or look.basis != basis or not in_time(look, now, longest_s):
        return False
    return look.seen == seen


# --- the file ---------------------------------------------------------------------------------------------------------


class LookFile:
    """The file of one look, which only its user may read. A file that others own or may change is ignored."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> RememberedLook | None:
        """Return the look, or None if there is none that can be trusted."""
        try:
            if not _is_ours(os.lstat(os.path.dirname(self.path)), stat.S_ISDIR, 0o022):
                return None
            file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError):
            return None
        try:
            found = os.fstat(file)
            if not _is_ours(found, stat.S_ISREG, 0o077) or found.st_size > MAX_BYTES:
                return None
            return parse(_read_all(file, found.st_size))
        except OSError:
            return None
        finally:
            os.close(file)

    def write(self, look: RememberedLook) -> bool:
        """Replace the look, and return whether it could be saved."""
        draft = f"{self.path}.{os.getpid()}"
        try:
            folder = os.path.dirname(self.path)
            for missing in (os.path.dirname(folder), folder):
                if not os.path.isdir(missing):
                    os.mkdir(missing, 0o700)
            if not _is_ours(os.lstat(folder), stat.S_ISDIR, 0o022):
                return False
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:  # left behind by a dead process with our process id
            _unlink(draft)
            return False
        except (OSError, ValueError):
            return False
        try:
            with open(file, "wb") as out:
                out.writelines(encoded(look))
            os.replace(draft, self.path)  # not synced: a power cut costs no more than the look
        except (OSError, ValueError):
            _unlink(draft)
            return False
        return True

    def forget(self) -> None:
        """Remove the look."""
        _unlink(self.path)


def look_file(environ: "Mapping[str, str]", *about: str) -> LookFile | None:
    """Return the file for looks that are identified by the texts `about` (kind of look, folder, settings file).

    Return None if the user has no cache folder, which is $XDG_CACHE_HOME or $HOME/.cache.
    """
    cache = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        cache = os.path.join(home, ".cache")
    return LookFile(os.path.join(cache, FOLDER, f"look-{digest(about)}"))


def digest(texts: "Iterable[str]") -> str:
    """Return a digest of the sequence of texts: unlike one of their concatenation, it depends on where each ends."""
    return _digest(b"".join(b"%d:%b" % (len(it), it) for it in map(_octets, texts)))


def encoded(look: RememberedLook) -> "Iterator[bytes]":
    """Yield the lines of the look's file. Memory never holds all of it, since it may cover thousands of channels.
    Raises ValueError for a look that could not be read again."""
    times = (look.looked_at, look.due_at, look.changed_at)
    if any(it is not None and not 0 <= it < _MAX_TIME for it in times):
        raise ValueError(f"no times: {times}")
    digested, size = _blake2b(digest_size=_DIGEST_BYTES), _END
    for line in _lines(look.basis, times, look.seen):
        size += len(line)
        if size > MAX_BYTES:
            raise ValueError("too long")
        digested.update(line)
        yield line
    yield b"%b\n" % digested.hexdigest().encode()


def _lines(basis: str, times: "Iterable[float | None]", seen: "Mapping[str, str]") -> "Iterator[bytes]":
    yield b"%b\n" % _FIRST_LINE
    for text in (basis, *(_NONE if it is None else repr(float(it)) for it in times)):
        yield _line(text)
    for name, version in seen.items():
        if "\t" in version or not version:
            raise ValueError("a version that is empty or has a tab")
        yield _line(f"{version}\t{name}")


def _line(text: str) -> bytes:
    if "\n" in text:
        raise ValueError("a line break in a name")
    return b"%b\n" % _octets(text)


def parse(data: bytes) -> RememberedLook | None:
    """Return the look that `encoded` has written, or None for anything else."""
    body, end = memoryview(data)[:-_END], data[-_END:]
    if not data.startswith(_FIRST_LINE + b"\n") or end != _digest(body).encode() + b"\n":
        return None
    lines = _texts(data, len(body))
    try:
        _, basis, *times = islice(lines, 5)
        looked_at, due_at, changed_at = (None if it == _NONE else float(it) for it in times)
        seen = {name: version for version, name in (line.split("\t", 1) for line in lines)}
    except ValueError:
        return None
    return None if looked_at is None else RememberedLook(basis, seen, looked_at, due_at, changed_at)


def _texts(data: bytes, end: int) -> "Iterator[str]":
    """Yield the lines in the first `end` bytes."""
    at = 0
    while at < end:
        after = data.index(b"\n", at)
        yield data[at:after].decode("utf-8", "surrogateescape")
        at = after + 1


def _is_ours(found: os.stat_result, kind: "Callable[[int], bool]", denied: int) -> bool:
    return kind(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & denied


def _read_all(file: int, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := os.read(file, size - len(data))):
        data += piece
    return data


def _unlink(path: str) -> None:
    try:  # noqa: SIM105 (contextlib is not loaded for it)
        os.unlink(path)
    except OSError:
        pass


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _digest(data: "bytes | memoryview") -> str:
    return _blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


# --- resting ----------------------------------------------------------------------------------------------------------


def rests(arguments: "Iterable[str]") -> bool:
    """Return whether the tick may rest, and if so log that in one line. Otherwise it must take a full look.

    A tick with arguments was started by a person, and never rests.
    """
    environ, file = os.environ, None if arguments else tick_look(os.environ)
    look = file.read() if file else None
    if look is None or sys.stderr is None:
        return False
    now = time.time()
    if not may_rest(look, basis(environ), {name: version_of(name) for name in look.seen}, now, MAX_AGE_S):
        return False
    _tell(look, now)
    return True


def tick_look(environ: "Mapping[str, str]") -> LookFile | None:
    """Return the file that remembers the look of the last idle tick in this folder, with this settings file."""
    try:
        folder = os.getcwd()
    except OSError:
        return None
    return look_file(environ, "ticks", folder, environ.get("RETAKE_CONFIG", ""))


def basis(environ: "Mapping[str, str]") -> str:
    """Return a digest of what ticks depend on besides files: the interpreter and all of the environment, with keys."""
    known = sorted(f"{name}={value}" for name, value in environ.items() if name not in _NOISE)
    return digest([sys.version, sys.executable, sys.prefix, *known])


def version_of(path: str) -> str:
    """Return a version of a file or folder, which changes with every change, without opening it.

    If it cannot be found out, return "", which equals no remembered version.
    """
    return looked_up(path)[0]


def looked_up(path: str) -> tuple[str, float]:
    """Return the version of what is at `path`, and its last change in UNIX seconds (0.0 if nothing is there). Both
    cover a symbolic link and its target."""
    try:
        found = os.lstat(path)
        version, at = _version(found), max(found.st_mtime, found.st_ctime)
        if stat.S_ISLNK(found.st_mode):
            found = os.stat(path)
            version, at = f"{version}>{_version(found)}", max(at, found.st_mtime, found.st_ctime)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT, 0.0
    except (OSError, ValueError):
        return "", 0.0
    return version, at


def _version(found: os.stat_result) -> str:
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_ctime_ns:x}-{found.st_size:x}"


def _tell(look: RememberedLook, now: float) -> None:
    """Log that the tick rests, in the format of `retake.logs`, which takes too long to import."""
    since = time.strftime("%H:%M:%S", time.gmtime(look.looked_at))
    message = f"nothing to do: nothing has changed since the full look at {since} UTC, and nothing is due"
    if sys.stderr.isatty():
        line = f"{time.strftime('%H:%M:%S', time.localtime(now))}  rest      {message}\n"
    else:
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
        line = (
            f'{{"timestamp": "{at}", "level": "INFO", "logger": "retake.ticking.rest", "message": "{message}", '
            f'"run_id": "{os.urandom(6).hex()}"}}\n'
        )
    try:  # noqa: SIM105 (contextlib is not loaded for it)
        os.write(2, line.encode())
    except OSError:  # nobody reads it
        pass


# --- recording a look -------------------------------------------------------------------------------------------------


class IdleLook:
    """Records the look of one process. A `retake.bucket.directory.disk.TreeObserver`. Thread safe, since channels tick
    in parallel.

    `file` keeps the look for `longest_s` seconds, for processes with the same `basis`. `began_at` is when the process
    began, in UNIX seconds. `look_up(path)` returns a path's version and last change. `sources` are files outside the
    bucket that ticks depend on, too. Changes of an `external_ledger`, one outside the bucket, cannot be seen, so a tick
    that used it remembers nothing.
    """

    def __init__(
        self,
        file: LookFile,
        basis: str,
        *,
        began_at: float,
        longest_s: float,
        look_up: "Callable[[str], tuple[str, float]]",
        sources: "Iterable[str]" = (),
        external_ledger: bool = False,
    ) -> None:
        from threading import Lock

        self._file, self._basis, self._began_at, self._longest_s = file, basis, began_at, longest_s
        self._look_up, self._external_ledger = look_up, external_ledger
        self._seen: dict[str, str] = {}
        self._changed_at = 0.0  # the last change of anything seen, in UNIX seconds
        self._due: set[float] = set()  # when pipelines are due, in UNIX seconds
        self._ticked, self._idle = False, True
        self._lock = Lock()
        for path in sources:
            self.looked_at(os.path.abspath(path))

    def rests_now(self) -> bool:
        """Return whether the tick may rest. For a bucket in a directory, `rests` has already decided that."""
        return False

    def looked_at(self, path: str) -> None:
        """Note the version of the path at the time when it was first looked at."""
        if self._idle and path not in self._seen:
            version, changed_at = self._look_up(path)
            with self._lock:
                self._changed_at = max(self._changed_at, changed_at)
                self._seen.setdefault(path, version)

    def leased(self, path: str) -> None:
        """Note the version of the lease's file, so that a tick does not rest while another process holds the lease, or
        after it did. The file was just written, but that does not count as a change: no two holders write the same."""
        if self._idle:
            self._seen[path] = self._look_up(path)[0]

    def changed(self) -> None:
        """Note that something was done, was written or has failed, so that there is nothing to remember."""
        self._idle, self._seen = False, {}

    def ticked(self, tick: "Tick", *, worked: bool) -> None:
        """Note how a tick ended. If it neither rests nor waits until a time, the next one may have something to do."""
        from retake.exit_codes import ExitCode

        self._ticked = True
        if tick.until:
            self._due.add(tick.until.timestamp())
        asked_ledger = self._external_ledger and tick.generation_id is not None
        waits = tick.exit_code == ExitCode.OK and (tick.resting or tick.until is not None)
        if worked or asked_ledger or not waits:
            self.changed()

    def end(self, due: "Iterable[datetime]") -> None:
        """Remember the look until the first of the times `due`, or forget the last one if something was done."""
        look = self._look(due) if self._idle and self._ticked else None
        if look is None or not in_time(look, look.looked_at, self._longest_s) or not self._file.write(look):
            self._file.forget()

    def _look(self, due: "Iterable[datetime]") -> RememberedLook:
        for path in _code():
            self.looked_at(path)
        due_at = min((self._began_at + self._longest_s, *self._due, *(it.timestamp() for it in due)))
        return RememberedLook(self._basis, self._seen, self._began_at, due_at, self._changed_at)


def _code() -> "Iterator[str]":
    """Yield the files of the imported code, except the standard library, whose version is part of the basis."""
    library = os.path.join(os.path.dirname(os.__file__), "")
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and (not file.startswith(library) or "-packages" in file):
            yield os.path.abspath(file)
