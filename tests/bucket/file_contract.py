"""The part of the suite for files too large for memory: reads, copies and moves."""

from collections.abc import Callable, Sequence
from io import BytesIO

import pytest

from retake.bucket import ABSENT, ANY, Bucket, Conflict, NotFound
from retake.bucket.contract import CHUNK_SIZE, make_folders, mark, write_file, write_unsynced
from retake.bucket.moves import move

Connect = Callable[[], Bucket]


class FileContract:
    def test_a_part_of_an_object_is_read(self, bucket: Bucket) -> None:
        bucket.write("a", b"0123456789", ABSENT)
        assert [bucket.read_range("a", *it) for it in ((0, 0), (3, 99), (10, 99))] == [b"0", b"3456789", b""]

    @pytest.mark.parametrize("size", [0, 1, CHUNK_SIZE - 1, CHUNK_SIZE, 2 * CHUNK_SIZE + 7])
    def test_a_file_is_written_whole_wherever_it_is_open(self, connect: Connect, size: int) -> None:
        data = bytes(range(251)) * (size // 251 + 1)
        file = BytesIO(data[:size])
        file.seek(size // 2)
        version = write_file(connect(), "666/a.mp4", file, ABSENT)
        assert connect().read("666/a.mp4") == (data[:size], version)

    def test_a_file_is_written_on_the_terms_of_a_write(self, bucket: Bucket) -> None:
        first = write_file(bucket, "a", BytesIO(b"1"), ABSENT)
        with pytest.raises(Conflict):
            write_file(bucket, "a", BytesIO(b"2"), ABSENT)
        second = write_file(bucket, "a", BytesIO(b"3"), first)
        with pytest.raises(Conflict):
            write_file(bucket, "a", BytesIO(b"4"), first)
        assert bucket.read("a") == (b"3", second)
        assert write_file(bucket, "a", BytesIO(b"3"), ANY) not in (first, second)

    def test_a_group_moves_whole_and_replaces_what_is_there(self, connect: Connect) -> None:
        bucket = connect()
        for suffix in ("json", "png", "mp4"):
            bucket.write(f"666/a.{suffix}", suffix.encode(), ABSENT)
        bucket.write("555/a.png", b"an older try", ABSENT)
        bucket.write("666/a.txt", b"stays", ABSENT)
        move(bucket, group_moves("666/", "555/"))
        there = {entry.key: connect().read(entry.key)[0] for entry in connect().list("")}
        assert there == {"555/a.json": b"json", "555/a.png": b"png", "555/a.mp4": b"mp4", "666/a.txt": b"stays"}

    def test_what_has_moved_away_and_back_has_a_version_of_its_own(self, bucket: Bucket) -> None:
        version = bucket.write("666/a.json", b"1", ABSENT)
        move(bucket, [("666/a.json", "555/a.json")])
        move(bucket, [("555/a.json", "666/a.json")])
        assert bucket.read("666/a.json")[0] == b"1"
        assert bucket.read("666/a.json")[1] != version

    def test_moving_what_is_not_there_names_it_and_leaves_the_rest(self, bucket: Bucket) -> None:
        bucket.write("666/a.png", b"1", ABSENT)
        bucket.write("555/a.json", b"2", ABSENT)
        with pytest.raises(NotFound) as caught:
            move(bucket, group_moves("666/", "555/"))
        assert caught.value.args[0] == "666/a.json"
        assert bucket.read("666/a.png")[0] == b"1"
        assert bucket.read("555/a.json")[0] == b"2"

    @pytest.mark.parametrize("moves", [[("a", "a")], [("a", "b"), ("b", "c")], [("a", "c"), ("b", "c")]])
    def test_a_key_is_in_one_place_of_a_move_only(self, bucket: Bucket, moves: list[tuple[str, str]]) -> None:
        bucket.write("a", b"1", ABSENT)
        bucket.write("b", b"2", ABSENT)
        with pytest.raises(ValueError):
            move(bucket, moves)
        assert [entry.key for entry in bucket.list("")] == ["a", "b"]

    def test_moving_nothing_is_nothing(self, bucket: Bucket) -> None:
        move(bucket, [])
        assert bucket.list("") == []

    def test_a_mark_is_an_empty_object(self, bucket: Bucket) -> None:
        mark(bucket, "index/open/a")
        mark(bucket, "index/open/a")
        assert [(entry.key, entry.size) for entry in bucket.list("")] == [("index/open/a", 0)]

    def test_a_mark_takes_the_place_of_another(self, bucket: Bucket) -> None:
        bucket.write("index/open/a", b"", ABSENT)
        mark(bucket, "index/ended/1/a", instead_of="index/open/a")
        mark(bucket, "index/ended/1/a", instead_of="index/open/a")
        assert [entry.key for entry in bucket.list("")] == ["index/ended/1/a"]

    def test_a_mark_takes_the_place_of_none(self, bucket: Bucket) -> None:
        mark(bucket, "index/ended/a", instead_of="index/open/a")
        assert [entry.key for entry in bucket.list("")] == ["index/ended/a"]

    @pytest.mark.parametrize("keys", [("a/../b", None), ("a", "../b")])
    def test_what_is_not_a_key_is_not_a_mark(self, bucket: Bucket, keys: tuple[str, str | None]) -> None:
        with pytest.raises(ValueError):
            mark(bucket, *keys)

    def test_a_write_that_waits_for_no_disk_is_made_on_the_terms_of_a_write(self, connect: Connect) -> None:
        first = write_unsynced(connect(), "config/a", b"1", ABSENT)
        with pytest.raises(Conflict):
            write_unsynced(connect(), "config/a", b"2", ABSENT)
        assert connect().read("config/a") == (b"1", first)
        second = write_unsynced(connect(), "config/a", b"3", first)
        with pytest.raises(Conflict):
            connect().write("config/a", b"4", first)
        assert connect().read("config/a") == (b"3", second)
        with pytest.raises(ValueError):
            write_unsynced(connect(), "../a", b"5", ANY)

    def test_folders_are_no_objects(self, bucket: Bucket) -> None:
        make_folders(bucket, ["config/", "runs/index/open/"])
        make_folders(bucket, ["config/"])
        assert bucket.list("") == []
        bucket.write("runs/index/open/a", b"", ABSENT)

    def test_a_copy_is_equal_and_apart(self, bucket: Bucket) -> None:
        bucket.write("a", b"1", ABSENT)
        bucket.write("archive/a", b"old", ABSENT)
        bucket.copy("a", "archive/a")
        bucket.write("a", b"2", ANY)
        assert bucket.read("archive/a")[0] == b"1"
        bucket.delete("a")
        assert bucket.read("archive/a")[0] == b"1"

    def test_copying_nothing_is_not_found_and_leaves_the_target(self, bucket: Bucket) -> None:
        bucket.write("b", b"1", ABSENT)
        with pytest.raises(NotFound):
            bucket.copy("a", "b")
        assert bucket.read("b")[0] == b"1"


def group_moves(source: str, target: str, suffixes: Sequence[str] = ("json", "png", "mp4")) -> list[tuple[str, str]]:
    return [(f"{source}a.{suffix}", f"{target}a.{suffix}") for suffix in suffixes]
