"""The machine dies at every point of every kind of generation; afterwards ticks go on.

Each scenario is run once, and the state of the world is recorded before and after each of its operations (bucket
operations and vendor calls). From each such moment that differs from the previous one the world goes on, as after a
death; and for pairs of deaths, from every point of the life that follows.
"""

import json
import os
from collections import Counter
from collections.abc import Callable

import pytest
from mortal import Moment, MortalWorld
from story_runs import assert_whole, ledger_of
from story_world import CONTENT, World

from retake.bucket import ANY
from retake.data import default_file
from retake.runs.states import RunStatus
from retake.story.content import load_prompts
from retake.story.documents import GROUP
from retake.story.operator_actions import OperatorActions
from retake.story.spending import story_spending

Prepare = Callable[[MortalWorld], None]

STEP_OF_KIND = {"write": "content", "imagine": "imagine", "upscale": "upscale", "create": "runway"}
LAYOUT = {
    "444": ("20250101-0001",),
    "555": ("20250101-0002",),
    "666": ("20250101-0003",),
}


def nothing(world: MortalWorld) -> None:
    """Change nothing."""


def planned(kind: str, *outcomes: str) -> Prepare:
    def prepare(world: MortalWorld) -> None:
        world.vendors.plan(kind, *outcomes)

    return prepare


def in_three_calls(*outcomes: str) -> Prepare:
    """Let the text take several calls, each of which knows the previous answer."""

    def prepare(world: MortalWorld) -> None:
        world.prompts = load_prompts(default_file("config/prompts.json"))
        world.vendors.plan("write", *outcomes)

    return prepare


def published(world: MortalWorld) -> None:
    """Give it something to tidy up: the group in 444/ is published, so that two more can move up."""
    for folder, ids in LAYOUT.items():
        for name in ids:
            for suffix in GROUP:
                text = {"generation_id": name, **CONTENT, "created_at": "2025-01-01T00:00:00Z"}
                data = json.dumps(text) if suffix == "json" else f"{name} {suffix}"
                world.memory.write(f"{folder}/{name}.{suffix}", data.encode(), ANY)
    document = {"processing_lock": False, "generation_id": ["20250101-0001", "no-files"], "empty": []}
    world.memory.write("config/config_public.json", json.dumps(document).encode(), ANY)


def published_on_a_directory(world: MortalWorld) -> None:
    """The same, where a group moves by renaming its files."""
    published(world)
    world.rename_on_moves()


SCENARIOS: dict[str, Prepare] = {
    "happy path": nothing,
    "tidy-up before": published,
    "tidy-up before, by renaming": published_on_a_directory,
    "content fails once": planned("write", "refused"),
    "content in three calls": in_three_calls(),
    "content in three calls, of which the second fails once": in_three_calls("ok", "refused"),
    "content in three calls, of which the last is lost": in_three_calls("ok", "ok", "unknown"),
    "imagine fails once": planned("imagine", "refused"),
    "imagine is lost": planned("imagine", "lost"),
    "imagine is carried out, its answer lost": planned("imagine", "unknown"),
    "imagine task fails": planned("fetch", "failed"),
    "a fetch fails": planned("fetch", "error"),
    "upscale fails once": planned("upscale", "refused"),
    "video fails once": planned("create", "refused"),
    "video's answer is lost": planned("create", "unknown"),
    "a poll fails": planned("poll", "error"),
    "the video takes long": planned("poll", "running", "running", "running"),
    "video task fails": planned("poll", "failed"),
    "download fails": planned("download", "error"),
    "upscale is exhausted": planned("upscale", *["refused"] * 9),
    "prompt is rejected": planned("imagine", "rejected"),
    "Midjourney times out": planned("fetch", *["running"] * 999),
}

WORKFLOW = {
    "max_retries": 1,
    "runway_polling_timeout": 20.0,
    "mj_timeout_seconds": 170.0,
}


def born(scenario: str) -> MortalWorld:
    world = MortalWorld(**WORKFLOW)
    SCENARIOS[scenario](world)
    return world


def check(world: MortalWorld, deaths: int, *, abandoned: int = 0, settled: bool = True) -> None:
    """Check a world whose generation has ended, however often the machine died in between.

    At most `abandoned` runs belong to a generation whose beginning was lost. Unless it is `settled`, the day's book may
    show bills as reserved.
    """
    documents = world.documents
    assert not documents.public.processing_lock
    assert not [key for key in world.keys_of("config/") if "displaced" in key]
    assert not world.memory.store.holders.get("story")
    check_files(world)
    check_spend(world, deaths, settled=settled)
    check_runs(world, abandoned)
    if "20250101-0001" in str(world.keys_of()):
        assert documents.public.published == ["no-files"], "published ids are archived, others stay on the list"
        assert world.keys_of("archive/") == [f"archive/20250101-0001.{it}" for it in sorted(GROUP)]


def check_files(world: MortalWorld) -> None:
    """Check that every id has its complete files in one place."""
    places: dict[str, Counter[str]] = {}
    for folder in ("444/", "555/", "666/", "archive/"):
        for key in world.keys_of(folder):
            places.setdefault(key.removeprefix(folder).split(".")[0], Counter())[folder] += 1
    for name, found in places.items():
        assert list(found.values()) == [3], f"{name} is in {dict(found)}"
    letter_folders = {key.split("/")[1] for key in world.keys_of("dead_letters/")}
    assert not letter_folders & set(places), "a dead-lettered generation is nowhere else"
    assert letter_folders or world.ended == ["done"]


