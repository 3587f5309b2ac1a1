"""A bucket on Backblaze B2, by its native API.

An object is the file of the same name below the prefix. B2 keeps every upload as a version, has no conditional writes,
and lists versions of the same second in any order. So a mark that we write into each version decides which one is
present (see marks.py), and a write lists, compares, uploads and lists again (see write.py).

The claims of the leases are below `<prefix>.retake/`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import BytesIO
from itertools import chain, groupby
from typing import BinaryIO, NamedTuple

from retake.bucket import (
    ANY,
    Bucket,
    Conflict,
    Entry,
    Expect,
    LeaseTerms,
    NotFound,
    check_key,
    check_prefix,
)
from retake.bucket.b2.authorization import KeptAuthorization, cache_folder
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.connection import B2Connection, Gone
from retake.bucket.b2.looks import B2Looks, entry_of
from retake.bucket.b2.marks import Version, state_of
from retake.bucket.b2.write import WriteSteps, present_last
from retake.bucket.claims.lease import KillTimer, no_kill_timer
from retake.bucket.contract import is_key
from retake.bucket.diskless import ServiceBucket
from retake.bucket.moves import check_moves, not_the_same
from retake.clock import Clock
from retake.errors import SettingsError, StorageError


class B2Bucket(B2Looks, ServiceBucket):
    """The bucket of `calls` below `prefix`, which is "" or ends in "/". Thread safe.

    Writes carry the token of the lease that was last taken or joined through this object, so one object serves one
    lease. Without a lease, a conditional write takes a short one for itself.
    """

    def __init__(
        self,
        url: str,
        calls: B2Calls,
        prefix: str,
        *,
        lease_terms: LeaseTerms | None = None,
        kill_timer: KillTimer = no_kill_timer,
    ) -> None:
        super().__init__(calls, prefix, lease_terms or LeaseTerms(), kill_timer)
        self.url = url
        self._steps = WriteSteps(calls, url, self._fencing.token_for)

    def read(self, key: str) -> tuple[bytes, str]:
        with self._calls.within():
            for present, version in self._present(key):
                with suppress(Gone):  # replaced since: look again
                    return self._calls.download(present), version
            raise AssertionError

    def read_range(self, key: str, first: int, last: int) -> bytes:
        """See `RangedReads.read_range`."""
        with self._calls.within():
            for present, _ in self._present(key):
                end = min(last, present.size - 1)
                if first > end:
                    return b""
                with suppress(Gone):
                    return self._calls.download_range(present, first, end)
            raise AssertionError

    def write_file(self, key: str, file: BinaryIO, expect: str | Expect) -> str:
        """See `FileWrites.write_file`. A file above B2's recommended part size is uploaded as a B2 large file."""
        name, steps = self._name(key), self._steps
        with self._calls.within(size=file.seek(0, os.SEEK_END)), self._fencing.alone(expect):
            before = steps.look(name)
            steps.compare(name, before, expect)
            sent = steps.upload(name, before, file, forced=expect is ANY)
            after = steps.fenced(sent)
            if sent.followed_by_others(after) and expect is not ANY:
                steps.withdraw(sent)
                raise steps.conflict(name)
            return steps.settle(sent, after)

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """See `SharedWrites.replace`.

        B2 keeps what another program uploads at the same time, so nothing has to be put back: our version is removed
        again. All versions but the newest are kept under names that begin with `aside`. So is our version if another
        program's hides it, because that one may be based on an older version: a reader by name gets any of the versions
        of one second.
        """
        name, beside, steps = self._name(key), self._name(aside), self._steps
        if name == beside:
            raise ValueError(f"the same key twice: {key!r}")
        with self._calls.within(), self._fencing.alone(expect):
            before, there = steps.look_at_both(name, beside)
            if there.present:
                raise Conflict(f"{aside} exists: deal first with what an earlier write displaced")
            steps.compare(name, before, expect)
            if unread := before.hidden():
                steps.keep(unread, beside)
                steps.remove((*before.replaced, *unread))
                raise steps.conflict(name)
            sent = steps.upload(name, before, BytesIO(data), forced=False)
            after = steps.fenced(sent)
            if sent.followed_by_others(after):
                steps.step_back(sent, after, beside)
                raise steps.conflict(name)
            return steps.settle(sent, after)

    def delete(self, key: str) -> None:
        name = self._name(key)
        with self._calls.within():
            versions = self._calls.versions_of(name)
            self._fencing.token_for(state_of(versions))
            self._steps.remove(present_last(versions))

    def copy(self, source: str, target: str) -> None:
        name, steps = self._name(target), self._steps
        with self._calls.within():
            for present, _ in self._present(source):
                with suppress(Gone):  # replaced since
                    sent = steps.copy(name, steps.look(name), present)
                    steps.settle(sent, steps.fenced(sent))
                    return

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        """See `Moves.move`. Takes two listings before and one after, however many objects of one name move."""
        check_moves(moves)
        names, steps = {self._name(source): self._name(target) for source, target in moves}, self._steps
        with self._calls.within():
            there, before = self._calls.versions_of_all(names), self._calls.versions_of_all(names.values())
            sent = {}
            for source, _ in moves:
                present = state_of(there[self._name(source)]).present
                if present is None:
                    raise NotFound(source)
                try:
                    sent[present] = steps.copy(names[present.name], state_of(before[names[present.name]]), present)
                except Gone:
                    raise StorageError(f"{source} of {self.url} was replaced while it was moved: try again") from None
            after = self._calls.versions_of_all(names.values())
            for present, copied in sent.items():
                state = steps.fenced(copied, state_of(after[copied.name]))
                if state.present is None or not self._calls.same_content(present, state.present):
                    raise not_the_same(present.name, copied.name)
                steps.settle(copied, state)
            for versions in there.values():
                self._fencing.token_for(state_of(versions))
                steps.remove(present_last(versions))

    def part(self, prefix: str) -> Bucket:
        """See `Bucket.part`. A part's writes carry the token of its own lease, so it is a bucket object of its own."""
        url = f"{self.url}#{prefix.rstrip('/')}"
        return B2Bucket(url, self._calls, self._prefix + prefix, lease_terms=self._terms, kill_timer=self._kill_timer)

    def now(self) -> datetime | None:
        self._calls.versions_of(f"{self._prefix}.retake/now")  # does not exist: only the date of the answer is needed
        date = self._calls.date
        return None if date is None else datetime.fromtimestamp(date, UTC)

    def scan(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """See `Scans.scan`. B2 lists by name, so the versions of one name are adjacent."""
        start = self._prefix + check_prefix(prefix)
        pages = self._calls.pages(start, after and self._prefix + after)
        for _, versions in groupby(chain.from_iterable(pages), key=lambda it: it.name):
            yield from (entry for entry in entry_of(state_of(versions), self._prefix) if entry.key > after)

    def versions_from(self, start: str) -> Iterator[Sequence[tuple[str, str]]]:
        """See `PagedVersions.versions_from`. Every version of a name is listed."""
        for page in self._calls.pages(self._prefix, self._prefix + start):
            yield [(version.name.removeprefix(self._prefix), version.id) for version in page]

    def _present(self, key: str) -> Iterator[tuple[Version, str]]:
        """Yield the object and its version, looked up anew each time. Raises NotFound, StorageError."""
        for state in self._steps.look_repeatedly(self._name(key)):
            if state.present is None or state.version is None:
                raise NotFound(key)
            yield state.present, state.version

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)


