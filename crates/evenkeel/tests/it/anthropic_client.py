"""Talks through a gateway as any program with anthropic-python does; meets the gateway's refusals and its node's faults.

Its arguments are the gateway's URL and that of the one engine behind it.
"""

import json
import sys
import time
import urllib.request

import anthropic

gateway, engine = sys.argv[1:]
messages = [{"role": "user", "content": "hello"}]


def client(key="ek-acme", **options):
    return anthropic.Anthropic(base_url=gateway, api_key=key, **{"max_retries": 0, **options})


def ask(who=None, **change):
    who = who or client()
    return who.messages.create(**{"model": "sim", "messages": messages, "max_tokens": 8, **change})


def set_fault(kind):
    body = json.dumps({"kind": kind}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{engine}/sim/fault", data=body)).read()


def creates():
    answer = ask(system="be brief")
    assert answer.type == "message" and answer.stop_reason == "max_tokens", answer
    assert len(answer.content[0].text.split()) == 8 and answer.usage.output_tokens == 8, answer
    assert answer._request_id, "every answer is named"
    # The other way to give a key.
    bearer = anthropic.Anthropic(base_url=gateway, auth_token="ek-acme", max_retries=0)
    assert ask(bearer).content[0].text


def streams():
    whole = ask()
    events = list(ask(stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    assert events[0].message.usage.input_tokens == whole.usage.input_tokens, events[0]
    assert events[-2].usage.output_tokens == 8, events[-2]
    with client().messages.stream(model="sim", messages=messages, max_tokens=8) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == whole.content[0].text == final.content[0].text, said
    assert final.usage.output_tokens == 8 and final.stop_reason == "max_tokens", final


def counts_tokens():
    counted = client().messages.count_tokens(model="sim", messages=messages)
    assert counted.input_tokens == ask().usage.input_tokens, counted


def lists_models():
    (model,) = client().models.list()
    assert (model.type, model.id) == ("model", "sim"), model
    assert client().models.retrieve("sim").display_name == "sim"


def calls_tools():
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"name": "weather", "description": "tells it", "input_schema": schema}]
    answer = ask(tools=tools, tool_choice={"type": "any"}, max_tokens=64)
    call = answer.content[0]
    assert answer.stop_reason == "tool_use" and call.name == "weather" and call.input == {"city": "sample"}, answer
    with client().messages.stream(model="sim", messages=messages, max_tokens=64, tools=tools) as stream:
        assert stream.get_final_message().content[0].input == {"city": "sample"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    conversation = messages + [
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    assert ask(messages=conversation, tools=tools).content[0].text


def raises(kind, status, told, code, act):
    try:
        act()
    except kind as error:
        body = error.body
        assert (error.status_code, error.type, error.error_code) == (status, told, code), (error.status_code, body)
        assert body["type"] == "error" and body["request_id"] == error.request_id, (body, error.request_id)
        return error
    raise AssertionError(f"no {kind.__name__}")


def maps_errors():
    def refuses(kind, status, told, code, *who, **change):
        return raises(kind, status, told, code, lambda: ask(*map(client, who), **change))

    refuses(anthropic.AuthenticationError, 401, "authentication_error", "invalid_api_key", "ek-nobody")
    refuses(anthropic.PermissionDeniedError, 403, "permission_error", "model_forbidden", "ek-narrow")
    refuses(anthropic.NotFoundError, 404, "not_found_error", "model_not_found", model="claude")
    wrong = {"extra_body": {"stream": 1}}
    refuses(anthropic.BadRequestError, 400, "invalid_request_error", "invalid_request", **wrong)
    ask(client("ek-slow"))
    limited = refuses(anthropic.RateLimitError, 429, "rate_limit_error", "rate_limit_exceeded", "ek-slow")
    assert int(limited.response.headers["retry-after"]) >= 1
    # What the engine finds wrong is told in its own words.
    try:
        ask(max_tokens=1_000_000, timeout=60)
    except anthropic.BadRequestError as error:
        assert "context" in error.body["error"]["message"], error.body
    else:
        raise AssertionError("more than the context was generated")
    set_fault("reset")
    refuses(anthropic.InternalServerError, 502, "api_error", "bad_upstream")
    set_fault(None)


def hears_of_a_cut_within_the_stream():
    set_fault("mid-stream-cut")
    said = []
    try:
        for event in ask(stream=True):
            if event.type == "content_block_delta":
                said.append(event.delta.text)
    except anthropic.APIStatusError as error:
        assert (error.type, error.error_code) == ("api_error", "bad_upstream"), error.body
    else:
        raise AssertionError("half an answer looked whole")
    finally:
        set_fault(None)
    assert len(said) == 4, said


def comes_back_when_told():
    """The engine is busy for as long as it says so; whoever comes back earlier meets the same answer."""
    answers = []

    def note(response):
        answers.append((response.status_code, time.monotonic(), response.headers))
        if response.status_code == 503:
            set_fault(None)

    set_fault("429-retry-after")
    http = anthropic.DefaultHttpxClient(event_hooks={"response": [note]})
    assert ask(client(max_retries=2, http_client=http)).content[0].text
    assert [status for status, _, _ in answers] == [503, 200], answers
    (_, refused_at, told), (_, served_at, _) = answers
    assert told["retry-after"] == "1" and told["x-queue-size"] == "0", told
    assert served_at - refused_at >= 1, "came back too early"


def leaves_a_stream():
    stream = ask(stream=True, max_tokens=20000)
    next(iter(stream))
    stream.close()


for step in [
    creates,
    streams,
    counts_tokens,
    lists_models,
    calls_tools,
    maps_errors,
    hears_of_a_cut_within_the_stream,
    comes_back_when_told,
    leaves_a_stream,
]:
    step()
    print(step.__name__)
print("all as expected")
