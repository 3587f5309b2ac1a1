"""A tick that ends a generation dies, an operator lowers the flag it left, and the next tick goes on."""

import pytest
from operator_states import ID, STATES, each_death
from story_runs import runs_of
from story_ticks import Scripted

from retake.bucket import Bucket
from retake.operations.port import Verb
from retake.runs.states import RunStatus
from retake.story.documents import Status
from retake.story.operator_actions import OperatorActions
from retake.story.runner import StoryRunner


def ticked(world: Scripted, bucket: Bucket) -> None:
    StoryRunner(world.settings, bucket, world, world.keys, world.clock, owner="host-a:17").tick()


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("all files there", RunStatus.SUCCEEDED),
        ("upscale exhausted", RunStatus.FAILED),
        ("failed for good", RunStatus.FAILED),
        ("cancelled, not dead_lettered", RunStatus.CANCELLED),
    ],
)
def test_a_run_that_has_ended_is_its_last_one(name: str, status: RunStatus) -> None:
    for where, world in each_death(STATES[name], ticked):
        OperatorActions(world.settings, world.bucket, world.clock, owner="operator@desk").lower_flag()
        while world.generation_id == ID:
            world.tick()
        assert [run.status for run in runs_of(world, ID)] == [status], where


def test_what_is_cancelled_after_such_a_death_is_cancelled_on_the_ledger_too() -> None:
    ended = 0
    for where, world in each_death(STATES["upscale exhausted"], ticked):
        hands = OperatorActions(world.settings, world.bucket, world.clock, owner="operator@desk")
        if world.generation_id != ID or world.doc.status is not Status.UPSCALE_TRIGGER_FAILED:
            continue
        ended += any(run.ended for run in runs_of(world, ID))
        hands.carry_out(Verb.CANCEL, ID, hands.planned(Verb.CANCEL, ID).lost)
        assert runs_of(world, ID)[-1].status is RunStatus.CANCELLED, where
    assert ended, "no tick died between the ledger and the documents"
