"""The codes of findings. They are stable, because programs rely on them. docs/check.md lists them all."""

from retake.checking.finding_code import FindingCode, Severity
from retake.checking.run_codes import RUN_CODES
from retake.checking.service_codes import SERVICE_CODES
from retake.checking.shared_codes import SHARED_CODES
from retake.checking.story_codes import STORY_CODES

NOTHING_HERE = "nothing-here"
UNREADABLE = "unreadable"
UNKNOWN_OBJECT = "unknown-object"
STILL_CHANGING = "still-changing"

CODES: dict[str, FindingCode] = {
    NOTHING_HERE: FindingCode(
        Severity.ERROR,
        "The bucket holds nothing of Retake's: no document, no run, no group, and no database has rows. "
        "The URL names another bucket, or nothing has run yet.",
        "compare STORAGE.url and --channel with what runs the ticks; a new bucket is filled by the first tick",
    ),
    UNREADABLE: FindingCode(
        Severity.ERROR,
        "The store refused to return an object, or did not answer.",
        "do what the message says; if the store refused, give Retake's key read access to it",
    ),
    UNKNOWN_OBJECT: FindingCode(
        Severity.NOTE,
        "An object with a name that Retake never uses, or of a pipeline that the settings do not name. Another program "
        "or a person put it there, or CHANNELS has changed.",
        "nothing; remove it by hand only if nobody wants it",
    ),
    STILL_CHANGING: FindingCode(
        Severity.NOTE,
        "Somebody was working on it during the whole check, so it could not be judged.",
        "check again after the tick has ended",
    ),
    **STORY_CODES,
    **RUN_CODES,
    **SHARED_CODES,
    **SERVICE_CODES,
}
