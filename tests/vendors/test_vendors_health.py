"""The health check of a vendor: free, with the real clients, and classified like any other question."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from retake.errors import Code, PollFailed
from retake.operations.finding import Verdict
from retake.operations.vendor_checks import health_check
from retake.sandbox import Pace, Sandbox
from retake.vendors import Health, Healthy
from retake.vendors.chat import OpenAIChat
from retake.vendors.legnext import LegNext
from retake.vendors.piapi import PiAPI
from retake.vendors.runway import Runway

KINDS = {"piapi": "account", "legnext": "fetch", "runway": "organization", "chat": "models"}


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        yield sandbox


def client(sandbox: Sandbox, vendor: str, *, model: str = "gpt-4o", timeout_s: float = 60.0) -> Healthy:
    def piapi() -> Healthy:
        base = f"{sandbox.url}/piapi"
        create, fetch = f"{base}/api/v1/task", f"{base}/mj/v2/fetch"
        return PiAPI(create, fetch, "k" * 20, process_mode="fast", aspect_ratio="16:9", timeout_s=timeout_s)

    def legnext() -> Healthy:
        base = f"{sandbox.url}/legnext/api"
        return LegNext(base, "k" * 20, process_mode="fast", aspect_ratio="16:9", timeout_s=timeout_s)

    def runway() -> Healthy:
        base = f"{sandbox.url}/runway"
        return Runway(base, "k" * 20, model="gen4_turbo", ratio="1280:720", duration_s=5, timeout_s=timeout_s)

    makers: dict[str, Callable[[], Healthy]] = {
        "piapi": piapi,
        "legnext": legnext,
        "runway": runway,
        "chat": lambda: OpenAIChat(f"{sandbox.url}/openai/v1", model, "k" * 20, timeout_s=timeout_s),
    }
    return makers[vendor]()


@pytest.mark.parametrize("vendor", KINDS)
def test_a_vendor_that_is_well_says_so_and_nothing_is_billed(sandbox: Sandbox, vendor: str) -> None:
    asked = client(sandbox, vendor)
    assert isinstance(asked, Healthy)
    health = asked.health()
    assert health.says
    assert health.doubts == ()
    assert [call.kind for call in sandbox.calls()] == [KINDS[vendor]]
    assert sandbox.bill().total == 0


@pytest.mark.parametrize("vendor", KINDS)
@pytest.mark.parametrize(("wrong_by_s", "told"), [(-7200, "2 h behind"), (600, "10 min ahead of"), (30, "")])
def test_a_wrong_clock_is_seen_by_the_date_of_an_answer(
    sandbox: Sandbox, vendor: str, wrong_by_s: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retake.vendors.http.time", SimpleNamespace(time=lambda: time.time() + wrong_by_s))
    finding = health_check(vendor, lambda: client(sandbox, vendor))
    assert (finding.verdict is Verdict.WARN) == bool(told)
    assert not told or f"this machine's clock is {told} the vendor's" in (finding.do or "")


FAULTS = {
    "401": Code.UNAUTHORIZED,
    "402": Code.OUT_OF_CREDIT,
    "429": Code.RATE_LIMIT,
    "503": Code.UNAVAILABLE,
    "502-html": Code.UNAVAILABLE,
    "404-html": Code.BAD_ANSWER,
    "cut-before": Code.NETWORK,
    "hang": Code.TIMEOUT,
    "not-json": Code.BAD_ANSWER,  # for calls that are carried out; LegNext is asked for something that does not exist
}


@pytest.mark.parametrize(
    ("vendor", "fault", "code"),
    [
        (vendor, fault, FAULTS[fault])
        for vendor in KINDS
        for fault in FAULTS
        if (vendor, fault) != ("legnext", "not-json")
    ],
)
def test_one_that_is_not_well_is_a_failed_poll_of_the_usual_codes(
    sandbox: Sandbox, vendor: str, fault: str, code: Code
) -> None:
    sandbox.order(f"{KINDS[vendor]}={fault}")
    with pytest.raises(PollFailed) as caught:
        client(sandbox, vendor, timeout_s=0.5 if fault == "hang" else 5.0).health()
    assert caught.value.code == code
    assert "kkkkkk" not in str(caught.value)


def test_runway_tells_credits_and_the_days_videos(sandbox: Sandbox) -> None:
    health = client(sandbox, "runway").health()
    told = {quota.name: quota for quota in health.quotas}
    assert told["credits"].left == 100_000
    assert told["videos of gen4_turbo today"].left == told["videos of gen4_turbo today"].limit == 1000


def test_a_model_that_the_api_does_not_list_is_doubted(sandbox: Sandbox) -> None:
    health = client(sandbox, "chat", model="gpt-9").health()
    assert health.doubts == ("it lists no model gpt-9: check API_KEYS.openai.model",)


def test_a_compatible_server_without_a_list_of_models_is_well_anyway(sandbox: Sandbox) -> None:
    sandbox.order("models=404")
    assert client(sandbox, "chat").health() == Health("it answers, but lists no models")


def test_a_seller_that_tells_nothing_of_the_account_is_asked_for_a_task_that_nobody_made(sandbox: Sandbox) -> None:
    sandbox.order("account=404")
    assert "accepts the key" in client(sandbox, "piapi").health().says
    assert [call.kind for call in sandbox.calls()] == ["account", "fetch"]


@pytest.mark.parametrize("vendor", ["piapi", "legnext", "runway"])
def test_a_test_request_asks_what_a_tick_asks_and_is_free(sandbox: Sandbox, vendor: str) -> None:
    assert client(sandbox, vendor).test_request() == "it has no such task, as expected"
    assert [call.kind for call in sandbox.calls()] == ["poll" if vendor == "runway" else "fetch"]
    assert sandbox.bill().total == 0


@pytest.mark.parametrize("vendor", ["piapi", "legnext", "runway"])
@pytest.mark.parametrize("fault", ["401", "404-html", "503"])
def test_a_test_request_that_is_not_answered_by_the_vendor_itself_fails(
    sandbox: Sandbox, vendor: str, fault: str
) -> None:
    sandbox.order(f"{'poll' if vendor == 'runway' else 'fetch'}={fault}")
    with pytest.raises(PollFailed):
        client(sandbox, vendor).test_request()


def test_a_chat_api_has_no_question_that_is_free_so_none_is_asked(sandbox: Sandbox) -> None:
    assert "billed" in client(sandbox, "chat").test_request()
    assert sandbox.calls() == []
