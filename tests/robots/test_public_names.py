"""What outside programs import from the robots keeps its names and their order."""

from retake import robots
from retake.robots import Made, Ports, Robot, batch, creation, grid, key_of, load_policies, validate
from retake.robots.action_sink import ActionSink
from retake.robots.follow_ups import FollowUp


def test_the_names_are_those_of_the_modules_that_define_them() -> None:
    assert {it.__module__ for it in (Robot, Ports, load_policies, grid, validate, key_of, Made)} == {
        *(f"retake.robots.{name}" for name in ("robot", "execution", "policies", "step_validation", "idempotency")),
        "retake.robots.batch_plan",
    }
    assert sorted(robots.__all__) == ["Made", "Ports", "Robot", "grid", "key_of", "load_policies", "validate"]


def test_ports_keep_their_order() -> None:
    fields = ("clock", "random", "sink", "states", "owner", "stop", "noted", "corrections", "mode", "ledger")
    assert Ports._fields == fields


def test_batch_and_creation_keep_their_short_names() -> None:
    assert (batch.Item._fields, batch.Parts._fields) == (("key", "data"), ("find", "send", "undo"))
    assert batch.Report._fields == ("ended", "statistics")
    assert creation.Parts._fields == ("find", "make", "finish", "mark_incorrect")


def test_a_sink_is_anything_with_carry_out() -> None:
    class Sink:
        def carry_out(self, action: FollowUp, record: object) -> None: ...

    sink: ActionSink = Sink()
    assert sink.carry_out.__annotations__["action"] is FollowUp
