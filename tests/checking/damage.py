"""Planted damage: a kind of damage, the finding it leads to, and whether a repair fixes it.

    ROWS = [Damage("a group without its video", lambda site: site.delete("archive/…mp4"), "group-incomplete", …)]

    @pytest.mark.parametrize("row", ROWS, ids=str)
    def test_damage_is_found(row): assert_found(row, Site(whole_world()))

A healthy bucket has no findings. With the damage planted, `check` has that finding, and no other errors or warnings but
those in `also`. A repair either fixes it, after which a second check is clean, or changes nothing.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from story_world import KEYS, World, busy_world

from retake.bucket import ANY, Bucket
from retake.checking import CheckFinding, CheckReport, Severity
from retake.console.command_context import CommandContext
from retake.operations.examinations import check_bucket
from retake.story.settings import Settings

__all__ = ["Damage", "Site", "assert_found", "busy_world", "trouble"]


class Site:
    """A bucket filled by real ticks, as an operator checks it. `bucket` may be another store with the same objects."""

    def __init__(self, world: World, bucket: Bucket | None = None, settings: Settings | None = None) -> None:
        self.world, self.bucket = world, bucket or world.bucket
        self.settings = settings or world.settings
        if bucket is not None:
            for key, data in world.everything().items():
                bucket.write(key, data, ANY)

    def context(self, channel: str | None = None) -> CommandContext:
        return CommandContext(
            {}, channel=channel, clock=self.world.clock, bucket=self.bucket, settings=self.settings, keys=KEYS
        )

    def check(self, *, media: bool = False, repair: bool = False, channel: str | None = None) -> CheckReport:
        return check_bucket(self.context(channel).operations, media=media, repair=repair)

    def contents(self) -> Mapping[str, bytes]:
        return {entry.key: self.bucket.read(entry.key)[0] for entry in self.bucket.list("")}


class Damage(NamedTuple):
    """A row of the table."""

    name: str
    plant: Callable[[Site], object]
    code: str
    where: str = ""  # part of the finding's `where`
    repaired: bool = False  # fixed by --repair; otherwise a person must act
    also: tuple[str, ...] = ()  # codes of the other findings that the damage causes
    media: bool = False

    def __str__(self) -> str:
        return self.name


def trouble(report: CheckReport) -> list[CheckFinding]:
    """Return the findings that need action."""
    return [it for it in report.findings if it.level is not Severity.NOTE and not it.repaired]


def assert_found(row: Damage, site: Site) -> None:
    before = site.check(media=row.media)
    assert not trouble(before), "the bucket was damaged before"
    row.plant(site)
    damaged = dict(site.contents())
    report = site.check(media=row.media)
    those = [it for it in report.findings if it.code == row.code and row.where in it.where]
    assert those, f"not found; found: {report.findings}"
    assert all(it.what and it.todo for it in those)
    others = {it.code for it in trouble(report)} - {row.code, *row.also}
    assert not others, f"also found: {[it for it in report.findings if it.code in others]}"
    assert dict(site.contents()) == damaged, "a check changed something"
    repaired = site.check(media=row.media, repair=True)
    if row.repaired:
        assert [it for it in repaired.findings if it.code == row.code and it.repaired], repaired.findings
        assert repaired.done
        after = site.check(media=row.media)
        left = [it for it in trouble(after) if it.code == row.code or it.repairable]
        assert not left, f"not repaired: {left}"
    else:
        assert not any(it.repaired for it in repaired.findings if it.code == row.code)
        left = [it.code for it in site.check(media=row.media).findings]
        assert row.code in left
