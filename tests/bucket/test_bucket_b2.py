"""The known oddities of B2, one per test: the real client against a stand-in whose clock stands still.

With a still clock all versions are of one second, and B2 lists them in any order.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count

import pytest
from b2_world import ASIDE, DOCUMENT, Plain, Watched, ids, publish

from retake.bucket import ABSENT, ANY, Conflict, NotFound
from retake.bucket.b2 import B2Bucket
from retake.bucket.b2.bucket import open_b2, parse_url
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.connection import B2Connection
from retake.bucket.b2.leases import B2ClaimStore
from retake.bucket.b2.marks import Mark
from retake.clock import FakeClock
from retake.errors import LeaseLost, StorageError
from retake.sandbox.b2 import B2Sandbox
from retake.sandbox.b2_orders import KINDS

_numbers = count()


class Still:
    """B2's clock, which moves only when told to."""

    def __init__(self) -> None:
        import time

        self.time = time.time() // 1 + 0.25

    def __call__(self) -> float:
        return self.time


@pytest.fixture(scope="module")
def watched() -> Watched:
    return Watched()


@pytest.fixture(scope="module")
def now() -> Still:
    return Still()


@pytest.fixture(scope="module")
def sandbox(watched: Watched, now: Still) -> Iterator[B2Sandbox]:
    with B2Sandbox(seed=7, meanwhile=watched, now=now) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_orders(sandbox: B2Sandbox) -> Iterator[None]:
    yield
    sandbox.withdraw_orders()


@pytest.fixture
def url(sandbox: B2Sandbox) -> str:
    return sandbox.storage_url(f"test-{next(_numbers)}")


def client(sandbox: B2Sandbox, url: str) -> B2Bucket:
    """Return another client, whose pauses take no time."""
    return open_b2(url, environ=sandbox.environment(), clock=FakeClock())


@pytest.fixture
def bucket(sandbox: B2Sandbox, url: str) -> B2Bucket:
    return client(sandbox, url)


@pytest.fixture
def held(bucket: B2Bucket) -> Iterator[B2Bucket]:
    """Yield a client that holds the lease, so that its writes need no short one of their own."""
    lease = bucket.lease("story", "manager")
    yield bucket
    lease.release()


@pytest.fixture
def program(sandbox: B2Sandbox, url: str) -> Plain:
    return Plain(url, sandbox.environment())


# --- the order of versions --------------------------------------------------------------------------------------


def test_the_present_state_does_not_depend_on_the_order_of_versions_of_one_second(now: Still) -> None:
    misled = 0
    for seed in range(25):
        with B2Sandbox(seed=seed, now=now) as sandbox:
            bucket, program = (
                client(sandbox, sandbox.storage_url()),
                Plain(sandbox.storage_url(), sandbox.environment()),
            )
            for sequence in (2, 4, 1, 3):
                program.put("a", b"x" * sequence, Mark(1, sequence, False, f"n{sequence}").file_info("a"))
            assert bucket.read("a") == (b"xxxx", "n4")
            assert [entry.size for entry in bucket.list("")] == [4]
            misled += program.get("a") != b"xxxx"
    assert misled, "whoever goes by B2's order reads the wrong one now and then; otherwise this test shows nothing"


def test_what_was_replaced_is_removed(bucket: B2Bucket, program: Plain) -> None:
    version = bucket.write("a", b"1", ABSENT)
    for number in range(5):
        version = bucket.write("a", b"%d" % number, version)
    bucket.write("a", b"x", ANY)
    bucket.copy("a", "b")
    bucket.copy("a", "b")
    assert (len(program.versions("a")), len(program.versions("b"))) == (1, 1)


