"""What the chat stand-in writes: a post about a topic, in the language it is asked in."""

import random
import re
from typing import Any

KEYS = (
    "topic",
    "short_topic",
    "text",
    "sarcasm",
    "script",
    "first_frame_description",
    "midjourney_prompt",
    "runway_prompt",
)


def write(messages: list[str], luck: random.Random) -> dict[str, Any]:
    """The JSON object that `messages` ask for: the keys of KEYS that they mention, all of them if they mention none."""
    asked = "\n".join(messages)
    post = _post(luck)
    wanted = [key for key in KEYS if re.search(rf"\b{key}\b", asked)]
    return {key: post[key] for key in wanted or KEYS}


def _post(luck: random.Random) -> dict[str, Any]:
    place = luck.choice(["lighthouse", "mountain lake", "night train", "desert road"])
    return {
        "topic": f"What a {place} teaches about patience",
        "short_topic": f"Patience of a {place}",
        "text": f"A {place} does not hurry. It waits, and the evening comes to it all the same.",
        "sarcasm": {
            "comment": "Patience: what we recommend to others while our own page loads.",
            "poll": {
                "question": "How long do you wait for a page?",
                "options": ["Two seconds", "Until I sigh", "I am still waiting"],
            },
        },
        "script": f"Open on the {place} at dusk. Push in slowly. Hold on the last light.",
        "first_frame_description": f"A {place} at dusk, seen from afar, mist over the ground.",
        "midjourney_prompt": f"{place} at dusk, layered misty mountains, warm glow, cinematic --ar 16:9",
        "runway_prompt": f"Slow push-in on the {place}, mist drifting, last light fading.",
    }
