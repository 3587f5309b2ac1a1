"""The mark of a channel is written before the change it announces: once under a lease, and each time without one."""

from collections.abc import Callable

import pytest

from retake.bucket import ANY, Bucket, Lease
from retake.bucket.contract import lease_and_look
from retake.bucket.memory import MemoryBucket
from retake.bucket.moves import move
from retake.ticking.channel_versions import MARKS, MarkedPart

PLACES = ("config/config_gen.json", "666/")


class Channel:
    """A channel of a bucket, and the marks that it left."""

    def __init__(self) -> None:
        self.whole = MemoryBucket()
        self.part = MarkedPart(self.whole.part("one/"), self.whole, "one", PLACES)
        self._seen = self._mark()

    def _mark(self) -> bytes | None:
        keys = [entry.key for entry in self.whole.list(MARKS)]
        return self.whole.read(keys[0])[0] if keys else None

    def marks(self, change: Callable[[Bucket], object]) -> bool:
        """Make a change, and return whether it left a new mark."""
        change(self.part)
        before, self._seen = self._seen, self._mark()
        return before != self._seen


def written(key: str) -> Callable[[Bucket], object]:
    return lambda bucket: bucket.write(key, b"{}", ANY)


@pytest.fixture
def channel() -> Channel:
    return Channel()


def test_without_a_lease_each_change_is_marked(channel: Channel) -> None:
    assert [channel.marks(written("666/1.json")) for _ in range(3)] == [True] * 3
    assert channel.marks(lambda bucket: bucket.delete("666/1.json"))


def taken(bucket: Bucket) -> Lease:
    return bucket.lease("story", "one")


def taken_with_a_look(bucket: Bucket) -> Lease:
    lease, _ = lease_and_look(bucket, "story", "one", PLACES[:1], PLACES[1:])
    return lease


@pytest.mark.parametrize("take", [taken, taken_with_a_look])
def test_under_each_lease_the_first_change_is_marked(channel: Channel, take: Callable[[Bucket], Lease]) -> None:
    for _ in range(2):
        lease = take(channel.part)
        assert [channel.marks(written(key)) for key in ("666/1.json", "666/2.json", PLACES[0])] == [True, False, False]
        lease.release()


def test_a_script_marks_its_first_change_under_the_lease_of_its_tick(channel: Channel) -> None:
    lease = channel.part.lease("story", "one")
    assert channel.marks(written("666/1.json"))
    for _ in range(2):
        channel.part.join("story", lease.handover().text)
        assert [channel.marks(written("666/1.json")) for _ in range(2)] == [True, False]


def test_what_decides_nothing_is_not_marked(channel: Channel) -> None:
    assert not channel.marks(written("archive/1.json"))
    channel.whole.write("one/666/1.json", b"{}", ANY)  # by another program
    assert not channel.marks(lambda bucket: bucket.read("666/1.json"))


def test_a_move_is_marked_wherever_it_goes(channel: Channel) -> None:
    lease = channel.part.lease("story", "one")
    channel.whole.write("one/666/1.json", b"{}", ANY)
    assert channel.marks(lambda bucket: move(bucket, [("666/1.json", "archive/1.json")]))
    assert channel.part.list("666/") == []
    lease.release()
