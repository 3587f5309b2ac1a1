"""What the chat stand-in writes: a post about a topic, in the language it is asked in."""

import random
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from retake.sandbox.topics import GENERAL, PICTURES, Picture, Topic
from retake.sandbox.topics_en import TOPICS as ENGLISH
from retake.sandbox.topics_ru import TOPICS as RUSSIAN

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
TOPICS: Mapping[str, Sequence[Topic]] = MappingProxyType({"en": ENGLISH, "ru": RUSSIAN})

_SCRIPT = MappingProxyType(
    {
        "en": "0–2 s: {frame} 2–8 s: {action} 8–10 s: hold on the last image; the title appears: “{short}”.",
        "ru": "0–2 с: {frame} 2–8 с: {action} 8–10 с: последний кадр замирает, появляется название: «{short}».",
    }
)
_PART = MappingProxyType({"en": ": part {part}", "ru": ": часть {part}"})
# «Topic: …», «Тема: …» at the start of a line, or in JSON as more than one word («string» is a schema, not a topic).
_GIVEN = re.compile(r"^[\s*#>-]*(?:topic|тема)\s*[:—–]\s*(?P<topic>\S.*?)\s*$", re.IGNORECASE | re.MULTILINE)
_GIVEN_IN_JSON = re.compile(r"\"topic\"\s*:\s*\"(?P<topic>[^\"\\]+ [^\"\\]+)\"")
_QUOTES = " \t\"'«»“”.,;"


def write(messages: Sequence[str], luck: random.Random) -> dict[str, Any]:
    """The JSON object that `messages` ask for: the keys of KEYS that they mention, all of them if they mention none.

    It keeps to the topic that they give («Topic: …»), and without one avoids every known topic that they mention.
    """
    asked = "\n".join(messages)
    given = _given(asked)
    language = language_of(asked, given)
    topic = _about(given, language) if given else _fresh(asked, language, luck)
    post = _post(topic, language)
    wanted = [key for key in KEYS if re.search(rf"(?<!\w){key}(?!\w)", asked)]
    return {key: post[key] for key in wanted or KEYS}


def language_of(text: str, given: str = "") -> str:
    """«ru» or «en»: the language of the `given` topic; without one, Russian if `text` asks for it or is Russian."""
    if given:
        return "ru" if re.search(r"[а-яё]", given, re.IGNORECASE) else "en"
    if re.search(r"\b(?:in|into) Russian\b|на русском|по-русски", text, re.IGNORECASE):
        return "ru"
    cyrillic, latin = (len(re.findall(letters, text, re.IGNORECASE)) for letters in ("[а-яё]", "[a-z]"))
    return "ru" if cyrillic * 4 > latin else "en"


def _given(asked: str) -> str:
    match = _GIVEN.search(asked) or _GIVEN_IN_JSON.search(asked)
    return match["topic"].strip(_QUOTES) if match else ""


def _about(given: str, language: str) -> Topic:
    """The known topic that `given` names, or one made up around it."""
    wanted = given.casefold()
    for topic in TOPICS[language]:
        if topic.topic.casefold() in wanted or topic.short.casefold() in wanted:
            return topic._replace(topic=given)
    return _made_up(given, language)


def _fresh(asked: str, language: str, luck: random.Random) -> Topic:
    """A topic that `asked` does not mention; when all have been used, the next part of one of them."""
    seen, known = asked.casefold(), TOPICS[language]
    unused = [topic for topic in known if topic.topic.casefold() not in seen and topic.short.casefold() not in seen]
    if unused:
        return luck.choice(unused)
    topic = luck.choice(known)
    parts = (_PART[language].format(part=part) for part in range(2, 1_000_000))
    part = next(
        part for part in parts if not any(f"{name}{part}".casefold() in seen for name in (topic.topic, topic.short))
    )
    return topic._replace(topic=topic.topic + part, short=topic.short + part)


def _made_up(given: str, language: str) -> Topic:
    """A post about something that nobody has written about here: honest generalities."""
    blank, short = GENERAL[language], " ".join(given.split()[:4]).strip(_QUOTES)
    text, frame = blank.text.format(topic=given), blank.frame.format(topic=given)
    return blank._replace(topic=given, short=short, text=text, frame=frame)


def _post(topic: Topic, language: str) -> dict[str, Any]:
    known = PICTURES.get(topic.key)
    picture = known or Picture(
        f"{topic.topic}, seen as one wide landscape, layered depth, atmospheric light, cinematic wide shot",
        f"Slow push-in on the scene of {topic.short}, mist and light moving gently",
    )
    return {
        "topic": topic.topic,
        "short_topic": topic.short,
        "text": topic.text,
        "sarcasm": {
            "comment": topic.comment,
            "poll": {"question": topic.question, "options": list(topic.options)},
        },
        "script": _SCRIPT[language].format(frame=topic.frame, action=topic.action, short=topic.short),
        "first_frame_description": topic.frame,
        "midjourney_prompt": picture.midjourney,
        "runway_prompt": picture.runway,
    }
