"""Shared by the tests of the B2 bucket: another program that uses b2sdk and knows nothing of Retake."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO

from b2sdk.v3 import B2Api, InMemoryAccountInfo
from b2sdk.v3.exception import FileNotPresent

from retake.bucket import Bucket, Conflict
from retake.bucket.b2.bucket import parse_url

DOCUMENT = "config/config_public.json"
ASIDE = f"{DOCUMENT}.displaced-"


class Plain:
    """A program that reads, changes and uploads files below the prefix of `url`, as b2sdk does it."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        place = parse_url(url)
        self.prefix = place.prefix
        api = B2Api(InMemoryAccountInfo())
        api.authorize_account(
            application_key_id=environ["B2_APPLICATION_KEY_ID"],
            application_key=environ["B2_APPLICATION_KEY"],
            realm=place.realm,
        )
        self.bucket = api.get_bucket_by_name(place.bucket)

    def put(self, key: str, data: bytes, file_info: dict[str, str] | None = None) -> str:
        return str(self.bucket.upload_bytes(data, self.prefix + key, file_info=file_info).id_)

    def get(self, key: str) -> bytes:
        """Return the version that B2 considers the newest, b"" if there is none."""
        kept = BytesIO()
        with suppress(FileNotPresent):
            self.bucket.download_file_by_name(self.prefix + key).save(kept)
        return kept.getvalue()

    def versions(self, key: str) -> list[str]:
        return [version.id_ for version in self.bucket.list_file_versions(self.prefix + key)]

    def append(self, name: str) -> None:
        self.put(DOCUMENT, json.dumps([*ids(self.get(DOCUMENT)), name]).encode())


def ids(data: bytes) -> list[str]:
    """Return the document of these tests: a list of names."""
    return list(json.loads(data or b"[]"))


def publish(bucket: Bucket, own: str, *, tries: int = 200) -> list[str]:
    """Add `own` to the document and keep what others put there, as the manager does. Return all that is in it then."""
    for number in range(tries):
        asides = [entry.key for entry in bucket.list(ASIDE)]
        data, version = bucket.read(DOCUMENT)
        wanted = list(dict.fromkeys([*ids(data), *(it for key in asides for it in ids(bucket.read(key)[0])), own]))
        try:
            bucket.replace(DOCUMENT, json.dumps(wanted).encode(), version, f"{ASIDE}{number}")
        except Conflict:
            continue
        for key in asides:
            bucket.delete(key)
        return wanted
    raise AssertionError("the document never came to rest")


class Watched:
    """A hook for `B2Sandbox.meanwhile`: `act(number)` runs before each call (from 1) that `during` makes.

    Calls made by `act` are not counted.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._act: Callable[[int], None] | None = None

    def __call__(self, call: str, file: str) -> None:
        if self._act is None:
            return
        act, self._act = self._act, None
        self.seen.append(call)
        try:
            act(len(self.seen))
        finally:
            self._act = act

    @contextmanager
    def during(self, act: Callable[[int], None] = lambda number: None) -> Iterator[list[str]]:
        self.seen, self._act = [], act
        try:
            yield self.seen
        finally:
            self._act = None


def main(work: str, url: str, name: str, rounds: str) -> None:
    """Run what the processes of the tests do; their keys are in the environment."""
    import os

    from retake.bucket.b2.bucket import open_b2

    if work == "append":
        program = Plain(url, os.environ)
        for number in range(int(rounds)):
            program.append(f"{name}{number}")
    elif work == "count":
        bucket = open_b2(url)
        for _ in range(int(rounds)):
            count(bucket)
    else:
        for _ in range(int(rounds)):
            hold(open_b2(url), name)


def count(bucket: Bucket) -> None:
    """Increment the number in "count"."""
    while True:
        data, version = bucket.read("count")
        with suppress(Conflict):
            bucket.write("count", b"%d" % (int(data) + 1), version)
            return


def hold(bucket: Bucket, name: str) -> None:
    """Hold the lease once, record its token, and check that nobody else holds it."""
    import time

    from retake.bucket import ABSENT
    from retake.errors import LeaseHeld

    while True:
        try:
            lease = bucket.lease("story", name)
        except LeaseHeld:
            time.sleep(0.02)
            continue
        bucket.write("inside", name.encode(), ABSENT)
        lease.check()
        bucket.delete("inside")
        bucket.write(f"tokens/{lease.token:06d}", name.encode(), ABSENT)
        lease.release()
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
