"""What a person sees of a generation, and the account at its end."""

import io
from decimal import Decimal
from typing import Any

import pytest
from rich.console import Console
from story_shapes import shaped
from story_ticks import fill
from story_world import World

from retake.sandbox.billing import BillLine, VendorBill
from retake.story.decision import Act, Action
from retake.story.documents import Step
from retake.story.progress import ROWS, Watch, row_of, told

ID = "20260101-0000"


def watched(world: World, ticks: int = 1, *, terminal: bool = False) -> tuple[Watch, str]:
    """Return the watch after these ticks, and its account."""
    watch = Watch(world.settings, world.bucket, world.clock, terminal=terminal)
    manager = world.manager(observe=watch.observe)
    for _ in range(ticks):
        watch.ended(manager.tick())
        world.clock.sleep(60)
    stream = io.StringIO()
    watch.print_account(stream, None)
    return watch, stream.getvalue()


def view(watch: Watch) -> str:
    stream = io.StringIO()
    Console(file=stream, width=120).print(watch._view())
    return stream.getvalue()


# --- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.FETCH])
def test_every_step_belongs_to_a_row(step: Step) -> None:
    assert row_of(shaped(), step) in ROWS


@pytest.mark.parametrize(
    ("task", "row"),
    [
        (None, "pictures"),
        ({"task_id": "t", "task_type": "imagine"}, "pictures"),
        ({"task_id": "t", "task_type": "upscale"}, "upscale"),
    ],
)
def test_a_fetch_belongs_to_what_it_waits_for(task: dict[str, Any] | None, row: str) -> None:
    assert row_of(shaped(midjourney_task=task), Step.FETCH) == row


# --- messages -------------------------------------------------------------------------------------------------------


def action(act: Act, step: Step = Step.UPSCALE, why: str = "because") -> Action:
    return Action(act, step, why)


@pytest.mark.parametrize("act", Act)
def test_every_action_is_reported_in_words_or_not_at_all(act: Act) -> None:
    for step in Step:
        what = told(shaped(), action(act, step))
        assert what is None or what.strip() == what != ""


def test_a_retry_is_reported_with_its_reason() -> None:
    documents = shaped(last_error={"message": "HTTP 500"})
    what = told(documents, action(Act.RETRY, why="attempt 1/3 for status upscale_trigger_failed"))
    assert what == "upscale failed: HTTP 500\nattempt 1/3 for status upscale_trigger_failed: retried"


def test_a_retry_that_may_pay_twice_is_reported_as_such() -> None:
    asked = {"step": "runway", "outcome": "unknown", "possible_duplicate": True}
    documents = shaped(last_error={"message": "cut"}, paid_calls=[asked])
    assert str(told(documents, action(Act.RETRY, Step.RUNWAY))).endswith("because: retried, perhaps paid for twice")
    later = shaped(paid_calls=[asked, {"step": "runway", "outcome": "accepted"}])
    assert "twice" not in str(told(later, action(Act.RETRY, Step.RUNWAY_POLL)))


def test_giving_up_is_reported_with_its_reason() -> None:
    documents = shaped(last_error={"message": "HTTP 500"})
    for act in (Act.FAIL, Act.SUBSTITUTE, Act.TIME_OUT):
        assert told(documents, action(act)) == f"{act}: because\nHTTP 500"
    assert told(shaped(), action(Act.FAIL)) == f"{Act.FAIL}: because"


def test_everyday_actions_are_not_shown() -> None:
    for act in (Act.WAIT, Act.BEGIN, Act.FETCH, Act.WRITE):
        assert told(shaped(), action(act)) is None


def test_what_has_been_reached_is_reported_once_and_not_at_each_retry() -> None:
    for act, step in (
        (Act.ORDER_IMAGINE, Step.IMAGINE),
        (Act.ORDER_UPSCALE, Step.UPSCALE),
        (Act.ORDER_VIDEO, Step.RUNWAY),
    ):
        assert told(shaped(), action(act, step))
        assert told(shaped(retries={step.value: 1}), action(act, step)) is None
    assert told(shaped(), action(Act.POLL_VIDEO, Step.RUNWAY_POLL)) is None


# --- the account ----------------------------------------------------------------------------------------------------


