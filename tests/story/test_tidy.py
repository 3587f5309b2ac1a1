"""Tidying up: the plan for every constellation, and that no crash loses or doubles anything."""

from collections.abc import Callable, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story_ticks import GEN, PUBLIC, Scripted, group
from story_world import Heard

from retake.bucket import ANY, Bucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.errors import StorageError
from retake.operations.breakers import breaker_states
from retake.operations.status import statuses
from retake.story.operations import open_operations
from retake.story.settings import Folders
from retake.story.tidy import FileMove, TidyPlan, carry_out, groups, plan

FOLDERS = Folders("666/", "555/", "444/", "archive/")
WHOLE = ("json", "png", "mp4")

Layout = Mapping[str, Iterable[str]]  # `666/a` -> the suffixes that exist


def bucket_of(layout: Layout, store: MemoryStore | None = None) -> MemoryBucket:
    """Return a bucket with these groups; each file contains its own name, whichever folder it is in."""
    bucket = MemoryBucket(store)
    for place, suffixes in layout.items():
        for suffix in suffixes:
            bucket.write(f"{place}.{suffix}", f"{place.rpartition('/')[2]}.{suffix}".encode(), ANY)
    return bucket


def keys(bucket: Bucket) -> list[str]:
    return [entry.key for entry in bucket.list("")]


def planned(bucket: Bucket, published: Iterable[str] = (), known: Iterable[str] = ()) -> TidyPlan:
    found = {folder: groups(keys(bucket), folder) for folder in FOLDERS}
    staged = {folder: found[folder] for folder in FOLDERS.staged}
    return plan(published, known, staged, found[FOLDERS.archive], FOLDERS)


def moved(layout: Layout, published: Iterable[str] = (), known: Iterable[str] = ()) -> set[str]:
    """Return the planned moves, each group's as `666/a → 555/`."""
    found = planned(bucket_of(layout), published, known)
    for together in found.moves:
        assert len({move.source.rpartition("/")[2].rpartition(".")[0] for move in together}) == 1
    return {
        f"{move.source.rpartition('.')[0]} → {move.target.rpartition('/')[0]}/"
        for together in found.moves
        for move in together
    }


def tidied(bucket: Bucket, published: Iterable[str] = (), known: Iterable[str] = ()) -> TidyPlan:
    found = planned(bucket, published, known)
    for moves in found.moves:
        carry_out(bucket, moves)
    return found


# --- which files are a group ------------------------------------------------------------------------------------------


def test_files_are_grouped_by_id_and_what_is_not_part_of_a_group_is_passed_over() -> None:
    listing = [
        *("666/a.json", "666/a.png", "666/b.mp4", "666/c.d.json"),
        *("666/a.txt", "666/.json", "666/json", "666/x/a.json", "666/a b.json", "555/a.mp4", "666/", "6666/a.png"),
    ]
    assert groups(listing, "666/") == {
        "a": frozenset({"json", "png"}),
        "b": frozenset({"mp4"}),
        "c.d": frozenset({"json"}),
    }


def test_a_folder_within_a_folder_is_one_of_its_own() -> None:
    assert groups(["out/666/a.json"], "out/666/") == {"a": frozenset({"json"})}


# --- up the stairs ----------------------------------------------------------------------------------------------------


def test_nothing_to_tidy_is_nothing_to_do() -> None:
    found = planned(bucket_of({}))
    assert found == TidyPlan((), (), (), (), FOLDERS.staged, room=True)


@pytest.mark.parametrize(
    ("full", "moves", "empty"),
    [
        ("666", ["666/6 → 555/"], "444 666"),
        ("555", ["555/5 → 444/"], "555 666"),
        ("444", [], "555 666"),
        ("666 555", ["666/6 → 555/", "555/5 → 444/"], "666"),
        ("666 444", ["666/6 → 555/"], "666"),
        ("555 444", [], "666"),
        ("666 555 444", [], ""),
    ],
)
def test_ready_groups_go_up_one_step_into_folders_without_one(full: str, moves: list[str], empty: str) -> None:
    layout = {f"{folder}/{folder[0]}": WHOLE for folder in full.split()}
    assert moved(layout) == set(moves)
    found = planned(bucket_of(layout))
    assert set(found.empty) == {f"{folder}/" for folder in empty.split()}
    assert found.room == ("666/" in found.empty)


def test_the_older_of_two_ready_groups_goes_first_and_alone() -> None:
    assert moved({"666/20260102-0000": WHOLE, "666/20260101-0000": WHOLE}) == {"666/20260101-0000 → 555/"}
    assert not planned(bucket_of({"666/b": WHOLE, "666/a": WHOLE})).room


