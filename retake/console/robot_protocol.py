"""A robot's whole protocol as blocks of text, for `retake robots show`."""

from collections.abc import Iterator, Sequence

from retake.console.answer import Block, Cell, Facts, Heading, Sentence, Table
from retake.degraded.mode import ROBOTS
from retake.errors import RobotError
from retake.operations.words import code_of
from retake.plural import count
from retake.retrying.policy import RetryPolicy
from retake.robots.follow_ups import Do, FollowUp
from retake.robots.policies import RobotPolicy
from retake.robots.recovery import follow_ups_of
from retake.robots.wording import (
    action_in_words,
    breaker_in_words,
    errors_of,
    length,
    modes_of,
    repeated_errors,
    repeats_in_words,
    steps_in_words,
)

Rows = Iterator[tuple[str, str | Cell]]


def blocks_of(policy: RobotPolicy, others: Sequence[RobotPolicy]) -> list[Block]:
    """Return what a person needs to know about the protocol. `others` are the robots that may share its breaker."""
    errors = [
        (code_of(code), meaning, "yes" if _is_repeated(policy, code) else "no")
        for code, meaning in policy.errors.items()
    ]
    blocks: list[Block] = [
        Heading(f"{policy.id} {policy.name}"),
        Facts([("role", policy.role), ("runs in", _modes(policy))]),
        Heading("Errors"),
        Table(("error", "meaning", "retried"), errors),
        Heading("Retries"),
        Facts([*_repeats(policy)]),
    ]
    if rows := [*_rules(policy, others)]:
        blocks += [Heading("Rules"), Facts(rows)]
    blocks += _list(
        f"After the {'first' if policy.retry.max_retries is None else 'last'} failure",
        map(_action, policy.last_failure.actions),
    )
    if compensation := policy.compensation:
        after = {"creation": "created", "partial_setup": "set up in part"}[compensation.after]
        blocks += _list(f"Before that, where something was {after}", map(_action, compensation.actions))
    if policy.recovery:
        steps = zip(steps_in_words(policy.recovery.steps), policy.recovery.steps, strict=True)
        blocks += _list("Recovery", (_limited(text, errors_of(step.when)) for text, step in steps))
    if policy.escalation:
        blocks += _list("Escalation path", map(_action, policy.escalation.path))
    return blocks + _of_all_robots(policy)


def _of_all_robots(policy: RobotPolicy) -> list[Block]:
    """Return what every robot does after an error, for the errors that this robot has no action of its own for."""
    not_always = {Do.READ_ONLY, Do.AUTO_CORRECT}
    own = [it for it in policy.last_failure.actions if it.do not in not_always]
    without = [code for code in policy.errors if not any(it.when.holds_for(RobotError(code, "")) for it in own)]
    found = ((code, "; ".join(map(action_in_words, follow_ups_of(RobotError(code, ""), ())))) for code in without)
    return _list("As for all robots", (f"{words} [after {code}]" for code, words in found)) if without else []


def _is_repeated(policy: RobotPolicy, code: str) -> bool:
    error = RobotError(code, "")
    return any(it.retry_if.holds_for(error) and it.max_retries != 0 for it in (policy.retry, policy.item_retry) if it)


def _modes(policy: RobotPolicy) -> str:
    runs = ", ".join(map(str, modes_of(policy.id)))
    rests = ", ".join(str(mode) for mode in range(len(ROBOTS)) if mode not in modes_of(policy.id))
    return f"degraded mode {runs or 'none'}; rests in {rests or 'none'}"


