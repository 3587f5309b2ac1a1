"""Check that everything in a bucket is consistent, and rebuild what can be derived (`retake check`).

    report = Check(examinations, Scope(bucket, clock)).run()

Each owner of data in the bucket (a pipeline, the ledger, the day books) states in an `Examination` what must hold for
each kind of data. This package runs them, confirms findings by a second look, and repairs.
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
