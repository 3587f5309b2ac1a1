"""A bucket in memory, for tests and simulations, that fulfils the whole contract.

store = MemoryStore()
ours, theirs = MemoryBucket(store), MemoryBucket(store)
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import NamedTuple

from retake.bucket import (
    ABSENT,
    ANY,
    Bucket,
    Conflict,
    Entry,
    Expect,
    Handover,
    Holder,
    Lease,
    NotFound,
    check_key,
    check_prefix,
)
from retake.bucket.diskless import NoDisk
from retake.clock import Clock, SystemClock, parse_stamp, stamp
from retake.errors import LeaseHeld, LeaseLost


class _Object(NamedTuple):
    data: bytes
    version: str
    modified: float


class MemoryStore:
    """The store of any number of `MemoryBucket`s."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.objects: dict[str, _Object] = {}
        self.holders: dict[str, list[MemoryLease]] = {}
        self.lock = threading.RLock()
        self._clock = clock or SystemClock()
        self._writes = 0
        self._tokens = 0

    def get(self, key: str) -> _Object:
        """Return the object. Raises NotFound."""
        found = self.objects.get(key)
        if found is None:
            raise NotFound(key)
        return found

    def put(self, key: str, data: bytes) -> _Object:
        """Store an object with a new version."""
        self._writes += 1
        self.objects[key] = _Object(bytes(data), str(self._writes), self._clock.now().timestamp())
        return self.objects[key]

    def compare(self, key: str, expect: str | Expect) -> None:
        """Raise Conflict unless the object is what is expected."""
        found = self.objects.get(key)
        if expect not in (ANY, found.version if found else ABSENT):
            raise Conflict(f"{key} is not what was expected; nothing was changed")

    def put_back(self, key: str, new: _Object, displaced: _Object, aside: str) -> None:
        """Undo an exchange. As in a directory, an object written between the two steps is kept under its own name."""
        second = self.objects.get(key)
        if second is None:
            return
        self.objects[key] = displaced
        if second is not new:
            self.objects[f"{aside}-{new.version}"] = second

    def take(self, name: str, owner: str) -> "MemoryLease":
        """Take a lease. Raises LeaseHeld."""
        with self.lock:
            if holders := self.holders.get(name):
                raise LeaseHeld(f"the lease {name!r} is held by {holders[0].owner} since {holders[0].since}")
            self._tokens += 1
            return MemoryLease(self, name, self._tokens, owner, stamp(self._clock.now()))

    def end_leases(self) -> None:
        """Free all leases, as if every holder and its scripts had died."""
        with self.lock:
            self.holders.clear()


class MemoryLease:
    """A `Lease` that ends when its holder and all who joined have released it."""

    def __init__(self, store: MemoryStore, name: str, token: int, owner: str, since: str) -> None:
        self.token = token
        self.owner = owner
        self.since = since
        self._store = store
        self._name = name
        store.holders.setdefault(name, []).append(self)

    def check(self) -> None:
        if not any(lease is self for lease in self._store.holders.get(self._name, [])):
            raise LeaseLost(f"the lease {self._name!r} was released, or its holder died")

    def left(self) -> float | None:
        """Return None: this lease does not expire."""
        return None

    def handover(self) -> Handover:
        self.check()
        return Handover(str(self.token), ())

    def release(self) -> None:
        with self._store.lock:
            holders = self._store.holders.get(self._name, [])
            self._store.holders[self._name] = [lease for lease in holders if lease is not self]


