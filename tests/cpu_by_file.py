"""Plugin that prints the CPU seconds of each test file: `python -m pytest -p tests.cpu_by_file tests/cron`.

The seconds include the test process and every process below it, even those still running. Background work of a server
that several files share counts towards the file under test at that moment.
"""

import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

COLLECTION = "(start and collection, in each test process)"
_TICKS = os.sysconf("SC_CLK_TCK")


class CpuByFile:
    """The CPU seconds and number of tests per file, for this test process and for its workers once they end."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()
        self.counted = 0.0

    def pytest_collection_finish(self) -> None:
        self._count(COLLECTION)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        result = yield
        file = item.nodeid.partition("::")[0]
        self.tests[file] += 1
        if nextitem is None or nextitem.path != item.path:  # scanning /proc after each test would cost too much
            self._count(file)
        return result

    def _count(self, what: str) -> None:
        now = cpu_seconds()
        self.seconds[what] += now - self.counted
        self.counted = now

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_by_file"] = [dict(self.seconds), dict(self.tests)]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        seconds, tests = getattr(node, "workeroutput", {}).get("cpu_by_file", ({}, {}))
        self.seconds.update(seconds)
        self.tests.update(tests)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds by file")
        for file, seconds in self.seconds.most_common():
            terminalreporter.line(f"{seconds:9.2f} {self.tests[file]:6d} {file}")
        terminalreporter.line(f"{self.seconds.total():9.2f} {self.tests.total():6d} all")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuByFile())


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all processes below it, ended or still running."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children: dict[int, list[tuple[int, float]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(fields[1]), []).append((int(path.parent.name), sum(map(int, fields[11:15])) / _TICKS))
    running, below = 0.0, [os.getpid()]
    while below:
        for pid, seconds in children.get(below.pop(), ()):
            running += seconds
            below.append(pid)
    return time.process_time() + ended.ru_utime + ended.ru_stime + running