def booked(world: World) -> tuple[float, float]:
    """Return what is reserved and what is settled in the books of all days."""
    sums = [sums for key in world.keys_of("caps/") for sums in world.json(key)["pipelines"].values()]
    return sum(it["reserved_usd"] for it in sums), sum(it["settled_usd"] for it in sums)


def check_runs(world: MortalWorld, abandoned: int) -> None:
    """Check that each generation is one run with one end, however often it was interrupted."""
    assert_whole(world)
    made = {run.task_id: run.status for run in ledger_of(world).runs()}
    letter_folders = {key.split("/")[1] for key in world.keys_of("dead_letters/")}
    assert len(made) == len(world.keys_of("runs/run-")), "no generation has two runs"
    assert {name for name, status in made.items() if status is RunStatus.FAILED} == letter_folders
    others = [name for name, status in made.items() if status not in (RunStatus.SUCCEEDED, RunStatus.FAILED)]
    assert len(others) <= abandoned
    assert all(made[name] is RunStatus.CANCELLED and name not in str(world.keys_of("666/")) for name in others)


def check_spend(world: MortalWorld, deaths: int, *, settled: bool) -> None:
    """Check that each billed call is recorded. More than one may be billed only if the vendor cannot be asked about it
    (text and video), and then each is recorded as a possible duplicate."""
    calls = [call for key in world.keys_of("spend/") for call in world.json(key)["paid_calls"]]
    on_record: Counter[str] = Counter(call["step"] for call in calls)
    doubtful = Counter(call["step"] for call in calls if call.get("possible_duplicate"))
    for kind, step in STEP_OF_KIND.items():
        billed = world.vendors.billed[kind]
        assert billed <= on_record[step], f"{kind}: {billed} billed, recorded: {calls}"
    assert sum(doubtful.values()) <= deaths + 1
    reserved, billed_usd = booked(world)
    assert reserved + billed_usd == pytest.approx(sum(call["price_usd"] for call in calls))
    assert reserved == 0.0 or not settled
    for step in ("imagine", "upscale"):
        found = [call for call in calls if call["step"] == step and call["outcome"] == "accepted"]
        assert len({call["task_id"] for call in found}) == len(found), "no task is adopted twice"


def go_on(world: MortalWorld, moment: Moment, deaths: int, said: str) -> None:
    """Let the machine die at this moment; what follows must end well."""
    world.die_at(moment)
    try:
        assert world.live()
        check(world, deaths)
    except AssertionError as error:
        raise AssertionError(f"{said}: {error}") from error


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_death_at_any_point_loses_nothing_and_pays_nothing_twice(scenario: str) -> None:
    world, before = born(scenario), None
    moments = world.moments()
    check(world, deaths=0)
    for (due, after), moment in moments.items():
        if moment != before:  # nothing changes between two reads, so what follows would be the same
            go_on(world, moment, 1, f"{scenario}: death {'after' if after else 'before'} operation {due}")
        before = moment


PAIRS_EVERY = int(os.environ.get("RETAKE_PAIRS_EVERY", "23"))
"""How densely pairs are swept: 1 is every pair (`make soak`)."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_deaths_lose_nothing_either(scenario: str) -> None:
    moments = born(scenario).moments()
    for first, after in sorted(moments)[::PAIRS_EVERY]:
        world, before = born(scenario), None
        if world.live(first, after=after):
            continue
        assert left(world.moment()) == left(moments[first, after]), "a death leaves the state of its moment"
        seconds = world.moments()
        check(world, deaths=1)
        for second in range(1 + first % PAIRS_EVERY, len(seconds) // 2 + 1, PAIRS_EVERY):
            moment = seconds[second, not after]
            if moment != before:
                go_on(world, moment, 2, f"{scenario}: deaths at {first} ({after=}) and then {second}")
            before = moment


def left(moment: Moment) -> tuple[object, ...]:
    """Return what is the same in two lives. Ids are drawn anew in each, and a minute passes after a death."""
    return {key: len(it.data) for key, it in moment.objects.items()}, *moment[2:5], moment.ended


@pytest.mark.parametrize("cap", [None, 9.0])
def test_after_a_death_a_check_finds_nothing_for_a_person_to_do(cap: float | None) -> None:
    """Problems that the next tick repairs are notes at most. An empty bucket has a finding of its own."""
    world, before = MortalWorld(**WORKFLOW, daily_cap_usd=cap), None
    in_three_calls()(world)
    for moment in world.moments().values():
        if moment != before:
            world.die_at(moment)
            assert_whole(world, but={"nothing-here"})
        before = moment


@pytest.mark.parametrize("cap", [None, 9.0])
def test_after_a_death_and_an_unlock_a_check_finds_nothing_either(cap: float | None) -> None:
    """The unlock enters what was paid in the day's book, even if the answer is in a file that no document names yet."""
    world, before = MortalWorld(**WORKFLOW, daily_cap_usd=cap), None
    for moment in world.moments().values():
        if moment != before and not moment.ended:
            world.die_at(moment)
            unlock(world)
            assert_whole(world, but={"nothing-here"})
        before = moment


def unlock(world: MortalWorld) -> None:
    spending = story_spending(world.settings, world.bucket, world.clock)
    OperatorActions(world.settings, world.bucket, world.clock, owner="operator@desk", spending=spending).lower_flag()
