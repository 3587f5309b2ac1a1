"""What is wrong: a pure function of the facts about a pipeline, the breakers, the mode and the channels.

Each condition has a key. Conditions with the same cause share it, whatever their pipeline and error code: if the
pictures of a thousand channels fail in the same way, that is one alert.

An idle tick imports this module.
"""

from collections.abc import Iterator
from typing import NamedTuple

from retake.clock import stamp
from retake.errors import ErrorRecord
from retake.exit_codes import ExitCode

OF_A_TICK = frozenset({"state_unreadable", "bug", "ledger_unavailable"})
"""The codes of conditions that follow from how a tick ended alone."""

MISCONFIGURED = "refused/settings"
"""The key of the condition of a tick that lacks a key, or whose settings are wrong."""

UNREADABLE = "state_unreadable"
"""The key of the condition of a tick that found an invalid document."""

ONLY_A_TICK_KNOWS = frozenset({"bug", MISCONFIGURED, UNREADABLE})
"""The keys of conditions that need a person, and that the state of a pipeline may not show."""

OF_A_PIPELINE = OF_A_TICK | {
    "step_failing",
    "generation_failed",
    "stopped",
    "refused",
    "outcome_unknown",
    "interrupted",
    "cap_reached",
    "picture_unsaved",
}
"""The codes of conditions that follow from the state of a pipeline."""

OF_ALL = frozenset({"breaker_open", "kpi"})
"""The codes of conditions of what all pipelines share. They are checked after work."""


class Condition(NamedTuple):
    """Something that is wrong now."""

    code: str
    level: str  # "warning", "error" or "critical"
    key: str  # identifies its cause
    title: str  # one line
    occurrence: str  # identifies the occurrence; a different one counts as one more
    message: str = ""  # the message of the error
    follows: str = ""  # what happens without a person
    command: str = ""  # a command that a person can type
    generation_id: str | None = None
    step: str | None = None
    attempt: str | None = None  # "3/4"
    error_class: str | None = None
    error_code: str | None = None
    since: str | None = None  # when it began, if that is known; ISO 8601
    ending: bool = False  # keeps an open alert open, but raises none
    lasting: bool = False  # is sent only if it is still there after ALERTS.group_seconds


class StepFailures(NamedTuple):
    """The failed tries of a step since its last result."""

    step: str
    failed: int
    most: int  # the maximum number of tries
    retried: bool  # whether it will be retried
    error: ErrorRecord = ErrorRecord()


class FailedGeneration(NamedTuple):
    """The last generation that ended, if it failed."""

    generation_id: str | None
    step: str | None
    error: ErrorRecord
    dropped: bool = False  # whether its dead letter is gone


class UnknownOutcome(NamedTuple):
    """A paid call of unknown outcome, whose step has no result yet."""

    step: str
    held: bool  # whether it waits until the operator decides; otherwise it is made again
    requested_at: str | None


class PipelineFacts(NamedTuple):
    """The facts about a pipeline at the end of a tick."""

    item_id: str | None = None  # the generation under way
    steps: tuple[StepFailures, ...] = ()  # steps with failed tries
    last: FailedGeneration | None = None
    failed_in_a_row: int = 0
    stopped: bool = False  # whether nothing new is begun
    refused: str | None = None  # the vendor that refuses, or the step, if a class C error waits for a person
    error: ErrorRecord = ErrorRecord()  # the last failure of the generation under way
    step: str | None = None  # the current step of the generation
    unknown: UnknownOutcome | None = None
    capped: str = ""  # why the cap holds back a call
    interrupted: str = ""  # when the tick found that the previous one had died; ISO 8601
    picture_unsaved: bool = False  # whether the picture of a video that has to wait could not be saved


class Findings(NamedTuple):
    """What was found wrong with one pipeline, or, if `pipeline` is "", with what all share.

    Only the conditions in `codes` were checked. Alerts with other codes stay as they are.
    """

    pipeline: str
    codes: frozenset[str]
    found: tuple[Condition, ...] = ()


class TickEnd(NamedTuple):
    """How a tick ended."""

    exit_code: int
    at: str  # ISO 8601
    why: str = ""  # the message of the error that it ended with
    ledger: str = ""  # why the ledger could not be used, if that ended it


def look(pipeline: str, end: TickEnd, facts: PipelineFacts | None, failures_before_warning: int) -> Findings:
    """Return what is wrong with a pipeline after its tick. `facts` is None if its state is not known."""
    found = [*_end_conditions(end)]
    if facts:
        found += _fact_conditions(facts, failures_before_warning, end.at)
    if end.exit_code == ExitCode.CONFIG and not any(it.code == "refused" for it in found):
        found.append(_misconfigured(end))
    named = (_with_channel(it, pipeline.partition("/")[2]) for it in found)
    codes = OF_A_PIPELINE if facts else OF_A_TICK
    if end.why and not end.ledger:
        codes -= {"ledger_unavailable"}  # the tick may have ended before it came to the ledger
    return Findings(pipeline, codes, tuple(named))


