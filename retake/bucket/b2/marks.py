"""Which of the versions that B2 keeps under one name is the present one: values in, values out.

B2 keeps every upload. It lists the versions of a name by the time of their upload to the second, and those of one
second in any order (rclone/rclone#2164); whoever downloads by name gets the first of the list. So its order decides
nothing here. Each of our versions carries a mark (in its file_info): the token of the lease that it was written under,
a sequence number, a nonce, and which versions of others it took the place of.

- Of our own versions the one with the highest (token, sequence) counts: what a former holder stores late is never read.
- Versions with one nonce are one write, uploaded again because its answer was lost.
- A version without a mark is another program's. Until one of ours names it as replaced, it is news: it is read before
  anything of ours, whatever the time stamps say.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MARK = "retake"
OVER = "retake-over"
"""Names in file_info. B2 takes ten of them, and 7,000 bytes with their values (b2_upload_file)."""

MOST_REPLACED = 20  # ids of some 90 bytes each
LONGEST_CHANGE_S = 600.0  # another program's, from reading a file to having written it back


class Mark(NamedTuple):
    """What we say of a version of ours."""

    token: int
    sequence: int
    forced: bool  # written whatever was there, so above a write of the same number that expected something
    nonce: str  # one for each write
    over: tuple[str, ...] = ()  # ids of the versions of other programs that it replaced

    @property
    def rank(self) -> tuple[int, int, bool, str]:
        return self.token, self.sequence, self.forced, self.nonce

    def file_info(self, name: str) -> dict[str, str]:
        """As it is uploaded with the file `name`."""
        text = f"{self.token}.{self.sequence}.{self.forced:d}.{self.nonce}.{tag_of(name)}"
        return {MARK: text, **({OVER: ",".join(self.over)} if self.over else {})}


class Version(NamedTuple):
    """One version in a listing of B2's."""

    name: str
    id: str
    size: int  # bytes
    stamp: float  # seconds since the epoch, by B2's clock
    sha1: str  # hexadecimal, or what B2 puts there if it has none
    type: str
    hides: bool = False  # a marker that says «nothing is here» to whoever downloads by name
    mark: Mark | None = None  # None: another program's


class State(NamedTuple):
    """What there is under one name."""

    present: Version | None  # what a reader gets
    ours: tuple[Version, ...]  # by their marks, the one that counts last
    news: tuple[Version, ...]  # of other programs, not yet replaced by us; the newest last
    replaced: tuple[Version, ...]  # of other programs, replaced by ours that counts

    @property
    def best(self) -> Mark | None:
        """The highest mark there."""
        return self.ours[-1].mark if self.ours else None

    @property
    def version(self) -> str | None:
        """How the contract names what is present; None if nothing is."""
        if self.present is None:
            return None
        return self.present.mark.nonce if self.present.mark else self.present.id

    @property
    def rest(self) -> tuple[Version, ...]:
        """What may be removed: replaced, uploaded twice, or late."""
        return (*self.ours[:-1], *self.replaced)

    def beneath(self) -> tuple[Version, ...]:
        """What another program's present version hides and nobody may have read: more of its own, and ours.

        Ours not if it is so old that what hides it was surely made from it.
        """
        ours = self.ours[-1:] if self.news else ()
        return (*self.news[:-1], *(it for it in ours if self.news[-1].stamp - it.stamp < LONGEST_CHANGE_S))

    @property
    def late(self) -> tuple[Version, ...]:
        """What a former holder of the lease stored after its successor had written."""
        best = self.best
        if best is None:
            return ()
        since = self.ours[-1].stamp
        return tuple(it for it in self.ours if it.mark and it.mark.token < best.token and it.stamp > since)


def state_of(versions: Iterable[Version]) -> State:
    """What the versions of one name amount to, in whatever order they come."""
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
    """A line of b2_list_file_versions, or the answer to an upload; None if it is no version (an unfinished upload)."""
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
    )


def mark_of(name: str, info: Mapping[str, str]) -> Mark | None:
    """The mark in `info`; None if there is none, or one of another name: then another program has copied a file."""
    token, sequence, forced, nonce, tag = ([*info.get(MARK, "").split("."), "", "", "", "", ""])[:5]
    if not (token.isdecimal() and sequence.isdecimal() and forced in ("0", "1") and nonce and tag == tag_of(name)):
        return None
    over = tuple(part for part in info.get(OVER, "").split(",") if part)
    return Mark(int(token), int(sequence), forced == "1", nonce, over)


def tag_of(text: str) -> str:
    """A short name for `text`. It ties a mark to its file: programs that copy a file copy its file_info too."""
    import hashlib

    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]