def _repeats(policy: RobotPolicy) -> Rows:
    for label, retry in (("of a call", policy.retry), ("of one item", policy.item_retry)):
        if retry is not None:
            yield "of a batch" if policy.batch and label == "of a call" else label, repeats_in_words(retry)
            if bounds := _bounds(retry):
                yield "with jitter", bounds
            yield "after", repeated_errors(retry)
    if policy.retry.timeout_s is not None:
        code = policy.retry.timeout_code or "an unknown outcome, which is not retried"
        yield "timeout", f"{length(policy.retry.timeout_s)} a call; one that takes longer counts as {code}"
    if policy.validate_before_repeat:
        yield "validation", f"the data are validated before retry {policy.validate_before_repeat}"


def _bounds(retry: RetryPolicy) -> str:
    if not retry.jitter_percent or not retry.max_retries:
        return ""
    found = (retry.bounds_s(number) for number in range(1, retry.max_retries + 1))
    return f"{', '.join(f'{low:g} to {high:g}' for low, high in found)} s"


def _rules(policy: RobotPolicy, others: Sequence[RobotPolicy]) -> Rows:
    if breaker := policy.breaker:
        shared = [it.id for it in others if it.breaker and it.breaker.name == breaker.name]
        yield "breaker", f"{breaker.name}{', shared with ' + ', '.join(shared) if shared else ''}"
        yield "", breaker_in_words(breaker)
    if cache := policy.cache:
        classes = ", ".join(it.value for it in cache.classes)
        reading = ", for reading only" if cache.read_only else ""
        yield "cache", f"a result is kept for {length(cache.ttl_s)}, and used after errors of class {classes}{reading}"
    if it := policy.batch:
        yield "batches", f"{count(it.size, 'item')} at most"
        part = f"all are rolled back if more than {it.rollback_over_percent:g} % fail"
        yield "", part if it.partial_success else "all are rolled back if one fails"
        if it.split_after:
            yield "", f"retried in two halves after {', '.join(it.split_after)}"
    if keys := policy.idempotency:
        yield "idempotency", f"the key is {'made from the data' if keys.key_from == 'data' else 'that of the item'}"
        looks = (("it is created", keys.check_before_create), ("each retry", keys.check_before_retry))
        before = [when for when, does in looks if does]
        yield "", f"an item is looked for before {' and '.join(before)}" if before else "an item is not looked for"
        if keys.if_none_match:
            yield "", "requests carry If-None-Match"
    yield from _more_rules(policy)


def _more_rules(policy: RobotPolicy) -> Rows:
    if locks := policy.locks:
        broken = (
            f"after {length(locks.break_after_s)} broken for reads" if locks.break_for == "reads" else "never broken"
        )
        versions = "; writes compare versions" if locks.optimistic_versions else ""
        yield "locks", f"waited for up to {length(locks.wait_s)}; {broken}{versions}"
    if it := policy.validation:
        correct = "; the nearest allowed value takes its place" if it.auto_correct else ""
        yield "grid", f"{it.mode.value} mode; liberal tolerates {it.tolerance_percent:g} % of the step{correct}"
    if rules := policy.consistency:
        known = (
            ("transactional messages", rules.transactional_messages),
            ("an outbox", rules.outbox),
            ("sagas, undone if a step fails", rules.saga),
        )
        yield "consistency", ", ".join(name for name, does in known if does) or "none"
    if stores := policy.stores:
        back = "; copied to the first one when it is back" if stores.sync_back else ""
        yield "stores", f"{', else '.join(stores.order)}{back}"
    if snapshots := policy.snapshots:
        elsewhere = ", also elsewhere" if snapshots.replicate_elsewhere else ""
        restored = "; the last valid one is restored" if snapshots.restore_last_valid else ""
        yield "snapshots", f"every {length(snapshots.every_s)}{elsewhere}{restored}"


def _action(action: FollowUp) -> str:
    return _limited(action_in_words(action), errors_of(action.when))


def _limited(text: str, errors: str) -> str:
    return f"{text} [{errors}]" if errors else text


def _list(title: str, texts: Iterator[str]) -> list[Block]:
    return [Heading(title), *(Sentence(f"{number}. {it}", indent=2) for number, it in enumerate(texts, 1))]
