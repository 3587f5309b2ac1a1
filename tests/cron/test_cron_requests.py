"""The requests of a tick that docs/performance.md states for each kind of store are those of real ticks."""

from pathlib import Path

import pytest

from bench.buckets import Asked, by_kind, directory_asked, laid_out, priced, store_asked
from bench.servers import server
from retake.bucket.b2.price import by_class
from retake.sandbox import Pace, Sandbox

PAGE = (Path(__file__).parents[2] / "docs" / "performance.md").read_text("utf-8")


def stated(row: str) -> tuple[str, ...]:
    """Return the cells of a table row, without the first."""
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {row} ")]
    return tuple(cell.strip() for cell in line.strip("|").split("|")[1:])


def asked(kind: str, folder: Path) -> Asked:
    with server(kind) as store, Sandbox(pace=Pace(0, 0, 0), quick=True) as vendors:
        return store_asked(store, laid_out(folder, vendors), vendors)


def test_a_directory_is_asked_what_the_page_says(tmp_path: Path) -> None:
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as vendors:
        found = directory_asked(tmp_path, vendors)
    assert by_kind(found.idle) == stated("directory, idle")
    assert by_kind(found.busy) == stated("directory, busy")


def test_b2_is_asked_what_the_page_says(tmp_path: Path) -> None:
    found = asked("b2", tmp_path)
    assert by_kind(found.idle) == stated("B2 stand-in, idle")
    assert by_kind(found.busy) == stated("B2 stand-in, busy")
    assert priced(found.idle) == stated("idle ")
    assert priced(found.busy) == stated("busy ")
    assert by_kind(found.resting) == stated("B2 stand-in, resting")
    assert priced(found.resting) == stated("resting ")
    assert by_class(found.resting)["C"] <= 2
    assert by_class(found.idle)["C"] <= 4
    assert by_class(found.busy)["C"] <= 14


def test_s3_is_asked_what_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("moto")
    found = asked("s3", tmp_path)
    assert by_kind(found.idle) == stated("S3 stand-in, idle")
    assert by_kind(found.busy) == stated("S3 stand-in, busy")
    assert by_kind(found.resting) == stated("S3 stand-in, resting")