def test_while_a_key_is_deleted_nothing_older_is_ever_read(
    sandbox: B2Sandbox, url: str, bucket: B2Bucket, program: Plain, watched: Watched
) -> None:
    bucket.write("a", b"old", ABSENT)
    sandbox.order("b2-delete=403")
    bucket.write("a", b"new", ANY)
    sandbox.withdraw_orders()
    assert len(program.versions("a")) == 2
    other, read = client(sandbox, url), []

    def look(_: int) -> None:
        try:
            read.append(other.read("a")[0])
        except NotFound:
            read.append(b"")

    with watched.during(look):
        bucket.delete("a")
    assert {*read} <= {b"new", b""}
    assert len(read) == 3


# --- lost answers -----------------------------------------------------------------------------------------------


def test_an_upload_whose_answer_is_lost_is_one_write_and_its_double_is_removed(
    sandbox: B2Sandbox, held: B2Bucket, program: Plain
) -> None:
    version = held.write("a", b"1", ABSENT)
    sandbox.order("b2-upload#1-2=cut-after")
    newer = held.write("a", b"2", version)
    assert held.read("a") == (b"2", newer)
    assert len(program.versions("a")) == 1


def test_if_every_answer_is_lost_the_write_is_an_error_and_what_is_there_is_whole(
    sandbox: B2Sandbox, held: B2Bucket, program: Plain
) -> None:
    version = held.write("a", b"1", ABSENT)
    sandbox.order("b2-upload=cut-after")
    with pytest.raises(StorageError, match="cannot store"):
        held.write("a", b"2", version)
    sandbox.withdraw_orders()
    data, found = held.read("a")
    assert data == b"2"
    held.write("a", b"3", found)
    assert len(program.versions("a")) == 1


def test_what_could_not_be_removed_is_removed_by_the_next_write(
    sandbox: B2Sandbox, held: B2Bucket, program: Plain
) -> None:
    version = held.write("a", b"1", ABSENT)
    sandbox.order("b2-delete=503")
    version = held.write("a", b"2", version)
    assert len(program.versions("a")) == 2
    assert held.read("a") == (b"2", version)
    assert [(entry.key, entry.size) for entry in held.list("a")] == [("a", 1)]
    sandbox.withdraw_orders()
    held.write("a", b"3", version)
    assert len(program.versions("a")) == 1


def test_where_nothing_may_be_removed_writes_go_on(
    sandbox: B2Sandbox, held: B2Bucket, program: Plain, watched: Watched
) -> None:
    """This happens with an object lock, for example. What was replaced does not come back."""
    sandbox.order("b2-delete=403")
    program.put("a", b"theirs")
    version = held.read("a")[1]
    for number in range(3):
        version = held.write("a", b"%d" % number, version)
        assert held.read("a") == (b"%d" % number, version)
    assert len(program.versions("a")) == 4
    sandbox.withdraw_orders()
    held.write("a", b"last", version)
    assert len(program.versions("a")) == 1


# --- another program --------------------------------------------------------------------------------------------


def test_what_another_program_uploads_is_what_is_read(bucket: B2Bucket, program: Plain) -> None:
    version = bucket.write("a", b"ours", ABSENT)
    program.put("a", b"theirs")
    data, theirs = bucket.read("a")
    assert data == b"theirs"
    with pytest.raises(Conflict):
        bucket.write("a", b"more", version)
    newer = bucket.write("a", b"ours again", theirs)
    assert bucket.read("a") == (b"ours again", newer)
    assert len(program.versions("a")) == 1


def test_what_another_program_uploads_during_a_write_is_not_overwritten(
    held: B2Bucket, program: Plain, watched: Watched
) -> None:
    version = held.write("a", b"1", ABSENT)
    with watched.during() as calls:
        version = held.write("a", b"2", version)
    upload = calls.index("b2_upload_file") + 1
    for number in (upload, upload + 1):
        theirs = b"theirs %d" % number
        act = partial(lambda wanted, data, n: n == wanted and program.put("a", data), number, theirs)
        with watched.during(act), pytest.raises(Conflict):
            held.write("a", b"3", version)
        assert held.read("a")[0] == theirs
        version = held.write("a", b"4", held.read("a")[1])


