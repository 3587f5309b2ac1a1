"""Death or a disk error at any system call that changes the disk."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from retake.bucket.directory import locks, rename_exchange
from retake.bucket.failing import Crash

CALLS = ("open", "write", "pwrite", "utime", "fsync", "mkdir", "rmdir", "link", "rename", "unlink")


class Calls:
    """Lists the calls, and raises `error` at the `number`-th, before or after its effect.

    After a Crash no call has any effect, as if the process had died; only closing files, and so releasing locks, still
    works, as the kernel does that. "torn" writes half of the bytes, and is otherwise like "before".
    """

    def __init__(self, number: int, when: str, error: Callable[[], BaseException]) -> None:
        self.made: list[str] = []
        self._number = number
        self._when = when
        self._error = error
        self._dead = False

    @property
    def struck(self) -> bool:
        return len(self.made) >= self._number

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **named: Any) -> Any:
            if self._dead:
                raise Crash
            self.made.append(name)
            if len(self.made) != self._number:
                return call(*args, **named)
            if self._when == "torn" and name == "write":
                call(args[0], args[1][: len(args[1]) // 2])
            if self._when == "after":
                with suppress(OSError):
                    call(*args, **named)
            error = self._error()
            self._dead = isinstance(error, Crash)
            raise error

        return made


@contextmanager
def dying(number: int = 10**9, when: str = "before", error: Callable[[], BaseException] = Crash) -> Iterator[Calls]:
    """Let the block's `number`-th call fail. Without a number, only list the calls."""
    calls = Calls(number, when, error)
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, calls.around(name, getattr(os, name)))
        patch.setattr(rename_exchange, "exchange", calls.around("exchange", rename_exchange.exchange))
        patch.setattr(locks.fcntl, "flock", calls.around("flock", locks.fcntl.flock))
        yield calls
