"""Advice for people is accepted in every state of a pipeline (`TABLE` says what is allowed)."""

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from operator_states import ID, STATES, TABLE
from story_ticks import GEN, WHOLE
from story_world import World

from retake.alerts.conditions import Condition, TickEnd, look
from retake.errors import RetakeError
from retake.operations.breakers import breaker_states
from retake.operations.letters import find_letter
from retake.operations.pipelines import Operations
from retake.operations.port import ItemOrder, Refusal, Verb
from retake.operations.status import statuses
from retake.story.documents import PAID_STEPS
from retake.story.facts import story_facts
from retake.story.operations import open_operations
from retake.story.store import DocumentStore

VERBS = {"retry": Verb.RETRY, "skip": Verb.SKIP, "cancel": Verb.CANCEL, "dead-letters requeue": Verb.REQUEUE}
ADVICE = re.compile(rf"\b(?:({'|'.join(VERBS)}) {ID}|roll back to (\w+))")
LETTER = f"dead_letters/{ID}/"
TOLD = [name for name in STATES if name != "no generation"]


def operations_of(world: World) -> Operations:
    return open_operations(world.settings, world.clock, bucket=world.bucket)


def take(world: World, verb: Verb, step: str | None = None) -> None:
    """Follow the advice. A requeue is for an ended generation, so let it end first."""
    for _ in range(5):
        if verb is not Verb.REQUEUE or world.generation_id != ID:
            break
        world.tick()
    pipeline = operations_of(world).pipelines[0]
    plan = pipeline.plan(ItemOrder(verb, ID, step=step))
    pipeline.carry_out(plan.order, plan.lost)


def take_all(name: str, text: str) -> list[str]:
    """Follow each command in a text, each in a world of its own, and return them."""
    found = [*ADVICE.finditer(text)]
    for it in found:
        verb, step = it.groups()
        take(STATES[name](), VERBS[verb] if verb else Verb.ROLLBACK, step)
    return [it[0] for it in found]


def refusals(name: str) -> Iterator[str]:
    """Yield the refusal of each order to a generation."""
    orders = [ItemOrder(verb, ID) for verb in VERBS.values()]
    orders += [ItemOrder(Verb.ROLLBACK, ID, step=step.value) for step in PAID_STEPS]
    for order in orders:
        try:
            operations_of(STATES[name]()).pipelines[0].plan(order)
        except RetakeError as error:
            yield str(error)


def conditions(world: World) -> tuple[Condition, ...]:
    documents = DocumentStore(world.bucket, world.settings.paths, None, world.clock).read()
    limits = world.settings.workflow
    facts = story_facts(documents, limits, world.clock.now(), documents.midjourney.error, capped="", interrupted="")
    return look("story", TickEnd(0, "now"), facts, 1).found


@pytest.mark.parametrize("name", TABLE)
def test_the_commands_that_status_advises_are_accepted(name: str) -> None:
    world = STATES[name]()
    operations = operations_of(world)
    [status] = statuses(operations, breaker_states(operations))
    advised = {verb for need in status.needs for verb in re.findall(rf"\b(retry|skip) {ID}", need)}
    accepted = {verb for verb, refusal in zip(("retry", "skip", "cancel"), TABLE[name], strict=True) if not refusal}
    assert advised <= accepted
    assert bool(advised) == name.endswith(("held", "for the key"))


@pytest.mark.parametrize("name", TOLD)
def test_only_a_call_that_a_person_decides_on_is_reported_as_held(name: str) -> None:
    operations = operations_of(STATES[name]())
    [status] = statuses(operations, breaker_states(operations))
    told = f"{status.state.words}; {status.state.waiting}"
    assert ("of unknown outcome is held" in told) == ("what became of" in told) == name.endswith("held"), told
    assert ("until a person has fixed something" in told) == name.endswith("for the key"), told


@pytest.mark.parametrize("name", TOLD)
def test_the_commands_of_alerts_are_accepted(name: str) -> None:
    found = conditions(STATES[name]())
    taken = [command for it in found for command in take_all(name, it.command)]
    expected = {"refused": 1, "outcome_unknown": 2, "generation_failed": 1}  # the others name commands that only look
    assert len(taken) == sum(expected.get(it.code, 0) for it in found)


@pytest.mark.parametrize("name", TOLD)
def test_the_commands_that_a_refusal_names_are_accepted(name: str) -> None:
    taken = [command for text in refusals(name) for command in take_all(name, text)]
    if any(TABLE.get(name, ())) and name != "finished, but for its id":
        assert taken, "a refusal of retry, skip or cancel names an alternative"


def test_an_alert_advises_no_requeue_of_a_dropped_dead_letter() -> None:
    world = STATES["dead_lettered"]()
    [before] = conditions(world)
    assert before.command.endswith(f"dead-letters requeue {ID}")
    find_letter(operations_of(world), ID).drop()
    [after] = conditions(world)
    assert (after.key, after.occurrence) == (before.key, before.occurrence), (
        "it is the same alert, so it is not sent again"
    )
    assert (after.command, after.follows) == ("", "A new generation is begun.")


LETTERS: dict[str, Callable[[World], object]] = {
    "whole": lambda world: None,
    "dropped": lambda world: [world.bucket.delete(key) for key in world.keys_of(LETTER)],
    "without its document": lambda world: world.bucket.delete(f"{LETTER}config_midjourney.json"),
    "finished": lambda world: [world.put(f"archive/{ID}.{it}", b"made") for it in WHOLE],
}


@pytest.mark.parametrize("letter", LETTERS)
def test_no_generation_is_to_be_cancelled_for_one_that_cannot_be_requeued(letter: str) -> None:
    world = STATES["dead_lettered"]()
    LETTERS[letter](world)
    other = "20260101-0900"
    world.put(GEN, {"generation_id": other})
    with pytest.raises(Refusal) as refused:
        take(world, Verb.REQUEUE)
    assert (f"or cancel {other} first" in str(refused.value)) == (letter == "whole")
    world.put(GEN, {"generation_id": None})
    with nullcontext() if letter == "whole" else pytest.raises(Refusal, match=re.escape(str(refused.value))):
        take(world, Verb.REQUEUE)
