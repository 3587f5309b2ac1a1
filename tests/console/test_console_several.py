"""Several ids at once: each is handled as if named alone, every result is shown, and the gravest sets the exit code."""

import json
from pathlib import Path

import pytest
from acting_world import ID, STATES, act, context_of
from click.testing import CliRunner
from reading_world import World, ask, shown
from schemas import check_answer, named_in
from test_console_runs import eventful, on_ledger

from retake.console.answer import Answer, Sentence
from retake.console.command import main
from retake.console.dead_letters import _requeuable
from retake.console.retry import command as retry
from retake.console.several import Item, each
from retake.console.show import command as show
from retake.errors import RetakeError, RunError, SettingsError, StorageError
from retake.operations.port import Refusal
from retake.runs import open_ledger
from retake.runs.run import UnknownRun
from retake.settings.shared import StorageSettings


def work(**errors: BaseException) -> Answer:
    def one(item: Item) -> Answer:
        if item.name in errors:
            raise errors[item.name]
        return Answer({"done": "x"}, [Sentence(f"Done: {item.name}.")])

    return each([Item(name, None) for name in ("a", "b", "c")], one)


def test_each_result_is_reported_and_what_goes_wrong_with_one_keeps_no_other_from_being_done() -> None:
    answer = work(b=Refusal("it makes no sense"))
    assert [it["exit_code"] for it in answer.document["results"]] == [0, 65, 0]
    assert answer.document["results"][1] == {
        "id": "b", "channel": None, "exit_code": 65, "error": "it makes no sense",
    }  # fmt: skip
    assert (answer.exit_code, answer.document["done"]) == (65, 2)
    assert "error: it makes no sense" in shown(answer)
    assert shown(answer).endswith("2 of 3 done.\n")


@pytest.mark.parametrize(
    ("errors", "gravest"),
    [
        ([], 0),
        ([Refusal("x"), StorageError("x")], 75),
        ([StorageError("x"), SettingsError("x"), Refusal("x")], 78),
        ([ValueError("x"), SettingsError("x")], 70),
    ],
)
def test_the_exit_code_is_the_gravest(errors: list[Exception], gravest: int) -> None:
    assert work(**dict(zip("abc", errors, strict=False))).exit_code == gravest


def test_after_ctrl_c_the_rest_is_reported_as_not_done() -> None:
    answer = work(b=KeyboardInterrupt())
    assert [it["exit_code"] for it in answer.document["results"]] == [0, 130, 130]
    assert answer.exit_code == 130
    assert answer.document["results"][2]["error"].startswith("not done")


def test_all_that_can_be_requeued_are_the_generations_the_oldest_first() -> None:
    world = STATES["dead_lettered"]()
    for name, at in (("20260102-0000", "2026-01-02T00:00:00Z"), ("20250101-0000", "2025-01-01T00:00:00Z")):
        world.put(f"dead_letters/{name}/report.json", {"generation_id": name, "failed_at_utc": at})
    world.put("dead_letters/before-20260101-0000/config_midjourney.json", {})
    assert [it.name for it in _requeuable(context_of(world))] == ["20250101-0000", ID, "20260102-0000"]


def call(bucket: Path, *words: str) -> tuple[int, dict[str, object]]:
    environ = {"RETAKE_CONFIG": None, "RETAKE_STORAGE_URL": f"file:{bucket}"}
    result = CliRunner().invoke(main, [*words, "--json"], env=environ)
    check_answer(named_in(words), json.loads(result.stdout))
    return result.exit_code, json.loads(result.stdout)


def test_on_the_command_line_one_id_answers_as_ever_and_several_with_a_result_each(tmp_path: Path) -> None:
    code, one = call(tmp_path, "retry", "x")
    assert (code, sorted(one)) == (65, ["error", "exit_code"])
    code, told = call(tmp_path, "retry", "x", "y", "x")
    assert (code, told["exit_code"]) == (65, 65)
    assert [it["id"] for it in told["results"]] == ["x", "y"]  # type: ignore[attr-defined]
    code, told = call(tmp_path, "dead-letters", "requeue", "--all")
    assert (code, told) == (0, {"results": [], "done": 0, "exit_code": 0})


@pytest.mark.parametrize("words", [["requeue"], ["requeue", "x", "--all"], ["drop"]])
def test_naming_nothing_or_twice_is_a_usage_error(tmp_path: Path, words: list[str]) -> None:
    code, told = call(tmp_path, "dead-letters", *words)
    assert (code, "Name ID" in str(told["error"])) == (2, True)


def test_without_a_terminal_several_need_consent_as_one_does(tmp_path: Path) -> None:
    for name in ("20250101-0000", "20250102-0000"):
        folder = tmp_path / "dead_letters" / name
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps({"generation_id": name}))
    names = ["20250101-0000", "20250102-0000"]
    code, told = call(tmp_path, "dead-letters", "drop", *names)
    assert code == 65
    assert all("Pass --yes" in it["error"] for it in told["results"])  # type: ignore[attr-defined]
    code, told = call(tmp_path, "dead-letters", "drop", *names, "--yes")
    assert (code, told["done"]) == (0, 2)
    assert not any((tmp_path / "dead_letters").rglob("report.json"))


# --- abbreviated ids --------------------------------------------------------------------------------------------------


def test_a_generation_is_found_by_the_beginning_of_its_id() -> None:
    world = eventful()
    assert ask(show, world, run="20260101-0005").document["task_id"] == "20260101-0005"
    on_ledger(world, "song-17")
    assert ask(show, world, run="song-1").document["task_id"] == "song-17"
    with pytest.raises(RunError, match=r"may mean several: 20260101-0000, 20260101-0005, 20260101-0006"):
        ask(show, world, run="20260101-00")
    with pytest.raises(UnknownRun):
        ask(show, world, run="2027")


def test_the_beginning_of_a_generation_means_one_of_the_named_channel_however_many_others_have(tmp_path: Path) -> None:
    world = World()
    storage = StorageSettings(ledger=f"sqlite:{tmp_path / 'runs.sqlite'}")
    world.settings = world.settings._replace(channels=("en", "ru"), storage=storage)
    ledger = open_ledger(storage.ledger, world.bucket, world.clock)
    for number, channel in enumerate(["ru", *["en"] * 12]):
        task = f"{channel}/20260101-00{number:02d}"
        ledger.create_for_task(task, task, actor="cron", pipeline=f"story/{channel}")
        world.clock.sleep(1)
    assert ask(show, context_of(world, channel="ru"), run="20260101").document["task_id"] == "ru/20260101-0000"


def test_an_acting_command_takes_the_beginning_of_a_generation_too() -> None:
    world = STATES["pictures failed"]()
    world.tick()
    with pytest.raises(RetakeError, match=ID):
        act(retry, world, run=ID[:10])
