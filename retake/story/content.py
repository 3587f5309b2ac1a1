"""generate_content.py: topic, texts and prompts of a generation, written by a chat API in JSON mode.

The prompts file lists the calls in order. Each asks for some of the keys, and may refer to the answers of earlier calls
("$topic") and to the topics already used ("$used_topics"). Each answer is saved as it comes, so that a retry continues
with the call that failed and pays for no call twice.
"""

import json
import math
import os
from collections.abc import Mapping
from functools import partial
from logging import getLogger
from string import Template
from typing import Any, NamedTuple

from retake.clock import stamp
from retake.data import default_file
from retake.errors import Code, SettingsError, StateError, TaskFailed
from retake.foreign_text import plain, shown
from retake.settings.reader import read_file
from retake.settings.schema import did_you_mean, unknown_keys
from retake.story import transitions
from retake.story.decision import Act, next_step
from retake.story.documents import Step, safe_id
from retake.story.generation import TakenIds, begin
from retake.story.script import StepContext
from retake.story.settings import Settings
from retake.story.store import DocumentStore
from retake.story.tidy import tidy_plan
from retake.strict_json import encode, parse, well_formed
from retake.vendors import ChatModel

_log = getLogger(__name__)

TOPICS = "config/topics.json"
"""The topics used so far, by generation: {"topics": {"20260101-0930": "…"}}."""

_TOPICS_SHOWN = 100  # the newest topics, as shown to the writer
_TOPICS_KEPT = 1000

TEXTS = ("topic", "short_topic", "text", "script", "first_frame_description", "midjourney_prompt", "runway_prompt")
KEYS = (*TEXTS, "sarcasm")
"""What a content document holds, besides generation_id and created_at."""


class Prompt(NamedTuple):
    """One call to the writer."""

    name: str
    keys: tuple[str, ...]  # the keys of KEYS that its answer must have
    system: str  # string.Template texts
    user: str
    temperature: float
    max_tokens: int


def write_content(context: StepContext, generation_id: str, prompts: list[Prompt]) -> None:
    """Write 666/ID.json and raise the flag for the picture. If no generation is under way, begin this one. A failure is
    recorded in the document and raised."""
    _check_generation(context, generation_id)
    if next_step(context.store.documents).act is Act.RECONCILE:
        context.paid.reconcile()
        return
    topics = (context.store.read_object(TOPICS) or {}).get("topics") or {}
    if not isinstance(topics, dict):
        raise StateError(f"{TOPICS}: topics: is not an object; fix it or remove the file")
    known = set(context.store.documents.midjourney.draft)
    missing = [prompt for prompt in prompts if not set(prompt.keys) <= known]
    if missing:
        _ask_all(context, generation_id, missing, topics)
    if draft := context.store.documents.midjourney.draft:  # otherwise the text is saved, with the last answer
        _save(context, generation_id, draft, topics)
        context.store.save_midjourney(transitions.content_ready(context.store.documents.midjourney))


def _check_generation(context: StepContext, generation_id: str) -> None:
    if not safe_id(generation_id):
        raise StateError(f"{generation_id!r} is not a generation id; one looks like 20260131-0930")
    doc, files, paths = context.store.documents.midjourney, context.store.documents.files, context.store.paths
    if not context.generation_id:
        if context.store.files(generation_id):
            raise StateError(f"{generation_id} has files in {paths.folder_666} already. Nothing was changed")
        if generation_id in TakenIds(context.store, tidy_plan(context.store).staged):
            raise StateError(
                f"{generation_id} was used before: its files, its dead letter or the record of what it cost are there. "
                "Take another id. Nothing was changed"
            )
        begin(context.store, generation_id, capped=context.budget.spending.capped)
        return
    context.check_under_way(generation_id)
    if doc.task or doc.results or doc.runway_task:
        raise StateError(f"pictures of {generation_id} are ordered; another text would not fit. Nothing was changed")
    if "json" in files and len(files) > 1 and not doc.pending:
        raise StateError(f"{generation_id} has a picture or video, which fits only its text. Nothing was changed")


def _ask_all(context: StepContext, generation_id: str, missing: list[Prompt], topics: dict[str, Any]) -> None:
    """Make the missing calls. Unless a text exists already, the new text itself is the record of the last answer."""
    writer, used, store = context.vendors.writer(), list(topics.values()), context.store
    calls = [({"call": it.name}, partial(_ask, store, writer, it, used)) for it in missing]
    if "json" not in store.files(generation_id):
        calls[-1][0]["answer_in"] = store.file_key(generation_id, "json")
        context.journal.save_text = lambda draft: _save(context, generation_id, draft, topics)
    context.paid.call_all(Step.CONTENT, calls)


def _ask(store: DocumentStore, writer: ChatModel, prompt: Prompt, topics: list[Any]) -> dict[str, Any]:
    """Make one call to the writer. Its answers so far can be used in the prompt."""
    known = {key: _as_text(value) for key, value in store.documents.midjourney.draft.items()}
    known["used_topics"] = "\n".join(f"- {topic}" for topic in topics[-_TOPICS_SHOWN:]) or "(none)"
    system, user = Template(prompt.system).safe_substitute(known), Template(prompt.user).safe_substitute(known)
    answer = writer.write(system, user, temperature=prompt.temperature, max_tokens=prompt.max_tokens)
    found = checked(answer, prompt.keys)
    _log.info("the writer answered: %s", prompt.name, extra={"step": Step.CONTENT.value})
    return found


