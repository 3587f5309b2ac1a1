"""A process that pays as often as the caps allow: `python payer.py URL PIPELINE PRICE CAP`. It prints how often."""

import sys

from retake.bucket import open_bucket
from retake.clock import SystemClock
from retake.errors import CapReached
from retake.paid.caps import Caps
from retake.paid.day_book import Fate, Known, Limits


def pay(caps: Caps, pipeline: str, usd: float) -> int:
    """Pay until a cap is reached; return the number of calls made."""
    made, known = 0, Known("a")
    while True:
        try:
            reservation = caps.reserve(pipeline, usd, known)
        except CapReached:
            return made
        made += 1
        known = Known(reservation.account, reservation.name, reservation.day, Fate.BILLED)


def main(url: str, pipeline: str, usd: str, cap: str) -> None:
    sys.stdin.readline()
    sys.stdout.write(f"{pay(Caps(open_bucket(url), SystemClock(), Limits(float(cap))), pipeline, float(usd))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
