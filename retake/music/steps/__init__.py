"""The six steps. Each is a function of a context that returns the columns it fills.

A step may be restarted after a crash at any point: it checks the row and the journal before it pays or publishes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from retake.music.context import JobContext
from retake.music.states import MusicStep
from retake.music.steps.cover import make_cover
from retake.music.steps.publish import publish
from retake.music.steps.texts import make_meta, make_review
from retake.music.steps.video import make_thumbnail, make_video

STEP_WORK: Mapping[MusicStep, Callable[[JobContext], Mapping[str, Any]]] = {
    MusicStep.COVER: make_cover,
    MusicStep.VIDEO: make_video,
    MusicStep.THUMB: make_thumbnail,
    MusicStep.META: make_meta,
    MusicStep.REVIEW: make_review,
    MusicStep.PUBLISH: publish,
}
"""The function of each step."""
