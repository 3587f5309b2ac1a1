"""Recommendations for an incident report: a table from error codes and patterns to advice."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from retake.errors import Code
from retake.operations.incident import TARGET_S, Incident
from retake.operations.port import OperatedPipeline
from retake.operations.words import span
from retake.paid.bills import Call
from retake.plural import count
from retake.runs.states import RunStatus


class Advice(NamedTuple):
    """The advice for a code that occurred at least `times` times in a run. `settings` are the ones to change."""

    code: str
    times: int
    text: str
    settings: tuple[str, ...] = ()


TABLE: tuple[Advice, ...] = (
    Advice(Code.NETWORK, 1, "The network failed: look at this machine's connection, its name server and its proxy"),
    Advice(
        Code.TIMEOUT,
        2,
        "The vendor was too slow: give a call more time, or ask for less at once",
        ("WORKFLOW.call_timeout_seconds",),
    ),
    Advice(
        Code.UNAVAILABLE,
        2,
        "The vendor was unavailable: wait longer between retries, and look at its status page",
        ("RETRYING.strategy", "RETRYING.first_seconds"),
    ),
    Advice(
        Code.RATE_LIMIT,
        2,
        "The vendor's rate limit was reached: wait longer between retries, work on fewer channels at a "
        "time, or have the vendor raise the limit",
        ("RETRYING.strategy", "RETRYING.first_seconds", "WORKFLOW.channel_concurrency"),
    ),
    Advice(
        Code.CONFLICT,
        2,
        "The vendor did not know the outcome of a call either: compare its task list with this run's paid calls",
    ),
    Advice(
        Code.BAD_ANSWER,
        2,
        "Answers could not be used: check the endpoint and the model; a text that is cut off needs a higher "
        "max_tokens in the prompts file",
        ("API_KEYS.openai.model",),
    ),
    Advice(
        Code.TASK_FAILED,
        2,
        "The vendor's own tasks failed: try another mode or model, or a simpler prompt, and ask the "
        "vendor whether such tasks are billed",
        ("API_KEYS.midjourney.process_mode", "API_KEYS.runwayml.model_name"),
    ),
    Advice(
        Code.POLL_TIMEOUT,
        1,
        "A task was still running at the end of the polling time: let one tick wait longer",
        ("WORKFLOW.runway_polling_timeout", "WORKFLOW.runway_timeout_seconds"),
    ),
    Advice(
        Code.SCRIPT_DIED,
        1,
        "A script died or hung: look for its traceback in the log, for the kernel's out-of-memory message, and for "
        "a time limit that is too short",
        ("WORKFLOW.script_timeout_seconds",),
    ),
    Advice(
        Code.MEDIA,
        1,
        "A picture or a video could not be made or read on this machine: run `doctor`, which tries ffmpeg",
        ("VIDEO.mock_codec",),
    ),
    Advice(
        Code.REJECTED,
        1,
        "The prompt was refused by the vendor's moderation: change the prompts so that such texts are not written; "
        "the same prompt fails again",
        ("FILE_PATHS.prompts",),
    ),
    Advice(
        Code.INVALID_INPUT,
        1,
        "The vendor refused the request as invalid: it fails again until the request is changed; the cause above "
        "says what it rejected",
    ),
    Advice(
        Code.MISSING,
        1,
        "Something that the step needed was missing: check whether somebody removed files of the generation",
    ),
    Advice(
        Code.UNAUTHORIZED,
        1,
        "The vendor refused the key: make a new one, put it in the environment of the schedule, check it with `doctor`",
    ),
    Advice(
        Code.OUT_OF_CREDIT,
        1,
        "The vendor's account was empty: top it up, have the vendor warn you before it is, and set a daily cap",
        ("WORKFLOW.daily_cap_usd",),
    ),
    Advice(
        Code.CONFIGURATION,
        1,
        "An endpoint or a model does not exist: check the settings with `doctor`",
        ("API_KEYS.midjourney.endpoint", "API_KEYS.runwayml.endpoint", "API_KEYS.openai.endpoint"),
    ),
)
"""The advice by code, following the classification of vendors' errors (docs/errors.md)."""

MIN_OTHER_RUNS = 3
"""The number of other recent runs with the same temporary code from which it is the vendor's fault, not this run's."""


def recommendations(
    it: Incident,
    calls: Sequence[Call],
    others: Mapping[str, int],
    pipeline: OperatedPipeline,
    held: str = "",
) -> list[str]:
    """Return the recommendations, a sentence each, the most urgent first: what a person must decide (`held`), then what
    to do about the failure that ended the run. `others` counts other runs by the code of their last error.
    """
    codes = it.codes
    main = (it.cause.error.code or "") if it.cause else ""
    ended = it.run.status is RunStatus.FAILED
    found = [advice for advice in TABLE if codes[advice.code] >= advice.times or (ended and advice.code == main)]
    found.sort(key=lambda advice: advice.code != main)
    told = [_with_settings(advice, pipeline) for advice in found]
    of_main = told[:1] if found and found[0].code == main and ended else []
    patterns = [_with_settings(advice, pipeline) for advice in _patterns(it, calls, others, pipeline.holds_unknown)]
    return [*dict.fromkeys([*filter(None, [held]), *of_main, *patterns, *told])]


def _patterns(it: Incident, calls: Sequence[Call], others: Mapping[str, int], holds_unknown: bool) -> Iterator[Advice]:
    for code in it.codes:
        if others.get(code, 0) >= MIN_OTHER_RUNS and code.startswith("ERR_TEMPORARY_"):
            runs = f"{code} was the last error of {others[code]} other runs too: the problem is at the vendor"
            yield Advice(code, 1, f"{runs}; let a circuit breaker stop calls to it for a while", _BREAKER)
    slow = [outage for outage in it.outages if outage.seconds is not None and outage.seconds > TARGET_S]
    if slow:
        names = ", ".join(f"{outage.step} {span(outage.seconds or 0)}" for outage in slow)
        how = "run the schedule more often, or wait less between retries"
        yield Advice("", 1, f"It took more than {span(TARGET_S)} until it worked again ({names}): {how}")
    if len(it.interruptions) > 1:
        ends = "look for what ends the process: memory, a shutdown, a time limit of the schedule"
        yield Advice("", 1, f"The process working on it disappeared {len(it.interruptions)} times: {ends}")
    unknown = [call for call in calls if call.get("outcome") == "unknown" and not call.get("possible_duplicate")]
    if unknown:
        steps = ", ".join(dict.fromkeys(str(call.get("step") or "?") for call in unknown))
        look = "look in the vendor's account whether it was billed, and whether its result is there to be used"
        yield Advice("", 1, f"The outcome of {count(len(unknown), 'paid call')} is unknown ({steps}): {look}")
    duplicates = sum(bool(call.get("possible_duplicate")) for call in calls)
    if duplicates:
        look = f"{count(duplicates, 'call')} may have been paid for twice: look in the vendor's account"
        hold = "; to be asked before such a call is made again, set it to hold"
        unheld = Advice("", 1, look + hold, ("WORKFLOW.on_unknown_outcome",))
        yield Advice("", 1, look) if holds_unknown else unheld


_BREAKER = ("BREAKER.failures", "BREAKER.open_seconds")


def _with_settings(advice: Advice, pipeline: OperatedPipeline) -> str:
    """Return the advice with those of its settings that the pipeline has."""
    known = [name for name in advice.settings if pipeline.has_setting(name)]
    return f"{advice.text} ({', '.join(known)})" if known else advice.text