def test_the_account_of_a_generation_that_went_well() -> None:
    _, account = watched(World())
    lines = [line.strip() for line in account.splitlines() if line.strip()]
    assert lines[0].startswith(f"What happened ({ID}, 1:00")
    assert [line.partition("  ")[2] for line in lines[1:5]] == [
        "the text is ready",
        "the four pictures are ready",
        "the upscaled picture is ready",
        "the video is ready: the generation is finished",
    ]
    assert all(f"/666/{ID}.{suffix}  (" in account for suffix in ("json", "png", "mp4"))
    assert "not finished" not in account


def test_the_account_tells_of_failures_and_where_the_dead_letter_lies() -> None:
    world = World(max_retries=1)
    world.vendors.plan("upscale", *["refused"] * 9)
    _, account = watched(world, 4)
    assert account.count("upscale failed: upscale: HTTP 500") == 1
    assert "kept in dead_letters/" in account
    assert f"dead_letters/{ID}/{ID}.json" in account


@pytest.mark.parametrize(
    ("kind", "outcome", "why"),
    [("imagine", "key", "imagine: imagine: HTTP 401"), ("fetch", "running", "waiting for Midjourney")],
)
def test_the_account_says_why_a_generation_is_not_finished(kind: str, outcome: str, why: str) -> None:
    world = World()
    world.vendors.plan(kind, outcome)
    _, account = watched(world)
    assert f"not finished: {why}\n" in account


def test_the_account_of_nothing() -> None:
    world = World()
    fill(world)
    _, account = watched(world)
    assert account.split("\n")[1].startswith("What happened (no generation")
    assert "Files" not in account


def test_texts_that_look_like_markup_are_reported_as_they_are() -> None:
    world = World()
    world.vendors.plan("upscale", "refused")
    watch, _ = watched(world, 1)
    watch.observe(shaped(last_error={"message": "[bold]x[/nope]"}, status="upscale_trigger_failed"), action(Act.RETRY))
    stream = io.StringIO()
    watch.print_account(stream, None)
    assert "[bold]x[/nope]" in stream.getvalue()


def test_the_bill_lists_what_was_asked_for_and_its_sum() -> None:
    watch, _ = watched(World())
    stream = io.StringIO()
    lines = {
        "imagine": BillLine(3, 2, Decimal("0.09")),
        "chat": BillLine(1, 1, Decimal(0)),
        "upscale": BillLine(0, 0, Decimal(0)),
    }
    watch.print_account(stream, VendorBill(lines))
    bill = stream.getvalue().partition("What the vendors would have billed")[2].partition("\n\n")[0].split("\n")
    assert [line.split() for line in bill if line] == [
        ["imagine", "3", "calls,", "2", "carried", "out", "0.090", "USD"],
        ["chat", "1", "call,", "1", "carried", "out", "free"],
        ["total", "0.090", "USD"],
    ]


@pytest.mark.parametrize("kinds", [[], ["chat", "organization"]])
def test_the_columns_of_the_bill_are_aligned_and_one_without_calls_has_its_sum(kinds: list[str]) -> None:
    watch, _ = watched(World())
    stream = io.StringIO()
    watch.print_account(stream, VendorBill({kind: BillLine(1, 1, Decimal(0)) for kind in kinds}))
    bill = stream.getvalue().partition("What the vendors would have billed\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in bill] == [*kinds, "total"]
    assert len({line.find("1 call") for line in bill[:-1]}) <= 1


# --- on a terminal --------------------------------------------------------------------------------------------------


def test_the_view_shows_what_is_done_what_is_under_way_and_what_was_taken_again() -> None:
    world = World()
    world.vendors.plan("upscale", "refused", "refused", "ok")
    world.vendors.plan("fetch", "ok", "running", "running")
    watch, _ = watched(world, 6)
    shown = view(watch)
    assert f"generation {ID}" in shown
    assert "6:00" in shown
    assert shown.count("✓") == 2
    assert "retried 2 ×" in shown
    assert Act.FETCH.value in shown


def test_before_anything_is_known_the_view_waits() -> None:
    watch = Watch(World().settings, World().bucket, World().clock, terminal=False)
    shown = view(watch)
    assert "generation …" in shown
    assert all(row in shown for row in ROWS)
    assert "✓" not in shown


def test_the_view_stays_with_its_generation_when_the_next_begins() -> None:
    world = World()
    watch, _ = watched(world)
    watch.observe(shaped(generation_id=None), action(Act.BEGIN, Step.CONTENT))
    assert f"generation {ID}" in view(watch)
    assert view(watch).count("✓") == 4
