"""The text of a generation: in one call or several, each paid for once, checked, saved, and its topic remembered."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from story_runs import assert_whole
from story_world import CONTENT, FakeVendors, World

from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import CountingBucket
from retake.errors import OutcomeUnknown, Refused, SettingsError, StateError, Stopped, TaskFailed
from retake.story.content import KEYS, TOPICS, Prompt, checked, load_prompts, prompts_file, write_content
from retake.story.documents import Status, Step
from retake.story.script import StepContext
from retake.story.settings import FilePaths, Settings
from retake.story.spending import prices

ID, FILE = "20260101-0000", "666/20260101-0000.json"
DOCUMENT = "config/config_midjourney.json"
PRICE = prices(Settings())[Step.CONTENT]

SEVERAL = [
    Prompt("topic", ("topic", "short_topic"), "Think of a topic.", "Not these:\n$used_topics", 0.9, 100),
    Prompt("text", ("text", "sarcasm"), "Write.", "About $topic ($short_topic). Costs $$5.", 0.7, 900),
    Prompt("film", ("script", "first_frame_description"), "Film it.", "$text and $sarcasm", 0.5, 500),
    Prompt("prompts", ("midjourney_prompt", "runway_prompt"), "Prompt it: $script", "$nothing", 0.1, 200),
]


class RememberingWriter(FakeVendors):
    """Keeps its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[tuple[str, str, float, int]] = []
        self.answer: dict[str, Any] = dict(CONTENT)

    def write(self, system: str, user: str, *, temperature: float, max_tokens: int) -> dict[str, Any]:
        self.questions.append((system, user, temperature, max_tokens))
        super().write(system, user, temperature=temperature, max_tokens=max_tokens)
        return self.answer


def writing(prompts: list[Prompt] | None = None, bucket: Any = None, **workflow: Any) -> World:
    """Return a generation under way that has no text yet."""
    world = World(bucket, **workflow)
    world.vendors = RememberingWriter()
    world.prompts = prompts or SEVERAL
    world.put("config/config_gen.json", {"generation_id": ID})
    return world


def write(world: World, generation_id: str = ID) -> None:
    world.by_hand(lambda context: write_content(context, generation_id, world.prompts))


# --- a written text ---------------------------------------------------------------------------------------------------


def test_the_text_is_saved_with_every_key_of_the_contract() -> None:
    world = writing()
    write(world)
    content = world.json(FILE)
    assert content == {"generation_id": ID, **CONTENT, "created_at": "2026-01-01T00:00:00Z"}
    assert list(content) == [
        *("generation_id", "topic", "short_topic", "text", "script", "first_frame_description"),
        *("midjourney_prompt", "runway_prompt", "sarcasm", "created_at"),
    ]


def test_then_the_picture_is_next() -> None:
    world = writing()
    write(world)
    doc = world.doc
    assert (doc.generation, doc.status, doc.pending, doc.draft) == (True, None, None, {})
    assert [call["call"] for call in doc.paid_calls] == ["topic", "text", "film", "prompts"]
    assert doc.present_step is Step.IMAGINE


def test_each_call_is_asked_with_what_earlier_ones_answered() -> None:
    world = writing()
    write(world)
    questions = world.vendors.questions
    assert [question[2:] for question in questions] == [(0.9, 100), (0.7, 900), (0.5, 500), (0.1, 200)]
    assert questions[0][1] == "Not these:\n(none)"
    assert questions[1][1] == f"About {CONTENT['topic']} ({CONTENT['short_topic']}). Costs $5."
    assert questions[2][1] == f"{CONTENT['text']} and {json.dumps(CONTENT['sarcasm'], ensure_ascii=False)}"
    assert questions[3][0] == f"Prompt it: {CONTENT['script']}"
    assert questions[3][1] == "$nothing", "a field that no call answers stays as it is"


def test_the_text_of_an_answer_is_not_taken_for_a_template() -> None:
    world = writing()
    world.vendors.answer = {**CONTENT, "topic": "$short_topic and $$"}
    write(world)
    assert world.vendors.questions[1][1].startswith("About $short_topic and $$ (")


def test_keys_that_the_writer_adds_are_ignored() -> None:
    world = writing()
    world.vendors.answer = {**CONTENT, "generation_id": "evil", "extra": 1}
    write(world)
    assert world.json(FILE)["generation_id"] == ID
    assert "extra" not in world.json(FILE)


