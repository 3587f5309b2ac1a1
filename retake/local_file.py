"""Read a file of this machine that a person has named, within bounds."""

import errno
import os
import stat

MAX_BYTES = 4 * 2**20
"""Maximum bytes of a file of settings, prompts or graphs."""


def read_file(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of the file.

    Raises OSError, with a `strerror` for people, also for a file of more than `max_bytes` bytes and for a pipe or a
    device, which might never end; ValueError for a path that contains a NUL.
    """
    with open(path, "rb", opener=_opened) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes // 1024:,} KiB")
    return data


def _opened(path: str, flags: int) -> int:
    """Open the file. A pipe is opened without waiting for somebody to write to it."""
    return os.open(path, flags | os.O_NONBLOCK)
