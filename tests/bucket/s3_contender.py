"""A process that contends for the lease of a bucket, as a cron tick does.

URL TTL SECONDS: take it repeatedly for so long; while it is held, a key says so. Print "held TOKEN" each time, and
"two" if another process claims the same meanwhile.
URL TTL freeze: take it with the kill timer on, print "held TOKEN", and write "still here" when told to continue.
"""

import sys
import time

from retake.bucket import ABSENT, ANY, Conflict, LeaseTerms, NotFound, open_bucket
from retake.errors import LeaseHeld, StorageError


def contend(url: str, terms: LeaseTerms, seconds: float) -> None:
    bucket = open_bucket(url, lease_terms=terms)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            lease = bucket.lease("story", "me")
        except (LeaseHeld, StorageError):
            time.sleep(0.02)
            continue
        try:
            bucket.write("busy", str(lease.token).encode(), ABSENT)
        except Conflict:
            print("two", flush=True)  # noqa: T201
        lease.check()
        bucket.delete("busy")
        print("held", lease.token, flush=True)  # noqa: T201
        lease.release()


def freeze(url: str, terms: LeaseTerms) -> None:
    bucket = open_bucket(url, lease_terms=terms, dead_mans_switch=True)
    lease = bucket.lease("story", "frozen")
    print("held", lease.token, flush=True)  # noqa: T201
    lease.check()
    while True:  # between checking and acting: the test stops it here
        try:
            bucket.read("go on")
        except NotFound:
            continue
        bucket.write("still here", b"", ANY)


if __name__ == "__main__":
    terms = LeaseTerms(float(sys.argv[2]), 0.5, 0.2)
    if sys.argv[3] == "freeze":
        freeze(sys.argv[1], terms)
    else:
        contend(sys.argv[1], terms, float(sys.argv[3]))
