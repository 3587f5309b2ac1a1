"""Looks at several objects at once: few listings, concurrent downloads, combined with taking a lease.

What a lease guards may be looked at as soon as our claim is stored. If the listing of the claims then shows that the
lease is ours, nobody else has held it since our first listing: another holder would have left a token no lower than
ours (see decisions/002). So that listing also covers the folders, and the documents are read at the same time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import NamedTuple, cast

from retake.bucket import Entry, Lease, NotFound, check_key, check_prefix
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.connection import Gone
from retake.bucket.b2.leases import B2ClaimStore, B2Leases
from retake.bucket.b2.marks import State, Version, state_of
from retake.bucket.claims.lease import KillTimer
from retake.bucket.claims.names import place_of
from retake.bucket.claims.store import Claims
from retake.bucket.contract import LeaseTerms, Sight, is_key
from retake.bucket.side_by_side import meanwhile, side_by_side
from retake.errors import StorageError


class SeenObjects(NamedTuple):
    """The versions and contents found below `names`."""

    names: tuple[str, ...]
    states: Mapping[str, State] = {}  # by name
    contents: Mapping[str, bytes] = {}  # by the id of the version

    def plus(self, other: "SeenObjects") -> "SeenObjects":
        states, contents = {**self.states, **other.states}, {**self.contents, **other.contents}
        return SeenObjects((*self.names, *other.names), states, contents)


class B2View:
    """A `Sight` of `bucket`, whose objects are below `prefix`, that answers from `seen`."""

    def __init__(self, bucket: Sight, prefix: str, seen: SeenObjects) -> None:
        self._bucket, self._prefix, self._seen = bucket, prefix, seen

    def read(self, key: str) -> tuple[bytes, str]:
        name = self._prefix + check_key(key)
        if not name.startswith(self._seen.names):
            return self._bucket.read(key)
        state = self._seen.states.get(name)
        if state is None or state.present is None or state.version is None:
            raise NotFound(key)
        data = self._seen.contents.get(state.present.id)
        return self._bucket.read(key) if data is None else (data, state.version)

    def list(self, prefix: str) -> list[Entry]:
        start = self._prefix + check_prefix(prefix)
        if not start.startswith(self._seen.names):
            return self._bucket.list(prefix)
        states = (state for name, state in self._seen.states.items() if name.startswith(start))
        return sorted(entry for state in states for entry in entry_of(state, self._prefix))


def entry_of(state: State, prefix: str) -> list[Entry]:
    """Return the present version of one name as an entry of the bucket below `prefix`, or an empty list for a claim or
    a file whose name is not a key."""
    present = state.present
    key = present.name.removeprefix(prefix) if present else ""
    return [Entry(key, present.size, present.stamp)] if present and is_key(key) else []


class B2Looks(B2Leases):
    """`Looks` (see retake.bucket.contract) in the bucket of `calls` below `prefix`."""

    def __init__(self, calls: B2Calls, prefix: str, terms: LeaseTerms, kill_timer: KillTimer) -> None:
        super().__init__(calls, f"{prefix}.retake/", terms, kill_timer)
        self._prefix = prefix
        self._known: Mapping[str, bytes] = {}  # downloaded by the latest look, by version id: versions do not change
        self._prepared: dict[str, LookingClaims] = {}  # by the lease that is to be taken

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> Sight:
        """See `Looks.look`. Lists the keys and, concurrently, the folders that listing the keys does not cover."""
        names, folders = self._names(keys, prefixes)
        looks = [partial(self._documents, keys, names)] if names else []
        listed = [partial(self._folders, folders)] if folders else []
        return self._view(side_by_side([*looks, *listed]))

    def lease_and_look(
        self, name: str, owner: str, keys: Sequence[str], prefixes: Sequence[str]
    ) -> tuple[Lease, Sight]:
        """See `Looks.lease_and_look`."""
        names, folders = self._names(keys, prefixes)
        claims = self._prepared.pop(name, None) or LookingClaims(self._calls, f"{self._prefix}.retake/")
        claims.look_beside(folders, partial(self._documents, keys, names))
        lease = self.lease(name, owner, claims)
        return lease, self._view([_seen(folders, claims.beside), claims.documents])

    def prepare_lease(self, name: str) -> None:
        """See `Looks.prepare_lease`."""
        claims = LookingClaims(self._calls, f"{self._prefix}.retake/")
        claims.list_ahead(name)
        self._prepared[name] = claims

    def _names(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the names to list for the keys, and those for the prefixes that listing the keys does not cover."""
        names = [self._prefix + check_key(key) for key in keys]
        below = [self._prefix + check_prefix(prefix) for prefix in prefixes]
        return names, [it for it in below if not it.startswith(tuple(names))]

    def _folders(self, names: Sequence[str]) -> SeenObjects:
        with self._calls.within():
            return _seen(names, self._calls.versions_below(names))

    def _documents(self, keys: Sequence[str], names: Sequence[str]) -> SeenObjects:
        with self._calls.within():
            seen = self._folders(names) if names else SeenObjects(())
        states = (seen.states.get(self._prefix + key) for key in keys)
        wanted = [state.present for state in states if state and state.present]
        contents = dict(zip(wanted, side_by_side([partial(self._content, it) for it in wanted]), strict=True))
        self._known = {version.id: data for version, data in contents.items() if data is not None}
        return seen._replace(contents=self._known)

    def _content(self, version: Version) -> bytes | None:
        """Return the content, or None if the version has been replaced."""
        with suppress(Gone):
            return self._known.get(version.id) or self._calls.download(version)
        return None

    def _view(self, found: Iterable[SeenObjects]) -> Sight:
        seen = SeenObjects(())
        for each in found:
            seen = seen.plus(each)
        return B2View(cast("Sight", self), self._prefix, seen)


