"""A bucket that fails on demand, for tests and simulations.

To try every point at which a program can die, run it once to count the operations, then once for each:

    counted = FailingBucket(MemoryBucket())
    run(counted)
    for number in range(1, len(counted.operations) + 1):
        for after in (False, True):
            store = MemoryStore()
            dying = FailingBucket(MemoryBucket(store), Fault(Crash, number=number, after=after))
            with contextlib.suppress(Crash):
                run(dying)
            dying.end_leases()
            run(MemoryBucket(store))  # must carry on where the other one died
"""

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TypeVar

from retake.bucket import Bucket, Lease
from retake.bucket.wrappers import Wrapper
from retake.errors import StorageError

T = TypeVar("T")


class Crash(BaseException):  # no `except Exception` may catch what stands for the death of the process
    """The process died here: from now on its bucket does nothing, not even for `finally` clauses."""


@dataclass(frozen=True)
class Fault:
    """Which operation fails, how, and whether before or after it takes effect. `error` is called for each failure."""

    error: Callable[[], BaseException] = lambda: StorageError("failed on demand")
    _: KW_ONLY
    number: int = 1  # of the operations that match, the first is 1
    times: int = 1  # how many fail in a row
    after: bool = False  # fail after the operation has taken effect, rather than before
    operation: str | None = None  # "read", "write", … (see `Wrapper.around`); None: any
    key: str | None = None  # the key, prefix or lease, for "copy" the target; None: any

    def matches(self, operation: str, key: str) -> bool:
        return self.operation in (None, operation) and self.key in (None, key)

    def strikes(self, count: int) -> bool:
        """Whether the `count`-th matching operation is one that fails."""
        return self.number <= count < self.number + self.times


class FailingBucket(Wrapper):
    """`bucket` with `faults`. `operations` lists the operations so far as (operation, key)."""

    def __init__(self, bucket: Bucket, *faults: Fault) -> None:
        super().__init__(bucket)
        self.operations: list[tuple[str, str]] = []
        self._leases: list[Lease] = []
        self._counts = [0] * len(faults)
        self._faults = faults
        self._dead = False
        self._lock = threading.Lock()

    def end_leases(self) -> None:
        """Release the leases taken through this bucket, as the kernel does when a process dies."""
        while self._leases:
            self._leases.pop().release()

    def lease(self, name: str, owner: str) -> Lease:
        return self.around("lease", name, lambda: self._noted(self.bucket.lease(name, owner)))

    def join(self, name: str, handed: str) -> Lease:
        return self.around("join", name, lambda: self._noted(self.bucket.join(name, handed)))

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        due = self._due(operation, key)
        for fault in due:
            if not fault.after:
                self._fail(fault)
        try:
            return call()
        finally:  # even if the operation itself failed
            for fault in due:
                self._fail(fault)

    def _due(self, operation: str, key: str) -> list[Fault]:
        """Return the faults that strike this operation. Raises Crash if the process is dead."""
        with self._lock:
            if self._dead:
                raise Crash(f"{operation} {key} after the crash")
            self.operations.append((operation, key))
            for index, fault in enumerate(self._faults):
                self._counts[index] += fault.matches(operation, key)
            counted = zip(self._faults, self._counts, strict=True)
            return [fault for fault, count in counted if fault.matches(operation, key) and fault.strikes(count)]

    def _fail(self, fault: Fault) -> None:
        error = fault.error()
        self._dead = self._dead or isinstance(error, Crash)
        raise error

    def _noted(self, lease: Lease) -> Lease:
        self._leases.append(lease)
        return lease
