"""The chat stand-in's texts about a piece of music: the description of its video, and a review of that description."""

import random
import re
from collections.abc import Sequence
from typing import Any

META = ("title", "description", "tags")
REVIEW = ("verdict", "notes")

_TRACK = re.compile(
    r"(?:^[\s*#>-]*(?:track(?:[ _]title)?|song)\s*[:—–]\s*|\"track_title\"\s*:\s*\")(?P<title>[^\"\n]*[^\"\s])",
    re.IGNORECASE | re.MULTILINE,
)
_MOODS = ("Slow Light", "Night Drive", "Paper Boats", "Open Windows", "Long Shadows")
_NOTES = (
    "The title names the track and is short enough to be read on a phone.",
    "The description says what the listener hears in its first line.",
    "The tags fit the mood; one more about the instrument would help.",
    "Cover and words tell the same story.",
)


def write(messages: Sequence[str], rng: random.Random) -> dict[str, Any] | None:
    """Return the object that `messages` ask for, or None if they name neither all of REVIEW nor all of META.

    The track is the one they give ("Track: …", or "track_title" in JSON). A request for a review includes what is to be
    reviewed, so REVIEW is looked for first.
    """
    asked = "\n".join(messages)
    if _names(asked, REVIEW):
        return {"verdict": "pass", "notes": rng.sample(_NOTES, 2)}
    if not _names(asked, META):
        return None
    found = _TRACK.search(asked)
    title, mood = found["title"].strip() if found else "Untitled", rng.choice(_MOODS)
    return {
        "title": f"{title} – {mood}"[:100],
        "description": f"{title}: music for a quiet hour.\n\n{mood}, from start to end.",
        "tags": ["music", "instrumental", "visualizer", mood.lower()],
    }


def _names(asked: str, keys: Sequence[str]) -> bool:
    return all(re.search(rf"(?<!\w){key}(?!\w)", asked) for key in keys)