class LookingClaims(B2ClaimStore):
    """Claims whose listing, once our own is stored, also covers other folders, while documents are read concurrently.

    The first listing, before our claim exists, runs beside fetching the URL that the claim is uploaded to.
    """

    def __init__(self, calls: B2Calls, place: str) -> None:
        super().__init__(calls, place)
        self._folders: Sequence[str] = ()
        self._look: Callable[[], SeenObjects] = lambda: SeenObjects(())
        self._ahead: Claims | None = None
        self._claimed = False
        self.beside: list[Version] = []
        self.documents = SeenObjects(())

    def look_beside(self, folders: Sequence[str], look: Callable[[], SeenObjects]) -> None:
        """List `folders` too, and call `look` during that listing."""
        self._folders, self._look = folders, look

    def list_ahead(self, name: str) -> None:
        """Make the first listing of the claims to the lease `name` now, before it is taken. A claim stored in between
        is in the second listing."""
        self._ahead = self.claims(place_of(name))

    def claim(self, name: str) -> float:
        stamp = super().claim(name)
        self._claimed = True
        return stamp

    def claims(self, prefix: str) -> Claims:
        ahead, self._ahead = self._ahead, None
        if ahead and not self._claimed:
            return ahead
        with meanwhile(self._look if self._claimed else self._prepare) as ended:
            claims = super().claims(prefix)
            found = ended()
        if found:
            self.documents = found
        return claims

    def _listed(self, name: str) -> list[Version]:
        if not self._claimed:
            return super()._listed(name)
        found = self._calls.versions_below([name, *self._folders])
        self.beside = [it for it in found if not it.name.startswith(name)]
        return [it for it in found if it.name.startswith(name)]

    def _prepare(self) -> None:
        with suppress(StorageError):  # the upload then fetches the URL itself
            self._calls.prepare_upload()


def _seen(names: Sequence[str], found: Iterable[Version]) -> SeenObjects:
    versions = sorted(found, key=lambda it: it.name)
    states = {name: state_of(each) for name, each in groupby(versions, key=lambda it: it.name)}
    return SeenObjects(tuple(names), states)
