"""The stand-in for the chat API, and the posts it writes."""

import json
import random

import pytest
from sandbox_customer import Customer

from retake.sandbox import posts

ALL = "Delivery as JSON with " + ", ".join(posts.KEYS)


def _rng(seed: object) -> random.Random:
    return random.Random(seed)


def _content(reply) -> dict:
    return json.loads(reply.json()["choices"][0]["message"]["content"])


def test_the_reply_has_the_vendors_fields(customer: Customer) -> None:
    reply = customer.chat("JSON please")
    assert reply.headers["x-request-id"]
    body = reply.json()
    assert (body["object"], body["choices"][0]["finish_reason"]) == ("chat.completion", "stop")
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


def test_a_whole_post_is_written(customer: Customer) -> None:
    post = _content(customer.chat(ALL))
    assert set(post) == set(posts.KEYS)
    assert 3 <= len(post["sarcasm"]["poll"]["options"]) <= 4
    assert len(post["text"]) > 300


def test_only_what_is_asked_for_is_answered(customer: Customer) -> None:
    assert set(_content(customer.chat('JSON: {"topic": …, "short_topic": …}'))) == {"topic", "short_topic"}


def test_everything_is_answered_when_nothing_is_named(customer: Customer) -> None:
    assert set(_content(customer.chat("Surprise me, in JSON"))) == set(posts.KEYS)


def test_the_same_seed_writes_the_same(sandbox, customer: Customer) -> None:
    first = _content(customer.chat(ALL))
    assert first == posts.write([ALL], _rng("7/chat/1"))


def test_vision_chooses_one_of_the_pictures(customer: Customer) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/1.png"}}
    content = [{"type": "text", "text": 'Which is best? JSON {"index": n}'}, *[image] * 4]
    choices = set()
    for _ in range(12):
        reply = customer.chat(messages=[{"role": "user", "content": content}])
        choices.add(_content(reply)["index"])
    assert choices <= {1, 2, 3, 4}
    assert len(choices) > 1


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "no magic word"}]}, "messages"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused(customer: Customer, more: dict, param: str) -> None:
    reply = customer.chat("JSON", **more)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_key_is_demanded(customer: Customer) -> None:
    reply = customer.post("/openai/v1/chat/completions", {"model": "any", "messages": []})
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("language", ["en", "ru"])
def test_topics_do_not_repeat_even_when_all_have_been_used(language: str) -> None:
    ask = {"en": 'JSON {"topic": …}. Used already:', "ru": 'Придумай тему, ответь в JSON {"topic": …}. Уже было:'}
    used: list[str] = []
    for n in range(60):
        topic = posts.write([ask[language], *used], _rng(n))["topic"]
        assert topic not in used
        assert posts.language_of(topic) == language
        used.append(topic)


def test_a_given_topic_is_kept_and_its_parts_belong_together() -> None:
    for topic in posts.TOPICS["en"]:
        post = posts.write([f"Topic: {topic.topic}\nPost: …\n{ALL}"], _rng(1))
        assert (post["topic"], post["text"]) == (topic.topic, topic.text)
        assert post["midjourney_prompt"] == topic.midjourney


def test_a_topic_that_is_not_known_is_kept_too() -> None:
    post = posts.write(["Тема: Как в Якутии пекут хлеб", ALL], _rng(1))
    assert post["topic"] == "Как в Якутии пекут хлеб"
    assert post["text"].startswith("Как в Якутии пекут хлеб.")
    assert "Мимо этого" in post["text"]


def test_a_schema_is_not_taken_for_a_topic() -> None:
    post = posts.write(['JSON {"topic": "string", "short_topic": "string"}'], _rng(1))
    assert post["topic"] in {topic.topic for topic in posts.TOPICS["en"]}


@pytest.mark.parametrize("language", ["en", "ru"])
def test_every_topic_is_complete(language: str) -> None:
    topics = posts.TOPICS[language]
    assert len(topics) == len({topic.topic for topic in topics}) == 24
    for topic in topics:
        assert len(topic.topic) <= 120, topic.topic
        assert len(topic.short.split()) <= 4, topic.topic
        assert 350 <= len(topic.text) <= 800, topic.topic
        assert 3 <= len(topic.options) <= 4, topic.topic


def test_a_video_is_described_and_reviewed_when_that_is_asked_for(customer: Customer) -> None:
    ask = 'Describe the video. Answer in JSON with "title", "description", "tags".\nTrack: Morning Rain'
    meta = _content(customer.chat(ask))
    assert set(meta) == {"title", "description", "tags"}
    assert meta["title"].startswith("Morning Rain")
    assert all(isinstance(tag, str) for tag in meta["tags"])
    review = _content(customer.chat(f"{ask}\n{json.dumps(meta)}\nReview it: JSON with verdict and notes."))
    assert set(review) == {"verdict", "notes"}
    assert review["verdict"] in ("pass", "warn", "fail")
    assert len(review["notes"]) == 2


def test_a_prompt_for_a_post_is_not_taken_for_one_about_a_video(customer: Customer) -> None:
    assert set(_content(customer.chat("JSON with topic and text; its title and description do not matter"))) == {
        "topic",
        "text",
    }
