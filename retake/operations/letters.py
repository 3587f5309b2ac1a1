"""The dead letters of all pipelines: their content and cost, and the effect of requeueing or dropping them."""

from typing import Any, NamedTuple

from retake.bucket import Bucket
from retake.clock import Clock, stamp
from retake.errors import RetakeError, RunError
from retake.operations.bills import paid_in_words, total_usd
from retake.operations.paging import Pages, paged
from retake.operations.pipelines import Operations
from retake.operations.port import ItemOrder, OperatedPipeline, Refusal, Verb
from retake.paid.bills import calls_of
from retake.retrying.dead_letters import REPORT, DeadLetter, DeadLetters, LetterFolder, NoSuchLetter

_MAX_LETTERS, _REQUEUABLE = 10_000, ("failed", "cancelled")


class LetterView(NamedTuple):
    """A dead letter and its pipeline."""

    pipeline: OperatedPipeline
    letter: DeadLetter

    @property
    def how(self) -> str:
        """How the work ended: "failed", "cancelled", "rolled back" or "nobody's"; with "(remains)" for the remains of a
        letter that has ended."""
        if self.letter.ended:
            return f"{self.letter.ended} (remains)"
        if self.letter.id.startswith("before-"):
            return "nobody's"
        if self.letter.kind == "rollback":
            return "rolled back"
        return "cancelled" if self.letter.report.get("cancelled") else "failed"

    @property
    def item_id(self) -> str:
        """The id of the work that it is about; "" for nobody's. The letter of a rollback has an id of its own."""
        if self.how == "nobody's":
            return ""
        return str(self.letter.report.get("generation_id") or "") if self.how == "rolled back" else self.letter.id

    @property
    def step(self) -> str:
        return str(self.letter.report.get("failed_step") or "")

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The paid calls. Nobody's work has no report, so the pipeline is asked for its calls."""
        nobodys = self.how == "nobody's"
        return self.pipeline.evidence(self.letter.id).calls if nobodys else calls_of(self.letter.report)

    @property
    def paid_usd(self) -> float:
        return total_usd(self.calls)

    @property
    def message(self) -> str:
        return str(self.letter.error.get("message") or "")

    @property
    def files(self) -> list[str]:
        """The names of all its files, the report last."""
        return [*self.letter.files, *([] if self.letter.fault else [REPORT])]

    @property
    def lost(self) -> str:
        """What dropping it loses, in words; "" for mere remains."""
        return lost_with(self.letter)

    @property
    def loss(self) -> str:
        """A sentence that the operator must agree to before it is dropped; "" if nothing is lost."""
        return f"dropping {self.letter.id} loses for good: {self.lost}" if self.lost else ""

    @property
    def _at(self) -> float:
        return self.letter.failed_at.timestamp() if self.letter.failed_at else 0.0

    def requeue(self) -> tuple[str, bool]:
        """Return what requeueing it would do, and whether that is possible now."""
        try:
            return f"possible; {self.pipeline.plan(ItemOrder(Verb.REQUEUE, self.letter.id)).then}", True
        except RetakeError as error:
            return f"not now: {error}", False

    def drop(self) -> dict[str, Any]:
        """Remove it for good, and return the JSON document of what was done. Raises LeaseHeld; Refusal, including when
        more would be lost than `lost` says."""
        files, lost = self.files, self.lost
        what = self.pipeline.carry_out(ItemOrder(Verb.DROP, self.letter.id), lost).what
        return {"done": "drop", "generation_id": self.letter.id, "what": what, "files": files, "lost": lost}

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        letter = self.letter
        return {
            "id": letter.id,
            "channel": self.pipeline.channel,
            "kind": letter.kind,
            "ended": self.how,
            "at": stamp(letter.failed_at) if letter.failed_at else None,
            "step": self.step or None,
            "error_code": letter.error_code,
            "message": self.message or None,
            "paid_usd": self.paid_usd,
            "files": list(letter.files),
            "fault": letter.fault or None,
        }


