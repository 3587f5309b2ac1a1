"""A function under a retry policy, with a circuit breaker that processes and machines share.

    python examples/retried_call.py                          # one call, which succeeds
    python examples/retried_call.py --plan 503,503           # two failures, two retries, then an answer
    python examples/retried_call.py --plan 503,503,503,503   # gives up after three retries (exit 75)
    python examples/retried_call.py                          # the breaker is open: no call is made (exit 75)

The breaker opens after six failures within a minute, whichever processes they happen in: its state is in the bucket.
With --bucket 's3://…' that holds for every machine that uses the bucket. After ten seconds it lets one call through.
"""

import argparse
import logging
import random
import sys
from pathlib import Path

import httpx
from vendor import vendor

from retake.bucket import open_bucket, this_process
from retake.clock import SystemClock
from retake.errors import Code, CodedError, RetakeError
from retake.retrying.backoff import Exponential
from retake.retrying.breaker import Breaker, BreakerPolicy, breakers_of
from retake.retrying.guard import Guard, Tried
from retake.retrying.policy import RetryPolicy

POLICY = RetryPolicy(max_retries=3, backoff=Exponential(0.1), jitter_percent=20)  # about 0.1, 0.2 and 0.4 s


def ask(url: str) -> str:
    """Ask the vendor. Raises CodedError; from its code, the policy decides whether to retry."""
    try:
        answer = httpx.post(f"{url}/posters", json={"title": "aurora"}, timeout=10)
    except httpx.TransportError as error:
        raise CodedError(Code.NETWORK, f"the vendor was not reached: {error}") from error
    if answer.status_code >= 500:
        raise CodedError(Code.UNAVAILABLE, f"the vendor answered HTTP {answer.status_code}")
    return str(answer.json()["poster"])


def tell(tried: Tried) -> None:
    """Print the outcome of an attempt."""
    print(f"attempt {tried.attempt}: {tried.error or 'answered'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bucket", default="file:demo/library", help="where the breaker is")
    parser.add_argument("--vendor", metavar="URL", help="instead of one that runs only as long as this program")
    parser.add_argument("--plan", default="", help="how that one answers the calls: ok, 503")
    options = parser.parse_args()
    logging.basicConfig(format="log: %(message)s")
    Path("demo").mkdir(exist_ok=True)
    clock = SystemClock()
    breaker = Breaker(
        "poster-vendor",
        breakers_of(open_bucket(options.bucket), clock),
        BreakerPolicy(failures=6, window_s=60, open_s=10),
        clock=clock,
        owner=this_process(),
    )
    guard = Guard(POLICY, clock, random.random, breaker=breaker, deadline_s=5, observe=tell)
    try:
        with vendor(options.vendor, options.plan) as url:
            print(guard.call(lambda call: ask(url)))
    except RetakeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
