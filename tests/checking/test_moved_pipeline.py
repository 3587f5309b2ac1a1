"""What docs/running.md says about moving a pipeline: from the root of the bucket into a channel, and to another
bucket."""

import re
from pathlib import Path
from typing import Any

from damage import Site, busy_world, trouble
from story_world import resting_world

from retake.bucket.directory import DirectoryBucket
from retake.console.doctor import command as doctor
from retake.console.status import command as status
from retake.exit_codes import ExitCode

PAGE = (Path(__file__).parent.parent.parent / "docs" / "running.md").read_text("utf-8")


def asked(command: Any, site: Site, **options: Any) -> dict[str, Any]:
    answer = command.callback.__wrapped__(site.context(), **options)
    return dict(answer.document)


def test_a_pipeline_at_the_root_is_reported_once_there_are_channels() -> None:
    site = Site(resting_world())
    assert asked(status, site)["pipelines"][0]["notes"] == []
    site.settings = site.settings._replace(channels=("en", "de"))
    found = asked(status, site)
    assert found["healthy"]
    for it in found["pipelines"]:
        assert "which no tick works on" in it["notes"][0]
    named = {it["check"]: it["verdict"] for it in asked(doctor, site, offline=True, test_request=False)["checks"]}
    assert named["channels"] == "warn"


def test_moved_as_the_page_says_it_goes_on_as_a_channel() -> None:
    site = Site(resting_world())
    [before] = asked(status, site)["pipelines"]
    section = PAGE.partition("### From one pipeline to channels")[2]
    folders = re.findall(r"`([\w]+/)`", section.partition("2. Move")[2].partition("into `en/`")[0])
    shared = re.findall(r"`([\w]+/)`", section.partition("stays:")[2].partition("\n3.")[0])
    for key in site.contents():
        folder = key.partition("/")[0] + "/"
        assert (folder in folders) != (folder in shared), key
        if folder in folders:
            site.bucket.copy(key, f"en/{key}")
            site.bucket.delete(key)
    site.settings = site.settings._replace(channels=("en", "de"))
    report = site.check()
    assert (trouble(report), report.exit_code) == ([], ExitCode.OK)
    after, empty = asked(status, site)["pipelines"]
    for name in ("next_tick", "dead_letters", "failed_in_a_row"):
        assert after[name] == before[name]
    assert (after["notes"], empty["notes"], empty["dead_letters"]) == ([], [], 0)


def test_a_copy_of_every_object_goes_on_where_it_was(tmp_path: Path) -> None:
    world = busy_world()
    copy = Site(world, DirectoryBucket(str(tmp_path / "bucket")))
    assert trouble(copy.check()) == []
    assert asked(status, copy)["pipelines"] == asked(status, Site(world))["pipelines"]
