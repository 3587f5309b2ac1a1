"""The six steps. Each is a function of a context that returns the columns which it fills.

A step may be started again after a crash at any point: it looks at the row and the journal before it pays or publishes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from retake.music.context import StepContext
from retake.music.states import Step
from retake.music.steps.cover import make_cover
from retake.music.steps.publish import publish
from retake.music.steps.texts import make_meta, make_review
from retake.music.steps.video import make_thumbnail, make_video

STEP_WORK: Mapping[Step, Callable[[StepContext], Mapping[str, Any]]] = {
    Step.COVER: make_cover,
    Step.VIDEO: make_video,
    Step.THUMB: make_thumbnail,
    Step.META: make_meta,
    Step.REVIEW: make_review,
    Step.PUBLISH: publish,
}
"""By step: what does it."""
