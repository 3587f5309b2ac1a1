"""Which channels may rest because of what the last tick found, and what finding that out costs."""

import os
import time
from pathlib import Path

import pytest
from test_listed_look import Listing

from retake.bucket import ANY
from retake.bucket.directory import DirectoryBucket
from retake.errors import StorageError
from retake.ticking.channel_looks import ChannelLooks, ChannelRest
from retake.ticking.channel_versions import MARKS, MAX_WHOLE_REQUESTS
from retake.ticking.rest import SETTLED_S, LookFile, RememberedLook

NOTHING = ChannelRest("nothing to do")
PLACES = {"one": ("one/444/",), "two": ("two/444/",)}
LONGEST_S = 3600.0


@pytest.fixture
def file(tmp_path: Path) -> LookFile:
    (tmp_path / "cache").mkdir(mode=0o700)
    return LookFile(str(tmp_path / "cache/retake/look"))


def resting(looks: ChannelLooks) -> set[str]:
    """End a round whose channels have nothing to do, and return those that were not opened."""
    rest = {it for it in PLACES if looks.rest(it)}
    for channel in PLACES:
        if channel in rest:
            looks.rested(channel)
        else:
            looks.opened(channel, NOTHING)
    looks.save()
    return rest


def test_what_changed_just_before_a_look_is_looked_at_again(file: LookFile, tmp_path: Path) -> None:
    bucket = DirectoryBucket(str(tmp_path / "bucket"))
    for channel in PLACES:
        bucket.write(f"{channel}/444/a.json", b"{}", ANY)
    changed_at = os.stat(tmp_path / "bucket/two/444").st_ctime

    def found(after_s: float) -> set[str]:
        looks = ChannelLooks(file, "basis", changed_at + after_s, LONGEST_S)
        looks.compare(bucket, PLACES)
        return resting(looks)

    assert found(SETTLED_S / 2) == set()
    assert found(SETTLED_S + 1) == set(), "a change right after the last look may have left the same times"
    assert found(SETTLED_S + 2) == set(PLACES)


@pytest.fixture
def large() -> Listing:
    """Return a bucket that takes too many requests to list."""
    bucket = Listing()
    bucket.page = 1
    bucket.found = {f"{channel}/444/{n}.json": "1" for channel in PLACES for n in range(MAX_WHOLE_REQUESTS)}
    bucket.found |= {f"{MARKS}{channel}": "1" for channel in PLACES}
    return bucket


def test_whether_a_large_bucket_can_be_listed_is_tried_again_now_and_then(file: LookFile, large: Listing) -> None:
    begun, asked = time.time(), []
    for minutes in (0, 20, 40, 60, 80):
        before = large.asked
        looks = ChannelLooks(file, "basis", begun + 60 * minutes, LONGEST_S)
        looks.compare(large, PLACES)
        resting(looks)
        asked.append(large.asked - before)
    marks = len(PLACES)  # the requests for them
    assert asked == [MAX_WHOLE_REQUESTS + marks, marks, marks, MAX_WHOLE_REQUESTS + marks, marks]


@pytest.mark.parametrize("text", ["soon", "7", '["version", 0, null, "why"]'])
def test_a_look_that_other_code_wrote_lets_no_channel_rest(file: LookFile, large: Listing, text: str) -> None:
    """Code that is overwritten in place, as by cp, leaves its version and the time of its folder unchanged."""
    now = time.time()
    file.write(RememberedLook("basis", dict.fromkeys(("", *PLACES), text), now))
    looks = ChannelLooks(file, "basis", now + 60, LONGEST_S)
    looks.compare(large, PLACES)
    assert resting(looks) == set()


def test_where_no_version_is_known_every_channel_is_opened(file: LookFile) -> None:
    bucket = Listing()
    bucket.found = {f"{channel}/444/a.json": "1" for channel in PLACES}
    for away, rest in ((False, set()), (False, set(PLACES)), (True, set()), (False, set(PLACES))):
        bucket.away = away
        looks = ChannelLooks(file, "basis", time.time(), LONGEST_S)
        try:
            looks.compare(bucket, PLACES)
        except StorageError:
            assert away
        assert resting(looks) == rest