def checked(answer: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return only the keys that were asked for. Raises TaskFailed (class A) if one is missing or unusable: a model
    answers differently when it is asked again."""
    found = {key: answer[key] for key in keys if key in answer and _usable(key, answer[key])}
    lacking = [key for key in keys if key not in found]
    if lacking:
        raise TaskFailed(Code.BAD_ANSWER, f"the writer's answer lacks {', '.join(lacking)}")
    return found


def _usable(key: str, value: Any) -> bool:
    if key != "sarcasm":
        return isinstance(value, str) and bool(value.strip())
    poll = value.get("poll") if isinstance(value, dict) else None
    if not isinstance(poll, dict) or not _usable("comment", value.get("comment")):
        return False
    options = poll.get("options")
    texts = isinstance(options, list) and len(options) >= 2 and all(_usable("option", option) for option in options)
    return texts and _usable("question", poll.get("question"))


def _save(context: StepContext, generation_id: str, draft: Mapping[str, Any], topics: dict[str, Any]) -> None:
    store = context.store
    content = {"generation_id": generation_id, **{key: draft[key] for key in KEYS}}
    content["created_at"] = stamp(context.clock.now())
    topics = dict(list({**topics, generation_id: draft["topic"]}.items())[-_TOPICS_KEPT:])
    store.save_object(TOPICS, {"topics": topics})
    key = store.file_key(generation_id, "json")
    store.save_file(key, encode(well_formed(content)))  # programs that read it may not accept lone surrogates
    _log.info("the text is saved as %s: %s", key, draft["topic"], extra={"step": Step.CONTENT.value})


def prompts_file(settings: Settings) -> str:
    """Return the path of the prompts file: the one in the settings, else prompts.json next to the settings file, else
    the one that comes with Retake."""
    if settings.paths.prompts:
        return settings.paths.prompts
    beside = os.path.join(os.path.dirname(settings.source), "prompts.json")
    return beside if os.path.exists(beside) else default_file("config/prompts.json")


def load_prompts(path: str) -> list[Prompt]:
    """Return the calls in a prompts file. Raises SettingsError, whose message names the file and the fault."""
    try:
        raw = parse(read_file(path))
        prompts = [_prompt(number, item) for number, item in enumerate(_calls(raw), 1)]
    except OSError as error:
        raise SettingsError(f"{path}: the prompts cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise SettingsError(f"{path}: not JSON at {where}: {error.msg}; fix it there") from error
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error
    missing = set(KEYS) - {key for prompt in prompts for key in prompt.keys}
    if missing:
        raise SettingsError(f"{path}: no call asks for {', '.join(sorted(missing))}")
    return prompts


def unknown_references(prompts: list[Prompt]) -> list[str]:
    """Return a message for each "$name" in the prompts that does not stand for an answer of an earlier call. It would
    be sent to the writer unchanged."""
    known, found = {"used_topics"}, []
    for prompt in prompts:
        names = {name for text in (prompt.system, prompt.user) for name in Template(text).get_identifiers()}
        found += [f"call {prompt.name!r}: no earlier call answers ${name}" for name in sorted(names - known)]
        known.update(prompt.keys)
    return found


def unknown_prompt_keys(path: str) -> list[str]:
    """Return a message for each unknown key in a valid prompts file. Such keys are ignored."""
    raw = parse(read_file(path))
    tables = [("", raw, ("calls",)), *((f"call {it['name']!r}: ", it, Prompt._fields) for it in _calls(raw))]
    found = ((where, *each) for where, table, known in tables for each in unknown_keys(table, known))
    return [f"{where}{plain(key)} is unknown{did_you_mean(meant)}" for where, key, meant in found]


def _calls(raw: Any) -> list[Any]:
    calls = raw.get("calls") if isinstance(raw, dict) else None
    if not isinstance(calls, list):
        raise ValueError("`calls` must be a list of prompts")  # noqa: TRY004  (as each other fault of the file)
    return calls


def _prompt(number: int, item: Any) -> Prompt:
    lacking = [key for key in ("name", "keys", "system", "user") if not isinstance(item, dict) or key not in item]
    if lacking:
        raise ValueError(f"call {number} of `calls` lacks {', '.join(lacking)}")
    if not isinstance(item["keys"], list):
        raise ValueError(f"call {number} of `calls`: keys must be a list")  # noqa: TRY004
    name, keys = item["name"], tuple(item["keys"])
    unknown = [key for key in keys if key not in KEYS]
    if unknown:
        raise ValueError(f"call {name!r} asks for {', '.join(map(str, unknown))}; there are {', '.join(KEYS)}")
    system, user = _message(item, "system"), _message(item, "user")
    return Prompt(name, keys, system, user, _number(item, "temperature", 0.8), int(_number(item, "max_tokens", 1500)))


def _message(item: Mapping[str, Any], key: str) -> str:
    lines = item[key] if isinstance(item[key], list) else [item[key]]
    if not all(isinstance(line, str) for line in lines):
        what = f"{key} must be a text or a list of lines, and is {shown(item[key])}"
        raise ValueError(f"call {item['name']!r}: {what}")
    return "\n".join(lines)


def _number(item: Mapping[str, Any], key: str, default: float) -> float:
    value = item.get(key, default)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"call {item['name']!r}: {key} must be a number, and is {shown(value)}")
    return number


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