def test_a_write_of_whatever_is_there_gives_way_to_what_comes_after(
    bucket: B2Bucket, program: Plain, watched: Watched
) -> None:
    bucket.write("a", b"1", ANY)
    with watched.during(lambda number: number == 4 and program.put("a", b"theirs")) as calls:
        bucket.write("a", b"2", ANY)
    assert calls[:2] == ["b2_list_file_versions", "b2_upload_file"]
    assert len(calls) >= 4
    assert bucket.read("a")[0] == b"theirs"


def test_what_a_person_hides_is_gone(bucket: B2Bucket, program: Plain) -> None:
    bucket.write("a", b"1", ABSENT)
    program.bucket.hide_file(program.prefix + "a")
    with pytest.raises(NotFound):
        bucket.read("a")
    assert bucket.list("") == []
    with pytest.raises(NotFound):
        bucket.copy("a", "b")
    bucket.write("a", b"2", ABSENT)
    assert (bucket.read("a")[0], program.get("a"), len(program.versions("a"))) == (b"2", b"2", 1)


def test_files_of_other_programs_are_listed_if_their_names_are_keys(bucket: B2Bucket, program: Plain) -> None:
    for name in ("x.json", "folder/.bzEmpty", "../up", ".retake/mine"):
        program.put(name, b"1")
    assert [entry.key for entry in bucket.list("")] == ["folder/.bzEmpty", "x.json"]


def test_a_persons_copy_of_our_version_is_read(bucket: B2Bucket, program: Plain) -> None:
    """A copy keeps the marks of our version, but they belong to the other name."""
    for number in range(3):
        bucket.write("a", b"%d" % number, ANY)
    bucket.write("b", b"b", ABSENT)
    program.bucket.copy(program.versions("a")[0], program.prefix + "b")
    assert bucket.read("b")[0] == b"2"


@pytest.mark.parametrize("seed", range(2))
def test_at_no_moment_of_a_replace_is_an_append_lost(watched: Watched, now: Still, seed: int) -> None:
    """For each pair of moments: the publisher reads at the first, whatever B2 shows it, and writes at the second."""
    with B2Sandbox(seed=seed, meanwhile=watched, now=now) as sandbox:
        program, moments = Plain(sandbox.storage_url(), sandbox.environment()), 10
        for first in range(1, moments + 1):
            for second in range(first, moments + 1):
                url = sandbox.storage_url(f"{first}-{second}")
                program.prefix = parse_url(url).prefix
                bucket = client(sandbox, url)
                lease = bucket.lease("story", "manager")
                lost_in_between(bucket, program, watched, first, second)
                lease.release()


def lost_in_between(bucket: B2Bucket, program: Plain, watched: Watched, first: int, second: int) -> None:
    seen: list[bytes] = []

    def act(number: int) -> None:
        if number == first:
            seen.append(program.get(DOCUMENT))
        if number == second:
            program.put(DOCUMENT, b"%s" % str([*ids(seen[0]), "late"]).replace("'", '"').encode())

    bucket.write(DOCUMENT, b'["old"]', ABSENT)
    program.append("early")
    with watched.during(act):
        publish(bucket, "one")
    assert {*publish(bucket, "two")} == {"old", "early", "late", "one", "two"}, (first, second)
    assert [entry.key for entry in bucket.list("")] == [DOCUMENT]


