"""The leases of a directory bucket."""

import os
from contextlib import AbstractContextManager, nullcontext

from retake.bucket import Holder, Lease
from retake.bucket.directory.disk import storage_errors
from retake.bucket.directory.flock import current_holder, describe_holders, join, lock_path, take
from retake.bucket.directory.tree import Tree
from retake.clock import Clock
from retake.errors import LeaseHeld


class DirectoryLeases:
    """`Leases` (see retake.bucket.contract) by the kernel's locks on files below `.retake/leases/`."""

    def __init__(self, url: str, tree: Tree, clock: Clock, file_mode: int) -> None:
        self.url = url
        self._tree, self._clock, self._file_mode = tree, clock, file_mode

    def lease(self, name: str, owner: str) -> Lease:
        path = self._lock_path(name)
        with storage_errors(f"take the lease {name!r} of {self.url}"):
            self._tree.refuse_linked_folders(name)
            self._tree.make_folders(".retake/leases/")
        return take(path, name, owner, self._clock, self._file_mode)

    def holder(self, name: str) -> Holder | None:
        with storage_errors(f"look at the lease {name!r} of {self.url}"):
            return current_holder(self._lock_path(name))

    def break_lease(self, name: str, owner: str) -> int:
        path = self._lock_path(name)
        try:
            lease = self.lease(name, owner)
        except LeaseHeld:
            raise LeaseHeld(describe_holders(path, name)) from None
        lease.release()
        return lease.token

    def join(self, name: str, handed: str) -> Lease:
        return join(self._lock_path(name), name, handed)

    def alone(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def _lock_path(self, name: str) -> str:
        return lock_path(os.path.join(self._tree.own, "leases"), name)
