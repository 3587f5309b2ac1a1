from typing import Any

import pytest
from scripted_vendor import ScriptedVendor, says

from retake.errors import Code, OutcomeUnknown, SettingsError, TaskFailed
from retake.vendors.chat import OpenAIChat

PICTURES = ["https://x/1.png", "data:image/png;base64,AAAA", "https://x/3.png"]


def client(url: str, model: str = "gpt-4o-mini", key: str = "sk-secret") -> OpenAIChat:
    return OpenAIChat(url + "/v1/", model, key, timeout_s=60.0)


def completion(content: object, finish_reason: str | None = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "refusal": None}
    return {"choices": [{"index": 0, "finish_reason": finish_reason, "message": message}]}


def test_write_sends_what_the_api_documents(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion('{"topic": "cats"}'))]

    answer = client(vendor.url).write("You write JSON.", "A topic", temperature=0.7, max_tokens=150)

    assert answer == {"topic": "cats"}
    [seen] = vendor.seen
    assert (seen.method, seen.target) == ("POST", "/v1/chat/completions")
    assert seen.headers["authorization"] == "Bearer sk-secret"
    assert seen.json == {
        "model": "gpt-4o-mini",
        "messages": [{"role": "system", "content": "You write JSON."}, {"role": "user", "content": "A topic"}],
        "response_format": {"type": "json_object"},
        "temperature": 0.7,
        "max_tokens": 150,
    }


def test_messages_that_do_not_speak_of_json_are_made_to(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion("{}"))]
    client(vendor.url).write("Пиши тему.", "О котах", temperature=0, max_tokens=9)
    assert vendor.seen[0].json["messages"][0]["content"] == "Пиши тему.\n\nAnswer with one JSON object."


@pytest.mark.parametrize(
    ("model", "reasons"),
    [("o3-mini", True), ("gpt-5", True), ("openai/gpt-5-mini", True), ("gpt-5-chat-latest", False), ("gpt-4o", False)],
)
def test_reasoning_models_get_the_fields_that_they_take(model: str, reasons: bool, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion("{}"))]
    client(vendor.url, model).write("JSON", "x", temperature=0.5, max_tokens=9)
    sent = vendor.seen[0].json
    assert ("max_completion_tokens" in sent, "max_tokens" in sent, "temperature" in sent) == (
        reasons,
        not reasons,
        not reasons,
    )


def test_no_key_sends_none_not_even_from_netrc(
    vendor: ScriptedVendor, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(netrc))
    vendor.script = [says(200, completion("{}"))] * 2
    client(vendor.url, key="").write("JSON", "x", temperature=0, max_tokens=9)
    client(vendor.url).write("JSON", "x", temperature=0, max_tokens=9)
    assert [seen.headers.get("authorization") for seen in vendor.seen] == [None, "Bearer sk-secret"]


@pytest.mark.parametrize(
    "content", ['```json\n{"a": 1}\n```', '```\n{"a": 1}```', ' {"a": 1}\n', '```JSON {"a": 1} ```\n']
)
def test_code_fences_are_tolerated(content: str, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion(content))]
    assert client(vendor.url).write("JSON", "x", temperature=0, max_tokens=9) == {"a": 1}


@pytest.mark.parametrize("content", [None, "", "null", "7", '{"a": 1} and more', ["a"], '{"a": 1'])
def test_an_answer_that_is_not_an_object_was_paid_for_in_vain(content: object, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion(content))]
    with pytest.raises(TaskFailed) as caught:
        client(vendor.url).write("JSON", "x", temperature=0, max_tokens=9)
    assert caught.value.code is Code.BAD_ANSWER


def test_a_compatible_server_may_leave_the_finish_reason_out(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion('{"a": 1}', None))]
    assert client(vendor.url).write("JSON", "x", temperature=0, max_tokens=9) == {"a": 1}


@pytest.mark.parametrize("finish_reason", ["tool_calls", "", "length"])
def test_only_a_completion_that_came_to_its_end_is_taken(finish_reason: str, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion('{"a": 1}', finish_reason))]
    with pytest.raises(TaskFailed, match="not 'stop'"):
        client(vendor.url).write("JSON", "x", temperature=0, max_tokens=9)


def test_half_a_surrogate_pair_does_not_get_into_the_documents(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion('{"text": "cat \\ud83d", "ok": "\\ud83d\\ude00"}'))]
    answer = client(vendor.url).write("JSON", "x", temperature=0, max_tokens=9)
    assert answer == {"text": "cat ?", "ok": "😀"}


def test_choose_shows_the_pictures(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion('{"index": 3}'))]

    assert client(vendor.url).choose("Which is best?", PICTURES) == 3

    [message] = vendor.seen[0].json["messages"]
    assert "json" in message["content"][0]["text"].lower()
    assert [part["image_url"]["url"] for part in message["content"][1:]] == PICTURES


@pytest.mark.parametrize(
    "content", ['{"index": 0}', '{"index": 4}', '{"index": "2"}', '{"index": true}', '{"index": 2.0}', "{}"]
)
def test_a_choice_is_checked_strictly(content: str, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion(content))]
    with pytest.raises(TaskFailed, match="1 … 3"):
        client(vendor.url).choose("Which?", PICTURES)


def test_a_choice_of_any_length_is_quoted_in_a_short_message(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, completion(f'{{"index": "{"x" * 300_000}"}}'))]
    with pytest.raises(TaskFailed) as raised:
        client(vendor.url).choose("Which?", PICTURES)
    assert len(str(raised.value)) < 400


def test_there_must_be_something_to_choose(vendor: ScriptedVendor) -> None:
    with pytest.raises(ValueError, match="nothing to choose"):
        client(vendor.url).choose("Which?", [])
    assert vendor.seen == []


@pytest.mark.parametrize(
    "body", [{"choices": []}, {"choices": [None]}, {"choices": {}}, [], {"error": {"message": "x"}}]
)
def test_an_answer_without_a_completion_leaves_the_outcome_unknown(body: Any, vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, body)]
    with pytest.raises(OutcomeUnknown):
        client(vendor.url).write("JSON", "x", temperature=0, max_tokens=9)


def test_a_key_that_cannot_be_sent_is_a_setting_to_mend() -> None:
    with pytest.raises(SettingsError, match="OPENAI_API_KEY"):
        client("http://x", key="sk-secret\r\n")
