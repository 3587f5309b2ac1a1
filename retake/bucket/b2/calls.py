"""The calls of B2's native API that a bucket needs.

    calls = B2Calls(B2Connection("media", key_id, key))
    with calls.within():                   # one operation: its calls share a deadline
        versions = calls.versions("story/config/config_gen.json")

If the answer to a change is lost, the call is repeated although it may have taken effect, so an upload may be stored
twice. "Class" refers to Backblaze's price list (retake.bucket.b2.price).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from retake.bucket.b2.connection import PAUSES_S, B2Connection, Gone
from retake.bucket.b2.errors import is_refused, is_transient
from retake.bucket.b2.large import (
    LARGE_FILE_SHA1,
    FilePart,
    sha1_of,
    size_of,
    upload_large,
)
from retake.bucket.b2.marks import Version, version_of
from retake.bucket.contract import CHUNK_SIZE, name_stem
from retake.bucket.scanning import outermost
from retake.errors import StorageError

PAGE_SIZE = 1000  # versions; a longer page is charged as several calls (b2_list_file_versions)
FIRST_PAGE_SIZE = 40  # versions, if a page may contain names that nobody asked for


class B2Calls:
    """A client of one bucket. Thread safe. Nothing is sent to B2 before the first call."""

    def __init__(self, connection: B2Connection) -> None:
        self.connection = connection
        self.within, self.left = connection.within, connection.left

    @property
    def date(self) -> float | None:
        """See `B2Connection.date`."""
        return self.connection.date

    def versions(self, prefix: str) -> list[Version]:
        """Return every version of every name that begins with `prefix`, by name. Class C, one call per 1,000."""
        found: list[Version] = []
        for page in self.pages(prefix):
            found.extend(page)
        return found

    def pages(self, prefix: str, start: str = "") -> Iterator[list[Version]]:
        """Yield the same page by page, from the name `start` on. Class C, one call per page."""
        if start > prefix and not start.startswith(prefix):  # B2 refuses to begin after the last name
            return
        name, version_id = max(prefix, start) or None, None
        while True:
            page = self._page(prefix or None, name, version_id, PAGE_SIZE)
            yield [version for version in map(version_of, page["files"]) if version]
            name, version_id = page.get("nextFileName"), page.get("nextFileId")
            if not name:
                return

    def versions_of(self, name: str) -> list[Version]:
        """Return every version of exactly `name`. Class C."""
        found: list[Version] = []
        for page in self.pages(name):
            found.extend(version for version in page if version.name == name)
            if page and page[-1].name != name:
                break
        return found

    def versions_of_all(self, names: Iterable[str]) -> dict[str, list[Version]]:
        """Return every version of each of `names`. Class C, one call for names that differ only in their suffix."""
        wanted: dict[str, list[Version]] = {name: [] for name in names}
        for stem in sorted({name_stem(name) for name in wanted}):
            for version in self.versions(stem):
                if version.name in wanted and name_stem(version.name) == stem:
                    wanted[version.name].append(version)
        return wanted

    def versions_below(self, prefixes: Iterable[str]) -> list[Version]:
        """Return every version of every name that begins with one of `prefixes`, by name. Class C: one call if few
        other names are between them, and never more than one call above listing each of them."""
        wanted = outermost(prefixes)
        shared, count = _common_prefix(wanted[0], wanted[-1]), PAGE_SIZE if len(wanted) == 1 else FIRST_PAGE_SIZE
        start, version_id = wanted[0], None
        found: list[Version] = []
        while True:
            page = self._page(shared or None, start, version_id, count)
            versions = filter(None, map(version_of, page["files"]))
            found.extend(it for it in versions if it.name.startswith(tuple(wanted)))
            start, version_id, count = page.get("nextFileName"), page.get("nextFileId"), PAGE_SIZE
            wanted = [it for it in wanted if start and (it > start or start.startswith(it))]  # the others are complete
            if not wanted:
                return found
            if not start.startswith(wanted[0]):
                start, version_id = wanted[0], None

    def prepare_upload(self) -> None:
        """Fetch the URL that the next upload needs, unless there is one. Class A."""

        def call(session: Any) -> None:
            account, bucket_id = session.account_info, self.connection.bucket_id
            url, token = account.take_bucket_upload_url(bucket_id)
            if url is None:
                answer = session.get_upload_url(bucket_id)
                url, token = answer["uploadUrl"], answer["authorizationToken"]
            account.put_bucket_upload_url(bucket_id, url, token)

        self.connection.call("ask where to upload", call)

    def upload(self, name: str, file: BinaryIO, info: dict[str, str], *, once: bool = False) -> Version:
        """Store one more version of `name`, with the content of `file`. Class A, and one call of class C for a file
        above B2's recommended part size, which is sent in parts.

        With `once`, try again only if B2 itself says that it stored nothing.
        """
        size, part_size = size_of(file), self.connection.part_size
        if size > part_size:
            return _stored(upload_large(self.connection, name, file, info, part_size))
        digest = sha1_of(file)
        data = FilePart(file, 0, size) if size > CHUNK_SIZE else _whole(file)

        def call(session: Any) -> Any:
            return session.upload_file(self.connection.bucket_id, name, size, "b2/x-auto", digest, info, data)

        # B2 answers 503 when one of its pods is busy; another upload URL, which b2sdk fetches, leads to another pod.
        pauses, again = (0.0, *PAUSES_S[:-1]), is_refused if once else is_transient
        return _stored(self.connection.call(f"store {name}", call, pauses=pauses, again=again))

    def copy(self, source: Version, name: str, info: dict[str, str]) -> Version:
        """Store one more version of `name` with the content of `source`, without downloading it. Class C.

        Raises Gone.
        """
        from b2sdk.v3 import MetadataDirectiveMode

        if source.large_sha1:  # only file_info has the SHA-1 of a file that was uploaded in parts
            info = {**info, LARGE_FILE_SHA1: source.large_sha1}

        def call(session: Any) -> Any:
            return session.copy_file(
                source.id,
                name,
                metadata_directive=MetadataDirectiveMode.REPLACE,
                content_type=source.type,
                file_info=info,
            )

        return _stored(self.connection.call(f"copy {source.name} to {name}", call))

    def download(self, version: Version) -> bytes:
        """Return the content of `version`. Class B. Raises Gone."""
        from hashlib import sha1

        def call(session: Any) -> bytes:
            with session.download_file_from_url(session.get_download_url_by_id(version.id)) as response:
                data = bytes(response.content)
            found = sha1(data, usedforsecurity=False).hexdigest()
            if len(data) != version.size or (version.digest and version.digest != found):
                raise ValueError(f"what came is not {version.name}: {len(data)} of {version.size} bytes, SHA-1 {found}")
            return data

        return self.connection.call(f"read {version.name}", call)

    def same_content(self, one: Version, other: Version) -> bool:
        """Return whether two versions hold the same bytes, by the digests that B2 keeps or else by reading both. Raises
        Gone."""
        if one.size != other.size or (one.digest and other.digest):
            return (one.size, one.digest) == (other.size, other.digest)
        ranges = ((first, min(first + CHUNK_SIZE, one.size) - 1) for first in range(0, one.size, CHUNK_SIZE))
        return all(self.download_range(one, *it) == self.download_range(other, *it) for it in ranges)

    def download_range(self, version: Version, first: int, last: int) -> bytes:
        """Return a part of the content of `version`, which has at least `last` + 1 bytes. Class B. Raises Gone."""

        def call(session: Any) -> bytes:
            url = session.get_download_url_by_id(version.id)
            with session.download_file_from_url(url, range_=(first, last)) as response:
                data = bytes(response.content)
            if len(data) != last + 1 - first:
                raise ValueError(f"what came is not a part of {version.name}: {len(data)} of {last + 1 - first} bytes")
            return data

        return self.connection.call(f"read {version.name}", call)

    def delete(self, version_id: str, name: str) -> None:
        """Delete one version; it is not an error if it does not exist. Class A."""
        with suppress(Gone):
            self.connection.call(f"remove {name}", lambda session: session.delete_file_version(version_id, name))

    def _page(self, prefix: str | None, name: str | None, version_id: str | None, count: int) -> Any:
        def call(session: Any) -> Any:
            return session.list_file_versions(self.connection.bucket_id, name, version_id, count, prefix)

        return self.connection.call(f"list {prefix or 'everything'}", call)


def _common_prefix(first: str, last: str) -> str:
    """Return the longest prefix of both, and so of every text between them."""
    differ = (number for number, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    return first[: next(differ, min(len(first), len(last)))]


def _whole(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


def _stored(answer: Any) -> Version:
    version = version_of(answer)
    if version is None:
        raise StorageError(f"B2 stored something else than a file: {answer.get('action')!r}")
    return version
