"""What the day has cost by the book that the caps are held against, as a command sees it."""

from retake.console.command_context import CommandContext, Pipeline
from retake.errors import RetakeError
from retake.paid.caps import Caps, Today
from retake.story.documents import MidjourneyDocument
from retake.story.spending import known, story_spending


def caps_of(desk: CommandContext) -> Caps:
    """Return the books of the bucket's days."""
    return story_spending(desk.settings, desk.bucket, desk.clock).caps()


def the_day(desk: CommandContext) -> Today:
    """Return the present day, read once for all pipelines. Raises StateError, StorageError."""
    return caps_of(desk).today("")


def as_seen_by(today: Today, name: str, doc: MidjourneyDocument) -> Today:
    """Return the day as the pipeline called `name` sees it, whose document may know more of its last call."""
    return today.seen_by(name, known(doc))


def day_before_paying(desk: CommandContext, pipeline: Pipeline, doc: MidjourneyDocument) -> Today | None:
    """Return the day that the pipeline's next payment is held against; None where there is no cap, or the book cannot
    be read: the next action is then told without it."""
    spending = story_spending(desk.settings, desk.bucket, desk.clock, pipeline.name)
    try:
        return spending.today(known(doc)) if spending.capped else None
    except RetakeError:
        return None