def list_letters(operations: Operations, limit: int) -> list[LetterView]:
    """Return the dead letters, the newest first."""

    def listed(pipeline: OperatedPipeline) -> list[LetterView]:
        return _listed(operations, pipeline, limit)

    found = [it for each in operations.each(listed) for it in each]
    return sorted(found, key=lambda it: it._at, reverse=True)[:limit]


class LettersPage(NamedTuple):
    """A page of the dead letters."""

    letters: list[LetterView]
    at: Pages

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {"dead_letters": [it.document() for it in self.letters], **self.at._asdict()}


def letters_page(operations: Operations, page: int, size: int) -> LettersPage:
    """Return a page of the dead letters, the newest first. Only the reports of this page are read."""

    def folders(pipeline: OperatedPipeline) -> list[tuple[LetterFolder, DeadLetters, OperatedPipeline]]:
        letters = DeadLetters(pipeline.bucket, operations.clock, counted=True)
        return [(folder, letters, pipeline) for folder in letters.folders()]

    found = [it for each in operations.each(folders) for it in each]
    shown, at = paged(sorted(found, key=lambda it: it[0][:2], reverse=True), page, size)
    order = {id(pipeline): number for number, pipeline in enumerate(operations.pipelines)}
    views = [LetterView(of, letters.of(it)) for it, letters, of in sorted(shown, key=lambda it: order[id(it[2])])]
    return LettersPage(sorted(views, key=lambda it: it._at, reverse=True), at)


def requeuable(operations: Operations) -> list[LetterView]:
    """Return the dead letters that can be requeued (failed and cancelled), by pipeline, the oldest first."""

    def listed(pipeline: OperatedPipeline) -> list[LetterView]:
        letters = (it for it in _listed(operations, pipeline, _MAX_LETTERS) if it.how in _REQUEUABLE)
        return sorted(letters, key=lambda it: (it._at, it.letter.id))

    return [it for each in operations.each(listed) for it in each]


def find_letter(operations: Operations, letter_id: str) -> LetterView:
    """Return the dead letter named by its id or by CHANNEL/ID, where CHANNEL is as for `--channel`. Raises Refusal if
    there is none, RunError if several channels have one."""
    channel, _, name = letter_id.rpartition("/")

    def look(pipeline: OperatedPipeline) -> LetterView | None:
        if channel and operations.named_as(pipeline) != channel:
            return None
        letter = letter_of(pipeline.bucket, operations.clock, name)
        return LetterView(pipeline, letter) if letter else None

    found = [it for it in operations.each(look) if it]
    if not found:
        raise Refusal(no_letter(letter_id))
    if len(found) > 1:
        channels = ", ".join(it.pipeline.channel or it.pipeline.name for it in found)
        raise RunError(f"{letter_id} is a dead letter of several channels: {channels}; name the --channel")
    return found[0]


def _listed(operations: Operations, pipeline: OperatedPipeline, limit: int) -> list[LetterView]:
    letters = DeadLetters(pipeline.bucket, operations.clock, counted=True)
    return [LetterView(pipeline, it) for it in letters.list(limit)]


def letter_of(bucket: Bucket, clock: Clock, letter_id: str) -> DeadLetter | None:
    """Return the dead letter with that id in a pipeline's part of the bucket, or None."""
    try:
        return DeadLetters(bucket, clock).show(letter_id)
    except NoSuchLetter:
        return None


def lost_with(letter: DeadLetter) -> str:
    """Return what dropping the letter loses, in words; "" for mere remains."""
    if letter.ended:
        return ""
    paid = paid_in_words(calls_of(letter.report))
    results = f", results of {paid}" if paid else ""
    return f"{', '.join(letter.files) or 'its report'}{results}"


def no_letter(letter_id: str) -> str:
    """Return the message for an unknown id."""
    return f"there is no dead letter {letter_id!r}; dead-letters list shows all of them"
