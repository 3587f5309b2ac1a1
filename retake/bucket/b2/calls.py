"""The calls of B2's native API that a bucket needs.

    calls = B2Calls("media", key_id, key)
    with calls.within():                   # one operation: its calls share a deadline
        versions = calls.versions("story/config/config_gen.json")

A call that changes something may have been carried out although its answer was lost; it is then carried out again, so
an upload may be stored twice. Classes are those of Backblaze's price list (retake.bucket.b2.price).
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from retake.bucket.b2.connection import PAUSES_S, B2Connection, Gone
from retake.bucket.b2.errors import is_refused, is_transient
from retake.bucket.b2.marks import Version, version_of
from retake.clock import Clock
from retake.errors import StorageError

PAGE = 1000  # versions; a longer page is charged as several calls (b2_list_file_versions)


class B2Calls:
    """A client of one bucket. Thread safe. Nothing is sent to B2 before the first call."""

    def __init__(
        self,
        bucket: str,
        key_id: str,
        key: str,
        *,
        realm: str = "production",
        clock: Clock | None = None,
        deadline_s: float = 60.0,
    ) -> None:
        self._connection = B2Connection(bucket, key_id, key, realm=realm, clock=clock, deadline_s=deadline_s)
        self.within, self.left = self._connection.within, self._connection.left

    @property
    def date(self) -> float | None:
        """See `B2Connection.date`."""
        return self._connection.date

    def versions(self, prefix: str) -> list[Version]:
        """Return every version of every name that begins with `prefix`, by name. Class C, one call for each 1,000."""
        found: list[Version] = []
        for page in self._pages(prefix, prefix):
            found.extend(page)
        return found

    def versions_of(self, name: str) -> list[Version]:
        """Return every version of exactly `name`. Class C."""
        found: list[Version] = []
        for page in self._pages(name, name):
            found.extend(version for version in page if version.name == name)
            if page and page[-1].name != name:
                break
        return found

    def upload(self, name: str, data: bytes, info: dict[str, str], *, once: bool = False) -> Version:
        """Store one more version of `name`. Class A.

        With `once`, try again only where B2 itself says that it stored nothing.
        """
        from hashlib import sha1

        digest = sha1(data, usedforsecurity=False).hexdigest()

        def call(session: Any) -> Any:
            return session.upload_file(self._connection.bucket_id, name, len(data), "b2/x-auto", digest, info, data)

        # B2 says 503 when a part of it is busy; another upload URL, which b2sdk fetches, leads to another part.
        pauses, again = (0.0, *PAUSES_S[:-1]), is_refused if once else is_transient
        return _one(self._connection.call(f"store {name}", call, pauses=pauses, again=again))

    def copy(self, source: Version, name: str, info: dict[str, str]) -> Version:
        """Store one more version of `name` with the content of `source`, without downloading it. Class C.

        Raises Gone.
        """
        from b2sdk.v3 import MetadataDirectiveMode

        def call(session: Any) -> Any:
            return session.copy_file(
                source.id,
                name,
                metadata_directive=MetadataDirectiveMode.REPLACE,
                content_type=source.type,
                file_info=info,
            )

        return _one(self._connection.call(f"copy {source.name} to {name}", call))

    def download(self, version: Version) -> bytes:
        """Return the content of `version`. Class B. Raises Gone."""
        from hashlib import sha1

        def call(session: Any) -> bytes:
            with session.download_file_from_url(session.get_download_url_by_id(version.id)) as response:
                data = bytes(response.content)
            found = sha1(data, usedforsecurity=False).hexdigest()
            if len(data) != version.size or (len(version.sha1) == 40 and version.sha1 != found):
                raise ValueError(f"what came is not {version.name}: {len(data)} of {version.size} bytes, SHA-1 {found}")
            return data

        return self._connection.call(f"read {version.name}", call)

    def delete(self, version_id: str, name: str) -> None:
        """Delete one version. One that does not exist is no error. Class A."""
        with suppress(Gone):
            self._connection.call(f"remove {name}", lambda session: session.delete_file_version(version_id, name))

    def _pages(self, prefix: str, start: str) -> Iterator[list[Version]]:
        name, version_id = start or None, None
        while True:
            page = self._page(prefix or None, name, version_id)
            yield [version for version in map(version_of, page["files"]) if version]
            name, version_id = page.get("nextFileName"), page.get("nextFileId")
            if not name:
                return

    def _page(self, prefix: str | None, name: str | None, version_id: str | None) -> Any:
        def call(session: Any) -> Any:
            return session.list_file_versions(self._connection.bucket_id, name, version_id, PAGE, prefix)

        return self._connection.call(f"list {prefix or 'everything'}", call)


def _one(answer: Any) -> Version:
    version = version_of(answer)
    if version is None:
        raise StorageError(f"B2 stored something else than a file: {answer.get('action')!r}")
    return version