def test_a_text_that_cannot_be_encoded_is_saved_anyway() -> None:
    world = writing()
    world.vendors.answer = {**CONTENT, "text": "half a pair: \ud800", "topic": "\udfff"}
    write(world)
    assert world.json(FILE)["text"] == "half a pair: ?"
    world.tick()
    assert world.generation_id is None, "the generation goes on to its end"


# --- topics -----------------------------------------------------------------------------------------------------------


def test_the_topic_is_remembered_and_shown_to_the_next_generation() -> None:
    world = writing()
    write(world)
    assert world.json(TOPICS) == {"topics": {ID: CONTENT["topic"]}}
    world.put("config/config_gen.json", {"generation_id": "next"})
    world.put("config/config_midjourney.json", {})
    world.vendors.questions.clear()
    write(world, "next")
    assert world.vendors.questions[0][1] == f"Not these:\n- {CONTENT['topic']}"


def test_the_newest_topics_are_shown_and_kept() -> None:
    world = writing()
    world.put(TOPICS, {"topics": {f"id-{n:04}": f"topic {n}" for n in range(1000)}, "note": "gone"})
    write(world)
    shown = world.vendors.questions[0][1].splitlines()
    assert (shown[1], shown[-1], len(shown)) == ("- topic 900", "- topic 999", 101)
    kept = world.json(TOPICS)["topics"]
    assert len(kept) == 1000
    assert next(iter(kept)) == "id-0001"
    assert list(kept)[-1] == ID


@pytest.mark.parametrize("topics", [b"", b"[]", b'{"topics": ["a"]}', b'{"topics": "a"}'])
def test_topics_that_make_no_sense_are_left_as_they_are_and_nothing_is_paid_for(topics: bytes) -> None:
    world = writing()
    world.put(TOPICS, topics)
    with pytest.raises(StateError, match=r"topics\.json"):
        write(world)
    assert world.everything()[TOPICS] == topics
    assert not world.vendors.billed


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", range(4))
@pytest.mark.parametrize("outcome", ["refused", "unknown", "lost", "wasted"])
def test_a_retry_goes_on_with_the_call_that_failed_and_pays_for_no_other_twice(outcome: str, failing: int) -> None:
    world = writing()
    world.vendors.plan("write", *["ok"] * failing, outcome)
    with pytest.raises((Refused, OutcomeUnknown, TaskFailed)):
        write(world)
    doc = world.doc
    assert (doc.status, doc.pending) == (Status.CONTENT_FAILED, None)
    assert set(doc.draft) == {key for prompt in SEVERAL[:failing] for key in prompt.keys}
    assert world.keys_of("666/") == []
    world.tick()  # one more attempt is granted
    world.vendors.questions.clear()
    write(world)
    assert len(world.vendors.questions) == 4 - failing
    assert world.json(FILE)["topic"] == CONTENT["topic"]
    paid = [(call["call"], call["outcome"]) for call in world.doc.paid_calls]
    assert [call for call in paid if call[1] == "done"] == [(prompt.name, "done") for prompt in SEVERAL]
    assert len(paid) - 4 == (outcome != "refused")


def test_a_rejected_text_fails_the_generation_at_once() -> None:
    world = writing()
    world.vendors.plan("write", "rejected")
    with pytest.raises(Refused):
        write(world)
    assert (world.doc.status, world.doc.failed_step) == (Status.TASK_FAILED_MAX_RETRIES, Step.CONTENT)


def test_a_refused_key_leaves_the_draft_and_says_what_to_mend() -> None:
    world = writing()
    world.vendors.plan("write", "ok", "key")
    with pytest.raises(Refused):
        write(world)
    doc = world.doc
    assert (doc.status, doc.pending) == (None, None)
    assert set(doc.draft) == {"topic", "short_topic"}
    assert doc.raw.get("last_error") is not None
    assert (doc.raw.get("last_error")["error_class"], doc.raw.get("last_error")["correlation_id"]) == ("C", ID)


