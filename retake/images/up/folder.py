"""The folder of `images up`: its lock, and what must stay the same across starts, ports and secrets."""

import fcntl
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any

from retake.errors import RetakeError, StateError, StorageError
from retake.exit_codes import ExitCode
from retake.strict_json import encode, parse, what_is_wrong

_SECRET = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)

_PORTS = range(17_000, 25_000)
"""Ports are chosen here. The kernel gives ports from 32768 on to outgoing connections and could give one away before
its server has started; well-known servers rarely use this range."""


class FolderInUse(RetakeError):
    """Another process runs the service from this folder. Nothing was started."""

    exit_code = ExitCode.TRY_LATER


class DataFolder:
    """A folder with the data, logs, ports and secrets of the service. It is created if missing."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._ports: dict[str, int] = {}
        make_folder(self.path)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Lock the folder within the `with` block. Raises FolderInUse."""
        with _opened(self.path / "lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(file, 20, 0).decode("ascii", "replace").strip()
                raise FolderInUse(
                    f"{self.path} is in use by another `images up` (process {holder or 'unknown'}): "
                    "end that one, or name another folder with --data"
                ) from None
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
            yield

    def secret(self, name: str) -> str:
        """Return the secret with this name, created on first use and then unchanged. Only the owner can read it.

        Raises StateError for one that an operator has written and that cannot be part of a URL.
        """
        known = self._read("secrets.json")
        if name not in known:
            known[name] = secrets.token_urlsafe(24)
            self._write("secrets.json", known)
        secret = known[name]
        if not isinstance(secret, str) or not _SECRET.fullmatch(secret):
            where = self.path / "secrets.json"
            raise StateError(f"{where}: {name} must be a text of letters, digits, _ and -; correct it, or remove it")
        return secret

    def port(self, name: str) -> int:
        """Return the port with this name: the one used last, or a free one if another program has it now."""
        if name not in self._ports:
            known = self._read("ports.json")
            port = known.get(name)
            while type(port) is not int or port <= 0 or not is_free(port) or port in self._ports.values():
                port = free_port()
            self._ports[name] = port
            self._write("ports.json", known | {name: port})
        return self._ports[name]

    def export(self, variables: Mapping[str, str]) -> None:
        """Write the variables by which commands in another shell find the service, to be sourced there."""
        lines = [f"export {name}={quote(value)}\n" for name, value in variables.items()]
        write_private(self.path / "environment", "".join(lines).encode())

    def log(self, name: str) -> Path:
        """Return the output file of the child with this name."""
        logs = self.path / "logs"
        make_folder(logs)
        return logs / f"{name}.log"

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            found = parse(path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
        except ValueError as error:
            raise StateError(f"{path}: {what_is_wrong(error)}; restore the file, or name another folder") from error
        if not isinstance(found, dict):
            raise StateError(f"{path} is not an object of names; restore the file, or name another folder")
        return found

    def _write(self, name: str, value: dict[str, Any]) -> None:
        write_private(self.path / name, encode(value))


def make_folder(path: Path) -> None:
    """Create a folder that only its owner may enter, unless it exists. Raises StorageError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path} cannot be made ({error.strerror}); name another folder with --data") from error


def write_private(path: Path, data: bytes) -> None:
    """Write a whole file, atomically, that only its owner may read. Raises StorageError."""
    draft = path.with_name(f"{path.name}.new")
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(file)
        draft.replace(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}); check its permissions") from error


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port of 127.0.0.1."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last run may linger
        try:
            tried.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
        return True


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody is listening."""
    for _ in range(100):
        if is_free(port := secrets.choice(_PORTS)):
            return port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"{path} cannot be opened ({error.strerror}); check its permissions") from error
    try:
        yield file
    finally:
        os.close(file)
