"""The spending of the story: its prices and caps, and what its document says about the last reservation.

Prices come from the settings (PRICES), or else from retake.vendors.sellers. A mode or model without a known price
counts as the most expensive one of its kind, times PRICES.unknown_factor. A video has the price of the duration that is
ordered, which is one that the model offers, not the one in the settings.
"""

from collections.abc import Callable, Iterator
from logging import getLogger
from typing import TYPE_CHECKING

from retake.bucket import Bucket
from retake.clock import Clock
from retake.paid.spending import Spending
from retake.story.documents import MidjourneyDocument, Step
from retake.story.settings import Settings

if TYPE_CHECKING:
    from retake.paid.day_book import Known
    from retake.story.store import DocumentStore
    from retake.vendors.sellers import PricedCall

_log = getLogger(__name__)

_warned: set[str] = set()  # the warnings about guessed prices that this process has logged


def story_spending(settings: Settings, bucket: Bucket, clock: Clock, pipeline: str = "story") -> Spending:
    """Return the spending of one pipeline. `bucket` is the whole bucket, not a channel's part."""
    workflow = settings.workflow
    caps = {"bucket_usd": workflow.daily_cap_usd, "pipeline_usd": workflow.channel_cap_usd}
    return Spending(bucket, clock, pipeline, _price(settings), **caps, defers=True)


def _price(settings: Settings) -> Callable[[str], float]:
    def price(step: str) -> float:
        for warning in guessed(settings):
            if warning not in _warned:
                _warned.add(warning)
                _log.warning("%s", warning)
        return price_of(settings, Step(step))

    return price


class CapWatch:
    """Says to `decide` why a cap forbids a paid call, based on the current documents of a store.

    `said` is what it last said. Calling it may read the bucket, and raises StateError, StorageError.
    """

    def __init__(self, spending: Spending, store: "DocumentStore") -> None:
        self.said = ""
        self._spending, self._store = spending, store

    def __call__(self, step: Step) -> str:
        self.said = self._spending.over(known(self._store.documents.midjourney), step)
        return self.said


def known(doc: MidjourneyDocument) -> "Known":
    """Return what the document says about its last reservation. A malformed `spend.reservation` says nothing."""
    from retake.paid.day_book import Fate, Known, is_day

    raw, spend = doc.reservation, doc.spend
    spent = (spend.day, round(spend.settled + spend.reserved, 6))
    if not isinstance(account := raw.get("account"), str):
        return Known(None, None, None, Fate.OPEN, *spent)
    name, day, fate = raw.get("name"), raw.get("day"), raw.get("fate")
    if not isinstance(name, str) or not isinstance(day, str) or not is_day(day) or fate not in list(Fate):
        return Known(account, None, None, Fate.OPEN, *spent)
    if "usd" in raw and "billed_usd" in raw:  # a reservation for several calls
        left, deferred = max(0.0, round(raw["usd"] - raw["billed_usd"], 6)), raw.get("deferred") is True
        return Known(account, name, day, Fate(fate), *spent, left, float(raw["billed_usd"]) if deferred else None)
    return Known(account, name, day, Fate(fate), *spent)


# --- prices -----------------------------------------------------------------------------------------------------


def prices(settings: Settings) -> dict[Step, float]:
    """Return the price of one paid call in US dollars, for each step that pays."""
    return {step: price_of(settings, step) for step in _units(settings)}


def price_of(settings: Settings, step: Step) -> float:
    """Return the price of one paid call of the step in US dollars."""
    usd = _units(settings)[step].usd(settings.prices.unknown_factor)
    if step is not Step.RUNWAY:
        return usd
    from retake.vendors.runway_limits import fit_duration

    seconds, _ = fit_duration(settings.runwayml.model_name, settings.video.runway_duration)
    return round(usd * seconds, 6)


def guessed(settings: Settings) -> Iterator[str]:
    """Yield a warning for each price that is a guess."""
    for unit in _units(settings).values():
        if warning := unit.warning(settings.prices.unknown_factor):
            yield warning


def _units(settings: Settings) -> "dict[Step, PricedCall]":
    from retake.vendors.sellers import RUNWAY_SECOND_USD, UPSCALE_USD, PricedCall, chat_call, imagine_call

    own, midjourney, film = settings.prices, settings.midjourney, settings.runwayml.model_name
    return {
        Step.CONTENT: chat_call(own, settings.openai),
        Step.IMAGINE: imagine_call(own, midjourney),
        Step.UPSCALE: PricedCall(
            "upscale",
            own.upscale,
            UPSCALE_USD[midjourney.provider],
            midjourney.process_mode,
            "API_KEYS.midjourney.process_mode",
        ),
        Step.RUNWAY: PricedCall(
            "runway_second", own.runway_second, RUNWAY_SECOND_USD, film, "API_KEYS.runwayml.model_name"
        ),
    }
