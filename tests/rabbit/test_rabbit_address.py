"""Which URLs are tried at all, and what a message may reveal of them."""

import pytest

from retake.errors import SettingsError
from retake.exit_codes import ExitCode
from retake.rabbit.address import address_of
from retake.rabbit.broker import Broker
from retake.rabbit.topology import Topology


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("amqp://ann:secret@broker.example:5673/images", "amqp://broker.example:5673"),
        ("amqp://broker.example", "amqp://broker.example:5672"),
        ("amqps://ann:se%2Fcret@broker.example/%2Fimages", "amqps://broker.example:5671"),
        ("amqp://[::1]:5672/", "amqp://[::1]:5672"),
    ],
)
def test_a_message_names_the_host_and_no_user(url: str, place: str) -> None:
    assert address_of(url).place == place


@pytest.mark.parametrize(
    "url",
    [
        "",
        "broker.example",
        "http://ann:secret@broker.example",
        "amqp://",
        "amqp://ann:secret@",
        "amqp://ann:secret@broker.example:port",
        "amqp://ann:secret@broker.example:99999",
        "amqp://ann:sec/ret@broker.example",
        "amqp://ann:12#secret@broker.example",
        "amqp://ann:sec?ret@broker.example",
        "amqp://ann:secret@bro ker.example",
        "amqp://ann:secret@[::1",
        "amqp://ann:secret@broker.example\n",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Broker(url, Topology(), name="test").start()
    assert caught.value.exit_code == ExitCode.CONFIG
    assert "secret" not in str(caught.value)
    assert "ret@" not in str(caught.value)


def test_both_ends_show_that_they_are_alive_unless_the_url_says_how_often() -> None:
    assert address_of("amqp://broker.example").heartbeat_s == 10
    assert address_of("amqp://broker.example/?heartbeat=30").heartbeat_s is None
