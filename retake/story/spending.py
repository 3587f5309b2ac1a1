"""What the story pays, held against the caps: which price, for which pipeline, and what its document says of it.

The book itself is in retake/paid/caps.py; nothing of it is loaded unless something is about to be paid for.
"""

from logging import getLogger
from typing import TYPE_CHECKING, Any

from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import RetakeError
from retake.story.documents import MidjourneyDocument, Step
from retake.story.settings import Settings

if TYPE_CHECKING:
    from retake.paid.caps import Caps, Reservation, Today
    from retake.paid.day_book import Known

_log = getLogger(__name__)

_told: set[str] = set()  # doubts about prices that this process has logged


class Spending:
    """What the pipeline called `pipeline` pays («story», «story/CHANNEL»). `bucket` is all of the bucket, whatever the
    channel."""

    def __init__(self, settings: Settings, bucket: Bucket, clock: Clock, pipeline: str = "story") -> None:
        self._settings = settings
        self._bucket = bucket
        self._clock = clock
        self._pipeline = pipeline

    @property
    def capped(self) -> bool:
        """Whether there is a cap that a payment could exceed."""
        workflow = self._settings.workflow
        return workflow.daily_cap_usd is not None or workflow.channel_cap_usd is not None

    def price(self, step: Step) -> float:
        """Return what a paid call of the step costs, in US dollars. A price that is a guess is warned of once."""
        from retake.story.prices import guessed, prices

        for doubt in guessed(self._settings):
            if doubt not in _told:
                _told.add(doubt)
                _log.warning("%s", doubt)
        return prices(self._settings)[step]

    def today(self, doc: MidjourneyDocument) -> "Today":
        """Return what the day has cost so far. Raises StateError, StorageError."""
        return self._caps().today(self._pipeline, known(doc))

    def over(self, doc: MidjourneyDocument, step: Step) -> str:
        """Return why a paid call of the step is not to be made now, "" if it may be. The bucket is asked only where
        there is a cap. Raises StateError, StorageError."""
        return self.today(doc).over(self.price(step)) if self.capped else ""

    def reserve(self, doc: MidjourneyDocument, step: Step) -> "Reservation":
        """Set the price of a call of the step aside. Raises CapReached, StateError, StorageError: nothing may be paid
        for then."""
        return self._caps().reserve(self._pipeline, self.price(step), known(doc))

    def settle(self, doc: MidjourneyDocument) -> None:
        """Tell the book what became of the last reservation. Never raises: until it is told, the price counts."""
        self._tell(doc, lambda caps, it: caps.settle(self._pipeline, it))

    def heal(self, doc: MidjourneyDocument) -> None:
        """`settle` after something died: what was reserved for a call that was never begun is released too."""
        self._tell(doc, lambda caps, it: caps.heal(self._pipeline, it))

    def _tell(self, doc: MidjourneyDocument, tell: Any) -> None:
        try:
            tell(self._caps(), known(doc))
        except RetakeError as error:
            _log.warning("the day's book is not told what became of a call, the next payment makes up: %s", error)

    def _caps(self) -> "Caps":
        return caps_of(self._settings, self._bucket, self._clock)


def caps_of(settings: Settings, bucket: Bucket, clock: Clock) -> "Caps":
    """The books of `bucket`, which is all of the bucket, with the caps of the settings."""
    from retake.paid.caps import Caps, Limits

    workflow = settings.workflow
    return Caps(bucket, clock, Limits(workflow.daily_cap_usd, workflow.channel_cap_usd))


def known(doc: MidjourneyDocument) -> "Known":
    """What the document says of its last reservation. A `spend.reservation` of some other shape says nothing."""
    from retake.paid.day_book import Fate, Known

    raw, spend = (doc.raw.get("spend") or {}).get("reservation"), doc.spend
    spent = (spend.day, round(spend.settled + spend.reserved, 6))
    if not isinstance(raw, dict) or not isinstance(account := raw.get("account"), str):
        return Known(None, None, None, Fate.OPEN, *spent)
    name, day, fate = raw.get("name"), raw.get("day"), raw.get("fate")
    if not isinstance(name, str) or not isinstance(day, str) or fate not in list(Fate):
        return Known(account, None, None, Fate.OPEN, *spent)
    return Known(account, name, day, Fate(fate), *spent)
