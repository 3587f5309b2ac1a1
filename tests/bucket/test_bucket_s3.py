"""S3-compatible stores as found in practice, over real HTTP."""

import json
import threading
from collections.abc import Callable, Iterator

import pytest
from s3_server import new_bucket
from s3_zoo import (
    Answer,
    Asked,
    Cut,
    Zoo,
    doubles,
    ignores_conditions,
    lists_two_at_a_time,
    lists_what_was,
    loses_the_answer,
    loses_the_request,
    no,
    refuses_conditions,
    tame,
    times,
    writes,
    zoo,
)

from retake.bucket import ABSENT, ANY, Conflict, LeaseTerms, NotFound, open_bucket
from retake.bucket.contract import Unreadable
from retake.bucket.s3 import S3Bucket
from retake.bucket.s3.client import S3Place, connect, parse_url
from retake.bucket.s3.conditions import conditions, forget
from retake.clock import FakeClock
from retake.errors import LeaseHeld, LeaseLost, SettingsError, StorageError

Make = Callable[..., S3Bucket]


@pytest.fixture(scope="module")
def proxy(s3_endpoint: str) -> Iterator[Zoo]:
    with zoo(s3_endpoint) as it:
        yield it


@pytest.fixture(autouse=True)
def _fresh(s3_keys: None, proxy: Zoo) -> None:
    proxy.animal = tame
    proxy.requests.clear()
    forget()


@pytest.fixture
def url(proxy: Zoo) -> str:
    return new_bucket(proxy.endpoint)


@pytest.fixture
def bucket(url: str) -> S3Bucket:
    return S3Bucket(url, clock=FakeClock(), patience_s=20)


def puts(asked: Asked) -> bool:
    return asked.method == "PUT"


def puts_a(asked: Asked) -> bool:
    return asked.method == "PUT" and asked.path.endswith("/a")


# --- the URL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://b", S3Place("b", "", None, None)),
        ("s3://b/", S3Place("b", "", None, None)),
        ("s3://b/p/q/", S3Place("b", "p/q/", None, None)),
        ("s3://b/p?endpoint=https://e:9000&region=auto", S3Place("b", "p/", "https://e:9000", "auto")),
    ],
)
def test_a_url_names_a_place(url: str, place: S3Place) -> None:
    assert parse_url(url) == place


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///p",
        "s3://key:secret@b/p",
        "s3://b/a//b",
        "s3://b/../c",
        "s3://b?endpoint=e",
        "s3://b?regoin=x",
        "s3://b?endpoint=https://key:secret@e",
        "s3://b/p?endpoint=https%3A%2F%2Fkey%3Asecret%40e",
        "s3://b/a//b?endpoint=https%3A%2F%2Fkey%3Asecret%40e",
    ],
)
def test_a_url_that_names_none_is_a_setting_to_correct(url: str) -> None:
    with pytest.raises(SettingsError, match=r"STORAGE\.url") as caught:
        open_bucket(url)
    assert "secret" not in str(caught.value)


def test_the_door_opens(url: str) -> None:
    bucket = open_bucket(url, lease_terms=LeaseTerms(60, 15, 2))
    bucket.write("a", b"1", ABSENT)
    assert open_bucket(url).read("a")[0] == b"1"


# --- the store's answers as messages ----------------------------------------------------------------------------------


def test_a_missing_bucket(s3_endpoint: str) -> None:
    bucket = S3Bucket(f"s3://nothing-here/p?endpoint={s3_endpoint}")
    calls: list[Callable[[], object]] = [lambda: bucket.read("a"), lambda: bucket.list(""), lambda: bucket.delete("a")]
    calls += [lambda: bucket.write("a", b"", ANY), lambda: bucket.lease("story", "me")]
    for call in calls:
        with pytest.raises(StorageError, match="create it, or correct"):
            call()


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (403, "AccessDenied", "allow it to list, read, write and delete"),
        (403, "RequestTimeTooSkewed", "clock is wrong"),
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_refusal_says_what_to_do(bucket: S3Bucket, proxy: Zoo, status: int, code: str, advice: str) -> None:
    proxy.animal = lambda asked: no(status, code)
    for call in (lambda: bucket.read("a"), lambda: bucket.write("a", b"", ANY), lambda: bucket.list("")):
        with pytest.raises(StorageError, match=advice):
            call()


def test_a_store_out_of_reach_is_asked_for_a_while_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    began = clock.now()
    bucket = S3Bucket("s3://b/p?endpoint=http://127.0.0.1:9", clock=clock, patience_s=20)
    with pytest.raises(StorageError, match="check the network"):
        bucket.read("a")
    assert 10 < (clock.now() - began).total_seconds() <= 20


