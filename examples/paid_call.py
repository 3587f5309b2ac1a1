"""Paid calls in your own script: each made once, under a daily cap, and never twice by accident.

    python examples/paid_call.py                             # orders two posters from a vendor on this machine
    python examples/paid_call.py                             # again: nothing is ordered, the answers are on record
    python examples/paid_call.py --name fair --plan ok,cut   # the second answer is lost: was it paid for? (exit 75)
    python examples/paid_call.py --name fair --resolve retry # you have decided: order it again (or drop: give it up)
    python examples/paid_call.py --name expo --cap 0.05      # the day's cap is reached (exit 75)
    python examples/paid_call.py --bucket 's3://BUCKET/shop?region=NAME'   # with the keys of the AWS command line

The intent is saved before each call, so the script may be killed at any moment: the next start knows that a call was
begun.
"""

import argparse
import logging
import sys
from functools import partial
from pathlib import Path

import httpx
from vendor import vendor

from retake.bucket import open_bucket
from retake.errors import Code, Refused, RetakeError
from retake.paid.paid_calls import PaidCalls

PRICES = {"poster": 0.04}  # US dollars


def order(url: str, title: str) -> str:
    """Order a poster. Raises Refused if the vendor certainly did not make one."""
    try:
        answer = httpx.post(f"{url}/posters", json={"title": title}, timeout=60)
    except httpx.ConnectError as error:
        raise Refused(Code.NETWORK, f"the vendor was not reached: {error}") from error
    if answer.is_client_error or answer.status_code == 503:  # your vendor's manual says which answers mean this
        raise Refused(Code.UNAVAILABLE, f"the vendor answered HTTP {answer.status_code}")
    return str(answer.raise_for_status().json()["poster"])  # any other error counts as "perhaps paid for"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("titles", nargs="*", default=["aurora", "comet"])
    parser.add_argument("--name", default="posters", help="the name of these calls in the bucket")
    parser.add_argument("--bucket", default="file:demo/library")
    parser.add_argument("--cap", type=float, help="US dollars a day, for everything that is paid through the bucket")
    parser.add_argument("--resolve", choices=["retry", "drop"], help="what to do with a call of unknown outcome")
    parser.add_argument("--vendor", metavar="URL", help="instead of one that runs only as long as this program")
    parser.add_argument("--plan", default="", help="how that one answers the calls: ok, 503, cut")
    options = parser.parse_args()
    logging.basicConfig(format="log: %(message)s")
    Path("demo").mkdir(exist_ok=True)
    try:
        with (
            vendor(options.vendor, options.plan) as url,
            PaidCalls(open_bucket(options.bucket), options.name, PRICES, daily_cap_usd=options.cap) as paid,
        ):
            if options.resolve:
                print(f"{paid.resolve(options.resolve).key}: {options.resolve}")
            for title in options.titles:
                poster = paid.call(title, "poster", partial(order, url, title))
                print(f"{title}: {poster or 'given up'}", flush=True)
    except RetakeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
