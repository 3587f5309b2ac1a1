"""A bucket on Backblaze B2, by its native API.

An object is the file of the same name below the prefix. B2 keeps every upload as a version, has no conditional writes,
and orders versions of one second at random; which version is the present one is decided by what we write into each
(retake.bucket.b2_marks). So a write is: list, compare, upload, list again, and only then remove what was replaced.

Below `<prefix>.retake/` lie the claims of the leases.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import NamedTuple

from retake.bucket import (
    ABSENT,
    ANY,
    Conflict,
    Entry,
    Expect,
    Handover,
    Lease,
    LeaseTerms,
    NotFound,
    check_key,
    check_prefix,
)
from retake.bucket.b2_calls import B2Calls, Gone
from retake.bucket.b2_claims import B2Claims
from retake.bucket.b2_marks import MOST_REPLACED, Mark, State, Version, state_of, tag_of
from retake.bucket.dead_man import Switch, no_switch
from retake.errors import LeaseHeld, LeaseLost, StorageError

_log = logging.getLogger(__name__)

_WRITES = "writes"  # the short lease of those who write without one
_WRITES_TERMS = LeaseTerms(ttl_s=30.0, skew_s=5.0, margin_s=5.0)
_LOOKS_S = (0.05, 0.1, 0.2, 0.4)  # then again each of the last

_here = threading.Lock()  # writers of one process wait for each other here rather than at B2


class _Sent(NamedTuple):
    """A version of ours that B2 has taken."""

    mark: Mark
    before: State  # what was there

    def rivals(self, after: State) -> bool:
        """Whether somebody else of ours, who expected the same, wrote in between: one of us at most may have it."""
        known = {self.mark.nonce, *(it.mark.nonce for it in self.before.ours if it.mark)}
        others = [it.mark for it in after.ours if it.mark and it.mark.nonce not in known]
        return not self.mark.forced and any(it.token == self.mark.token and not it.forced for it in others)


class B2Bucket:
    """The bucket of `calls`, below `prefix` («» or ending in «/»). Thread safe.

    Its writes carry the token of the lease that was taken or joined last through this object, so objects of one prefix
    belong to one lease. Without a lease a write that expects something takes a short one for itself, and its version
    carries the highest token that is there.
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
        self._terms, self._switch = lease_terms or LeaseTerms(), switch
        self._token: int | None = None  # of the lease that we write under
        self._since = 0.0  # when it was ours for certain, by B2's clock

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
        name = self._name(key)
        with self._calls.within(), self._alone(expect):
            before = self._compared(name, self._look(name), expect)
            sent = self._send(before, expect, lambda mark: self._calls.upload(name, data, mark.file_info(name)))
            after = self._fenced(name, sent)
            if _arrived(before, after) and not sent.mark.forced:
                self._withdraw(name, sent)
                raise self._conflict(name)
            return self._settle(name, sent, after)

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """See `Bucket.replace`. B2 keeps what another program uploads at the same time, so nothing has to be put back:
        our version is taken away again. Everything else but the newest goes to names that begin with `aside`.

        Also ours goes there, if another program's stands above it: that one may have been made from an older one, for
        who reads by name gets any of the versions of one second.
        """
        name, beside = self._name(key), self._name(aside)
        if name == beside:
            raise ValueError(f"the same key twice: {key!r}")
        with self._calls.within(), self._alone(expect):
            before, there = self._both(name, beside)
            if there.present:
                raise Conflict(f"{aside} is there: what an earlier write displaced has to be dealt with first")
            before = self._compared(name, before, expect)
            if unread := before.beneath():
                self._keep(unread, beside)
                self._remove(unread)
                raise self._conflict(name)
            sent = self._send(before, ABSENT, lambda mark: self._calls.upload(name, data, mark.file_info(name)))
            after = self._fenced(name, sent)
            if _arrived(before, after):
                self._step_back(name, sent, after, beside)
                raise self._conflict(name)
            return self._settle(name, sent, after)

    def list(self, prefix: str) -> list[Entry]:
        found = self._calls.versions(self._prefix + check_prefix(prefix) if prefix else self._prefix)
        entries = []
        for name, versions in groupby(sorted(found), key=lambda version: version.name):
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
            self._token_for(state)
            last = state.present.id if state.present else ""
            # What is present goes last, so that nothing older is ever present.
            self._remove(sorted(versions, key=lambda version: version.id == last))

    def copy(self, source: str, target: str) -> None:
        origin, name = self._name(source), self._name(target)
        with self._calls.within():
            for state in self._looks(origin):
                if state.present is None:
                    raise NotFound(source)
                with suppress(Gone):  # replaced since
                    self._copied(state.present, name)
                    return

    def _copied(self, found: Version, name: str) -> None:
        sent = self._send(self._look(name), ANY, lambda mark: self._calls.copy(found, name, mark.file_info(name)))
        self._settle(name, sent, self._fenced(name, sent))

    def lease(self, name: str, owner: str) -> Lease:
        from retake.bucket.claims import LeaseClock, take

        check_key(name)
        clock = LeaseClock()
        claims, terms = self._claims(), self._terms
        lease = take(claims, name, owner, clock=clock, terms=terms, renewing=self._claims, switch=self._switch)
        return self._under(lease)

    def join(self, name: str, handed: str) -> Lease:
        from retake.bucket.claims import LeaseClock, join

        check_key(name)
        return self._under(join(self._claims(), name, handed, clock=LeaseClock(), terms=self._terms))

    # --- the steps of a write -----------------------------------------------------------------------------------

    def _compared(self, name: str, before: State, expect: str | Expect) -> State:
        """What is there. Raises Conflict if that is not what is expected; removes what a crash has left."""
        found = before.version or ABSENT
        if expect not in (ANY, found):
            what = "is there already" if expect is ABSENT else "is not what was read"
            raise Conflict(f"{name} of {self.url} {what}: somebody else wrote it; nothing was changed")
        self._token_for(before)
        self._remove(before.rest)
        return before._replace(ours=before.ours[-1:], replaced=())

    def _send(self, before: State, expect: str | Expect, upload: Callable[[Mark], Version]) -> _Sent:
        from os import urandom

        mark = Mark(
            token=self._token_for(before),
            sequence=before.best.sequence + 1 if before.best else 1,
            forced=expect is ANY,
            nonce=urandom(9).hex(),
            over=tuple(version.id for version in before.news[-MOST_REPLACED:]),
        )
        self._remove(before.news[:-MOST_REPLACED])
        upload(mark)
        return _Sent(mark, before)

    def _fenced(self, name: str, sent: _Sent) -> State:
        """What is there after our write. Raises LeaseLost if a later holder of the lease has written meanwhile."""
        after = self._look(name)
        if after.best is None or after.best.rank < sent.mark.rank:
            raise StorageError(f"B2's listing lacks {name}, which it has just taken: another program removed it")
        if after.best.token > sent.mark.token:
            self._withdraw(name, sent)
            raise LeaseLost(f"{name} was written by a later holder of the lease: what we wrote is taken back")
        return after

    def _settle(self, name: str, sent: _Sent, after: State) -> str:
        """Remove what our write replaced. Its version. Raises Conflict if another of ours expected the same."""
        if sent.rivals(after):
            self._withdraw(name, sent)
            raise self._conflict(name)
        known = {version.id for version in sent.before.news}
        with suppress(StorageError):  # our version says what it replaced: the next write tries again
            self._remove((*after.rest, *(it for it in after.news if it.id in known)))
        return sent.mark.nonce

    def _withdraw(self, name: str, sent: _Sent) -> None:
        """Remove our version, however often it was uploaded."""
        found = self._calls.versions_of(name)
        self._remove(it for it in found if it.mark and it.mark.nonce == sent.mark.nonce)

    def _step_back(self, name: str, sent: _Sent, after: State, beside: str) -> None:
        """Leave the newest of another program's versions, with copies aside of it and of all that is beneath it."""
        others = [it for it in after.ours if it.mark and it.mark.nonce != sent.mark.nonce]
        self._keep([*others, *after.news], beside)
        self._withdraw(name, sent)
        self._remove([*others, *after.news[:-1]])

    def _keep(self, versions: Iterable[Version], beside: str) -> None:
        """Copy `versions` to names that begin with `beside`: each to one of its own, however often that is done."""
        for version in versions:
            target = f"{beside}-{tag_of(version.id)}"
            mark = Mark(self._token or 0, 1, forced=True, nonce=tag_of(version.id))
            with suppress(Gone):  # its writer has removed it
                if not version.hides:
                    self._calls.copy(version, target, mark.file_info(target))

    def _remove(self, versions: Iterable[Version]) -> None:
        for version in versions:
            self._calls.delete(version.id, version.name)

    # --- who may write ------------------------------------------------------------------------------------------

    def _token_for(self, state: State) -> int:
        """The token that our next write of it carries. Raises LeaseLost if a later holder of the lease has written.

        A higher token from before our lease was taken is no later holder's: it is of another lease, or somebody has
        removed the claims, and the tokens begin anew.
        """
        highest = state.best.token if state.best else 0
        if self._token is None or highest <= self._token:
            return self._token or highest
        if state.ours[-1].stamp > self._since:
            raise LeaseLost(
                f"a later holder of the lease (token {highest}, ours is {self._token}) has written in {self.url}: "
                "nothing more is written"
            )
        return highest

    @contextmanager
    def _alone(self, expect: str | Expect) -> Iterator[None]:
        """No other conditional write by Retake happens meanwhile: the lease sees to it, or a short one does."""
        if self._token is not None or expect is ANY:
            yield
            return
        with _here:
            lease = self._writes()
            try:
                yield
            finally:
                lease.release()

    def _writes(self) -> Lease:
        from retake.bucket.claims import LeaseClock, take

        for number in range(10**6):
            try:
                return take(self._claims("writes/"), _WRITES, "a writer", clock=LeaseClock(), terms=_WRITES_TERMS)
            except LeaseHeld as error:
                pause = _LOOKS_S[min(number, len(_LOOKS_S) - 1)]
                if self._calls.left() <= pause:
                    raise StorageError(f"another program is writing in {self.url}, try again: {error}") from error
                self._calls.sleep(pause)
        raise AssertionError

    def _under(self, lease: Lease) -> Lease:
        self._token, self._since = lease.token, (self._calls.date or 0.0) + 1  # B2 tells the time in whole seconds
        return _Noted(lease, self._no_longer_under)

    def _no_longer_under(self, token: int) -> None:
        if self._token == token:
            self._token = None

    # --- small steps --------------------------------------------------------------------------------------------

    def _claims(self, place: str = "leases/") -> B2Claims:
        return B2Claims(self._calls, f"{self._prefix}.retake/{place}")

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _look(self, name: str) -> State:
        return self._seen(self._calls.versions_of(name))

    def _seen(self, versions: Iterable[Version]) -> State:
        state = state_of(versions)
        for version in state.late:
            _log.warning("%s was written late by a former holder of the lease: not read (%s)", version.name, version.id)
        return state

    def _both(self, name: str, beside: str) -> tuple[State, State]:
        """What is under two names, by one listing if the second begins with the first."""
        if not beside.startswith(name):
            return self._look(name), self._look(beside)
        found = self._calls.versions(name)
        return self._seen(it for it in found if it.name == name), self._seen(it for it in found if it.name == beside)

    def _looks(self, name: str) -> Iterator[State]:
        """What is there, again and again. Raises StorageError when time is up, or B2 lists what it does not have."""
        seen: set[str | None] = set()
        while self._calls.left() > 0:
            state = self._look(name)
            if state.version in seen:
                raise StorageError(f"B2 lists {name} of {self.url}, but does not have it: try again")
            seen.add(state.version)
            yield state
        raise StorageError(f"{name} of {self.url} is replaced faster than it can be read: try again")

    def _conflict(self, name: str) -> Conflict:
        return Conflict(f"{name} of {self.url} was written by another program: it is as that left it")


class _Noted:
    """`lease`, whose end `ended` hears of."""

    def __init__(self, lease: Lease, ended: Callable[[int], None]) -> None:
        self.token = lease.token
        self._lease, self._ended = lease, ended

    def check(self) -> None:
        self._lease.check()

    def handover(self) -> Handover:
        return self._lease.handover()

    def release(self) -> None:
        self._ended(self.token)
        self._lease.release()


def _arrived(before: State, after: State) -> tuple[Version, ...]:
    """What another program uploaded between two looks."""
    known = {version.id for version in before.news}
    return tuple(version for version in after.news if version.id not in known)