_KEYS = ("B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY")
_MAX_PREFIX_BYTES = 100  # a name on B2 has at most 1,024 bytes, a key 900


class B2Place(NamedTuple):
    """Where a bucket's objects are."""

    bucket: str
    prefix: str  # "" or ending in "/"
    realm: str  # "production", or a URL


def parse_url(url: str) -> B2Place:
    """Parse b2://BUCKET[/PREFIX][?realm=URL]. Raises SettingsError."""
    from urllib.parse import parse_qsl, unquote, urlsplit

    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SettingsError(f"STORAGE.url: {url!r} names no B2 bucket ({error})") from error
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = unquote(parts.path).strip("/")
    if parts.scheme != "b2" or not parts.netloc or parts.fragment or not options.keys() <= {"realm"}:
        raise SettingsError(f"STORAGE.url: {url!r} names no B2 bucket; use b2://BUCKET/PREFIX, perhaps with ?realm=URL")
    if "@" in parts.netloc:
        raise SettingsError(f"STORAGE.url: keys do not belong in it; set {' and '.join(_KEYS)} in the environment")
    if prefix and not (is_key(prefix) and len(prefix.encode()) <= _MAX_PREFIX_BYTES):
        raise SettingsError(f"STORAGE.url: names on B2 cannot begin with {prefix!r}")
    return B2Place(parts.netloc, f"{prefix}/" if prefix else "", options.get("realm") or "production")


def open_b2(
    url: str,
    *,
    environ: Mapping[str, str] | None = None,
    lease_terms: LeaseTerms | None = None,
    kill_timer: KillTimer = no_kill_timer,
    clock: Clock | None = None,
    deadline_s: float = 60.0,
) -> B2Bucket:
    """Return the bucket that `url` names, with the keys in `environ` (default: this process's). Nothing is sent to B2
    yet.

    If `environ` is given and names a home or a cache folder, B2's authorisation is kept there for later processes (see
    authorization.py). No operation takes longer than `deadline_s`, including pauses, except for a call that is being
    answered at that moment. Raises SettingsError.
    """
    place, folder = parse_url(url), cache_folder(environ or {})
    environ = os.environ if environ is None else environ
    missing = [name for name in _KEYS if not environ.get(name)]
    if missing:
        raise SettingsError(f"{' and '.join(missing)} must be set in the environment to use {url}")
    key_id, key = (environ[name] for name in _KEYS)
    kept = KeptAuthorization(folder, place.realm, key_id, key) if folder else None
    connection = B2Connection(
        place.bucket, key_id, key, realm=place.realm, clock=clock, deadline_s=deadline_s, kept=kept
    )
    return B2Bucket(url, B2Calls(connection), place.prefix, lease_terms=lease_terms, kill_timer=kill_timer)