def _with_channel(it: Condition, channel: str) -> Condition:
    """Return the condition with the channel added to its command, since several channels may have a generation with the
    same id."""
    if not channel:
        return it
    if it.code in ("stopped", "picture_unsaved"):
        return it._replace(command=f"{it.command} --channel {channel}")
    own = it.generation_id
    return it._replace(command=it.command.replace(own, f"{channel}/{own}")) if own else it


def _end_conditions(end: TickEnd) -> Iterator[Condition]:
    exit_code, now, why, ledger = end
    if exit_code == ExitCode.BAD_STATE:
        yield Condition(
            "state_unreadable",
            "critical",
            UNREADABLE,
            "A state document is invalid",
            now,
            message=why,
            follows="Each tick stops at it; nothing is changed and nothing is paid for.",
            command="python -m retake doctor",
        )
    if exit_code == ExitCode.BUG:
        yield Condition(
            "bug",
            "critical",
            "bug",
            "A tick ended with a bug in Retake",
            now,
            message=why,
            follows="The next tick continues from what is on record.",
            command="python -m retake status",
        )
    if ledger:
        yield Condition(
            "ledger_unavailable",
            "error",
            "ledger_unavailable",
            "The ledger cannot be used",
            now,
            message=ledger,
            follows="Each tick tries again; nothing is paid for meanwhile.",
            command="python -m retake doctor",
            lasting=True,
        )


def _fact_conditions(facts: PipelineFacts, failures_before_warning: int, now: str) -> Iterator[Condition]:
    for it in facts.steps:
        if it.failed >= failures_before_warning:
            yield _step_failing(facts, it)
    if facts.last:
        yield _generation_failed(facts.last)
    if facts.stopped:
        yield _stopped(facts)
    if facts.refused:
        yield _refused(facts, facts.refused)
    if facts.unknown:
        yield _outcome_unknown(facts, facts.unknown)
    if facts.interrupted:
        yield interrupted(facts.interrupted, facts.item_id, facts.step)
    if facts.capped:
        yield Condition(
            "cap_reached",
            "warning",
            "cap_reached",
            "The daily cap holds a paid call back",
            now[:10],
            message=facts.capped,
            follows="The call is made on the next day, or when the cap is raised.",
            command="python -m retake spend",
            generation_id=facts.item_id,
            step=facts.step,
        )
    if facts.picture_unsaved:
        yield _picture_unsaved(facts)


def _step_failing(facts: PipelineFacts, it: StepFailures) -> Condition:
    """Return the condition of a step that fails.

    When no tries are left, an open alert stays open until the next tick, in which the generation fails: "resolved"
    would be wrong in between.
    """
    error = it.error
    found = Condition(
        "step_failing",
        "warning",
        f"step_failing/{it.step}",
        f"{it.step} fails: {it.failed} tries without a result",
        f"{facts.item_id} {it.step} {it.failed}",
        follows=f"It is tried again, {it.most} times in all." if it.retried else "The generation fails now.",
        command=_show(facts.item_id),
        generation_id=facts.item_id,
        step=it.step,
        attempt=f"{it.failed}/{it.most}",
        ending=not it.retried,
    )
    return _with_error(error, found)


_KEPT = "Everything is kept in dead_letters/; a new generation is begun."


def _generation_failed(last: FailedGeneration) -> Condition:
    at, requeued = f" at {last.step}" if last.step else "", "" if last.dropped else last.generation_id
    found = Condition(
        "generation_failed",
        "error",
        f"generation_failed/{last.step or 'unknown'}",
        f"A generation failed{at}",
        last.error.id or last.generation_id or "unknown",
        follows="A new generation is begun." if last.dropped else _KEPT,
        command=f"python -m retake dead-letters requeue {requeued}" if requeued else "",
        generation_id=last.generation_id,
        step=last.step,
    )
    return _with_error(last.error, found)


def _stopped(facts: PipelineFacts) -> Condition:
    last = facts.last
    found = Condition(
        "stopped",
        "critical",
        "stopped",
        f"The last {facts.failed_in_a_row} generations all failed",
        (last.error.id or last.generation_id if last else None) or str(facts.failed_in_a_row),
        follows="Nothing new is begun until an operator says so.",
        command="retake tick --resume",
        generation_id=last.generation_id if last else None,
        step=last.step if last else None,
    )
    return _with_error(last.error if last else ErrorRecord(), found)


