"""The conditions that the story reports: they last as long as their causes, and their texts contain no prompts."""

import json
from typing import Any

import pytest
from operator_states import STATES
from story_ticks import DOCUMENT, GEN
from watched_world import WatchedWorld

from retake.alerts.conditions import FailedGeneration, PipelineFacts, TickEnd, UnknownOutcome, look
from retake.alerts.store import BoardStore
from retake.bucket import ANY
from retake.degraded.mode import REDUCED
from retake.errors import Code, ErrorRecord, OutOfThreads, Refused, SettingsError
from retake.story.content import load_prompts, prompts_file
from retake.story.facts import _without as without
from retake.story.facts import story_facts
from retake.vendors.answers import quote


def kept(world: WatchedWorld) -> str:
    board = BoardStore(world.bucket, world.clock).read()
    return json.dumps([it._asdict() for it in board.alerts.values()], ensure_ascii=False)


def test_the_alert_of_a_step_stays_open_through_every_reset_and_counts_each_failure() -> None:
    world = WatchedWorld(max_retries=5)
    world.vendors.plan("imagine", *["refused"] * 5)
    seen = []
    while not world.ended:
        world.tick()
        seen.append(world.alerts()["step_failing"].occurrences if "step_failing" in world.alerts() else 0)
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 0]


def test_failures_of_another_step_are_no_new_failure_of_this_one() -> None:
    world = WatchedWorld(max_retries=5)
    world.vendors.plan("imagine", "refused", "refused")
    world.vendors.plan("fetch", "error", "failed")
    counts = []
    while not world.ended:
        world.tick()
        board = BoardStore(world.bucket, world.clock).read()
        counts += [it.occurrences for key, it in board.alerts.items() if key == "step_failing/imagine" and it.active]
    assert max(counts) <= 2  # the third failed try is that of the task


@pytest.mark.parametrize(
    ("state", "refused"),
    [
        ("pictures refused for the key", "midjourney"),
        ("pictures unasked, and refused for the key", "midjourney"),
        ("pictures unasked", None),
        ("cancelled, not dead_lettered", None),
    ],
)
def test_the_vendor_that_refused_a_key_is_named_while_a_person_is_needed(state: str, refused: str | None) -> None:
    world = STATES[state]()
    limits, now = world.settings.workflow, world.clock.now()
    facts = story_facts(world.documents, limits, now, world.doc.error, capped="", interrupted="")
    assert facts.refused == refused


def writer_echoes(world: WatchedWorld) -> list[str]:
    """Let the writer answer with all that it was asked; return that."""
    asked: list[str] = []

    def write(system: str, user: str, **_: Any) -> dict[str, Any]:
        asked.extend((system, user))
        raise Refused(Code.UNAVAILABLE, quote(f"HTTP 500: cannot do {system} {user}", limit=4000))

    world.vendors.write = write  # type: ignore[method-assign, assignment]
    return asked


@pytest.mark.parametrize("max_retries", [0, 3])
def test_the_writers_prompt_is_not_reported(max_retries: int) -> None:
    world = WatchedWorld(max_retries=max_retries)
    world.prompts = load_prompts(prompts_file(world.settings))
    asked = writer_echoes(world)
    while not {"step_failing", "generation_failed"} & set(world.alerts()):
        world.tick()
    words = kept(world)
    assert "HTTP 500" in words
    for text in asked:
        for start in range(0, len(text) - 30, 10):
            assert " ".join(text[start : start + 30].split()) not in words, text[start : start + 30]


def test_a_document_that_quotes_a_prompt_is_named_without_it() -> None:
    world = WatchedWorld()
    prompt = "a lighthouse that nobody has ever lit, in the fog"
    world.put(GEN, {"generation_id": "20260101-0000"})
    world.put(DOCUMENT, {"midjourney_results": prompt})
    with pytest.raises(Exception, match="midjourney_results"):
        world.tick()
    alert = world.alerts()["state_unreadable"]
    assert "config_midjourney.json" in alert.message
    assert "lighthouse" not in kept(world)


def test_the_reason_for_a_mode_is_told_without_secrets() -> None:
    world = WatchedWorld()
    world.panel.set(REDUCED, None, "no https://cdn.example/a.png?X-Signature=0123456789 for Bearer abcdef0123")
    world.tick()
    assert world.alerts()["degraded"].message == "no https://cdn.example/a.png?… for Bearer …"