@pytest.mark.parametrize("lacking", WHOLE)
def test_an_unfinished_group_stays_and_takes_no_room(lacking: str) -> None:
    unfinished = [suffix for suffix in WHOLE if suffix != lacking]
    assert moved({"666/a": unfinished, "555/b": unfinished}) == set()
    assert planned(bucket_of({"666/a": unfinished})).room
    assert moved({"666/a": WHOLE, "555/b": unfinished}) == {"666/a → 555/"}


def test_no_file_is_planned_to_be_moved_over_another_groups_file() -> None:
    layout = {"666/a": WHOLE, "555/b": WHOLE, "444/c": WHOLE, "archive/d": WHOLE}
    found = planned(bucket_of(layout), published=["c", "d"])
    targets = [move.target for together in found.moves for move in together]
    assert len(targets) == len(set(targets))


# --- into the archive -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS.staged)
def test_a_published_group_goes_to_the_archive_from_wherever_it_lies(folder: str) -> None:
    layout = {f"{folder}a": WHOLE}
    assert moved(layout, published=["a"]) == {f"{folder}a → archive/"}
    found = planned(bucket_of(layout), published=["a"])
    assert (found.archived, found.missing, found.incomplete) == (("a",), (), ())
    assert found.empty == FOLDERS.staged


def test_a_published_group_that_is_in_the_archive_is_only_taken_off_the_list() -> None:
    found = planned(bucket_of({"archive/a": WHOLE}), published=["a"])
    assert (found.moves, found.archived) == ((), ("a",))


def test_a_published_group_makes_room_for_the_next_in_the_same_go() -> None:
    layout = {"444/a": WHOLE, "555/b": WHOLE, "666/c": WHOLE}
    assert moved(layout, published=["a"]) == {"444/a → archive/", "555/b → 444/", "666/c → 555/"}


def test_a_published_id_without_any_file_is_missing() -> None:
    found = planned(bucket_of({"444/b": WHOLE}), published=["a", "../b", "", "a"])
    assert found.missing == ("a", "../b", "")
    assert (found.moves, found.archived, found.incomplete) == ((), (), ())


@pytest.mark.parametrize("where", ["444/a", "archive/a"])
def test_an_incomplete_published_group_moves_what_it_has_only_after_the_warning(where: str) -> None:
    layout = {where: ["json", "mp4"]}
    first = planned(bucket_of(layout), published=["a"])
    assert (first.moves, first.archived, first.incomplete, first.missing) == ((), (), ("a",), ())
    then = planned(bucket_of(layout), published=["a"], known=["a"])
    assert then.incomplete == ("a",)
    assert [len(together) for together in then.moves] == ([2] if where == "444/a" else [])


def test_a_group_that_is_whole_across_folders_and_archive_is_archived() -> None:
    layout = {"444/a": ["json"], "555/a": ["png"], "archive/a": ["mp4"]}
    found = planned(bucket_of(layout), published=["a"])
    assert found.archived == ("a",)
    assert len(found.moves[0]) == 2


def test_the_rest_of_an_incomplete_group_follows_when_it_turns_up() -> None:
    bucket = bucket_of({"444/a": ["json"]})
    tidied(bucket, ["a"], ["a"])
    bucket_of({"666/a": ["png", "mp4"]}, bucket.store)
    found = tidied(bucket, ["a"], ["a"])
    assert found.archived == ("a",)
    assert keys(bucket) == ["archive/a.json", "archive/a.mp4", "archive/a.png"]


# --- what a crash left ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [["json"], ["json", "png"], WHOLE])
def test_a_move_that_was_cut_short_while_copying_ends(copied: list[str]) -> None:
    bucket = bucket_of({"666/a": WHOLE, "555/a": copied})
    tidied(bucket)
    assert [key for key in keys(bucket) if key.startswith("666/")] == []
    assert groups(keys(bucket), "444/") | groups(keys(bucket), "555/") == {"a": frozenset(WHOLE)}


@pytest.mark.parametrize("left", [["png", "mp4"], ["mp4"]])
def test_a_move_that_was_cut_short_while_deleting_ends(left: list[str]) -> None:
    bucket = bucket_of({"666/a": left, "555/a": WHOLE})
    tidied(bucket)
    assert [key for key in keys(bucket) if key.startswith("666/")] == []


def test_parts_of_a_group_in_three_folders_come_together_in_the_upper_one() -> None:
    bucket = bucket_of({"666/a": ["mp4"], "555/a": ["png"], "444/a": ["json"]})
    tidied(bucket)
    assert keys(bucket) == ["444/a.json", "444/a.mp4", "444/a.png"]


