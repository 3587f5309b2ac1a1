"""The steps of a write on B2: list, compare, upload, list again, and only then remove what it replaced."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from retake.bucket import ABSENT, ANY, Conflict, Expect
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.connection import Gone
from retake.bucket.b2.marks import MAX_REPLACED, Mark, State, Version, state_of, tag_of
from retake.errors import LeaseLost, StorageError

_log = logging.getLogger(__name__)


class SentVersion(NamedTuple):
    """A version of ours that B2 has stored."""

    name: str
    mark: Mark
    before: State  # before the upload

    def followed_by_others(self, after: State) -> bool:
        """Return whether another program has uploaded something since."""
        known = {version.id for version in (*self.before.news, *self.before.replaced)}
        return any(version.id not in known for version in after.news)

    def rivals(self, after: State) -> bool:
        """Return whether another conditional write of ours came in between: at most one of them may succeed."""
        known = {self.mark.nonce, *(it.mark.nonce for it in self.before.ours if it.mark)}
        others = [it.mark for it in after.ours if it.mark and it.mark.nonce not in known]
        return not self.mark.forced and any(it.token == self.mark.token and not it.forced for it in others)


class WriteSteps:
    """The steps in the bucket of `calls`. `token_for(state)` returns the token for a write over that state, and
    how much was added to it."""

    def __init__(self, calls: B2Calls, url: str, token_for: Callable[[State], tuple[int, int]]) -> None:
        self._calls, self._url, self._token_for = calls, url, token_for

    def look(self, name: str) -> State:
        """Return the state of `name`."""
        return _logged_state(self._calls.versions_of(name))

    def look_repeatedly(self, name: str) -> Iterator[State]:
        """Yield the state of `name`, listed anew each time.

        Raises StorageError when time is up, or when B2 lists a version that it does not have.
        """
        seen: set[str | None] = set()
        while self._calls.left() > 0:
            state = self.look(name)
            if state.version in seen:
                raise StorageError(f"B2 lists {name} of {self._url}, but does not have it: try again")
            seen.add(state.version)
            yield state
        raise StorageError(f"{name} of {self._url} is replaced faster than it can be read: try again")

    def look_at_both(self, name: str, beside: str) -> tuple[State, State]:
        """Return the states of two names, by one listing if the second begins with the first."""
        if not beside.startswith(name):
            return self.look(name), self.look(beside)
        found = self._calls.versions(name)
        return _logged_state(it for it in found if it.name == name), _logged_state(
            it for it in found if it.name == beside
        )

    def compare(self, name: str, before: State, expect: str | Expect) -> None:
        """Raise Conflict if the present version is not the expected one, LeaseLost if a later holder wrote it."""
        if expect not in (ANY, before.version or ABSENT):
            what = "exists already" if expect is ABSENT else "is not what was read"
            raise Conflict(f"{name} {what}: somebody else wrote it; nothing was changed")
        self._token_for(before)

    def upload(self, name: str, before: State, file: BinaryIO, *, forced: bool) -> SentVersion:
        """Upload our version over everything in `before`, all of which may then be removed."""
        return self._send(
            name, before, lambda mark: self._calls.upload(name, file, mark.file_info(name)), forced=forced
        )

    def copy(self, name: str, before: State, source: Version) -> SentVersion:
        """Do the same as `upload`, with a copy of `source`. Raises Gone."""
        return self._send(name, before, lambda mark: self._calls.copy(source, name, mark.file_info(name)), forced=True)

    def _send(self, name: str, before: State, store: Callable[[Mark], Version], *, forced: bool) -> SentVersion:
        from os import urandom

        replaced = (*before.replaced, *before.news)
        token, raised = self._token_for(before)
        mark = Mark(
            token=token,
            sequence=before.best.sequence + 1 if before.best else 1,
            forced=forced,
            nonce=urandom(9).hex(),
            over=tuple(version.id for version in replaced[-MAX_REPLACED:]),
            raised=raised,
        )
        self.remove(replaced[:-MAX_REPLACED])  # our mark has no room for them, so they would count as news again
        store(mark)
        return SentVersion(name, mark, before)

    def fenced(self, sent: SentVersion, after: State | None = None) -> State:
        """Return the state after our write, listing it unless `after` is given. Raises LeaseLost if a later holder of
        the lease wrote meanwhile."""
        after = after or self.look(sent.name)
        if after.best is None or after.best.rank < sent.mark.rank:
            raise StorageError(f"B2's listing lacks {sent.name}, which it has just stored: another program removed it")
        if after.best.token > sent.mark.token:
            self.withdraw(sent)
            raise LeaseLost(f"{sent.name} was written by a later holder of the lease: what we wrote was withdrawn")
        return after

    def settle(self, sent: SentVersion, after: State) -> str:
        """Remove what our write replaced and return its version. Raises Conflict if another write of ours was first."""
        if sent.rivals(after):
            self.withdraw(sent)
            raise self.conflict(sent.name)
        known = {version.id for version in sent.before.news}
        with suppress(StorageError):  # our mark names what it replaced: the next write tries again
            self.remove((*after.superseded, *(it for it in after.news if it.id in known)))
        return sent.mark.nonce

    def withdraw(self, sent: SentVersion) -> None:
        """Remove every upload of our version."""
        found = self._calls.versions_of(sent.name)
        self.remove(it for it in found if it.mark and it.mark.nonce == sent.mark.nonce)

    def step_back(self, sent: SentVersion, after: State, beside: str) -> None:
        """Leave only the newest version of the other program, and keep copies of it and of all that it hides."""
        others = [it for it in after.ours if it.mark and it.mark.nonce != sent.mark.nonce]
        self.keep([*others, *after.news], beside)
        self.remove(sent.before.replaced)  # else they count as news again once our version is gone
        self.withdraw(sent)
        self.remove([*others, *after.news[:-1]])

    def keep(self, versions: Iterable[Version], beside: str) -> None:
        """Copy each version to its own name that begins with `beside`. Idempotent."""
        for version in versions:
            target = f"{beside}-{tag_of(version.id)}"
            mark = Mark(0, 1, forced=True, nonce=tag_of(version.id))
            with suppress(Gone):  # its writer has removed it
                if not version.hides:
                    self._calls.copy(version, target, mark.file_info(target))

    def remove(self, versions: Iterable[Version]) -> None:
        """Delete `versions`."""
        for version in versions:
            self._calls.delete(version.id, version.name)

    @staticmethod
    def conflict(name: str) -> Conflict:
        """Return the error for a write that lost against another program's."""
        return Conflict(f"{name} was written by another program and was left as it is")


def present_last(versions: Iterable[Version]) -> list[Version]:
    """Return all `versions` of a name in an order of deletion that never makes an older one present."""
    versions = list(versions)
    present = state_of(versions).present
    return sorted(versions, key=lambda version: version == present)


def _logged_state(versions: Iterable[Version]) -> State:
    """Return the state of `versions`, all of one name, and warn of late ones."""
    state = state_of(versions)
    for version in state.late:
        _log.warning("%s was written late by a former holder of the lease: not read (%s)", version.name, version.id)
    return state