@pytest.mark.parametrize("step", range(4))
def test_a_script_that_dies_just_after_a_call_was_answered_leaves_it_on_record(step: int) -> None:
    world = writing()
    world.vendors.plan("write", *["ok"] * step, "dies")
    tick = world.tick()
    pending = world.doc.pending
    assert pending is not None
    assert (pending.step, pending.raw["call"]) == (Step.CONTENT, SEVERAL[step].name)
    assert tick.exit_code == 75
    world.vendors.questions.clear()
    world.tick()  # the call is looked into: nobody knows
    assert world.vendors.questions == []
    assert world.doc.status is Status.CONTENT_FAILED
    world.tick()  # one more attempt is granted
    world.tick()
    assert world.generation_id is None
    assert world.vendors.billed["write"] == 5
    assert len(world.vendors.questions) == 4 - step


# --- several calls in a row -------------------------------------------------------------------------------------------


class LookingWriter(RememberingWriter):
    """Looks at the records while it is called."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.seen = world, list[tuple[str, list[str], dict[str, float]]]()

    def write(self, system: str, user: str, *, temperature: float, max_tokens: int) -> dict[str, Any]:
        doc = self.world.doc
        assert doc.pending is not None, "an intent is recorded before each call"
        done = [str(call["call"]) for call in doc.paid_calls]
        self.seen.append((str(doc.pending.raw["call"]), done, book_of(self.world)["open"]))
        return super().write(system, user, temperature=temperature, max_tokens=max_tokens)


def book_of(world: World) -> dict[str, Any]:
    return dict(world.json(world.keys_of("caps/")[0])["pipelines"]["story"])


def names(calls: list[Prompt]) -> list[str]:
    return [prompt.name for prompt in calls]


def test_an_answer_and_the_intent_of_the_next_call_are_one_write() -> None:
    counting = CountingBucket(MemoryBucket())
    world = writing(bucket=counting, daily_cap_usd=100.0)
    world.vendors = LookingWriter(world)
    counting.counts.clear()
    write(world)
    seen = world.vendors.seen
    assert [(call, done) for call, done, _ in seen] == [
        (prompt.name, names(SEVERAL[:number])) for number, prompt in enumerate(SEVERAL)
    ]
    assert counting.counts["write"] == 1 + len(SEVERAL) + 2 + 1, "reservation, intents and their results; the document"


def test_their_prices_are_reserved_at_once_and_settled_at_the_end_of_the_tick() -> None:
    world = writing(daily_cap_usd=4 * PRICE)
    world.vendors = LookingWriter(world)
    world.tick()
    assert [[*open_calls.values()] for _, _, open_calls in world.vendors.seen] == [[4 * PRICE]] * 4
    assert (book_of(world)["settled_usd"], book_of(world)["open"]) == (4 * PRICE, {})


def test_where_the_cap_has_no_room_for_all_each_is_reserved_by_itself() -> None:
    world = writing(daily_cap_usd=3 * PRICE)
    world.vendors = LookingWriter(world)
    assert world.tick().exit_code == 75
    assert [[*open_calls.values()] for _, _, open_calls in world.vendors.seen] == [[PRICE]] * 3
    assert [call["outcome"] for call in world.doc.paid_calls] == ["done"] * 3
    assert world.doc.pending is None
    world.later(days=1)
    world.ticks(2)  # an attempt is granted first
    assert [call for call, _, _ in world.vendors.seen] == names(SEVERAL)


@pytest.mark.parametrize(("outcome", "billed"), [("refused", 2), ("unknown", 3), ("wasted", 3)])
def test_what_is_not_made_is_released_as_soon_as_a_call_fails(outcome: str, billed: int) -> None:
    world = writing()
    world.vendors.plan("write", "ok", "ok", outcome)
    world.tick()
    assert (book_of(world)["settled_usd"], book_of(world)["open"]) == (pytest.approx(billed * PRICE), {})
    assert_whole(world)


def test_a_book_whose_pipeline_died_between_two_of_them_fits_its_document() -> None:
    world = writing()
    world.vendors.plan("write", "ok", "dies")
    world.tick()
    assert_whole(world)
    while not world.ended:
        world.tick()
    assert world.vendors.billed["write"] == 5
    assert_whole(world)


def test_a_signal_between_two_of_them_leaves_the_answer_and_no_intent() -> None:
    world = writing()
    world.stopping = lambda: world.vendors.billed["write"] == 2
    with pytest.raises(Stopped):
        write(world)
    doc = world.doc
    assert ([call["call"] for call in doc.paid_calls], doc.pending) == (names(SEVERAL[:2]), None)


@pytest.mark.parametrize("after", [False, True])
def test_a_save_that_fails_for_a_moment_is_made_again_as_it_was(after: bool) -> None:
    failing = FailingBucket(MemoryBucket(), Fault(operation="write", key=DOCUMENT, number=2, after=after))
    world = writing(bucket=failing)
    write(world)
    assert [(call["call"], call["outcome"]) for call in world.doc.paid_calls] == [(it.name, "done") for it in SEVERAL]
    assert world.vendors.billed["write"] == 4


# --- when nothing is written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "doc",
    [
        {"midjourney_task": {"task_id": "t"}},
        {"midjourney_results": {"task_id": "t"}},
        {"runway_task": {"task_id": "t"}},
    ],
)
def test_no_text_is_written_for_pictures_that_are_ordered(doc: dict[str, Any]) -> None:
    world = writing()
    world.put("config/config_midjourney.json", doc)
    before = world.everything()
    with pytest.raises(StateError, match="Nothing was changed"):
        write(world)
    assert world.everything() == before


@pytest.mark.parametrize("name", ["20260101-0001", "../x", "", "a b"])
def test_a_generation_that_is_not_under_way_is_refused(name: str) -> None:
    world = writing()
    before = world.everything()
    with pytest.raises(StateError):
        write(world, name)
    assert world.everything() == before


def test_by_hand_a_generation_is_begun_where_none_is_under_way() -> None:
    world = writing()
    world.put("config/config_gen.json", {"generation_id": None, "note": 1})
    world.put("config/config_midjourney.json", {"retry_count": 3, "status": "task_failed_max_retries", "other": 1})
    write(world, "by-hand")
    assert world.json("config/config_gen.json") == {"generation_id": "by-hand", "note": 1}
    assert world.json("666/by-hand.json")["generation_id"] == "by-hand"
    assert (world.doc.generation, world.doc.retries, world.doc.raw["other"]) == (True, {}, 1)


def test_by_hand_no_generation_is_begun_whose_files_are_there() -> None:
    world = writing()
    world.put("config/config_gen.json", {})
    world.put("666/old.png", b"")
    before = world.everything()
    with pytest.raises(StateError, match="Nothing was changed"):
        write(world, "old")
    assert world.everything() == before


@pytest.mark.parametrize("name", ["old", "v1.old"])
@pytest.mark.parametrize("left", ["spend/{}.json", "dead_letters/{}/report.json", "archive/{}.mp4", "444/{}.json"])
def test_by_hand_no_id_is_given_twice(left: str, name: str) -> None:
    """The record of what the first one cost would be overwritten."""
    world = writing()
    world.put("config/config_gen.json", {})
    world.put(left.format(name), {"generation_id": name})
    before = world.everything()
    with pytest.raises(StateError, match="was used before"):
        write(world, name)
    assert world.everything() == before


# --- what counts as an answer -----------------------------------------------------------------------------------------


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in CONTENT.items() if name != key}


@pytest.mark.parametrize("key", KEYS)
def test_an_answer_that_lacks_a_key_is_named_and_can_be_asked_for_again(key: str) -> None:
    with pytest.raises(TaskFailed, match=key) as caught:
        checked(without(key), KEYS)
    assert caught.value.error_class == "A"


@pytest.mark.parametrize("value", [None, "", "  ", 5, [], {}, True])
@pytest.mark.parametrize("key", [key for key in KEYS if key != "sarcasm"])
def test_a_text_must_be_one(key: str, value: object) -> None:
    with pytest.raises(TaskFailed, match=key):
        checked({**CONTENT, key: value}, KEYS)


POLL = {"question": "Lit?", "options": ["yes", "no"]}


@pytest.mark.parametrize(
    "sarcasm",
    [
        *("Ha.", [], None, {}, {"comment": "Ha."}, {"poll": POLL}, {"comment": "", "poll": POLL}),
        {"comment": "Ha.", "poll": []},
        {"comment": "Ha.", "poll": {**POLL, "question": " "}},
        {"comment": "Ha.", "poll": {**POLL, "options": ["yes"]}},
        {"comment": "Ha.", "poll": {**POLL, "options": "yes or no"}},
        {"comment": "Ha.", "poll": {**POLL, "options": ["yes", ""]}},
        {"comment": "Ha.", "poll": {**POLL, "options": ["yes", 1]}},
    ],
    ids=str,
)
def test_sarcasm_must_be_a_comment_and_a_poll_of_two_options_or_more(sarcasm: object) -> None:
    with pytest.raises(TaskFailed, match="sarcasm"):
        checked({**CONTENT, "sarcasm": sarcasm}, KEYS)


def test_only_the_keys_that_were_asked_for_are_taken() -> None:
    assert checked({**CONTENT, "more": 1}, ("topic",)) == {"topic": CONTENT["topic"]}


# --- the prompts ------------------------------------------------------------------------------------------------------


def prompts_of(tmp_path: Path, value: object) -> str:
    path = tmp_path / "prompts.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return str(path)


CALL = {"name": "all", "keys": list(KEYS), "system": "s", "user": "u"}


def test_prompts_are_read_with_their_defaults_and_lines_are_joined(tmp_path: Path) -> None:
    path = prompts_of(tmp_path, {"calls": [{**CALL, "system": ["a", "ü"], "user": "b"}]})
    assert load_prompts(path) == [Prompt("all", KEYS, "a\nü", "b", 0.8, 1500)]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("{", "not JSON at line 1, column 2: Expecting property name"),
        ("[]", "`calls` must be a list of prompts$"),
        ({}, "`calls` must be a list of prompts$"),
        ({"calls": 5}, "`calls` must be a list of prompts$"),
        ({"calls": ["x"]}, "call 1 of `calls` lacks name, keys, system, user$"),
        ({"calls": [CALL, {"name": "x", "keys": [], "user": ""}]}, "call 2 of `calls` lacks system$"),
        ({"calls": [{**CALL, "keys": "topic"}]}, "call 1 of `calls`: keys must be a list$"),
        ({"calls": []}, "no call asks for"),
        ({"calls": [{**CALL, "keys": ["topic"]}]}, "no call asks for .*text"),
        ({"calls": [{**CALL, "keys": [*KEYS, "poem"]}]}, "poem"),
        ({"calls": [{**CALL, "temperature": "hot"}]}, 'temperature must be a number, and is "hot"$'),
        ({"calls": [{**CALL, "temperature": 10**309}]}, "temperature must be a number, and is …"),
        ({"calls": [{**CALL, "max_tokens": None}]}, "max_tokens must be a number, and is null$"),
        ({"calls": [{**CALL, "max_tokens": math.inf}]}, "max_tokens must be a number, and is Infinity$"),
    ],
    ids=str,
)
def test_prompts_that_cannot_be_used_are_a_fault_of_the_settings(tmp_path: Path, value: object, what: str) -> None:
    path = prompts_of(tmp_path, value)
    with pytest.raises(SettingsError, match=what) as caught:
        load_prompts(path)
    assert path in str(caught.value)


def test_prompts_that_are_not_there_or_not_text_are_a_fault_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nowhere"):
        load_prompts(str(tmp_path / "nowhere"))
    (tmp_path / "latin").write_bytes(b'"\xe4"')
    with pytest.raises(SettingsError, match="latin"):
        load_prompts(str(tmp_path / "latin"))


def test_prompts_are_those_that_the_settings_name_else_those_beside_them_else_those_beside_the_code(
    tmp_path: Path,
) -> None:
    named = Settings(paths=FilePaths(prompts="mine.json"))
    assert prompts_file(named) == "mine.json"
    beside = Settings(source=str(tmp_path / "config.json"))
    ours = prompts_file(beside)
    assert ours.endswith("config/prompts.json")
    assert load_prompts(ours), "the shipped prompts are valid"
    prompts_of(tmp_path, {})
    assert prompts_file(beside) == str(tmp_path / "prompts.json")


def test_a_pending_call_is_settled_before_anything_is_asked() -> None:
    world = writing()
    world.put("config/config_midjourney.json", {"pending_call": {"step": "content", "call": "topic"}})

    def settle(context: StepContext) -> None:
        with pytest.raises(OutcomeUnknown):
            write_content(context, ID, SEVERAL)

    world.by_hand(settle)
    assert world.vendors.questions == []
    assert world.doc.status is Status.CONTENT_FAILED
