"""`mode`, and what `status` and the orders say about the next tick in a degraded mode."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from reading_world import ask, context_of, shown

sys.path.append(str(Path(__file__).parent.parent / "story"))

from acting_world import ID, STATES, act
from watched_world import WatchedWorld

from retake.console.command import main
from retake.console.mode import auto, set_mode, show_mode
from retake.console.retry import command as retry
from retake.console.status import command as status
from retake.exit_codes import ExitCode

HELD = "degraded mode 2 (nothing is begun or paid for) holds it back"


def in_state(name: str, mode: int, **modes: Any) -> WatchedWorld:
    planted = STATES[name]()
    world = WatchedWorld(bucket=planted.bucket, modes=modes)
    world.settings = world.settings._replace(workflow=planted.settings.workflow)
    world.panel.set(mode, None, "the vendor is down")
    return world


def test_it_is_shown_set_and_left_to_itself() -> None:
    world = WatchedWorld()
    assert "0, everything runs" in shown(ask(show_mode, world))
    answer = ask(set_mode, world, number=2, length=1800.0, why="the vendor is down")
    assert (answer.document["mode"], answer.document["by"], answer.document["until"]) == (
        *(2, "operator"),
        "2026-01-01T00:30:00Z",
    )
    text = shown(ask(show_mode, world))
    for part in ("2, nothing is begun or paid for", "an operator", "the vendor is down", "NR.NSI.1, NR.NSI.9"):
        assert part in text
    world.later(minutes=30)
    assert ask(show_mode, world).document["mode"] == 0
    ask(set_mode, world, number=3, length=None, why="")
    assert ask(auto, world).document["by"] == "default"


def test_the_document_has_exactly_these_keys() -> None:
    document = ask(show_mode, WatchedWorld()).document
    assert list(document) == ["mode", "by", "why", "since", "until", "auto", "robots"]
    assert list(document["auto"]) == ["mode", "error_share", "tries"]


@pytest.mark.parametrize("arguments", [["set", "4"], ["set", "-1"], ["set", "x"], ["set"], ["set", "1", "--for", "x"]])
def test_what_is_not_a_mode_is_refused(arguments: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["mode", *arguments], env={"RETAKE_STORAGE_URL": f"file:{tmp_path}/bucket"})
    assert done.exit_code == 2


def test_an_invalid_mode_ends_with_65(tmp_path: Path) -> None:
    folder = tmp_path / "bucket" / "mode"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("[]")
    env = {"RETAKE_STORAGE_URL": f"file:{tmp_path}/bucket", "RETAKE_CONFIG": "", "HOME": str(tmp_path)}
    done = CliRunner().invoke(main, ["mode", "show", "--json"], env=env)
    assert done.exit_code == 65, done.output


# --- status -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "mode", "expected", "act"),
    [
        ("pictures next", 2, f"waits: {HELD}: order the pictures", "rest"),
        ("pictures failed", 2, f"waits: {HELD}: grant one more attempt", "rest"),
        ("pictures awaited", 2, "ask Midjourney for the task's state", "fetch"),
        ("pictures awaited", 3, "waits: degraded mode 3 (nothing runs) holds it back", "rest"),
        ("upscale there", 1, "waits: degraded mode 1 (no video is ordered) holds it back: order the video", "rest"),
        ("pictures there", 1, "order the upscale", "order_upscale"),
    ],
)
def test_status_says_what_the_next_tick_does_in_it(state: str, mode: int, expected: str, act: str) -> None:
    world = in_state(state, mode)
    answer = ask(status, world)
    [told] = answer.document["pipelines"]
    assert told["next_tick"].startswith(expected)
    assert told["next_act"] == act
    assert answer.exit_code == 0
    assert any(note.startswith(f"degraded mode {mode} (") for note in told["notes"])
    assert "by an operator: the vendor is down" in " ".join(shown(answer).split())


def test_status_says_that_a_mock_takes_the_place_of_the_video() -> None:
    [told] = ask(status, in_state("upscale there", 1, video_mock=True)).document["pipelines"]
    assert told["next_tick"].startswith("let a mock take the place of the video")
    assert told["next_act"] == "mock_video"


def test_status_says_that_nothing_is_begun() -> None:
    world = WatchedWorld()
    world.panel.set(1, None, "")
    [told] = ask(status, world).document["pipelines"]
    assert told["next_tick"] == "begin nothing: degraded mode 1 (no video is ordered) holds it back"
    world.panel.set(3, None, "")
    [told] = ask(status, world).document["pipelines"]
    assert told["next_tick"].startswith("waits: degraded mode 3 (nothing runs) holds it back")


def test_what_a_person_has_to_do_does_not_depend_on_the_mode() -> None:
    for state in STATES:
        needs = [ask(status, in_state(state, mode)).document["pipelines"][0]["needs"] for mode in (0, 1, 2, 3)]
        assert needs == [needs[0]] * 4, state


def test_what_the_next_tick_does_is_what_it_then_does() -> None:
    for state in STATES:
        for mode in (1, 2, 3):
            world = in_state(state, mode)
            [told] = ask(status, world).document["pipelines"]
            before = world.vendors.billed.total()
            tick = world.tick()
            if told["next_act"] == "rest":
                assert world.vendors.billed.total() == before, (state, mode)
                assert tick.why, (state, mode)
            if "holds it back" in told["next_tick"] and not told["next_tick"].startswith("move"):
                assert tick.exit_code == 0, (state, mode)


def test_with_many_channels_it_is_reported_once() -> None:
    world = WatchedWorld()
    world.settings = world.settings._replace(channels=("north", "south"))
    world.panel.set(2, None, "")
    answer = ask(status, context_of(world))
    assert shown(answer).count("degraded mode 2") == 1
    assert [it["next_tick"] for it in answer.document["pipelines"]] == [f"begin nothing: {HELD}"] * 2


@pytest.mark.parametrize("data", [b"{", b'{"hand": {"mode": 7}}'])
def test_an_invalid_mode_needs_a_person_and_hides_nothing_else(data: bytes) -> None:
    world = WatchedWorld()
    world.put("mode/state.json", data)
    answer = ask(status, world)
    assert answer.exit_code == ExitCode.FAILED
    [need] = answer.document["pipelines"][0]["needs"]
    assert need.startswith("mode/state.json: ")
    assert "remove it and run `retake mode set` again: the mode that was set is lost with it" in need
    assert "begin a new generation" in answer.document["pipelines"][0]["next_tick"]


def test_with_many_channels_an_invalid_mode_is_reported_once() -> None:
    world = WatchedWorld()
    world.settings = world.settings._replace(channels=("north", "south"))
    world.put("mode/state.json", b"{")
    world.put("south/config/config_gen.json", b"{")
    told = shown(ask(status, context_of(world)))
    assert (told.count("mode/state.json: "), told.count("south: config/config_gen.json: ")) == (1, 1)


def test_an_order_says_what_the_next_tick_does_in_it() -> None:
    world = in_state("pictures failed", 2)
    answer = act(retry, world, run=ID)  # type: ignore[arg-type]
    assert f"the next tick waits: {HELD}: order the pictures" in json.dumps(answer.document) + shown(answer)
