"""Disks that are small or fill up."""

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: int, inodes: int = 1000) -> Iterator[bool]:
    """Mount a tmpfs of `size` bytes and `inodes` files at `folder`, if this machine allows it; yield whether it did."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={inodes}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            undo = ["umount", "-l", str(folder)]
            subprocess.run(undo, check=True)


def read_only(folder: Path) -> None:
    """Remount the disk at `folder` read-only."""
    command = ["mount", "-o", "remount,ro", str(folder)]
    subprocess.run(command, check=True)


class FullDisk:
    """A disk with room for `left` more bytes of new files; space that was allocated before can be overwritten."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None  # None: no limit
        self._write, self._fallocate = os.write, os.posix_fallocate
        monkeypatch.setattr(os, "write", self._written)
        monkeypatch.setattr(os, "posix_fallocate", self._allocated)

    def _written(self, file: int, data: bytes) -> int:
        end = os.lseek(file, 0, os.SEEK_CUR) if _is_file(file) else 0
        new = end + len(data) - os.fstat(file).st_size
        if self.left is None or not _is_file(file) or new <= 0:
            return self._write(file, data)
        taken = len(data) - max(0, new - self.left)
        if taken <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= new - (len(data) - taken)
        return self._write(file, data[:taken])

    def _allocated(self, file: int, offset: int, size: int) -> None:
        if self.left is not None and self.left < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fallocate(file, offset, size)


def _is_file(file: int) -> bool:
    return stat.S_ISREG(os.fstat(file).st_mode)