def test_without_keys_nothing_is_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from retake.bucket.s3 import client as s3_client

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in {"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    s3_client._session.cache_clear()
    try:
        with pytest.raises(SettingsError, match="AWS_ACCESS_KEY_ID"):
            S3Bucket(url)
    finally:
        s3_client._session.cache_clear()


# --- conditions, honoured or not -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("animal", "honoured"), [(tame, True), (refuses_conditions, False), (ignores_conditions, False)]
)
def test_what_a_store_honours_is_tried_out_once(
    bucket: S3Bucket, proxy: Zoo, animal: Callable[[Asked], Answer], honoured: bool
) -> None:
    proxy.animal = animal
    bucket.write("a", b"1", ABSENT)
    assert conditions(bucket._client, bucket._place) == (honoured, honoured)
    tries = [asked for asked in proxy.requests if "probe" in asked]
    bucket.write("b", b"1", ABSENT)
    assert [asked for asked in proxy.requests if "probe" in asked] == tries
    assert [entry.key for entry in bucket.list("")] == ["a", "b"]
    kept = connect(bucket._place, connect_s=5, read_s=5).list_objects_v2(
        Bucket=bucket._place.bucket, Prefix=f"{bucket._place.prefix}.retake"
    )
    assert [it["Key"] for it in kept["Contents"]] == [f"{bucket._place.prefix}.retake/conditions.json"]


def probes_of_a_new_process(bucket: S3Bucket, proxy: Zoo) -> int:
    forget()
    before = len(proxy.requests)
    conditions(bucket._client, bucket._place)
    return sum("probe" in asked for asked in proxy.requests[before:])


def test_later_processes_use_what_the_bucket_remembers(bucket: S3Bucket, proxy: Zoo) -> None:
    assert probes_of_a_new_process(bucket, proxy)
    assert not probes_of_a_new_process(bucket, proxy)
    assert conditions(bucket._client, bucket._place) == (True, True)


@pytest.mark.parametrize(
    "changed",
    [
        {"tried_at": 1.0},
        {"tried_at": 9e9},
        {"tried_at": "then"},
        {"absent": "yes"},
        {"store": ["http://elsewhere", None, "bucket"]},
    ],
)
def test_what_is_old_or_of_another_store_is_tried_out_anew(
    bucket: S3Bucket, proxy: Zoo, changed: dict[str, object]
) -> None:
    conditions(bucket._client, bucket._place)
    key = f"{bucket._place.prefix}.retake/conditions.json"
    kept = json.loads(bucket._client.ask("read", "get_object", Key=key)["Body"])
    bucket._client.ask("write", "put_object", Key=key, Body=json.dumps({**kept, **changed}).encode())
    assert probes_of_a_new_process(bucket, proxy)
    assert not probes_of_a_new_process(bucket, proxy)


def test_a_store_that_cannot_say_yet_is_asked_again(bucket: S3Bucket, proxy: Zoo) -> None:
    proxy.animal = times(2, lambda asked: asked.conditional, lambda asked: no(409, "ConditionalRequestConflict"))
    bucket.write("a", b"1", ABSENT)
    assert conditions(bucket._client, bucket._place) == (True, True)


@pytest.fixture(params=[refuses_conditions, ignores_conditions], ids=lambda animal: animal.__name__)
def without(request: pytest.FixtureRequest, bucket: S3Bucket, proxy: Zoo) -> S3Bucket:
    """Return a bucket in a store without conditions."""
    proxy.animal = request.param
    return bucket


def test_without_conditions_versions_are_compared_by_looking(without: S3Bucket) -> None:
    version = without.write("a", b"1", ABSENT)
    newer = without.write("a", b"2", version)
    for expect in (version, ABSENT):
        with pytest.raises(Conflict):
            without.write("a", b"3", expect)
    assert without.read("a") == (b"2", newer)
    with pytest.raises(Conflict):
        without.write("b", b"3", version)