def _refused(facts: PipelineFacts, by: str) -> Condition:
    error = facts.error
    found = Condition(
        "refused",
        "critical",
        f"refused/{by}",
        f"{by} needs a person: {error.advice or 'nothing is paid for until the cause is fixed'}",
        error.id or f"{facts.item_id} {facts.step}",
        follows="Nothing is paid for meanwhile; the same call is tried again after a while.",
        command=f"python -m retake retry {facts.item_id}",
        generation_id=facts.item_id,
        step=facts.step,
    )
    return _with_error(error, found)


def _misconfigured(end: TickEnd) -> Condition:
    return Condition(
        "refused",
        "critical",
        MISCONFIGURED,
        "A key or a setting is missing or wrong",
        end.at,
        message=end.why,
        follows="Each tick ends with exit code 78 until it is fixed; nothing is paid for.",
        command="python -m retake doctor",
    )


def _outcome_unknown(facts: PipelineFacts, call: UnknownOutcome) -> Condition:
    held = "It is held; nothing else of the generation is paid for." if call.held else "It is made again."
    found = Condition(
        "outcome_unknown",
        "error" if call.held else "warning",
        f"outcome_unknown/{call.step}",
        f"Nobody can tell whether a paid call for {call.step} was carried out",
        call.requested_at or f"{facts.item_id} {call.step}",
        follows=held,
        command=f"python -m retake retry {facts.item_id}, or skip {facts.item_id}"
        if call.held
        else _show(facts.item_id),
        generation_id=facts.item_id,
        step=call.step,
    )
    return _with_error(facts.error, found)


def _picture_unsaved(facts: PipelineFacts) -> Condition:
    return Condition(
        "picture_unsaved",
        "warning",
        "picture_unsaved",
        "The picture of a video that has to wait is not saved yet",
        facts.item_id or "",
        "Saving it has failed: the log of the tick has the reason.",
        follows="Each tick tries again. If the vendor no longer has it when the video is due, the generation fails.",
        command=f"python -m retake media --generation_id {facts.item_id} --picture-only",
        generation_id=facts.item_id,
        step=facts.step,
    )


def interrupted(at: str, item_id: str | None = None, step: str | None = None) -> Condition:
    """Return the condition of a tick that found, `at` this time, that the previous one had died."""
    return Condition(
        "interrupted",
        "warning",
        "interrupted",
        "A tick did not finish",
        at,
        follows="This tick continued from what is on record.",
        command=_show(item_id),
        generation_id=item_id,
        step=step,
    )


def breaker_open(vendor: str, since: str, why: str, phase: str = "open") -> Condition:
    """Return the condition of a vendor whose circuit breaker is not closed. `phase` is "open", "half-open" or
    "unreadable"; only an open breaker can be probed."""
    found = Condition(
        "breaker_open",
        "warning",
        f"breaker_open/{vendor}",
        f"{vendor} has failed too often: its circuit breaker is open",
        since,
        message=why,
        follows="It is not called for a while; then one call probes it.",
        command=f"python -m retake breaker {'probe' if phase == 'open' else 'show'} {vendor}",
        since=since,
    )
    if phase == "unreadable":
        title, follows = f"The circuit breaker of {vendor} cannot be read", "It is not called until that is fixed."
        return found._replace(title=title, follows=follows, command="python -m retake breaker show")
    return found


def degraded(mode: int, words: str, why: str, since: str) -> Condition:
    """Return the condition of a degraded mode, 1 to 3. `words` says what the mode leaves out."""
    return Condition(
        "degraded",
        ("warning", "error", "critical")[mode - 1],
        "degraded",
        f"Degraded mode {mode}: {words}",
        f"{mode} {since}",
        message=why,
        follows="What it holds back waits, and nothing is lost.",
        command="python -m retake mode show",
        since=since,
    )


def bad_rates(level: str, what: str) -> Condition:
    """Return the condition of bad success or retry rates. `what` says which, and how bad they are."""
    return Condition(
        "kpi",
        level,
        "kpi",
        "Too many steps fail or are retried",
        level,
        message=what,
        follows="It closes when the rates of the window are good again.",
        command="python -m retake kpi",
    )


def channel_refused(name: str, why: str, at: str) -> Condition:
    """Return the condition of a channel that refused its last delivery."""
    return Condition(
        "channel_refused",
        "warning",
        f"channel_refused/{name}",
        f"The channel {name} refused an alert",
        at,
        message=f"it answered: {why}",
        follows="What it refused is not sent to it again; the other channels are notified.",
        command=f"python -m retake alerts test {name}",
        since=at,
    )


def _with_error(error: ErrorRecord, condition: Condition) -> Condition:
    return condition._replace(
        error_class=error.error_class.value if error.error_class else None,
        error_code=error.code,
        message=error.message,
        since=stamp(error.at) if error.at else None,
    )


def _show(item_id: str | None) -> str:
    return f"python -m retake show {item_id}" if item_id else "python -m retake status"
