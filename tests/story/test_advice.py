"""What `status` tells a person to do is accepted, in every state of a pipeline (`TABLE` says what is)."""

import re

import pytest
from operator_states import ID, STATES, TABLE

from retake.operations.breakers import breaker_states
from retake.operations.status import statuses
from retake.story.operations import open_operations


@pytest.mark.parametrize("name", TABLE)
def test_the_commands_that_status_advises_are_accepted(name: str) -> None:
    world = STATES[name]()
    operations = open_operations(world.settings, world.clock, bucket=world.bucket)
    [status] = statuses(operations, breaker_states(operations))
    advised = {verb for need in status.needs for verb in re.findall(rf"\b(retry|skip) {ID}", need)}
    accepted = {verb for verb, refusal in zip(("retry", "skip", "cancel"), TABLE[name], strict=True) if not refusal}
    assert advised <= accepted
    assert bool(advised) == name.endswith(("held", "for the key"))
