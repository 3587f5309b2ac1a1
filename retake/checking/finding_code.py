"""Kinds of findings, and their severity."""

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"  # something is lost, paid for twice, or stops a pipeline
    WARNING = "warning"  # it works, but somebody should look
    NOTE = "note"  # worth knowing; the bucket is consistent all the same


class FindingCode(NamedTuple):
    """A kind of finding."""

    level: Severity
    cause: str  # what happened, and why
    todo: str  # what a person should do about it
    repairable: bool = False  # by --repair
