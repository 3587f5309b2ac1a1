"""A write on B2, step by step: look, compare, send, look again, and only then remove what it replaced."""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from retake.bucket import ABSENT, ANY, Conflict, Expect
from retake.bucket.b2.calls import B2Calls, Gone
from retake.bucket.b2.marks import MOST_REPLACED, Mark, State, Version, state_of, tag_of
from retake.errors import LeaseLost, StorageError

_log = logging.getLogger(__name__)


class Sent(NamedTuple):
    """A version of ours that B2 has taken."""

    name: str
    mark: Mark
    before: State  # what was there

    def arrived(self, after: State) -> bool:
        """Whether another program has uploaded something since."""
        known = {version.id for version in (*self.before.news, *self.before.replaced)}
        return any(version.id not in known for version in after.news)

    def rivals(self, after: State) -> bool:
        """Whether somebody else of ours, who expected the same, wrote since: one of us at most may have it."""
        known = {self.mark.nonce, *(it.mark.nonce for it in self.before.ours if it.mark)}
        others = [it.mark for it in after.ours if it.mark and it.mark.nonce not in known]
        return not self.mark.forced and any(it.token == self.mark.token and not it.forced for it in others)


class Steps:
    """The steps, for the bucket of `calls`. `token_for(state)` is the token that a write over that state carries."""

    def __init__(self, calls: B2Calls, token_for: Callable[[State], int]) -> None:
        self._calls, self._token_for = calls, token_for

    def look(self, name: str) -> State:
        """What is there under `name`."""
        return self.seen(self._calls.versions_of(name))

    def seen(self, versions: Iterable[Version]) -> State:
        """What `versions`, all of one name, amount to."""
        state = state_of(versions)
        for version in state.late:
            _log.warning("%s was written late by a former holder of the lease: not read (%s)", version.name, version.id)
        return state

    def compare(self, name: str, before: State, expect: str | Expect) -> None:
        """Raises Conflict if what is there is not what is expected; LeaseLost."""
        if expect not in (ANY, before.version or ABSENT):
            what = "is there already" if expect is ABSENT else "is not what was read"
            raise Conflict(f"{name} {what}: somebody else wrote it; nothing was changed")
        self._token_for(before)

    def send(self, name: str, before: State, upload: Callable[[Mark], Version], *, forced: bool) -> Sent:
        """Put our version above everything that is there `before`; all of it may go then, read or not."""
        from os import urandom

        replaced = (*before.replaced, *before.news)
        mark = Mark(
            token=self._token_for(before),
            sequence=before.best.sequence + 1 if before.best else 1,
            forced=forced,
            nonce=urandom(9).hex(),
            over=tuple(version.id for version in replaced[-MOST_REPLACED:]),
        )
        self.remove(replaced[:-MOST_REPLACED])  # what we cannot name in ours would be news again
        upload(mark)
        return Sent(name, mark, before)

    def fenced(self, sent: Sent) -> State:
        """What is there after our write. Raises LeaseLost if a later holder of the lease has written meanwhile."""
        after = self.look(sent.name)
        if after.best is None or after.best.rank < sent.mark.rank:
            raise StorageError(f"B2's listing lacks {sent.name}, which it has just taken: another program removed it")
        if after.best.token > sent.mark.token:
            self.withdraw(sent)
            raise LeaseLost(f"{sent.name} was written by a later holder of the lease: what we wrote is taken back")
        return after

    def settle(self, sent: Sent, after: State) -> str:
        """Remove what our write replaced. Its version. Raises Conflict if another of ours expected the same."""
        if sent.rivals(after):
            self.withdraw(sent)
            raise self.conflict(sent.name)
        known = {version.id for version in sent.before.news}
        with suppress(StorageError):  # our version says what it replaced: the next write tries again
            self.remove((*after.rest, *(it for it in after.news if it.id in known)))
        return sent.mark.nonce

    def withdraw(self, sent: Sent) -> None:
        """Remove our version, however often it was uploaded."""
        found = self._calls.versions_of(sent.name)
        self.remove(it for it in found if it.mark and it.mark.nonce == sent.mark.nonce)

    def step_back(self, sent: Sent, after: State, beside: str) -> None:
        """Leave the newest of another program's versions, with copies aside of it and of all that is beneath it."""
        others = [it for it in after.ours if it.mark and it.mark.nonce != sent.mark.nonce]
        self.keep([*others, *after.news], beside)
        self.remove(sent.before.replaced)  # else they are news again when what replaced them goes
        self.withdraw(sent)
        self.remove([*others, *after.news[:-1]])

    def keep(self, versions: Iterable[Version], beside: str) -> None:
        """Copy `versions` to names that begin with `beside`: each to one of its own, however often that is done."""
        for version in versions:
            target = f"{beside}-{tag_of(version.id)}"
            mark = Mark(0, 1, forced=True, nonce=tag_of(version.id))
            with suppress(Gone):  # its writer has removed it
                if not version.hides:
                    self._calls.copy(version, target, mark.file_info(target))

    def remove(self, versions: Iterable[Version]) -> None:
        for version in versions:
            self._calls.delete(version.id, version.name)

    @staticmethod
    def conflict(name: str) -> Conflict:
        return Conflict(f"{name} was written by another program: it is as that left it")