@pytest.mark.parametrize("late", range(1, 8))
def test_wherever_a_replace_dies_nothing_of_anybody_is_lost(watched: Watched, now: Still, late: int) -> None:
    """A publisher appends at one moment, and our process ends at the same or a later one."""
    with B2Sandbox(seed=late, meanwhile=watched, now=now) as sandbox:
        program = Plain(sandbox.storage_url(), sandbox.environment())
        for end in range(late, 12):
            url = sandbox.storage_url(f"{end}")
            program.prefix = parse_url(url).prefix
            dying = client(sandbox, url)
            lease = dying.lease("story", "dies")
            dying.write(DOCUMENT, b'["old"]', ABSENT)

            def act(number: int, end: int = end) -> None:
                if number == late:
                    program.append("late")
                if number == end:
                    for kind in set(KINDS.values()):
                        sandbox.order(f"{kind}=403")

            with watched.during(act), suppress(StorageError):
                publish(dying, "one")
            sandbox.withdraw_orders()
            after = client(sandbox, url)
            assert {*publish(after, "two")} - {"one"} == {"old", "late", "two"}, end
            assert [entry.key for entry in after.list("")] == [DOCUMENT]
            lease.release()


def test_what_a_replace_met_is_there_and_aside(held: B2Bucket, program: Plain, watched: Watched) -> None:
    version = held.write(DOCUMENT, b"[]", ABSENT)
    with watched.during() as calls:
        version = held.replace(DOCUMENT, b"[1]", version, f"{ASIDE}0")
    upload = calls.index("b2_upload_file") + 1
    with watched.during(lambda number: number == upload and program.put(DOCUMENT, b"[2]")), pytest.raises(Conflict):
        held.replace(DOCUMENT, b"[3]", version, f"{ASIDE}0")
    assert held.read(DOCUMENT)[0] == program.get(DOCUMENT) == b"[2]"
    assert sorted(held.read(entry.key)[0] for entry in held.list(ASIDE)) == [b"[1]", b"[2]"]


def test_old_versions_of_ours_do_not_disturb_a_replace(
    sandbox: B2Sandbox, bucket: B2Bucket, program: Plain, now: Still
) -> None:
    bucket.write(DOCUMENT, b"[1]", ABSENT)
    now.time += 400
    try:
        program.put(DOCUMENT, b"[2]")
        with pytest.raises(Conflict):
            bucket.replace(DOCUMENT, b"[3]", bucket.read(DOCUMENT)[1], f"{ASIDE}0")
        assert [bucket.read(entry.key)[0] for entry in bucket.list(ASIDE)] == [b"[1]"]
    finally:
        now.time -= 400


# --- fencing ----------------------------------------------------------------------------------------------------


def test_a_zombies_late_upload_is_reported_and_never_read(
    bucket: B2Bucket, program: Plain, caplog_lines: list[str]
) -> None:
    lease = bucket.lease("story", "me")
    for _ in range(2):  # the second holder's token is higher
        lease.release()
        lease = bucket.lease("story", "me")
    bucket.write("a", b"ours", ABSENT)
    name = program.prefix + "a"
    for token in range(lease.token):
        program.put("a", b"late", Mark(token, 99, True, "zombie").file_info(name))
    assert bucket.read("a")[0] == b"ours"
    assert [entry.size for entry in bucket.list("")] == [4]
    bucket.write("a", b"more", ANY)
    assert len(program.versions("a")) == 1
    lease.release()


def test_a_zombies_upload_later_than_its_successors_is_reported(
    bucket: B2Bucket, program: Plain, now: Still, caplog_lines: list[str]
) -> None:
    lease = bucket.lease("story", "me")
    bucket.write("a", b"ours", ABSENT)
    now.time += 0.25
    program.put("a", b"late", Mark(lease.token - 1, 99, True, "zombie").file_info(program.prefix + "a"))
    assert bucket.read("a")[0] == b"ours"
    assert any("written late by a former holder" in line for line in caplog_lines)
    lease.release()


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_zombie_that_writes_after_its_successor_takes_its_version_back(
    sandbox: B2Sandbox, url: str, bucket: B2Bucket, program: Plain, watched: Watched, now: Still, moment: int
) -> None:
    zombie = client(sandbox, url)
    held = zombie.lease("story", "zombie")
    version = zombie.write("a", b"before", ABSENT)
    bucket.break_lease("story", "operator")
    now.time += 100
    try:
        successor = bucket.lease("story", "successor")
        assert successor.token > held.token

        def act(number: int) -> None:
            if number == moment:
                bucket.write("a", b"the successor's", ANY)

        with watched.during(act), pytest.raises((LeaseLost, Conflict)):
            zombie.write("a", b"the zombie's", version)
        assert bucket.read("a")[0] == b"the successor's"
        with pytest.raises(LeaseLost):
            zombie.write("a", b"the zombie's", ANY)
        with pytest.raises(LeaseLost):
            zombie.delete("a")
        assert bucket.read("a")[0] == b"the successor's"
        assert len(program.versions("a")) == 1
        successor.release()
        held.release()
    finally:
        now.time -= 100


