"""The common base of the three servers: how each is prepared, started, and checked for readiness."""

import os
import pwd
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress

from retake.images.up.children import ChildCommand
from retake.images.up.folder import DataFolder
from retake.images.up.programs import Programs

PATIENCE_S = 2.0
"""Seconds that a server may take to answer a readiness check."""


class LocalServer(ABC):
    """A private server on 127.0.0.1, with its data in FOLDER/NAME.

    The constructor finds its programs and writes nothing. Raises MissingProgram.
    """

    name: str
    variable: str  # the environment variable in which its clients look for its URL

    def __init__(self, folder: DataFolder, programs: Programs, environ: Mapping[str, str]) -> None:
        self._folder = folder
        # Without the caller's settings and keys.
        self._environ = {"PATH": environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        self._place = folder.path / self.name
        self._find(programs)

    @property
    def port(self) -> int:
        return self._folder.port(self.name)

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL with its password. It is the same at each start, unless another program has taken its port."""

    @abstractmethod
    def prepare(self) -> None:
        """Create its folder and its configuration. Existing data stay."""

    @abstractmethod
    def commands(self) -> list[ChildCommand]:
        """Return its children in start order."""

    @abstractmethod
    def _find(self, programs: Programs) -> None:
        """Find its programs. Raises MissingProgram."""

    @property
    def _password(self) -> str:
        return self._folder.secret(self.name)


def unprivileged_user() -> pwd.struct_passwd | None:
    """Return the user for a server that refuses root: postgres, else nobody; None if this process is not root."""
    if os.geteuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def exchange(port: int, question: bytes, answer: bytes) -> bool:
    """Return whether the reply of a server on this port of 127.0.0.1 to `question` contains `answer`."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(question)
        reply = b""
        while answer not in reply and len(reply) < 4096 and (more := connection.recv(4096)):
            reply += more
        return answer in reply
    return False
