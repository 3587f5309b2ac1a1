"""Nobody receives a message twice, and whoever learned of an alert learns of its end."""

from delivery_world import DELIVERED, FAILED, DeliveryWorld, failing

from retake.alerts.message import Ending, Sent
from retake.alerts.outbox import claimed


def test_a_process_without_the_secret_does_not_forget_who_has_the_message() -> None:
    sms = {"kind": "sms", "account": "A", "from": "1", "to": ["2", "3"], "hours": "any", "levels": ["warning"]}
    world = DeliveryWorld(channels={"sms": sms})
    world.service.plan("sms", Sent(Ending.FAILED, "HTTP 503", done=("2",)))
    world.tick(failing())
    secrets, world.environ = world.environ, {}
    world.later(600)
    world.deliver()
    world.environ = secrets
    assert [it.done for it in world.queue("sms").queue] == [("2",)]

    def bug() -> Sent:
        raise ZeroDivisionError

    world.service.plan("sms", bug, DELIVERED)
    world.later(600)
    world.deliver()
    assert [it.done for it in world.queue("sms").queue] == [("2",)]


# --- whoever may know of the beginning learns of the end --------------------------------------------------------------


def ended(world: DeliveryWorld, alert_id: str) -> bool:
    """Return whether the channel was told of the alert's end, after another alert of its cause was sent."""
    for _ in range(3):
        world.later(1000)
        world.tick(failing(9))
    assert world.service.events()[-1] in ("trigger", "repeat")
    return ("all", "resolve", alert_id) in world.service.subjects


def test_the_end_of_an_alert_is_reported_where_the_beginning_had_no_answer() -> None:
    world = DeliveryWorld()
    world.service.plan("all", FAILED._replace(maybe=True))
    world.tick(failing(1))
    first = world.board.alerts["step_failing/imagine"].id
    world.look()
    assert ended(world, first)


def test_the_end_of_an_alert_is_reported_where_the_sender_of_the_beginning_died() -> None:
    world = DeliveryWorld()
    world.look(failing(1))
    first = world.board.alerts["step_failing/imagine"].id
    world.store.change(lambda board: (claimed(board, world.settings, world.clock.now()).board, None))
    world.later(60)
    world.look()
    world.service.plan("all", FAILED)
    world.deliver()
    assert ended(world, first)


def test_the_end_of_an_alert_is_reported_where_it_came_back_before_its_first_end_was_told() -> None:
    world = DeliveryWorld()
    world.tick(failing(1))
    first = world.board.alerts["step_failing/imagine"].id
    world.service.plan("all", *[FAILED] * 3)
    world.tick()
    world.tick(failing(2))
    world.later(400)
    world.tick(failing(2))  # repeated to everybody but the channel
    world.later(60)
    world.tick()
    assert ended(world, first)
