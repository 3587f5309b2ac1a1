"""The daily and the weekly report."""

from datetime import datetime

from retake.operations.pipelines import Operations


def send_report(operations: Operations, kind: str, now: datetime) -> None:
    raise NotImplementedError
