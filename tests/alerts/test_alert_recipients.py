"""Channels with several recipients: who has a message is not sent it again."""

from delivery_world import DELIVERED, DeliveryWorld, failing

from retake.alerts.message import Ending, Sent


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
