"""A bucket on Backblaze B2, by its native API.

An object is the file of the same name below the prefix. B2 keeps every upload as a version, has no conditional writes,
and orders versions of one second at random; which version is the present one is decided by what we write into each
(retake.bucket.b2.marks), so that a write is: list, compare, upload, list again (retake.bucket.b2.write).

Below `<prefix>.retake/` lie the claims of the leases.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from itertools import groupby

from retake.bucket import (
    ANY,
    Bucket,
    Conflict,
    Entry,
    Expect,
    Holder,
    Lease,
    LeaseTerms,
    NotFound,
    Room,
    check_key,
    check_prefix,
)
from retake.bucket.b2.calls import B2Calls, Gone
from retake.bucket.b2.fencing import WriteRight
from retake.bucket.b2.marks import Mark, State, Version, state_of
from retake.bucket.b2.write import Steps
from retake.bucket.kill_timer import Switch, no_switch
from retake.bucket.room import NoLimit
from retake.errors import StorageError


class B2Bucket:
    """The bucket of `calls`, below `prefix` («» or ending in «/»). Thread safe.

    Its writes carry the token of the lease that was taken or joined last through this object, so objects of one prefix
    belong to one lease. Without a lease a write that expects something takes a short one for itself.
    """

    def __init__(
        self,
        url: str,
        calls: B2Calls,
        prefix: str,
        *,
        lease_terms: LeaseTerms | None = None,
        switch: Switch = no_switch,
    ) -> None:
        self.url = url
        self._calls, self._prefix = calls, prefix
        self._terms, self._switch = lease_terms, switch
        self._right = WriteRight(calls, f"{prefix}.retake/", lease_terms or LeaseTerms(), switch)
        self._steps = Steps(calls, self._right.token_for)

    def read(self, key: str) -> tuple[bytes, str]:
        name = self._name(key)
        with self._calls.within():
            for state in self._looks(name):
                if state.present is None or state.version is None:
                    raise NotFound(key)
                with suppress(Gone):  # replaced since: what replaced it is there
                    return self._calls.download(state.present), state.version
            raise AssertionError

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        name, steps = self._name(key), self._steps
        with self._calls.within(), self._right.alone(expect):
            before = steps.look(name)
            steps.compare(name, before, expect)
            sent = steps.send(name, before, lambda mark: self._upload(name, data, mark), forced=expect is ANY)
            after = steps.fenced(sent)
            if sent.arrived(after) and expect is not ANY:
                steps.withdraw(sent)
                raise steps.conflict(name)
            return steps.settle(sent, after)

    def set_aside(self, key: str, size: int) -> Room:
        return NoLimit(lambda data, expect: self.write(key, data, expect))

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """See `Bucket.replace`. B2 keeps what another program uploads at the same time, so nothing has to be put back:
        our version is taken away again. Everything else but the newest goes to names that begin with `aside`.

        Also ours goes there, if another program's stands above it: that one may have been made from an older one, for
        who reads by name gets any of the versions of one second.
        """
        name, beside, steps = self._name(key), self._name(aside), self._steps
        if name == beside:
            raise ValueError(f"the same key twice: {key!r}")
        with self._calls.within(), self._right.alone(expect):
            before, there = self._both(name, beside)
            if there.present:
                raise Conflict(f"{aside} is there: what an earlier write displaced has to be dealt with first")
            steps.compare(name, before, expect)
            if unread := before.beneath():
                steps.keep(unread, beside)
                steps.remove((*before.replaced, *unread))
                raise steps.conflict(name)
            sent = steps.send(name, before, lambda mark: self._upload(name, data, mark), forced=False)
            after = steps.fenced(sent)
            if sent.arrived(after):
                steps.step_back(sent, after, beside)
                raise steps.conflict(name)
            return steps.settle(sent, after)

    def list(self, prefix: str) -> list[Entry]:
        found = self._calls.versions(self._prefix + check_prefix(prefix) if prefix else self._prefix)
        entries = []
        for name, versions in groupby(sorted(found, key=lambda it: it.name), key=lambda it: it.name):
            key, present = name.removeprefix(self._prefix), state_of(versions).present
            with suppress(ValueError):  # another program's file, whose name is no key; or a claim
                if present:
                    entries.append(Entry(check_key(key), present.size, present.stamp))
        return sorted(entries)

    def delete(self, key: str) -> None:
        name = self._name(key)
        with self._calls.within():
            versions = self._calls.versions_of(name)
            state = state_of(versions)
            self._right.token_for(state)
            last = state.present.id if state.present else ""
            # What is present goes last, so that nothing older is ever present.
            self._steps.remove(sorted(versions, key=lambda version: version.id == last))

    def copy(self, source: str, target: str) -> None:
        origin, name = self._name(source), self._name(target)
        with self._calls.within():
            for state in self._looks(origin):
                if state.present is None:
                    raise NotFound(source)
                with suppress(Gone):  # replaced since
                    self._copied(state.present, name)
                    return

    def part(self, prefix: str) -> Bucket:
        """See `Bucket.part`. A part's writes carry the token of its own lease, so it is an object of its own."""
        url = f"{self.url}#{prefix.rstrip('/')}"
        return B2Bucket(url, self._calls, self._prefix + prefix, lease_terms=self._terms, switch=self._switch)

    def lease(self, name: str, owner: str) -> Lease:
        return self._right.take(check_key(name), owner)

    def holder(self, name: str) -> Holder | None:
        return self._right.holder(check_key(name))

    def join(self, name: str, handed: str) -> Lease:
        return self._right.join(check_key(name), handed)

    def break_lease(self, name: str, owner: str) -> int:
        return self._right.break_lease(check_key(name), owner)

    def alone(self, name: str) -> AbstractContextManager[None]:
        """See `Bucket.alone`. A write without a lease that expects a version takes a short one for itself."""
        return nullcontext()

    def now(self) -> datetime | None:
        self._calls.versions_of(f"{self._prefix}.retake/now")  # nothing is there: what counts is the answer's date
        date = self._calls.date
        return None if date is None else datetime.fromtimestamp(date, UTC)

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _upload(self, name: str, data: bytes, mark: Mark) -> Version:
        return self._calls.upload(name, data, mark.file_info(name))

    def _copied(self, found: Version, name: str) -> None:
        steps, before = self._steps, self._steps.look(name)
        sent = steps.send(name, before, lambda mark: self._calls.copy(found, name, mark.file_info(name)), forced=True)
        steps.settle(sent, steps.fenced(sent))

    def _both(self, name: str, beside: str) -> tuple[State, State]:
        """What is under two names, by one listing if the second begins with the first."""
        if not beside.startswith(name):
            return self._steps.look(name), self._steps.look(beside)
        found = self._calls.versions(name)
        return self._steps.seen(it for it in found if it.name == name), self._steps.seen(
            it for it in found if it.name == beside
        )

    def _looks(self, name: str) -> Iterator[State]:
        """What is there, again and again. Raises StorageError when time is up, or B2 lists what it does not have."""
        seen: set[str | None] = set()
        while self._calls.left() > 0:
            state = self._steps.look(name)
            if state.version in seen:
                raise StorageError(f"B2 lists {name} of {self.url}, but does not have it: try again")
            seen.add(state.version)
            yield state
        raise StorageError(f"{name} of {self.url} is replaced faster than it can be read: try again")
