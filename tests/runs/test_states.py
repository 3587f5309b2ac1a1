"""The states of a run, compared with the diagram: docs/protocol.md, section "State diagram"."""

import pytest

from retake.runs.states import FINAL, OPEN, START, TRANSITIONS, IllegalTransition, RunStatus, Trigger, after, diagram

SEED = """\
stateDiagram-v2
    [*] --> queued
    queued --> running: worker_claim
    queued --> cancelled: cancel_command

    running --> succeeded: completed
    running --> failed: non_retryable_error
    running --> retry_scheduled: retryable_error
    running --> interrupted: process_restart
    running --> cancelled: cancel_command

    retry_scheduled --> running: retry_due
    retry_scheduled --> cancelled: cancel_command

    interrupted --> running: recovery_resume
    interrupted --> failed: recovery_abort
    interrupted --> cancelled: cancel_command
"""

EVERY_PAIR = [(status, trigger) for status in RunStatus for trigger in Trigger]


def test_the_diagram_drawn_from_the_code_is_the_specified_one() -> None:
    assert [line for line in diagram().splitlines() if line] == [line for line in SEED.splitlines() if line]


def test_every_state_and_every_trigger_is_in_the_diagram() -> None:
    words = set(SEED.replace(":", " ").split())
    assert {status.value for status in RunStatus} | {trigger.value for trigger in Trigger} <= words
    assert (len(RunStatus), len(Trigger), len(TRANSITIONS)) == (7, 9, 12)


def test_nothing_leads_out_of_a_final_state_and_something_out_of_each_other() -> None:
    left = {start for start, _ in TRANSITIONS}
    assert left == set(OPEN)
    assert left.isdisjoint(FINAL)
    assert left | FINAL == set(RunStatus)


def test_every_state_can_be_reached_from_the_start() -> None:
    reached = {START}
    for _ in RunStatus:
        reached |= {end for (start, _), end in TRANSITIONS.items() if start in reached}
    assert reached == set(RunStatus)


@pytest.mark.parametrize(("status", "trigger"), EVERY_PAIR)
def test_what_is_not_in_the_diagram_is_refused_with_what_is_possible(status: RunStatus, trigger: Trigger) -> None:
    if f"    {status} --> {TRANSITIONS.get((status, trigger))}: {trigger}" in SEED.splitlines():
        assert after(status, trigger) is TRANSITIONS[status, trigger]
        return
    with pytest.raises(IllegalTransition) as refused:
        after(status, trigger)
    said = str(refused.value)
    assert f"{status} knows no {trigger}" in said
    for possible in (it for start, it in TRANSITIONS if start is status):
        assert possible in said
    assert ("it has ended" in said) == (status in FINAL)
