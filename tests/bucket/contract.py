"""The suite that every bucket has to pass.

A new backend joins with one fixture (`from contract import BucketContract`):

    class TestMyBucket(BucketContract):
        @pytest.fixture
        def connect(self):
            store = a_new_and_empty_store()
            return lambda: MyBucket(store)

`connect()` returns another client of the same store, as another process would have. Where backends may differ, a class
attribute says so, and the suite asks that; it never asks for the type.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import BytesIO

import pytest
from bucket_model import Model
from file_contract import FileContract
from hypothesis import example, given, settings
from hypothesis import strategies as st
from together import at_once

from retake.bucket import ABSENT, ANY, Bucket, Conflict, Lease, NotFound, check_key
from retake.bucket.contract import scan, shared_writes, write_file
from retake.bucket.moves import move
from retake.errors import LeaseHeld, LeaseLost, StorageError

Connect = Callable[[], Bucket]

PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=12)
KEYS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)

NO_KEYS = ("", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", ".retake", ".retake/x", "a/.retake-x")
NO_KEYS += ("a\\b", "a\0", "a\n", "\x7f", "\ud800", "x" * 251, "x/" * 450 + "x")

NAMES = ("config/a.json", "config/b.json", "666/20260101-0000.json", "666/20260101-0000.png", "top")
EXPECTATIONS = ("any", "absent", "read", "stale")
ENDINGS = (("json", "png", "mp4"), ("a.json", "p"), ())
STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.binary(max_size=3), st.sampled_from(EXPECTATIONS)),
    st.tuples(st.just("replace"), st.sampled_from(NAMES), st.binary(max_size=3), st.sampled_from(EXPECTATIONS)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("copy"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("move"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("list"), st.sampled_from(("", "c", "config/", "666/", "666/2026", "nothing/", "config/a.jsonx"))),
    st.tuples(st.just("find"), st.sampled_from(("666/20260101-0000.", "config/", "to")), st.sampled_from(ENDINGS)),
)


class BucketContract(FileContract):
    key_may_be_folder = True
    """Whether "a" and "a/b" can both exist. If not, the second is refused with a StorageError."""

    lease_breaks = True
    """Whether an operator can end a lease whose holder is alive. If not, the refusal names the holder."""

    tells_the_time = False
    """Whether the store has a clock of its own."""

    all_may_withdraw = False
    """Whether all of several simultaneous requests for a lease may be withdrawn, each in favour of another."""
    threads = 4
    """The number of clients that write concurrently; each of them writes `rounds` times."""
    rounds = 15

    examples = 40
    """The number of random keys and histories to try. Each empties the store itself."""

    @pytest.fixture
    def connect(self) -> Connect:
        raise NotImplementedError

    @pytest.fixture
    def bucket(self, connect: Connect) -> Bucket:
        return connect()

    # --- reading and writing ------------------------------------------------------------------------------------

    def test_what_is_written_is_read_by_another_client(self, connect: Connect) -> None:
        version = connect().write("666/a.json", b"\0\xff data", ABSENT)
        assert connect().read("666/a.json") == (b"\0\xff data", version)

    @pytest.mark.parametrize("size", [0, 1, 300_000])
    def test_every_size_is_kept(self, bucket: Bucket, size: int) -> None:
        bucket.write("a", b"x" * size, ABSENT)
        assert bucket.read("a")[0] == b"x" * size

    def test_reading_what_is_not_there_names_the_key(self, bucket: Bucket) -> None:
        bucket.write("666/other", b"", ABSENT)
        for key in ("nothing", "666/nothing", "nothing/at/all", "666"):
            with pytest.raises(NotFound) as caught:
                bucket.read(key)
            assert caught.value.args[0] == key

    def test_an_empty_bucket_is_empty_and_not_an_error(self, bucket: Bucket) -> None:
        assert bucket.list("") == []
        bucket.delete("nothing")
        with pytest.raises(NotFound):
            bucket.read("nothing")

    def test_any_replaces_whatever_is_there(self, bucket: Bucket) -> None:
        bucket.write("a", b"1", ANY)
        bucket.write("a", b"2", ANY)
        assert bucket.read("a")[0] == b"2"

    def test_a_write_that_expects_nothing_does_not_overwrite(self, bucket: Bucket) -> None:
        bucket.write("a", b"1", ABSENT)
        with pytest.raises(Conflict):
            bucket.write("a", b"2", ABSENT)
        assert bucket.read("a")[0] == b"1"

    def test_the_version_read_is_the_one_to_write_over(self, connect: Connect) -> None:
        connect().write("a", b"1", ABSENT)
        version = connect().read("a")[1]
        newer = connect().write("a", b"2", version)
        assert connect().read("a") == (b"2", newer)

    def test_a_stale_version_is_a_conflict_and_nothing_is_written(self, connect: Connect) -> None:
        ours, theirs = connect(), connect()
        version = ours.write("a", b"1", ABSENT)
        theirs.write("a", b"2", version)
        with pytest.raises(Conflict):
            ours.write("a", b"3", version)
        assert theirs.read("a")[0] == b"2"

    def test_a_version_of_what_was_deleted_is_stale(self, bucket: Bucket) -> None:
        version = bucket.write("a", b"1", ABSENT)
        bucket.delete("a")
        with pytest.raises(Conflict):
            bucket.write("a", b"2", version)
        with pytest.raises(NotFound):
            bucket.read("a")

    def test_no_version_comes_twice_even_for_the_same_bytes(self, bucket: Bucket) -> None:
        versions = [bucket.write("a", b"same", ANY) for _ in range(60)]
        for _ in range(20):
            bucket.delete("a")
            versions.append(bucket.write("a", b"same", ABSENT))
        assert len(set(versions)) == len(versions)

    def test_writers_at_once_lose_no_change(self, connect: Connect) -> None:
        connect().write("count", b"0", ABSENT)

        def count() -> None:
            bucket = connect()
            for _ in range(self.rounds):
                while True:
                    data, version = bucket.read("count")
                    with suppress(Conflict):
                        bucket.write("count", b"%d" % (int(data) + 1), version)
                        break

        at_once([count] * self.threads)
        assert connect().read("count")[0] == b"%d" % (self.threads * self.rounds)

    def test_of_many_simultaneous_creations_one_wins(self, connect: Connect) -> None:
        won: list[bytes] = []

        def claim(name: bytes) -> None:
            with suppress(Conflict):
                connect().write("claim", name, ABSENT)
                won.append(name)

        at_once([lambda name=b"%d" % n: claim(name) for n in range(self.threads)])
        assert [connect().read("claim")[0]] == won

    # --- keys ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("key", NO_KEYS)
    def test_what_is_not_a_key_is_refused_by_everything(self, bucket: Bucket, key: str) -> None:
        bucket.write("good", b"", ABSENT)
        for call in (
            lambda: bucket.read(key),
            lambda: bucket.write(key, b"", ANY),
            lambda: bucket.replace(key, b"", ANY, "aside"),
            lambda: bucket.replace("good", b"", ANY, key),
            lambda: bucket.find(key, [""]),
            lambda: bucket.delete(key),
            lambda: bucket.copy(key, "b"),
            lambda: bucket.copy("good", key),
            lambda: move(bucket, [(key, "b")]),
            lambda: move(bucket, [("good", key)]),
            lambda: write_file(bucket, key, BytesIO(), ANY),
            lambda: bucket.lease(key, "me"),
        ):
            with pytest.raises(ValueError):
                call()
        assert [entry.key for entry in bucket.list("")] == ["good"]

    @pytest.mark.parametrize("prefix", ["/", "../", "a//", "..//", "a/../"])
    def test_what_no_key_begins_with_is_not_a_prefix(self, bucket: Bucket, prefix: str) -> None:
        with pytest.raises(ValueError):
            bucket.list(prefix)

    def test_every_key_is_kept_as_it_is(self, connect: Connect) -> None:
        @settings(max_examples=self.examples, deadline=None)
        @given(key=KEYS)
        @example(key="x" * 250)
        @example(key="/".join(["ж" * 110] * 4))
        @example(key=".hidden")
        @example(key="a b/%2F/?#&+=:;*|<>\"'~")
        def check(key: str) -> None:
            self.keep(connect, key)

        check()

    def keep(self, connect: Connect, key: str) -> None:
        bucket = connect()
        empty(bucket)
        try:
            check_key(key)
        except ValueError:
            with pytest.raises(ValueError):
                bucket.write(key, b"", ANY)
            return
        bucket.write(key, key.encode(), ANY)
        assert bucket.read(key)[0] == key.encode()
        assert [entry.key for entry in connect().list(key)] == [key]
        assert connect().find(key[:-1], [key[-1]]) == connect().find(key, [""]) == connect().list(key)
        bucket.delete(key)
        assert bucket.list("") == []

    def test_a_key_and_a_folder_of_the_same_name(self, bucket: Bucket) -> None:
        bucket.write("a/b", b"1", ABSENT)
        bucket.write("c", b"2", ABSENT)
        if self.key_may_be_folder:
            bucket.write("a", b"3", ABSENT)
            bucket.write("c/d", b"4", ABSENT)
            assert [entry.key for entry in bucket.list("")] == ["a", "a/b", "c", "c/d"]
            return
        for expect in (ANY, ABSENT):
            with pytest.raises(StorageError):
                bucket.write("a", b"3", expect)
            with pytest.raises(StorageError):
                bucket.write("c/d", b"4", expect)
        bucket.delete("a")
        bucket.delete("c/d")
        with pytest.raises(NotFound):
            bucket.read("c/d")
        assert [entry.key for entry in bucket.list("")] == ["a/b", "c"]

    # --- list, delete -------------------------------------------------------------------------------------

    def test_a_listing_is_sorted_and_by_prefix(self, bucket: Bucket) -> None:
        keys = ["666/b", "666/a", "666-x", "66", "555/a", "666/sub/c", ".dot", "Z", "ж"]
        for key in keys:
            bucket.write(key, b"12", ABSENT)

        def listed(prefix: str) -> list[str]:
            return [entry.key for entry in bucket.list(prefix)]

        assert listed("") == sorted(keys)
        assert listed("666/") == ["666/a", "666/b", "666/sub/c"]
        assert listed("666") == ["666-x", "666/a", "666/b", "666/sub/c"]
        assert listed("666/s") == ["666/sub/c"]
        assert listed("666/a/") == listed("nothing/") == []
        assert listed("ж") == ["ж"]

    @pytest.mark.parametrize("prefix", ["", "d/", "d/2", "e"])
    @pytest.mark.parametrize("after", ["d/2", "d/2/a", "d/2-a", "d/2.json", "d/3", "e", "zz", ""])
    def test_a_scan_can_begin_after_a_key(self, bucket: Bucket, prefix: str, after: str) -> None:
        for key in ("c", "d/1/a", "d/2/a", "d/2/b", "d/2-a/x", "d/2.json", "d/20/a", "d/3/a", "e/f"):
            bucket.write(key, b"", ABSENT)
        assert sorted(scan(bucket, prefix, after)) == [entry for entry in bucket.list(prefix) if entry.key > after]
        assert sorted(scan(bucket.part("d/"), "", "2-a")) == [it for it in bucket.part("d/").list("") if it.key > "2-a"]

    def test_a_listing_tells_size_and_time(self, bucket: Bucket) -> None:
        bucket.write("a", b"123", ABSENT)
        first = bucket.list("a")[0]
        bucket.write("b", b"", ABSENT)
        second = bucket.list("b")[0]
        assert (first.size, second.size) == (3, 0)
        assert 1.7e9 < first.modified <= second.modified

    def test_names_are_found_as_a_listing_shows_them_and_no_others(self, connect: Connect) -> None:
        bucket = connect()
        keys = ["archive/a.png", "archive/a.json", "archive/a.txt", "archive/a.json.part", "archive/ab.mp4", "a.json"]
        for key in keys:
            bucket.write(key, b"12", ABSENT)
        found = connect().find("archive/a.", ("png", "mp4", "json", "png"))
        listed = {entry.key: entry for entry in connect().list("")}
        assert found == [listed["archive/a.json"], listed["archive/a.png"]]
        assert bucket.find("a.json", [""]) == [listed["a.json"]]
        for stem, endings in (("nothing/a.", ["json"]), ("archive", [""]), ("a.json/", ["b"]), ("archive/a.", [])):
            assert bucket.find(stem, endings) == []
        bucket.delete("archive/a.png")
        assert connect().find("archive/a.", ["png"]) == []

    def test_what_is_deleted_is_gone_for_everyone(self, connect: Connect) -> None:
        bucket = connect()
        bucket.write("a/b", b"1", ABSENT)
        bucket.write("a/b", b"2", ANY)
        bucket.delete("a/b")
        bucket.delete("a/b")
        assert connect().list("") == []
        with pytest.raises(NotFound):
            connect().read("a/b")

    # --- replace ------------------------------------------------------------------------------------------------

    def test_an_undisturbed_replace_is_a_write(self, bucket: Bucket) -> None:
        first = shared_writes(bucket).replace("a", b"1", ABSENT, "a.aside")
        second = bucket.replace("a", b"2", first, "a.aside")
        bucket.replace("a", b"3", ANY, "a.aside")
        with pytest.raises(Conflict):
            bucket.replace("a", b"4", second, "a.aside")
        with pytest.raises(Conflict):
            bucket.replace("a", b"4", ABSENT, "a.aside")
        with pytest.raises(Conflict):
            bucket.replace("b", b"4", second, "a.aside")
        assert bucket.read("a")[0] == b"3"
        assert [entry.key for entry in bucket.list("")] == ["a"]

    @pytest.mark.parametrize("expect", ["read", "any", "absent"])
    def test_replace_refuses_while_something_is_aside(self, bucket: Bucket, expect: str) -> None:
        bucket.write("a.aside", b"not merged yet", ABSENT)
        version = ABSENT if expect == "absent" else bucket.write("a", b"1", ABSENT)
        with pytest.raises(Conflict):
            bucket.replace("a", b"2", ANY if expect == "any" else version, "a.aside")
        assert bucket.read("a.aside")[0] == b"not merged yet"
        assert [bucket.read(entry.key)[0] for entry in bucket.list("a")] in (
            [b"1", b"not merged yet"],
            [b"not merged yet"],
        )

    def test_replace_wants_two_keys(self, bucket: Bucket) -> None:
        with pytest.raises(ValueError):
            bucket.replace("a", b"", ANY, "a")

    # --- histories ----------------------------------------------------------------------------------------------

    def test_every_history_matches_that_of_a_dict(self, connect: Connect) -> None:
        @settings(max_examples=self.examples, deadline=None)
        @given(steps=st.lists(STEPS, max_size=12))
        def check(steps: list[tuple[str, ...]]) -> None:
            self.follow(connect, steps)

        check()

    def follow(self, connect: Connect, steps: list[tuple[str, ...]]) -> None:
        bucket, model = connect(), Model()
        empty(bucket)
        for step in steps:
            assert model.outcome(bucket, *step) == model.expected(*step), step
            bucket = connect()
        assert {entry.key: bucket.read(entry.key)[0] for entry in bucket.list("")} == model.objects

    # --- the lease ----------------------------------------------------------------------------------------------

    def test_whoever_reads_and_writes_alone_needs_no_second_try(self, connect: Connect) -> None:
        """Not even if the store compares and writes in two steps."""
        connect().write("count", b"0", ANY)

        def count() -> None:
            bucket = connect()
            with bucket.alone("count"):
                data, version = bucket.read("count")
                with suppress(Conflict):  # in one step, somebody else may have been faster, and that is reported
                    bucket.write("count", b"%d" % (int(data) + 1), version)
                    return
            count()

        at_once([count] * self.threads)
        assert connect().read("count")[0] == b"%d" % self.threads

    def test_the_stores_own_clock_is_told_or_none(self, bucket: Bucket) -> None:
        now = bucket.part("a/").now()
        assert (now is not None) == self.tells_the_time
        assert now is None or abs(datetime.now(UTC) - now) < timedelta(minutes=1)

    def test_one_holder_at_a_time_and_the_other_is_told_who(self, connect: Connect) -> None:
        lease = connect().lease("story", "host-a:17")
        with pytest.raises(LeaseHeld, match="host-a:17"):
            connect().lease("story", "host-b:18")
        lease.check()
        lease.release()
        connect().lease("story", "host-b:18").release()

    def test_tokens_rise(self, connect: Connect) -> None:
        tokens = []
        for _ in range(5):
            lease = connect().lease("story", "me")
            tokens.append(lease.token)
            lease.release()
        assert all(type(token) is int and token > 0 for token in tokens)
        assert tokens == sorted(set(tokens))

    def test_the_holder_of_a_lease_is_reported_without_taking_it(self, connect: Connect) -> None:
        assert connect().holder("story") is None
        lease = connect().lease("story", "host-a:17")
        holder = connect().holder("story")
        assert holder is not None
        assert holder.owner == "host-a:17"
        assert holder.since is not None
        assert abs(holder.since - datetime.now(UTC)) < timedelta(minutes=5)
        lease.check()
        assert connect().holder("other") is None
        lease.release()
        assert connect().holder("story") is None
        connect().lease("story", "host-b:18").release()

    def test_a_broken_lease_is_free_and_fenced_off_unless_the_kernel_holds_it(self, connect: Connect) -> None:
        lease = connect().lease("story", "host-a:17")
        joined = connect().join("story", lease.handover().text)
        if not self.lease_breaks:
            with pytest.raises(LeaseHeld, match=r"host-a:17 .*It is free when"):
                connect().break_lease("story", "operator")
            joined.check()
            joined.release()
            lease.release()
            assert connect().break_lease("story", "operator") > lease.token
            return
        assert connect().break_lease("story", "operator") > lease.token
        assert connect().holder("story") is None
        with pytest.raises(LeaseLost):
            joined.check()
        successor = connect().lease("story", "host-b:18")
        assert successor.token > lease.token
        successor.release()
        lease.release()

    def test_what_is_released_is_lost_and_can_be_released_again(self, bucket: Bucket) -> None:
        lease = bucket.lease("story", "me")
        lease.release()
        for call in (lease.check, lease.handover):
            with pytest.raises(LeaseLost):
                call()
        lease.release()
        other = bucket.lease("story", "me")
        lease.release()
        other.check()
        other.release()

    def test_leases_of_several_names_are_apart(self, bucket: Bucket) -> None:
        names = ("story", "channel/a", "channel/b", "channel%2Fa", "a/" * 100 + "b", "a/" * 100 + "c", "%" * 200)
        leases = [bucket.lease(name, "me") for name in names]
        for name, lease in zip(names, leases, strict=True):
            with pytest.raises(LeaseHeld):
                bucket.lease(name, "me")
            lease.release()
            bucket.lease(name, "me").release()
        assert bucket.list("") == []

    def test_of_many_simultaneous_requests_one_gets_the_lease(self, connect: Connect) -> None:
        held: list[Lease] = []

        def ask() -> None:
            bucket = connect()
            with suppress(LeaseHeld):
                held.append(bucket.lease("story", "me"))

        for _ in range(10 if self.all_may_withdraw else 1):
            if not held:
                at_once([ask] * self.threads)
        assert len(held) == 1
        held[0].release()

    def test_a_script_joins_with_what_it_was_handed(self, connect: Connect) -> None:
        lease = connect().lease("story", "me")
        joined = connect().join("story", lease.handover().text)
        joined.check()
        assert joined.token == lease.token
        joined.release()
        lease.check()
        lease.release()
        with pytest.raises(LeaseLost):
            joined.check()

    @pytest.mark.parametrize("handed", ["", "nonsense", "1 2 3", "0 1", "-1 -1", "99999999999999999999 1"])
    def test_nobody_joins_with_anything_else(self, connect: Connect, handed: str) -> None:
        lease = connect().lease("story", "me")
        with pytest.raises(LeaseLost):
            connect().join("story", handed)
        lease.check()
        lease.release()

    def test_nobody_joins_what_has_ended_or_another_name(self, connect: Connect) -> None:
        lease, other = connect().lease("story", "me"), connect().lease("other", "me")
        handed = lease.handover().text
        with pytest.raises(LeaseLost):
            connect().join("other", handed)
        lease.release()
        with pytest.raises(LeaseLost):
            connect().join("story", handed)
        again = connect().lease("story", "me")
        with pytest.raises(LeaseLost):
            connect().join("story", handed)
        again.release()
        other.release()


def empty(bucket: Bucket) -> None:
    for entry in bucket.list(""):
        bucket.delete(entry.key)
