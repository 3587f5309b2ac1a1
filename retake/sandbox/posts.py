"""The posts that the chat stand-in writes, about the topics in topics.json, in English or Russian."""

import json
import random
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

KEYS = (
    *("topic", "short_topic", "text", "sarcasm", "script"),
    *("first_frame_description", "midjourney_prompt", "runway_prompt"),
)
_DATA = json.loads(files("retake.sandbox").joinpath("topics.json").read_text("utf-8"))
# "Topic: …" or "Тема: …" at the start of a line. In JSON, only more than one word: "string" is a schema, not a topic.
_GIVEN = re.compile(r"^[\s*#>-]*(?:topic|тема)\s*[:—–]\s*(?P<topic>\S.*?)\s*$", re.IGNORECASE | re.MULTILINE)
_GIVEN_IN_JSON = re.compile(r"\"topic\"\s*:\s*\"(?P<topic>[^\"\\]+ [^\"\\]+)\"")
_QUOTES = " \t\"'«»“”.,;"


class Topic(NamedTuple):
    """The parts of a post about one topic, in one language; the prompts are in English, as vendors expect."""

    topic: str
    short: str
    text: str
    comment: str
    question: str
    options: Sequence[str]
    frame: str  # what the first frame of the video shows
    action: str  # what happens in it
    midjourney: str
    runway: str


TOPICS = {
    language: [Topic(**it[language], midjourney=it["midjourney"], runway=it["runway"]) for it in _DATA["topics"]]
    for language in ("en", "ru")
}


def write(messages: Sequence[str], rng: random.Random) -> dict[str, Any]:
    """Return the JSON object that `messages` ask for: the KEYS that they mention, or all if they mention none.

    The post is about the topic that they give ("Topic: …") or else about one that they do not mention.
    """
    asked = "\n".join(messages)
    match = _GIVEN.search(asked) or _GIVEN_IN_JSON.search(asked)
    given = match["topic"].strip(_QUOTES) if match else ""
    language = language_of(asked, given)
    post = _post(_about(given, language) if given else _unused(asked, language, rng), language)
    wanted = [key for key in KEYS if re.search(rf"(?<!\w){key}(?!\w)", asked)]
    return {key: post[key] for key in wanted or KEYS}


def language_of(text: str, given: str = "") -> str:
    """Return "ru" or "en": the language of the topic `given`, or else the one `text` asks for or is written in."""
    if given:
        return "ru" if re.search(r"[а-яё]", given, re.IGNORECASE) else "en"
    if re.search(r"\b(?:in|into) Russian\b|на русском|по-русски", text, re.IGNORECASE):
        return "ru"
    cyrillic, latin = (len(re.findall(letters, text, re.IGNORECASE)) for letters in ("[а-яё]", "[a-z]"))
    return "ru" if cyrillic * 4 > latin else "en"


def _about(given: str, language: str) -> Topic:
    """Return the known topic that `given` names, or a generic one about it."""
    wanted = given.casefold()
    for topic in TOPICS[language]:
        if topic.topic.casefold() in wanted or topic.short.casefold() in wanted:
            return topic._replace(topic=given)
    short = " ".join(given.split()[:4]).strip(_QUOTES)
    filled = {
        name: value.format(topic=given, short=short) if isinstance(value, str) else value
        for name, value in _DATA["unknown"][language].items()
    }
    return Topic(topic=given, short=short, **filled)


def _unused(asked: str, language: str, rng: random.Random) -> Topic:
    """Return a topic that `asked` does not mention or, if it mentions all, the next part of one of them."""
    seen, known = asked.casefold(), TOPICS[language]
    unused = [topic for topic in known if topic.topic.casefold() not in seen and topic.short.casefold() not in seen]
    if unused:
        return rng.choice(unused)
    topic, number = rng.choice(known), 2
    while any(_part(name, number, language).casefold() in seen for name in (topic.topic, topic.short)):
        number += 1
    return topic._replace(topic=_part(topic.topic, number, language), short=_part(topic.short, number, language))


def _part(name: str, number: int, language: str) -> str:
    return name + str(_DATA["part"][language].format(part=number))


def _post(topic: Topic, language: str) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "short_topic": topic.short,
        "text": topic.text,
        "sarcasm": {"comment": topic.comment, "poll": {"question": topic.question, "options": topic.options}},
        "script": _DATA["script"][language].format(frame=topic.frame, action=topic.action, short=topic.short),
        "first_frame_description": topic.frame,
        "midjourney_prompt": topic.midjourney,
        "runway_prompt": topic.runway,
    }
