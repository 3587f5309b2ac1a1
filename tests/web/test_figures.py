"""Figures of many runs: they are counted in the background, and nobody waits until all are counted."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard import Board, busy_world
from test_pages import raised

from retake.bucket import Bucket
from retake.bucket.wrappers import CountingBucket
from retake.web import kpi as module


class Halted(CountingBucket):
    """A bucket in which reading the third run blocks."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.go_on = threading.Event()
        self.runs = 0

    def around(self, operation, key, call):  # type: ignore[no-untyped-def]
        if threading.current_thread().name == "dashboard" and operation == "read" and key.startswith("runs/run-"):
            self.runs += 1
            if self.runs == 3:
                assert self.go_on.wait(60)
        return super().around(operation, key, call)


@pytest.fixture
def halted(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Board, Halted]]:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(module, "_SHORT_S", 0.01)
    world = busy_world()
    raised(world, "title")
    bucket = Halted(world.bucket)
    with Board(world, bucket).serving() as board:
        try:
            yield board, bucket
        finally:
            bucket.go_on.set()


def test_while_runs_are_counted_the_page_tells_how_many_and_programs_are_told_to_ask_again(
    halted: tuple[Board, Halted],
) -> None:
    board, bucket = halted
    for path in ("/kpi", "/kpi?window=30d"):
        page = board.page(path)
        assert page.status_code == 200
        assert "Counting the runs" in page.text
    program = board.program("/kpi")
    assert (program.status_code, [*program.json()]) == (503, ["error"])
    assert "so far" in program.json()["error"]
    assert board.page("/").status_code == 200, "nobody else waits"
    bucket.go_on.set()
    while board.program("/kpi").status_code == 503:
        pass
    assert "Counting" not in board.page("/kpi").text


def test_metrics_are_without_those_of_runs_until_these_are_counted(halted: tuple[Board, Halted]) -> None:
    board, bucket = halted
    found = board.program("/metrics")
    assert found.status_code == 200
    assert 'retake_alerts{level="error"} 1' in found.text
    assert "retake_runs_total{" not in found.text
    bucket.go_on.set()
    while "retake_runs_total{" not in board.program("/metrics").text:
        pass


def test_a_count_ends_with_the_dashboard(tmp_path: Path) -> None:
    world = busy_world()
    board = Board(world)
    with board.serving():
        board.shelf.close()
        assert board.program("/kpi").status_code == 503
