"""Objects in an S3-compatible store, by one or a few requests, with the contract's errors."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from retake.bucket import ABSENT, Conflict, Expect, NotFound, check_key
from retake.bucket.contract import name_stem
from retake.bucket.s3.client import AnswerLost, RequestRefused, S3Client, S3Place
from retake.bucket.s3.removal import remove_quietly

_MARK = "retake"  # the metadata key of a write's number


class S3Objects:
    """The objects in `place`. `url` names the bucket in messages."""

    def __init__(self, client: S3Client, place: S3Place, url: str) -> None:
        self._client, self._place, self._url = client, place, url

    def name(self, key: str) -> str:
        """Return the store's name of the object `key`. Raises ValueError if it is not a key."""
        return f"{self._place.prefix}{check_key(key)}"

    def ask(self, doing: str, key: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Send a request that may be repeated. Raises NotFound (`key`), StorageError."""
        try:
            return self._client.ask(doing, operation, **arguments)
        except RequestRefused as error:
            if error.status == 404 and error.code != "NoSuchBucket":
                raise NotFound(key) from None
            raise self._client.failed(doing, error) from error

    def read(self, key: str) -> tuple[bytes, str]:
        """Return the object and its version. Raises NotFound, StorageError."""
        answer = self.ask(f"read {key}", key, "get_object", Key=self.name(key))
        return answer["Body"], _version(answer)

    def read_range(self, key: str, first: int, last: int) -> bytes:
        """Return a part of the object. Raises NotFound, StorageError."""
        doing = f"read {key}"
        try:
            answer = self._client.ask(doing, "get_object", Key=self.name(key), Range=f"bytes={first}-{last}")
        except RequestRefused as error:
            if error.status == 416:  # the object ends before `first`
                return b""
            if error.status == 404 and error.code != "NoSuchBucket":
                raise NotFound(key) from None
            raise self._client.failed(doing, error) from error
        # A store, or a proxy before it, may ignore the range and answer with all of the object.
        start = 0 if "ContentRange" in answer else first
        return bytes(answer["Body"][start : start + last + 1 - first])

    def version(self, key: str) -> str | None:
        """Return the version of the object, or None if it does not exist."""
        try:
            return _version(self.ask(f"look at {key}", key, "head_object", Key=self.name(key)))
        except NotFound:
            return None

    def listed(self, prefix: str, after: str = "") -> Iterator[dict[str, Any]]:
        """Yield the store's listing of the objects whose keys begin with `prefix` and sort after `after`. Raises
        StorageError."""
        more = {"StartAfter": f"{self._place.prefix}{after}"} if after else {}
        for page in self.pages(prefix, **more):
            yield from page

    def pages(self, prefix: str, **more: str) -> Iterator[list[dict[str, Any]]]:
        """Yield the same page by page, with one request per page. `more` are parameters of the first request. Raises
        StorageError."""
        while True:
            start = f"{self._place.prefix}{prefix}"
            answer = self.ask(f"list {prefix}*", prefix, "list_objects_v2", Prefix=start, **more)
            yield answer.get("Contents", [])
            if not answer.get("IsTruncated"):
                return
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def tags(self, keys: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Return the ETag and size of each object that exists, with one listing for keys that differ only in their
        suffix. Raises StorageError."""
        names = {self.name(key): key for key in keys}
        found = (it for stem in sorted({name_stem(key) for key in names.values()}) for it in self.listed(stem))
        return {names[it["Key"]]: (etag(it), it["Size"]) for it in found if it["Key"] in names}

    def put(self, key: str, file: BinaryIO, condition: dict[str, str]) -> str:
        """Write the object once and return its version: after a lost answer or a refusal, check whether it was stored.

        `condition` holds If-Match or If-None-Match, or nothing. Raises Conflict, StorageError.
        """
        number = _number()
        doing = f"write {key}"

        def attempt() -> str:
            try:
                file.seek(0)
                answer = self._client.once(
                    "put_object", Key=self.name(key), Body=file, Metadata={_MARK: number}, **condition
                )
                return f"{etag(answer)}-{number}"
            except (RequestRefused, AnswerLost) as error:
                return self._after(key, number, error, bool(condition))

        return self._client.repeat(doing, attempt)

    def copy(self, source: str, target: str) -> None:
        """Copy an object. The copy gets a new version. Raises NotFound, StorageError."""
        self.ask(
            f"copy {source} to {target}",
            source,
            "copy_object",
            CopySource={"Bucket": self._place.bucket, "Key": self.name(source)},
            Key=self.name(target),
            MetadataDirective="REPLACE",
            Metadata={_MARK: _number()},
        )

    def compare_and_put(self, key: str, file: BinaryIO, expect: str | Expect) -> str:
        """Compare, write and compare again, in a store that ignores conditions. Raises Conflict, StorageError."""
        self._compare(key, expect, "nothing was changed")
        version = self.put(key, file, {})
        self._compare(key, version, "it was written after us")
        return version

    def displace(self, key: str, file: BinaryIO, expect: str, aside: str) -> str:
        """Write in a store that ignores conditions, while `aside` holds a copy of what was there.

        The copy is removed, unless another program wrote after us: then the caller has to deal with it. Raises
        Conflict.
        """
        self._compare(key, expect, "nothing was changed")
        try:
            self.copy(key, aside)
        except NotFound:
            raise Conflict(f"{key} of {self._url} has just been removed by another program") from None
        try:
            self._compare(key, expect, "nothing was changed")
        except Conflict:
            remove_quietly(self._client, self.name(aside))
            raise
        version = self.put(key, file, {})
        self._compare(key, version, f"what was there before is kept as {aside}")
        remove_quietly(self._client, self.name(aside))
        return version

    def _after(self, key: str, number: str, error: Exception, conditional: bool) -> str:
        """Return the version if the write took effect after all. Raises Conflict, StorageError, AnswerLost."""
        refused = isinstance(error, RequestRefused) and error.status in (404, 409, 412) and conditional
        if isinstance(error, RequestRefused) and not (refused and error.code != "NoSuchBucket"):
            raise self._client.failed(f"write {key}", error) from error
        found = self.version(key)
        if found is not None and found.endswith(f"-{number}"):
            return found
        if isinstance(error, RequestRefused) and error.status != 409:
            raise Conflict(
                f"{key} of {self._url} is not what was read: somebody else wrote it; nothing was changed"
            ) from None
        raise AnswerLost(str(error)) from error  # 409: somebody else's write was in progress at the same moment

    def _compare(self, key: str, expect: str | Expect, consequence: str) -> None:
        if (self.version(key) or ABSENT) != expect:
            raise Conflict(f"{key} of {self._url} is not what was expected: somebody else wrote it; {consequence}")


def _number() -> str:
    return os.urandom(8).hex()


def etag(answer: dict[str, Any]) -> str:
    return str(answer["ETag"]).strip('"')


def _version(answer: dict[str, Any]) -> str:
    return f"{etag(answer)}-{answer.get('Metadata', {}).get(_MARK, '')}"