@pytest.mark.parametrize("moment", range(1, 6))
def test_of_two_writers_under_one_lease_at_most_one_succeeds(
    sandbox: B2Sandbox, url: str, bucket: B2Bucket, program: Plain, watched: Watched, moment: int
) -> None:
    """For example a manager and its script. Both may have to try again, but neither believes in a write that is
    lost."""
    lease = bucket.lease("story", "manager")
    script, done = client(sandbox, url), []
    script.join("story", lease.handover().text)
    version = bucket.write("a", b"0", ABSENT)

    def attempt(who: B2Bucket, data: bytes) -> None:
        with suppress(Conflict):
            who.write("a", data, version)
            done.append(data)

    with watched.during(lambda number: attempt(script, b"script") if number == moment else None):
        attempt(bucket, b"manager")
    assert [bucket.read("a")[0]] == (done or [b"0"])
    lease.release()


def test_tokens_that_begin_anew_do_not_lock_anybody_out(
    sandbox: B2Sandbox, url: str, bucket: B2Bucket, program: Plain, now: Still
) -> None:
    for _ in range(3):
        lease = bucket.lease("story", "me")
        version = bucket.write("a", b"1", ANY)
        lease.release()
    for claim, _ in list(program.bucket.ls(f"{program.prefix}.retake/", latest_only=False, recursive=True)):
        claim.delete()
    zombie, successor = client(sandbox, url), client(sandbox, url)
    try:
        held = zombie.lease("story", "me")
        for data in (b"2", b"3"):
            now.time += 5  # a vendor is asked meanwhile
            version = zombie.write("a", data, version)
        bucket.break_lease("story", "operator")
        lease = successor.lease("story", "me")
        for data in (b"4", b"5"):
            now.time += 5
            version = successor.write("a", data, version)
        with pytest.raises(LeaseLost, match="token 3, ours is 1"):
            zombie.write("a", b"the zombie's", ANY)
        assert bucket.read("a")[0] == b"5"
        lease.release()
        held.release()
    finally:
        now.time -= 20


@pytest.mark.parametrize("listed", [True, False])
def test_every_version_of_a_claim_is_withdrawn(sandbox: B2Sandbox, url: str, program: Plain, listed: bool) -> None:
    place = parse_url(url)
    calls = B2Calls(B2Connection(place.bucket, *sandbox.environment().values(), realm=place.realm))
    claims = B2ClaimStore(calls, f"{place.prefix}.retake/")
    stamps = [claims.claim("leases/x/1") for _ in range(2)]
    program.put(".retake/leases/x/1", b"the same, sent twice by the network")
    other = claims if listed else B2ClaimStore(calls, f"{place.prefix}.retake/")
    if listed:
        found, date = claims.claims("leases/x/")
        assert [it.name for it in found] == ["leases/x/1"] * 3
        assert {it.stamp for it in found} == {*stamps}
        assert date is not None
        assert 0 <= stamps[0] - date < 1
    other.withdraw("leases/x/1")
    assert claims.claims("leases/").found == ()


@pytest.fixture
def caplog_lines() -> Iterator[list[str]]:
    """Yield the log lines; pytest's own fixture is off here."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Keep(), logging.getLogger("retake.bucket.b2.write")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)
