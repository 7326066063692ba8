"""Uses the gateway through openai-python: all steps of openai_client.py, errors of the gateway, and faults of its node.

The arguments are the base URL of the gateway and the URL of its only node.
"""

import json
import sys
import time
import urllib.request

import openai
from openai_client import STEPS, messages, run

gateway, engine = sys.argv[1:]


def client(key="ek-acme", **options):
    return openai.OpenAI(base_url=gateway, api_key=key, **{"max_retries": 0, **options})


def create_chat(target, **fields):
    return target.chat.completions.create(**{"model": "sim", "messages": messages, "max_tokens": 8, **fields})


def set_fault(kind):
    body = json.dumps({"kind": kind}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{engine}/sim/fault", data=body)).read()


def raises(kind, status, code, call):
    try:
        call()
    except kind as error:
        assert (error.status_code, error.code) == (status, code), (error.status_code, error.code)
        assert error.request_id and error.message, error
        return error
    raise AssertionError(f"no {kind.__name__}")


def maps_errors_of_the_gateway():
    raises(openai.AuthenticationError, 401, "invalid_api_key", lambda: create_chat(client("ek-unknown")))
    raises(openai.PermissionDeniedError, 403, "tenant_disabled", lambda: create_chat(client("ek-off")))
    raises(openai.PermissionDeniedError, 403, "model_forbidden", lambda: create_chat(client("ek-narrow")))
    raises(openai.NotFoundError, 404, "model_not_found", lambda: create_chat(client(), model="gpt"))
    wrong = raises(openai.BadRequestError, 400, "invalid_request", lambda: create_chat(client(), extra_body={"stream": 1}))
    assert wrong.param == "stream", wrong.param
    create_chat(client("ek-slow"))
    limited = raises(openai.RateLimitError, 429, "rate_limit_exceeded", lambda: create_chat(client("ek-slow")))
    assert int(limited.response.headers["retry-after"]) >= 1


def maps_errors_of_the_node():
    wrong = raises(openai.BadRequestError, 400, None, lambda: create_chat(client(), max_tokens=1_000_000))
    assert wrong.param == "max_tokens", wrong.param
    set_fault("429-retry-after")
    # The node has just served others, so its refusal is about the request.
    busy = raises(openai.RateLimitError, 429, "rate_limit_exceeded", lambda: create_chat(client()))
    assert busy.response.headers["retry-after"] == "1"
    set_fault("reset")
    time.sleep(1)  # The node is in cooldown until then.
    raises(openai.InternalServerError, 502, "bad_upstream", lambda: create_chat(client()))
    set_fault(None)


def gets_an_error_event_for_a_cut_stream():
    set_fault("mid-stream-cut")
    texts = []
    try:
        for chunk in create_chat(client(), stream=True):
            texts.append(chunk.choices[0].delta.content or "")
    except openai.APIError as error:
        assert error.code == "bad_upstream", error
    else:
        raise AssertionError("a truncated response looked complete")
    finally:
        set_fault(None)
    assert len("".join(texts).split()) == 4, texts


def retries_after_retry_after():
    """The node is overloaded until `Retry-After` has passed; an earlier retry would be rejected again."""
    responses = []

    def record(response):
        responses.append((response.status_code, time.monotonic(), response.request.headers))
        if response.status_code == 429:
            set_fault(None)

    set_fault("429-retry-after")
    retrying = client(max_retries=2, http_client=openai.DefaultHttpxClient(event_hooks={"response": [record]}))
    assert create_chat(retrying).choices[0].message.content
    assert [status for status, _, _ in responses] == [429, 200], responses
    (_, rejected_at, _), (_, served_at, sent) = responses
    assert sent["x-stainless-retry-count"] == "1"
    assert served_at - rejected_at >= 1, "retried too early"


run([maps_errors_of_the_gateway, maps_errors_of_the_node, gets_an_error_event_for_a_cut_stream, retries_after_retry_after, *STEPS])