def test_parts_in_two_folders_that_make_no_whole_group_stay_where_they_are() -> None:
    assert moved({"666/a": ["mp4"], "555/a": ["png"]}) == set()


# --- carrying it out --------------------------------------------------------------------------------------------------


MOVES = [FileMove(f"666/a.{suffix}", f"555/a.{suffix}") for suffix in WHOLE]


def test_a_copy_that_is_not_the_same_deletes_nothing() -> None:
    class Liar(MemoryBucket):
        def copy(self, source: str, target: str) -> None:
            self.write(target, b"half of it", ANY)

    bucket = Liar(bucket_of({"666/a": WHOLE}).store)
    with pytest.raises(StorageError, match="nothing was deleted"):
        carry_out(bucket, MOVES)
    assert {f"666/a.{suffix}" for suffix in WHOLE} <= set(keys(bucket))


def test_nothing_is_deleted_before_everything_is_copied_and_checked() -> None:
    bucket = FailingBucket(bucket_of({"666/a": WHOLE}))
    carry_out(bucket, MOVES)
    operations = [operation for operation, _ in bucket.operations]
    assert operations == ["copy"] * 3 + ["read"] * 6 + ["delete"] * 3


def each_death(
    prepare: Callable[[], MemoryBucket], work: Callable[[Bucket], object]
) -> Iterable[tuple[str, MemoryBucket]]:
    """Yield the bucket after `work` died before or after each of its operations, with the operation."""
    counted = FailingBucket(prepare())
    work(counted)
    for number, operation in enumerate(counted.operations, 1):
        for after in (False, True):
            bucket = prepare()
            with pytest.raises(Crash):
                work(FailingBucket(bucket, Fault(Crash, number=number, after=after)))
            yield f"{'after' if after else 'before'} {operation}", bucket


LAYOUTS = [
    {"666/a": WHOLE},
    {"666/a": WHOLE, "555/b": WHOLE},
    {"666/a": WHOLE, "555/a": ["json"], "444/c": WHOLE},
    {"666/c": WHOLE, "555/b": WHOLE, "444/a": WHOLE},
    {"666/a": ["json"], "444/a": ["png", "mp4"], "555/b": WHOLE},
]


def files(bucket: Bucket) -> set[str]:
    """Return the files without their folders."""
    return {key.rpartition("/")[2] for key in keys(bucket)}


def settle(bucket: Bucket, published: Iterable[str], known: Iterable[str] = ()) -> TidyPlan:
    """Tidy up until nothing moves any more."""
    for _ in range(10):
        found = tidied(bucket, published, known)
        if not found.moves:
            return found
    raise AssertionError(f"tidying up never ends: {found.moves}")


