import compileall
from collections.abc import Iterator
from pathlib import Path

import pytest
from cron_machine import CHECKOUT, Machine, Vendors, serving


@pytest.fixture(scope="session", autouse=True)
def _byte_code() -> None:
    """Compile the byte code, as `make install` does: otherwise scripts compile everything first and take ten times as
    long."""
    compileall.compile_dir(CHECKOUT / "retake", quiet=1)


@pytest.fixture(scope="session")
def quick_vendors() -> Iterator[Vendors]:
    yield from serving(0)


@pytest.fixture(scope="session")
def patient_vendors() -> Iterator[Vendors]:
    yield from serving(60)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def machine(tmp_path: Path, quick_vendors: Vendors) -> Iterator[Machine]:
    """Yield a machine whose vendors finish each task at once."""
    yield from _used(Machine(tmp_path, quick_vendors))


@pytest.fixture
def patient(tmp_path: Path, patient_vendors: Vendors) -> Iterator[Machine]:
    """Yield a machine whose vendors finish a task when the test says so (`machine.vendors.later()`)."""
    yield from _used(Machine(tmp_path, patient_vendors))


def _used(machine: Machine) -> Iterator[Machine]:
    machine.vendors.as_new()
    yield machine
    machine.vendors.as_new()
    left = machine.processes()
    machine.end()
    assert not left, "processes were left running"
