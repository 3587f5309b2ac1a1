"""kinds.py names only files that exist, so a renamed file does not slip into `make check`."""

from pathlib import Path

from kinds import LONG, PROCESS_FOLDERS, PROCESSES, SEARCHES

TESTS = Path(__file__).parent


def test_each_file_that_has_a_kind_is_there() -> None:
    files = {path.stem for path in TESTS.rglob("test_*.py")}
    folders = {path.name for path in TESTS.iterdir() if path.is_dir()}
    assert (SEARCHES | PROCESSES) - files == set()
    assert LONG - files - folders == set()
    assert PROCESS_FOLDERS - folders == set()


def test_a_file_has_one_kind() -> None:
    assert not SEARCHES & PROCESSES
    assert not LONG & (SEARCHES | PROCESSES)
