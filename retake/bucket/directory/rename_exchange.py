"""Put a file where a program without our locks may be putting its own at the same moment, and lose nothing of its.

Every step here is one system call that happens as a whole, so that a crash between any two leaves all files whole.

Putting back what was displaced is not enough: whoever read our file in between can write it back, with a change of
its own, over what we put back. So every file of the other program that we displace, for however short a time, keeps a
name beside the target until the caller has dealt with it.
"""

import errno
import os
import sys

from retake.bucket import Conflict
from retake.bucket.directory.disk import look, sync_file, version_of

_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h

_UNAVAILABLE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # the kernel, or this file system, has no exchange


def displace(draft: str, target: str, aside: str, expect: str) -> bool:
    """Give the file `draft` the name `target`, if the file of the version `expect` has it now. Whether it had.

    If not, what was there is there again, and under `aside`; and what was put there between our two steps is under
    `aside` with the draft's name appended. `draft` keeps its own name as well. Raises Conflict if there is nothing
    at `target` or something under `aside`; OSError. A crash leaves nothing under `aside`, or the draft, or a file
    that was displaced or was to be.
    """
    _name(draft, aside)
    try:
        exchange(aside, target)
    except OSError as error:
        os.unlink(aside)
        if error.errno in _UNAVAILABLE:
            return _keep_and_rename(draft, target, aside, expect)
        if error.errno == errno.ENOENT:
            raise Conflict(f"{target} has just been removed by another program") from error
        raise
    if _version(aside) == expect:
        os.unlink(aside)
        return True
    _put_back(draft, target, aside)
    sync_file(aside)  # who wrote it may not have, and if we lose it nobody has it
    return False


def _name(file: str, name: str) -> None:
    try:
        os.link(file, name)  # unlike a rename, never over something that is there
    except FileExistsError:
        raise Conflict(f"{name} is there: what an earlier write displaced has to be dealt with first") from None


def _put_back(draft: str, target: str, aside: str) -> None:
    """Exchange once more. What comes out this time is our draft, or was put there since and needs a name as well."""
    second = f"{aside}-{os.path.basename(draft)}"
    _name(aside, second)
    try:
        exchange(second, target)
    except FileNotFoundError:  # the other program has removed it: so it shall be gone
        os.unlink(second)
        return
    if os.path.samefile(second, draft):
        os.unlink(second)
    else:
        sync_file(second)


def exchange(one: str, other: str) -> None:
    """Exchange the files that two names stand for, in one step. Raises OSError, with ENOSYS where it cannot be done.

    renameat2(2), by ctypes because Python does not offer it; in glibc since 2.28, in Linux since 3.15.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), one, None, other)


def _keep_and_rename(draft: str, target: str, aside: str, expect: str) -> bool:
    """The weaker way, where names cannot be exchanged: a second name for what is there, a look, a rename over it.

    What another program puts there between the last look and the rename, two system calls, is lost.
    """
    try:
        os.link(target, aside)
    except FileNotFoundError:
        raise Conflict(f"{target} has just been removed by another program") from None
    try:
        as_expected = expect == _version(aside) == _version(target)
        if as_expected:
            os.rename(draft, target)
    finally:
        os.unlink(aside)
    return as_expected


def _version(path: str) -> str | None:
    found = look(path)
    return version_of(found) if found else None
