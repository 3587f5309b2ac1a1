"""A kind of finding, and how bad it is."""

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # something is lost, paid for twice, or stops a pipeline
    WARNING = "warning"  # it works, and somebody should look
    NOTE = "note"  # worth knowing; the bucket is whole all the same


class FindingCode(NamedTuple):
    """A kind of finding."""

    level: Severity
    cause: str  # how it comes about
    todo: str  # what a person does about it
    repairable: bool = False  # by --repair
