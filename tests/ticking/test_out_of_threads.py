"""A machine that can start no further thread, as when RLIMIT_NPROC is reached. Root has no such limit."""

import threading

import pytest

from retake.bucket.side_by_side import side_by_side
from retake.console.answer import Answer
from retake.console.invocation import execute
from retake.console.several import each as each_of
from retake.exit_codes import ExitCode
from retake.operations.several import Item
from retake.testing.logs import CapturedLogs
from retake.ticking.channels import each, worst
from retake.ticking.process import exit_code_of


@pytest.fixture(autouse=True)
def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def read_side_by_side() -> Answer:
    return Answer({}, side_by_side([list, list])[0])


def test_a_tick_over_channels_is_to_be_run_again() -> None:
    with CapturedLogs() as log:
        code = exit_code_of(lambda: worst(each(("north", "south"), lambda channel: 0, 2)))
    [record] = log.records
    assert (code, vars(record)["exit_code"]) == (ExitCode.TRY_LATER, ExitCode.TRY_LATER)
    assert "raise the limit, and run this again" in record.getMessage()


def test_a_command_is_to_be_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(read_side_by_side, as_json=False) == ExitCode.TRY_LATER
    assert capsys.readouterr().err.startswith("error: this machine starts no further thread")


def test_an_order_for_several_is_to_be_given_again() -> None:
    answer = each_of([Item("a", None), Item("b", None)], lambda item: read_side_by_side())
    assert [it["exit_code"] for it in answer.document["results"]] == [ExitCode.TRY_LATER] * 2


def test_any_other_error_of_the_same_type_is_a_bug() -> None:
    def work() -> int:
        raise RuntimeError("dictionary changed size during iteration")

    assert exit_code_of(work) == ExitCode.BUG
