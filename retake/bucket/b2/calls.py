"""The calls of B2's native API that a bucket needs: tried again within bounds, with errors in words.

    calls = B2Calls("media", key_id, key)
    with calls.within():                   # one operation: its calls share a deadline
        versions = calls.versions("story/config/config_gen.json")

A call that changes something may have been carried out although its answer was lost, and is then carried out again:
an upload is then there twice.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from retake.bucket.b2.errors import asked_to_wait, in_words, is_gone, is_key_refused, is_refused, is_transient, passing
from retake.bucket.b2.marks import Version, version_of
from retake.bucket.b2.session import Watch, open_session
from retake.clock import Clock, SystemClock
from retake.errors import StorageError, StorageKeyRefused

T = TypeVar("T")

TRIES = 5
FIRST_WAIT_S, LONGER = 1.0, 1.5
PAGE = 1000  # versions; a longer page is charged as several calls (b2_list_file_versions)


class Gone(Exception):
    """The file version asked for is not there any more. A fact for the caller."""


class B2Calls:
    """A client of one bucket, to be used by several threads. Nothing is asked of B2 before the first call."""

    def __init__(
        self,
        bucket: str,
        key_id: str,
        key: str,
        *,
        realm: str = "production",
        clock: Clock | None = None,
        deadline_s: float = 60.0,
        tries: int = TRIES,
    ) -> None:
        self._bucket, self._key_id, self._key, self._realm = bucket, key_id, key, realm
        self._clock = clock or SystemClock()
        self._deadline_s, self._tries = deadline_s, tries
        self._present = threading.local()
        self._watch = Watch()
        self._lock = threading.Lock()
        self._session: Any = None
        self._bucket_id = ""

    @contextmanager
    def within(self, seconds: float | None = None) -> Iterator[None]:
        """What is called inside shares one deadline, counted from here. Within another one, that one's."""
        if self._until is not None:
            yield
            return
        self._present.until = self._now() + (self._deadline_s if seconds is None else seconds)
        try:
            yield
        finally:
            self._present.until = None

    def left(self) -> float:
        """Seconds until the deadline of what this thread is about."""
        return self._deadline_s if self._until is None else self._until - self._now()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    @property
    def date(self) -> float | None:
        """When B2 gave its last answer, by its clock, to the second; seconds since the epoch."""
        return self._watch.date

    def versions(self, prefix: str) -> list[Version]:
        """Every version of every name that begins with `prefix`, by name. Class C, one call for each 1,000."""
        found: list[Version] = []
        for page in self._pages(prefix, prefix):
            found.extend(page)
        return found

    def versions_of(self, name: str) -> list[Version]:
        """Every version of exactly `name`. Class C."""
        found: list[Version] = []
        for page in self._pages(name, name):
            found.extend(version for version in page if version.name == name)
            if page and page[-1].name != name:
                break
        return found

    def upload(self, name: str, data: bytes, info: dict[str, str], *, once: bool = False) -> Version:
        """Store one more version of `name`; if `once`, try again only where B2 itself says that it did not. Class A."""
        from hashlib import sha1

        digest = sha1(data, usedforsecurity=False).hexdigest()

        def call(session: Any) -> Any:
            return session.upload_file(self._bucket_id, name, len(data), "b2/x-auto", digest, info, data)

        # B2 says 503 when a part of it is busy; another upload URL, which b2sdk fetches, leads to another part.
        return _one(self._patiently(f"store {name}", call, wait=0.0, again=is_refused if once else is_transient))

    def copy(self, source: Version, name: str, info: dict[str, str]) -> Version:
        """Store one more version of `name`, with the content of `source`, without moving it here. Class C.

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

        return _one(self._patiently(f"copy {source.name} to {name}", call))

    def download(self, version: Version) -> bytes:
        """Class B. Raises Gone."""
        from hashlib import sha1

        def call(session: Any) -> bytes:
            with session.download_file_from_url(session.get_download_url_by_id(version.id)) as response:
                data = bytes(response.content)
            found = sha1(data, usedforsecurity=False).hexdigest()
            if len(data) != version.size or (len(version.sha1) == 40 and version.sha1 != found):
                raise ValueError(f"what came is not {version.name}: {len(data)} of {version.size} bytes, SHA-1 {found}")
            return data

        return self._patiently(f"read {version.name}", call)

    def delete(self, version_id: str, name: str) -> None:
        """Remove one version. One that is not there is no error. Class A."""
        with suppress(Gone):
            self._patiently(f"remove {name}", lambda session: session.delete_file_version(version_id, name))

    @property
    def _until(self) -> float | None:
        return getattr(self._present, "until", None)

    def _now(self) -> float:
        return self._clock.now().timestamp()

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
            return session.list_file_versions(self._bucket_id, name, version_id, PAGE, prefix)

        return self._patiently(f"list {prefix or 'everything'}", call)

    def _patiently(
        self,
        what: str,
        call: Callable[[Any], T],
        *,
        wait: float = FIRST_WAIT_S,
        again: Callable[[Exception], bool] = is_transient,
    ) -> T:
        """The result of `call`, which gets an authorised session. Raises Gone, StorageError.

        `wait` is how many seconds pass before the second try, `again` whether there is one after an error.
        """
        with self.within():
            for left in reversed(range(self._tries)):
                try:
                    return call(self._connected())
                except passing() as error:
                    if is_gone(error):
                        raise Gone(what) from error
                    pause = max(wait, asked_to_wait(error))
                    if not left or not again(error) or pause >= self.left():
                        problem = f"cannot {what} in the bucket {self._bucket}: {in_words(error, self._bucket)}"
                        raise (StorageKeyRefused if is_key_refused(error) else StorageError)(problem) from error
                self._clock.sleep(pause)
                wait = max(FIRST_WAIT_S, wait * LONGER)
        raise AssertionError

    def _connected(self) -> Any:
        """The session, authorised on first use: one call of class C, and one more if the key is for all buckets."""
        with self._lock:
            if self._session is None:
                session = open_session(self.left, self._watch)
                session.authorize_account(self._realm, self._key_id, self._key)
                self._bucket_id = self._find_bucket(session)
                self._session = session
            return self._session

    def _find_bucket(self, session: Any) -> str:
        from b2sdk.v3.exception import NonExistentBucket

        allowed = session.account_info.get_allowed().get("buckets") or []
        found = [bucket["id"] for bucket in allowed if bucket["name"] == self._bucket]
        if not found and not allowed:
            account = session.account_info.get_account_id()
            found = [it["bucketId"] for it in session.list_buckets(account, bucket_name=self._bucket)["buckets"]]
        if not found:
            raise NonExistentBucket(self._bucket)
        return str(found[0])


def _one(answer: Any) -> Version:
    version = version_of(answer)
    if version is None:
        raise StorageError(f"B2 stored something else than a file: {answer.get('action')!r}")
    return version
