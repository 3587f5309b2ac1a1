"""What `retake check` looks at of a story pipeline: its documents, groups, dead letters, bills."""

from retake.checking import Examination
from retake.clock import Clock
from retake.story.document_examination import StoryDocuments
from retake.story.group_examination import StoryGroups
from retake.story.kept_examination import BillCounts, LetterCounts
from retake.story.letter_examination import StoryLetters
from retake.story.run_examination import RunAgreement
from retake.story.settings import Settings
from retake.story.spending import bills_of


def examinations(prefix: str, settings: Settings, clock: Clock) -> list[Examination]:
    """Return the examinations of the pipeline whose part of the bucket begins with `prefix`."""
    return [
        StoryDocuments(prefix, settings, clock),
        StoryGroups(prefix, settings, clock),
        StoryLetters(prefix, settings, clock),
        LetterCounts(prefix, settings, clock),
        BillCounts(prefix, settings, clock),
        RunAgreement(prefix, settings, clock),
        bills_of(prefix, settings),
    ]
