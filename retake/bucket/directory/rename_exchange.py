"""Replaces a file that a program without our locks may be replacing at the same moment, and loses none of its changes.

Every step is one atomic system call, so a crash between two steps leaves all files whole.

Putting back what was displaced is not enough: a program that read our file in between can write it back, with a change
of its own, over what we put back. So every file of the other program that we displace, however briefly, keeps a name
beside the target until the caller has dealt with it.
"""

import errno
import os
import sys

from retake.bucket import Conflict
from retake.bucket.directory.disk import stat_file, sync_file, version_of

_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h

_UNAVAILABLE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # the kernel or this file system has no exchange


def displace(draft: str, target: str, aside: str, expect: str) -> bool:
    """Give the file `draft` the name `target` if `target` has the version `expect`. Return whether it had.

    If not, the displaced file is put back, and also kept as `aside`; a file written between our two steps is kept as
    `aside` with the draft's name appended. `draft` keeps its own name as well. After a crash, `aside` does not exist,
    or is the draft, or a file that was displaced or about to be displaced.

    Raises Conflict if `target` does not exist or `aside` does; OSError.
    """
    _link(draft, aside)
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
    sync_file(aside)  # the other program may not have synced it, and nobody else has a copy
    return False


def _link(file: str, name: str) -> None:
    try:
        os.link(file, name)  # unlike a rename, this never replaces an existing file
    except FileExistsError:
        raise Conflict(f"{name} exists: deal first with what an earlier write displaced") from None


def _put_back(draft: str, target: str, aside: str) -> None:
    """Exchange once more. This displaces our draft, or what was written since, which then needs its own name."""
    second = f"{aside}-{os.path.basename(draft)}"
    _link(aside, second)
    try:
        exchange(second, target)
    except FileNotFoundError:  # the other program has removed it, so it stays removed
        os.unlink(second)
        return
    if os.path.samefile(second, draft):
        os.unlink(second)
    else:
        sync_file(second)


def exchange(one: str, other: str) -> None:
    """Exchange two names in one step. Raises OSError, with ENOSYS if the system cannot.

    This is renameat2(2) by ctypes, because Python does not offer it; glibc has it since 2.28, Linux since 3.15.
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
    """Do the same as `displace`, less safely, where names cannot be exchanged: link, compare, rename.

    What another program writes between the comparison and the rename, two system calls, is lost.
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
    found = stat_file(path)
    return version_of(found) if found else None
