"""Proves that everything in a bucket fits together, and rebuilds what can be derived (`retake check`).

    report = Check(examinations, Scope(bucket, clock)).run()

Whoever keeps something in the bucket (a pipeline, the ledger, the day's books) says what must hold of it in an
`Examination`: one for each kind of thing. This package runs them, looks at what was found a second time, and repairs.
"""

from retake.checking.codes import CODES
from retake.checking.engine import Check, CheckReport
from retake.checking.examination import CheckFinding, Examination, found
from retake.checking.finding_code import FindingCode, Severity
from retake.checking.view import CheckView, Scope

__all__ = [
    "CODES",
    "Check",
    "CheckFinding",
    "CheckReport",
    "CheckView",
    "Examination",
    "FindingCode",
    "Scope",
    "Severity",
    "found",
]
