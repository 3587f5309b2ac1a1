"""Paid calls of programs without a pipeline (`retake.paid.paid_calls`): their documents in paid/NAME/."""

from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from typing import Any

from retake.checking.examination import CheckFinding, Examination, found
from retake.checking.view import CheckView, Unparsable
from retake.document_schema import DocumentSchema, InvalidDocument
from retake.paid.paid_calls import ACCEPTED, FOLDER

_STATE = "state.json"


class KeyedCalls(Examination):
    """Checks that the documents are valid, that each key was paid for once, and that no call awaits a decision."""

    title = "paid calls by key"

    @cached_property
    def _schemas(self) -> dict[bool, DocumentSchema]:
        """The schema of the state (True) and of a key's document (False)."""
        return {True: DocumentSchema("paid_calls_state"), False: DocumentSchema("paid_calls_key")}

    def subjects(self, view: CheckView) -> Iterator[str]:
        yield from (entry.key for entry in view.entries(FOLDER) if _name_of(entry.key))

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        is_state = subject == f"{FOLDER}{_name_of(subject)}/{_STATE}"
        try:
            document = view.document(subject)
            if document is None:
                return
            self._schemas[is_state].check(document)
        except Unparsable as error:
            yield found("paid-calls-invalid", view.where(subject), str(error))
            return
        except InvalidDocument as error:
            yield found("paid-calls-invalid", view.where(subject), " ".join(map(str, error.args)))
            return
        yield from self._state(view, subject, document) if is_state else self._key(view, subject, document)

    def _state(self, view: CheckView, subject: str, document: dict[str, Any]) -> Iterator[CheckFinding]:
        pending = document.get("pending")
        if pending and pending.get("held"):
            what = f"the {pending['step']} call for {pending['key']} of {pending['requested_at_utc']} is held"
            yield found("paid-call-undecided", view.where(subject), what)

    def _key(self, view: CheckView, subject: str, document: dict[str, Any]) -> Iterator[CheckFinding]:
        calls = document["calls"]
        view.looked_at["paid_calls"] += len(calls)
        accepted = [call["id"] for call in calls if call["outcome"] == ACCEPTED]
        if len(accepted) > 1:
            what = f"{len(accepted)} calls for {document['key']} were answered and billed"
            yield found("paid-key-billed-twice", view.where(subject), what)

    def busy(self, view: CheckView) -> bool:
        names = (name for entry in view.entries(FOLDER) if (name := _name_of(entry.key)))
        return any(view.bucket.holder(f"{FOLDER}{name}/calls") for name, _ in groupby(names))

    def knows(self, key: str) -> bool:
        return _name_of(key) is not None


def _name_of(key: str) -> str | None:
    """Return NAME, which may have slashes, of paid/NAME/state.json or paid/NAME/calls/KEY.json; None for other keys."""
    if not key.startswith(FOLDER):
        return None
    folder, _, file = key.removeprefix(FOLDER).rpartition("/")
    if folder.endswith("/calls"):  # KEY may be "state"
        return folder.removesuffix("/calls") if file.endswith(".json") else None
    return folder if file == _STATE and folder else None
