"""Captures log records for assertions."""

from __future__ import annotations

import logging


class CapturedLogs(logging.Handler):
    """The records that are logged inside the `with` block.

    with CapturedLogs() as log: world.tick()
    assert log.alerts == ["outcome_unknown"]
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def __enter__(self) -> CapturedLogs:
        logger = logging.getLogger("retake")
        self._level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("retake")
        logger.removeHandler(self)
        logger.setLevel(self._level)

    @property
    def alerts(self) -> list[str]:
        """The codes of the alerts."""
        return [vars(record)["alert"] for record in self.records if "alert" in vars(record)]

    @property
    def warnings(self) -> list[str]:
        """The messages of the warnings, without alerts."""
        return [record.getMessage() for record in self.records if record.levelno == logging.WARNING]
