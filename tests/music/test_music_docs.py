"""docs/music.md agrees with the rules and the tables."""

import re
from pathlib import Path

import pytest

from retake.music import states
from retake.music.settings import MUSIC_KEYS
from retake.music.states import STATES, STEPS, MusicStep, Standing
from retake.music.tables import SCHEMA
from retake.operations.port import Refusal

PAGE = (Path(__file__).parents[2] / "docs" / "music.md").read_text("utf-8")
EDGES = set(re.findall(r"^    (\[\*\]|\w+) --> (\w+): (.+)$", PAGE, re.MULTILINE))


def test_the_diagram_shows_what_people_can_do() -> None:
    expected = set()
    for state in STATES:
        standing = Standing(state, failed_reason="cover: what")
        for rule, word in ((states.approved, "approve"), (states.sent_back, "feedback")):
            try:
                expected.add((state, states.running(rule(standing)), word))
            except Refusal:
                continue
    for step in (MusicStep.COVER, MusicStep.PUBLISH):  # the vendor may have a video or task, and nobody can tell
        again = states.resolvable(Standing(states.AWAITING_MANUAL, failed_reason=f"{step}: what"))
        expected.add((states.AWAITING_MANUAL, states.running(again), "resolve again"))
    by_people = {edge for edge in EDGES if edge[2] not in ("create", "done", "outcome unknown", "resolve")}
    assert by_people == expected


def test_the_diagram_shows_what_steps_do() -> None:
    done = {(states.running(step), states.pending(step), "done") for step in STEPS[:-1]}
    assert {edge for edge in EDGES if edge[2] == "done"} == done | {("publish_running", "published", "done")}
    assert {state for edge in EDGES for state in edge[:2]} | {"failed", "cancelled"} == {"[*]", *STATES}


def test_what_it_says_about_cancelling_holds() -> None:
    told = re.search(r"Every state except\s+(.+?)\s+can be cancelled\.", PAGE, re.DOTALL)
    assert told
    for state in STATES:
        if state in re.findall(r"`(\w+)`", told[1]):
            with pytest.raises(Refusal):
                states.cancellable(Standing(state))
        else:
            states.cancellable(Standing(state))


def test_the_page_has_every_column_and_every_variable() -> None:
    for table in SCHEMA.metadata.tables.values():
        assert f"`{table.name}`" in PAGE
    told = PAGE.partition("## Tables")[2].partition("\n## ")[0]
    for name in ("pipelines", "pipeline_jobs", "paid_calls"):
        for column in SCHEMA.metadata.tables[name].c:
            assert f"`{column.name}`" in told, (name, column.name)
    assert [variable for variable, _ in MUSIC_KEYS.values() if f"`{variable}`" not in PAGE] == []