def test_settings_that_are_wrong_are_reported_until_they_are_right() -> None:
    world = WatchedWorld()
    keys, world.keys = world.keys, world.keys._replace(openai=None)
    with pytest.raises(SettingsError):
        world.tick()
    assert "OPENAI_API_KEY" in world.alerts()["refused"].message
    world.keys = keys
    world.tick()
    assert "refused" not in world.alerts()


def test_a_tick_for_which_no_thread_could_be_started_is_not_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def tick(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    world = WatchedWorld()
    monkeypatch.setattr(type(world.manager()), "tick", tick)
    with pytest.raises(OutOfThreads):
        world.tick()
    assert world.alerts() == {}


def test_a_pipeline_that_is_no_more_closes_its_alerts() -> None:
    world = WatchedWorld()
    world.settings = world.settings._replace(channels=("north", "south"))
    for name in ("north", "south"):
        world.watch = world.new_watch()
        world.watch.begin()
        world.watch.saw(f"story/{name}", 65, None, worked=False)
        world.watch.end()
    assert world.alerts()["state_unreadable"].pipelines == ["story/north", "story/south"]
    world.settings = world.settings._replace(channels=("north",))
    world.watch = world.new_watch()
    world.watch.begin()
    world.watch.end()
    assert world.alerts()["state_unreadable"].pipelines == ["story/north"]
    world.watch.begin()
    world.watch.saw("story/north", 0, None, worked=False)
    world.watch.end()


def test_a_death_is_on_record_although_the_tick_that_found_it_dies_before_its_end() -> None:
    world = WatchedWorld(alerts={"channels": {"all": {"kind": "webhook"}}})
    world.tick()
    public = json.loads(world.bucket.read("config/config_public.json")[0])
    world.bucket.write("config/config_public.json", json.dumps({**public, "processing_lock": True}).encode(), ANY)
    world.watch = world.new_watch()
    world.watch.begin()
    world.watch.observed("story", world.manager())
    assert (world.alerts()["interrupted"].level, world.alerts()["interrupted"].occurrences) == ("warning", 1)
    world.watch.end()
    assert world.alerts()["interrupted"].occurrences == 1
    world.tick()
    assert "interrupted" not in world.alerts()


def test_a_poll_that_finds_its_task_still_running_is_not_work() -> None:
    world = WatchedWorld()
    world.vendors.plan("fetch", "running", "running", "running", "running")
    for _ in range(3):
        world.tick()
    assert world.doc.task is not None
    runner = world.manager()
    runner.tick()
    assert not runner.worked
    for _ in range(2):
        runner = world.manager()
        runner.tick()
    assert runner.worked


def test_a_text_of_one_character_hides_nothing_and_the_tick_ends() -> None:
    """A model may answer with nothing but an ellipsis, which also replaces quoted prompts."""
    assert without("HTTP 500: a… b", ["…", "a", ""]) == "HTTP 500: a… b"


@pytest.mark.parametrize(("pipeline", "named", "more"), [("story", "", ""), ("story/en", "en/", " --channel en")])
def test_a_command_names_the_channel_since_several_may_have_the_same_id(pipeline: str, named: str, more: str) -> None:
    held = PipelineFacts("20260101-0930", unknown=UnknownOutcome("imagine", held=True, requested_at=None))
    failed = FailedGeneration("20260101-0900", "imagine", ErrorRecord())
    stopped = PipelineFacts(last=failed, failed_in_a_row=3, stopped=True)
    typed = [it.command for facts in (held, stopped) for it in look(pipeline, TickEnd(0, "now"), facts, 2).found]
    assert sorted(typed) == [
        f"python -m retake dead-letters requeue {named}20260101-0900",
        f"python -m retake retry {named}20260101-0930, or skip {named}20260101-0930",
        f"retake tick --resume{more}",
    ]


def test_a_ledger_that_is_away_is_found_even_if_the_state_of_the_pipeline_is_not_known() -> None:
    away = look("story", TickEnd(75, "now", "the database: gone", ledger="the database: gone"), None, 2)
    assert [(it.code, it.message) for it in away.found] == [("ledger_unavailable", "the database: gone")]
    assert "ledger_unavailable" in away.codes
    other = look("story", TickEnd(75, "now", "the bucket is full"), PipelineFacts(), 2)
    assert (other.found, "ledger_unavailable" in other.codes) == ((), False)  # it was perhaps not asked
    assert "ledger_unavailable" in look("story", TickEnd(0, "now"), PipelineFacts(), 2).codes