def test_without_conditions_who_reads_and_writes_alone_loses_no_change(
    without: S3Bucket, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retake.bucket.s3.leases.PATIENCE_S", 300.0)  # everyone gets a turn, however busy it is
    without.write("count", b"0", ANY)

    def count() -> None:
        bucket = S3Bucket(url)
        for _ in range(2):
            with bucket.alone("count"):
                data, version = bucket.read("count")
                bucket.write("count", b"%d" % (int(data) + 1), version)

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert without.read("count")[0] == b"6"
    assert without.holder("count-writes") is None


def test_without_conditions_an_error_inside_alone_stays_what_it_is(without: S3Bucket) -> None:
    with pytest.raises(LeaseLost, match="the pipeline's"), without.alone("count"):
        raise LeaseLost("the pipeline's")


def test_without_conditions_a_write_after_ours_is_seen(without: S3Bucket, proxy: Zoo) -> None:
    version = without.write("a", b"1", ABSENT)
    animal = proxy.animal

    def overwritten(asked: Asked) -> Answer:
        answer = animal(asked)
        if puts_a(asked):
            writes(asked, b"theirs")
        return answer

    proxy.animal = overwritten
    with pytest.raises(Conflict, match="after us"):
        without.write("a", b"2", version)


def test_without_conditions_replace_keeps_aside_what_it_displaces(without: S3Bucket, proxy: Zoo) -> None:
    version = without.write("a", b"1", ABSENT)
    version = without.replace("a", b"2", version, "a.aside")
    assert [entry.key for entry in without.list("")] == ["a"]
    with pytest.raises(Conflict):
        without.replace("a", b"3", "0-0", "a.aside")
    assert [entry.key for entry in without.list("")] == ["a"]
    animal = proxy.animal

    def overwritten(asked: Asked) -> Answer:
        answer = animal(asked)
        if puts_a(asked):
            writes(asked, b"theirs")
        return answer

    proxy.animal = overwritten
    with pytest.raises(Conflict, match=r"kept as a\.aside"):
        without.replace("a", b"3", version, "a.aside")
    assert (without.read("a")[0], without.read("a.aside")[0]) == (b"theirs", b"2")


def test_a_replace_that_is_disturbed_leaves_what_is_there(bucket: S3Bucket) -> None:
    """With conditions nothing is displaced, so nothing has to be kept."""
    version = bucket.write("a", b"1", ABSENT)
    bucket.write("a", b"theirs", ANY)
    with pytest.raises(Conflict):
        bucket.replace("a", b"2", version, "a.aside")
    assert [(entry.key, bucket.read(entry.key)[0]) for entry in bucket.list("")] == [("a", b"theirs")]


# --- lost answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("animal", [loses_the_answer, loses_the_request, doubles, lambda asked: no(503, "SlowDown")])
@pytest.mark.parametrize("expect", ["version", "absent", "any"])
def test_a_write_is_carried_out_once_by_all_appearances(
    bucket: S3Bucket, proxy: Zoo, animal: Callable[[Asked], Answer], expect: str
) -> None:
    before = ABSENT if expect == "absent" else bucket.write("a", b"1", ABSENT)
    proxy.animal = times(1, puts_a, animal)
    version = bucket.write("a", b"2", ANY if expect == "any" else before)
    assert bucket.read("a") == (b"2", version)


def test_a_write_that_nobody_answers_is_an_error_and_not_a_conflict(bucket: S3Bucket, proxy: Zoo) -> None:
    version = bucket.write("a", b"1", ABSENT)
    proxy.animal = times(1000, puts_a, loses_the_request)
    with pytest.raises(StorageError) as caught:
        bucket.write("a", b"2", version)
    assert not isinstance(caught.value, Conflict)


def test_a_conflict_after_a_lost_answer_is_still_one(bucket: S3Bucket, proxy: Zoo) -> None:
    version = bucket.write("a", b"1", ABSENT)

    def overtaken(asked: Asked) -> Answer:
        writes(asked, b"theirs")
        raise Cut

    proxy.animal = times(1, puts_a, overtaken)
    with pytest.raises(Conflict):
        bucket.write("a", b"2", version)
    assert bucket.read("a")[0] == b"theirs"


@pytest.mark.parametrize(
    "animal", [loses_the_answer, loses_the_request, lambda asked: no(503, "SlowDown"), lambda asked: no(429, "")]
)
def test_everything_else_is_simply_asked_again(bucket: S3Bucket, proxy: Zoo, animal: Callable[[Asked], Answer]) -> None:
    bucket.write("a", b"1", ABSENT)

    def storm() -> None:
        proxy.animal = times(3, lambda asked: True, animal)

    storm()
    assert bucket.read("a")[0] == b"1"
    storm()
    assert [entry.key for entry in bucket.list("")] == ["a"]
    storm()
    bucket.copy("a", "b")
    storm()
    bucket.delete("a")
    assert bucket.list("")[0].key == "b"
    with pytest.raises(NotFound):
        bucket.read("a")


# --- the lease -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("animal", [tame, refuses_conditions, ignores_conditions])
def test_a_lease_works_in_every_store(
    bucket: S3Bucket, url: str, proxy: Zoo, animal: Callable[[Asked], Answer]
) -> None:
    proxy.animal = animal
    other = S3Bucket(url)
    lease = bucket.lease("story", "host-a:17")
    with pytest.raises(LeaseHeld, match="host-a:17"):
        other.lease("story", "host-b:18")
    joined = other.join("story", lease.handover().text)
    other.break_lease("story", "operator")
    with pytest.raises(LeaseLost):
        joined.check()
    lease.release()
    again = other.lease("story", "host-b:18")
    assert again.token == 3
    again.release()


def test_a_lease_whose_claims_answer_was_lost_is_ours(bucket: S3Bucket, proxy: Zoo) -> None:
    bucket.write("warm", b"", ABSENT)
    proxy.animal = times(1, puts, loses_the_answer)
    lease = bucket.lease("story", "me")
    lease.check()
    lease.release()
    again = bucket.lease("story", "me")
    assert again.token == 2
    again.release()


def test_a_stale_listing_is_refused(bucket: S3Bucket, proxy: Zoo) -> None:
    proxy.animal = lists_what_was()
    with pytest.raises(StorageError, match="strongly consistent"):
        bucket.lease("story", "me")


def test_a_long_listing_comes_whole(bucket: S3Bucket, url: str, proxy: Zoo) -> None:
    keys = [f"666/{number}" for number in range(7)]
    for key in keys:
        bucket.write(key, b"", ANY)
    tokens = [bucket.break_lease("story", "operator") for _ in range(5)]
    proxy.animal = lists_two_at_a_time
    assert [entry.key for entry in bucket.list("666/")] == [entry.key for entry in bucket.list("")] == keys
    lease = bucket.lease("story", "me")
    assert [*tokens, lease.token] == [1, 2, 3, 4, 5, 6]
    lease.release()


def test_a_store_that_ignores_ranges_gives_the_same_parts(bucket: S3Bucket, proxy: Zoo) -> None:
    bucket.write("a", b"0123456789", ANY)
    parts = [bucket.read_range("a", *it) for it in ((0, 3), (4, 7), (8, 20), (20, 30))]
    proxy.animal = lambda asked: asked._replace(
        headers={name: value for name, value in asked.headers.items() if name.lower() != "range"}
    ).pass_on()
    assert [bucket.read_range("a", *it) for it in ((0, 3), (4, 7), (8, 20), (20, 30))] == parts
    assert parts == [b"0123", b"4567", b"89", b""]


def test_what_is_not_a_key_is_not_part_of_the_bucket(bucket: S3Bucket, url: str) -> None:
    client, place = connect(parse_url(url), connect_s=5, read_s=5), parse_url(url)
    for key in ("some/place/", "some/place/a//b", "some/place/.retake/leases/x", "some/placeless", "other"):
        client.put_object(Bucket=place.bucket, Key=key, Body=b"")
    assert bucket.list("") == []


def test_an_archived_object_is_unreadable_and_its_store_is_not(bucket: S3Bucket, url: str) -> None:
    client, place = connect(parse_url(url), connect_s=5, read_s=5), parse_url(url)
    client.put_object(Bucket=place.bucket, Key="some/place/a", Body=b"", StorageClass="GLACIER")
    with pytest.raises(Unreadable, match=r"cannot read a .*restore it"):
        bucket.read("a")


def test_deleting_removes_every_version(proxy: Zoo) -> None:
    url = new_bucket(proxy.endpoint, versioned=True)
    bucket, place = S3Bucket(url), parse_url(url)
    for data in (b"1", b"2", b"3"):
        bucket.write("a", data, ANY)
    bucket.write("ab", b"", ANY)
    bucket.delete("a")
    client = connect(place, connect_s=5, read_s=5)
    answer = client.list_object_versions(Bucket=place.bucket)
    assert [it["Key"] for it in answer["Versions"]] == ["some/place/ab"]
    assert "DeleteMarkers" not in answer


def test_what_is_written_while_versions_are_deleted_stays(proxy: Zoo) -> None:
    bucket = S3Bucket(new_bucket(proxy.endpoint, versioned=True))
    bucket.write("a", b"old", ANY)

    def written_after_the_marker(asked: Asked) -> Answer:
        answer = asked.pass_on()
        bucket.write("a", b"new", ANY)
        return answer

    proxy.animal = times(1, lambda asked: asked.method == "DELETE", written_after_the_marker)
    bucket.delete("a")
    assert bucket.read("a")[0] == b"new"


def test_a_listing_that_is_cut_is_asked_for_again(bucket: S3Bucket, proxy: Zoo) -> None:
    bucket.write("a", b"", ANY)

    def cut(asked: Asked) -> Answer:
        answer = asked.pass_on()
        return answer._replace(body=answer.body[:-20])

    proxy.animal = times(1, lambda asked: asked.lists, cut)
    assert [entry.key for entry in bucket.list("")] == ["a"]
    proxy.animal = lambda asked: cut(asked) if asked.lists else asked.pass_on()
    with pytest.raises(StorageError, match="cannot list"):
        bucket.list("")
