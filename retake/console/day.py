"""What the day has cost by the book that the caps are held against, as a command sees it."""

from retake.console.desk import Desk, Pipeline
from retake.errors import RetakeError
from retake.paid.caps import Today
from retake.story.documents import MidjourneyDocument
from retake.story.spending import Spending, caps_of, known


def the_day(desk: Desk) -> Today:
    """Return the present day, read once for all pipelines. Raises StateError, StorageError."""
    return caps_of(desk.settings, desk.bucket, desk.clock).today("")


def as_seen_by(today: Today, name: str, doc: MidjourneyDocument) -> Today:
    """Return the day as the pipeline called `name` sees it, whose document may know more of its last call."""
    return today.seen_by(name, known(doc))


def day_before_paying(desk: Desk, pipeline: Pipeline, doc: MidjourneyDocument) -> Today | None:
    """Return the day that the pipeline's next payment is held against; None where there is no cap, or the book cannot
    be read: what will be done next is told without it."""
    spending = Spending(desk.settings, desk.bucket, desk.clock, pipeline.name)
    try:
        return spending.today(doc) if spending.capped else None
    except RetakeError:
        return None
