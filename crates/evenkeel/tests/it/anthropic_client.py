"""Uses the gateway through anthropic-python: all features, errors of the gateway, and faults of its node.

The arguments are the URL of the gateway and the URL of its only node.
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


def create(target=None, **fields):
    target = target or client()
    return target.messages.create(**{"model": "sim", "messages": messages, "max_tokens": 8, **fields})


def set_fault(kind):
    body = json.dumps({"kind": kind}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{engine}/sim/fault", data=body)).read()


def creates():
    response = create(system="be brief")
    assert response.type == "message" and response.stop_reason == "max_tokens", response
    assert len(response.content[0].text.split()) == 8 and response.usage.output_tokens == 8, response
    assert response._request_id, "every response has a request ID"
    # The alternative way to send a key.
    bearer = anthropic.Anthropic(base_url=gateway, auth_token="ek-acme", max_retries=0)
    assert create(bearer).content[0].text


def streams():
    whole = create()
    events = list(create(stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    assert events[0].message.usage.input_tokens == whole.usage.input_tokens, events[0]
    assert events[-2].usage.output_tokens == 8, events[-2]
    with client().messages.stream(model="sim", messages=messages, max_tokens=8) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text, text
    assert final.usage.output_tokens == 8 and final.stop_reason == "max_tokens", final


def counts_tokens():
    counted = client().messages.count_tokens(model="sim", messages=messages)
    assert counted.input_tokens == create().usage.input_tokens, counted


def lists_models():
    (model,) = client().models.list()
    assert (model.type, model.id) == ("model", "sim"), model
    assert client().models.retrieve("sim").display_name == "sim"


def calls_tools():
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"name": "weather", "description": "current weather", "input_schema": schema}]
    response = create(tools=tools, tool_choice={"type": "any"}, max_tokens=64)
    call = response.content[0]
    assert response.stop_reason == "tool_use" and call.name == "weather" and call.input == {"city": "sample"}, response
    with client().messages.stream(model="sim", messages=messages, max_tokens=64, tools=tools) as stream:
        assert stream.get_final_message().content[0].input == {"city": "sample"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    conversation = messages + [
        {"role": "assistant", "content": response.content},
        {"role": "user", "content": [result]},
    ]
    assert create(messages=conversation, tools=tools).content[0].text


def raises(kind, status, error_type, code, call):
    try:
        call()
    except kind as error:
        body = error.body
        assert (error.status_code, error.type, error.error_code) == (status, error_type, code), (error.status_code, body)
        assert body["type"] == "error" and body["request_id"] == error.request_id, (body, error.request_id)
        return error
    raise AssertionError(f"no {kind.__name__}")


def maps_errors():
    def create_raises(kind, status, error_type, code, *key, **fields):
        return raises(kind, status, error_type, code, lambda: create(*map(client, key), **fields))

    create_raises(anthropic.AuthenticationError, 401, "authentication_error", "invalid_api_key", "ek-unknown")
    create_raises(anthropic.PermissionDeniedError, 403, "permission_error", "model_forbidden", "ek-narrow")
    create_raises(anthropic.NotFoundError, 404, "not_found_error", "model_not_found", model="claude")
    wrong = {"extra_body": {"stream": 1}}
    create_raises(anthropic.BadRequestError, 400, "invalid_request_error", "invalid_request", **wrong)
    create(client("ek-slow"))
    limited = create_raises(anthropic.RateLimitError, 429, "rate_limit_error", "rate_limit_exceeded", "ek-slow")
    assert int(limited.response.headers["retry-after"]) >= 1
    # Errors of the node are passed on unchanged.
    try:
        create(max_tokens=1_000_000, timeout=60)
    except anthropic.BadRequestError as error:
        assert "context" in error.body["error"]["message"], error.body
    else:
        raise AssertionError("more tokens than the context window were generated")
    set_fault("reset")
    create_raises(anthropic.InternalServerError, 502, "api_error", "bad_upstream")
    set_fault(None)


def gets_an_error_event_for_a_cut_stream():
    set_fault("mid-stream-cut")
    texts = []
    try:
        for event in create(stream=True):
            if event.type == "content_block_delta":
                texts.append(event.delta.text)
    except anthropic.APIStatusError as error:
        assert (error.type, error.error_code) == ("api_error", "bad_upstream"), error.body
    else:
        raise AssertionError("a truncated response looked complete")
    finally:
        set_fault(None)
    assert len(texts) == 4, texts


def retries_after_retry_after():
    """The node is overloaded until `Retry-After` has passed; an earlier retry would be rejected again."""
    responses = []

    def record(response):
        responses.append((response.status_code, time.monotonic(), response.headers))
        if response.status_code == 429:
            set_fault(None)

    set_fault("429-retry-after")
    http = anthropic.DefaultHttpxClient(event_hooks={"response": [record]})
    assert create(client(max_retries=2, http_client=http)).content[0].text
    assert [status for status, _, _ in responses] == [429, 200], responses
    (_, rejected_at, headers), (_, served_at, _) = responses
    assert headers["retry-after"] == "1", headers
    assert served_at - rejected_at >= 1, "retried too early"


def disconnects_mid_stream():
    stream = create(stream=True, max_tokens=20000)
    next(iter(stream))
    stream.close()


for step in [
    creates,
    streams,
    counts_tokens,
    lists_models,
    calls_tools,
    maps_errors,
    gets_an_error_event_for_a_cut_stream,
    retries_after_retry_after,
    disconnects_mid_stream,
]:
    step()
    print(step.__name__)
print("all as expected")