@pytest.mark.parametrize("published", [[], ["a"]], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_crash_anywhere_loses_nothing_and_the_next_tidying_ends_as_if_there_had_been_none(
    layout: Layout, published: list[str]
) -> None:
    whole = bucket_of(layout)
    settle(whole, published)
    for where, bucket in each_death(lambda: bucket_of(layout), lambda dying: tidied(dying, published)):
        assert files(bucket) == files(whole), where
        settle(bucket, published)
        assert files(bucket) == files(whole), where
        assert keys(bucket) == keys(whole), where


NAMES = ("a", "b", "c")
PLACES = [f"{folder}{name}" for folder in FOLDERS for name in NAMES]
LAYOUT = st.dictionaries(st.sampled_from(PLACES), st.sets(st.sampled_from(WHOLE), min_size=1), max_size=8)
PUBLISHED = st.lists(st.sampled_from([*NAMES, "z"]), max_size=4)


def homes(bucket: Bucket, name: str) -> list[str]:
    return [folder for folder in FOLDERS if name in groups(keys(bucket), folder)]


@pytest.mark.slow
@given(LAYOUT, PUBLISHED, st.sets(st.sampled_from(NAMES)))
def test_from_any_layout_tidying_up_comes_to_rest_with_every_file_and_each_whole_group_in_one_place(
    layout: Layout, published: list[str], known: set[str]
) -> None:
    bucket = bucket_of(layout)
    before = {key.rpartition("/")[2]: bucket.read(key)[0] for key in keys(bucket)}
    plan_at_rest = settle(bucket, published, known)
    assert {key.rpartition("/")[2]: bucket.read(key)[0] for key in keys(bucket)} == before
    for name in NAMES:
        staged = [folder for folder in homes(bucket, name) if folder != FOLDERS.archive]
        found = frozenset[str]().union(*(groups(keys(bucket), folder)[name] for folder in staged))
        if found >= set(WHOLE):
            assert len(staged) == 1, f"{name} is in {staged}"
        if name in plan_at_rest.archived:
            assert homes(bucket, name) == [FOLDERS.archive]
            assert groups(keys(bucket), FOLDERS.archive)[name] == frozenset(WHOLE)
    ready = {
        folder
        for folder in FOLDERS.staged
        if any(found.issuperset(WHOLE) for found in groups(keys(bucket), folder).values())
    }
    assert set(plan_at_rest.empty) == set(FOLDERS.staged) - ready
    assert plan_at_rest.room == (FOLDERS.entrance not in ready)


@pytest.mark.slow
@given(LAYOUT, PUBLISHED)
def test_a_plan_sorts_every_published_id_into_one_of_three(layout: Layout, published: list[str]) -> None:
    found = planned(bucket_of(layout), published)
    assert sorted([*found.archived, *found.missing, *found.incomplete]) == sorted(set(published))


def test_an_id_of_which_two_files_differ_keeps_nothing_else_from_moving() -> None:
    """A person has put another text beside the published one; only a person can say which of them is right."""
    world = Scripted()
    for folder, name in (("444", "a"), ("555", "a"), ("444", "b"), ("666", "c")):
        group(world, folder, name)
    world.put("444/a.json", b"another text")
    world.put(PUBLIC, {"generation_id": ["a", "b"]})
    with Heard() as heard:
        assert world.tick().ended == "done", "a new generation is made"
    assert any("444/a.json" in line and "not the same" in line for line in heard.warnings)
    assert {key for key in world.keys_of() if key.endswith("/a.json")} == {"444/a.json", "555/a.json"}
    assert {"archive/b.json", "archive/b.mp4", "555/c.json"} <= set(world.keys_of())
    assert world.json(PUBLIC)["generation_id"] == ["a"]
    world.bucket.delete("555/a.json")
    world.tick()
    assert world.json(PUBLIC)["generation_id"] == []
    assert world.bucket.read("archive/a.json")[0] == b"another text"


def test_a_group_that_stays_where_it_is_takes_its_room() -> None:
    """Its planned move would have emptied the entrance, but two of its files differ."""
    world = Scripted()
    for folder in ("444", "555", "666"):
        group(world, folder, "a")
    world.put("555/a.json", b"another text")
    with Heard() as heard:
        tick = world.tick()
    assert (tick.why, world.generation_id) == ("nothing to do", None)
    assert any("a.json" in line and "not the same" in line for line in heard.warnings)
    assert not world.documents.public.empty
    assert len([key for key in world.keys_of() if key.endswith("/a.json")]) == 3


@pytest.mark.parametrize("published", [[], ["a"]], ids=["not published", "published"])
def test_no_file_is_replaced_by_another_one_of_its_name(published: list[str]) -> None:
    """A group was restored from a backup beside the one that somebody has edited since."""
    upper = "archive" if published else "444"
    world = Scripted()
    for folder in (upper, "555"):
        group(world, folder, "a")
    world.put(f"{upper}/a.json", b"mended")
    world.put(PUBLIC, {"generation_id": published})
    with Heard() as heard:
        world.tick()
    assert any("a.json" in line and "not the same" in line for line in heard.warnings)
    assert world.bucket.read(f"{upper}/a.json")[0] == b"mended"
    assert "555/a.json" in world.keys_of()


# --- while no generation is begun -------------------------------------------------------------------------------------


def stopped_with_groups() -> Scripted:
    world = Scripted()
    world.put(GEN, {"failed_in_a_row": 3})
    for folder, name in (("444", "a"), ("555", "b"), ("666", "c")):
        group(world, folder, name)
    world.put(PUBLIC, {"generation_id": ["a"]})
    return world


def test_ready_groups_still_go_up_after_too_many_failed_generations() -> None:
    world = stopped_with_groups()
    assert "would move 555/b.png to 444/b.png" in world.manager().dry_run()
    operations = open_operations(world.settings, world.clock, bucket=world.bucket)
    [status] = statuses(operations, breaker_states(operations))
    assert status.next_tick.startswith("moves 9 files and waits: the last 3 generations all failed")
    tick = world.tick()
    assert (tick.exit_code, world.vendors.asked.total()) == (69, 0)
    assert planned(world.bucket).moves == ()
    assert {"archive/a.mp4", "444/b.mp4", "555/c.mp4"} <= set(keys(world.bucket))
    assert (world.documents.public.published, world.documents.public.empty) == ([], ["666/"])