class _MemoryLeases:
    """The leases of one client of `store`."""

    def __init__(self, store: MemoryStore, meanwhile: Callable[[str, str], None]) -> None:
        self.store = store
        self._meanwhile = meanwhile

    def lease(self, name: str, owner: str) -> Lease:
        self._meanwhile("lease", check_key(name))
        return self.store.take(name, owner)

    def holder(self, name: str) -> Holder | None:
        self._meanwhile("holder", check_key(name))
        with self.store.lock:
            holders = self.store.holders.get(name)
            return Holder(holders[0].owner, parse_stamp(holders[0].since), None) if holders else None

    def break_lease(self, name: str, owner: str) -> int:
        self._meanwhile("break", check_key(name))
        with self.store.lock:
            self.store.holders.pop(name, None)
            broken = self.store.take(name, owner)
        broken.release()
        return broken.token

    def join(self, name: str, handed: str) -> Lease:
        self._meanwhile("join", check_key(name))
        with self.store.lock:
            for lease in self.store.holders.get(name, []):
                if str(lease.token) == handed:
                    return MemoryLease(self.store, name, lease.token, lease.owner, lease.since)
        raise LeaseLost(f"the lease {name!r} was not handed over, or has ended: {handed!r}")

    def alone(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


class MemoryBucket(_MemoryLeases, NoDisk):
    """One client of `store`. Thread safe.

    `meanwhile(step, key)` is called before each operation ("read", "write", …; for `copy` with the target), and within
    `replace` before its exchange ("exchange") and before that is undone ("put back"). In it a test can let another
    program write through a client of its own.
    """

    def __init__(
        self, store: MemoryStore | None = None, *, meanwhile: Callable[[str, str], None] = lambda step, key: None
    ) -> None:
        super().__init__(store or MemoryStore(), meanwhile)
        self.url = "memory:"

    def read(self, key: str) -> tuple[bytes, str]:
        self._meanwhile("read", check_key(key))
        with self.store.lock:
            found = self.store.get(key)
        return found.data, found.version

    def read_range(self, key: str, first: int, last: int) -> bytes:
        """See `RangedReads.read_range`."""
        return self.read(key)[0][first : last + 1]

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        self._meanwhile("write", check_key(key))
        with self.store.lock:
            self.store.compare(key, expect)
            return self.store.put(key, data).version

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """See `SharedWrites.replace`."""
        if check_key(key) == check_key(aside):
            raise ValueError(f"the same key twice: {key!r}")
        self._meanwhile("replace", key)
        with self.store.lock:
            self.store.compare(aside, ABSENT)
            self.store.compare(key, expect)
            if isinstance(expect, Expect):
                return self.store.put(key, data).version
        self._meanwhile("exchange", key)
        with self.store.lock:
            displaced = self.store.objects.get(key)
            if displaced is None:
                raise Conflict(f"{key} has just been removed by another program")
            new = self.store.put(key, data)
            if displaced.version == expect:
                return new.version
            self.store.objects[aside] = displaced
        self._meanwhile("put back", key)
        with self.store.lock:
            self.store.put_back(key, new, displaced, aside)
        raise Conflict(f"{key} was written by another program and was left as it is")

    def delete(self, key: str) -> None:
        self._meanwhile("delete", check_key(key))
        with self.store.lock:
            self.store.objects.pop(key, None)

    def copy(self, source: str, target: str) -> None:
        check_key(source)
        self._meanwhile("copy", check_key(target))
        with self.store.lock:
            self.store.put(target, self.store.get(source).data)

    def part(self, prefix: str) -> Bucket:
        from retake.bucket.wrappers import PrefixedBucket

        return PrefixedBucket(self, prefix)

    def now(self) -> datetime | None:
        return None

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        keys = sorted({check_key(f"{stem}{ending}") for ending in endings})
        self._meanwhile("find", stem)
        with self.store.lock:
            found = [(key, it) for key in keys if (it := self.store.objects.get(key))]
        return [Entry(key, len(it.data), it.modified) for key, it in found]

    def list(self, prefix: str) -> list[Entry]:
        self._meanwhile("list", check_prefix(prefix))
        with self.store.lock:
            found = sorted((key, it) for key, it in self.store.objects.items() if key.startswith(prefix))
        return [Entry(key, len(it.data), it.modified) for key, it in found]
