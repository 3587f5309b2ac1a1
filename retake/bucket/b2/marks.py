"""Decides which of the versions that B2 keeps under one name is the present one. No call is made here.

B2 keeps every upload. It lists the versions of a name by the second of their upload, and those of the same second in
any order (rclone/rclone#2164); a download by name returns the first of the list. So B2's order decides nothing here.
Each of our versions carries a mark in its file_info: the token of the lease under which it was written, a sequence
number, a nonce, and the ids of the other programs' versions that it replaced.

- Of our own versions, the one with the highest (token, sequence) counts. What a former holder stores late is never
  read.
- Versions with the same nonce are one write, uploaded again because its answer was lost.
- A version without a mark is another program's. Until one of ours names it as replaced, it is news: it is read before
  anything of ours, whatever the time stamps say.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MARK = "retake"
OVER = "retake-over"
"""Names in file_info, where B2 allows ten, and 7,000 bytes with their values (b2_upload_file)."""

MAX_REPLACED = 20  # ids in a mark, of about 90 bytes each
MAX_CHANGE_S = 600.0  # the longest that another program takes from reading a file to writing it back


class Mark(NamedTuple):
    """The mark of one of our versions."""

    token: int
    sequence: int
    forced: bool  # an unconditional write, which ranks above a conditional one of the same number
    nonce: str  # unique to each write
    over: tuple[str, ...] = ()  # ids of the versions of other programs that it replaced
    raised: int = 0
    """What was added to the token of the lease because leases count anew: their claims are gone, and the marks of
    before are still there, as after a copy of the bucket."""

    @property
    def rank(self) -> tuple[int, int, bool, str]:
        """The sort key of marks: the highest counts."""
        return self.token, self.sequence, self.forced, self.nonce

    def file_info(self, name: str) -> dict[str, str]:
        """Return the file_info to upload with the file `name`."""
        text = f"{self.token}.{self.sequence}.{self.forced:d}.{self.nonce}.{tag_of(name)}"
        text += f".{self.raised}" if self.raised else ""
        return {MARK: text, **({OVER: ",".join(self.over)} if self.over else {})}


class Version(NamedTuple):
    """One version in a listing by B2."""

    name: str
    id: str
    size: int  # bytes
    stamp: float  # seconds since the epoch, by B2's clock
    sha1: str  # hexadecimal, or another text if B2 has none
    type: str
    hides: bool = False  # a marker: downloads by name find nothing
    mark: Mark | None = None  # None: another program's
    large_sha1: str = ""  # of a file uploaded in parts, as stated by its uploader

    @property
    def digest(self) -> str:
        """The SHA-1 of the content as B2 or the uploader states it, or ""."""
        found = self.sha1.removeprefix("unverified:")
        return found if len(found) == 40 else self.large_sha1


class State(NamedTuple):
    """The versions under one name, classified."""

    present: Version | None  # what a reader gets
    ours: tuple[Version, ...]  # by their marks; the last one counts
    news: tuple[Version, ...]  # of other programs, not yet replaced by us; the newest last
    replaced: tuple[Version, ...]  # of other programs, replaced by the one of ours that counts

    @property
    def best(self) -> Mark | None:
        """The highest mark."""
        return self.ours[-1].mark if self.ours else None

    @property
    def version(self) -> str | None:
        """The version string of the present version (see `Objects.read`), or None."""
        if self.present is None:
            return None
        return self.present.mark.nonce if self.present.mark else self.present.id

    @property
    def superseded(self) -> tuple[Version, ...]:
        """Versions that may be removed: replaced, uploaded twice, or late."""
        return (*self.ours[:-1], *self.replaced)

    def hidden(self) -> tuple[Version, ...]:
        """Return the versions that another program's present version hides, and that the program may not have read:
        more of its own, and ours.
        Our version is left out if it is so old that the version hiding it was certainly based on it.
        """
        ours = self.ours[-1:] if self.news else ()
        return (*self.news[:-1], *(it for it in ours if self.news[-1].stamp - it.stamp < MAX_CHANGE_S))

    @property
    def late(self) -> tuple[Version, ...]:
        """Versions that a former holder of the lease stored after its successor had written."""
        best = self.best
        if best is None:
            return ()
        since = self.ours[-1].stamp
        return tuple(it for it in self.ours if it.mark and it.mark.token < best.token and it.stamp > since)


def state_of(versions: Iterable[Version]) -> State:
    """Classify the versions of one name, given in any order."""
    every = list(versions)
    marked = sorted((it.mark.rank, it.id, it) for it in every if it.mark)
    ours = tuple(version for _, _, version in marked)
    over = ours[-1].mark.over if ours and ours[-1].mark else ()
    foreign = sorted((it for it in every if not it.mark), key=lambda it: (it.stamp, it.id))
    news = tuple(it for it in foreign if it.id not in over)
    present = news[-1] if news else ours[-1] if ours else None
    replaced = tuple(it for it in foreign if it.id in over)
    return State(None if present and present.hides else present, ours, news, replaced)


def version_of(listed: Mapping[str, Any]) -> Version | None:
    """Parse an entry of b2_list_file_versions, or the answer to an upload. None for an unfinished upload."""
    if listed["action"] not in ("upload", "copy", "hide"):
        return None
    name, info = listed["fileName"], listed.get("fileInfo") or {}
    return Version(
        name=name,
        id=listed["fileId"],
        size=int(listed.get("contentLength") or 0),
        stamp=listed["uploadTimestamp"] / 1000,
        sha1=str(listed.get("contentSha1")),
        type=str(listed.get("contentType")),
        hides=listed["action"] == "hide",
        mark=mark_of(name, info),
        large_sha1=info.get("large_file_sha1", ""),
    )


def mark_of(name: str, info: Mapping[str, str]) -> Mark | None:
    """Return the mark in `info`, or None if there is none or if it is for another name: a program copied the file."""
    token, sequence, forced, nonce, tag, raised = ([*info.get(MARK, "").split("."), "", "", "", "", "", ""])[:6]
    if not (token.isdecimal() and sequence.isdecimal() and forced in ("0", "1") and nonce and tag == tag_of(name)):
        return None
    over = tuple(part for part in info.get(OVER, "").split(",") if part)
    return Mark(int(token), int(sequence), forced == "1", nonce, over, int(raised) if raised.isdecimal() else 0)


def tag_of(text: str) -> str:
    """Return a short hash of `text`. It ties a mark to its file: a program that copies a file copies its file_info."""
    import hashlib

    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]
