"""Does what it does with an engine through a gateway, and meets the gateway's refusals and its node's faults.

Its arguments are the gateway's base URL and that of the one engine behind it.
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


def ask(who, **change):
    return who.chat.completions.create(**{"model": "sim", "messages": messages, "max_tokens": 8, **change})


def set_fault(kind):
    body = json.dumps({"kind": kind}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{engine}/sim/fault", data=body)).read()


def raises(kind, status, code, act):
    try:
        act()
    except kind as error:
        assert (error.status_code, error.code) == (status, code), (error.status_code, error.code)
        assert error.request_id and error.message, error
        return error
    raise AssertionError(f"no {kind.__name__}")


def maps_its_own_errors():
    raises(openai.AuthenticationError, 401, "invalid_api_key", lambda: ask(client("ek-nobody")))
    raises(openai.PermissionDeniedError, 403, "tenant_disabled", lambda: ask(client("ek-off")))
    raises(openai.PermissionDeniedError, 403, "model_forbidden", lambda: ask(client("ek-narrow")))
    raises(openai.NotFoundError, 404, "model_not_found", lambda: ask(client(), model="gpt"))
    wrong = raises(openai.BadRequestError, 400, "invalid_request", lambda: ask(client(), extra_body={"stream": 1}))
    assert wrong.param == "stream", wrong.param
    ask(client("ek-slow"))
    limited = raises(openai.RateLimitError, 429, "rate_limit_exceeded", lambda: ask(client("ek-slow")))
    assert int(limited.response.headers["retry-after"]) >= 1


def maps_the_engines_errors():
    wrong = raises(openai.BadRequestError, 400, None, lambda: ask(client(), max_tokens=1_000_000))
    assert wrong.param == "max_tokens", wrong.param
    set_fault("429-retry-after")
    busy = raises(openai.InternalServerError, 503, "queue_full", lambda: ask(client()))
    assert busy.response.headers["retry-after"] == "1" and busy.response.headers["x-queue-size"] == "0"
    set_fault("reset")
    time.sleep(1)  # As told: the node is spared until then.
    raises(openai.InternalServerError, 502, "bad_upstream", lambda: ask(client()))
    set_fault(None)


def hears_of_a_cut_within_the_stream():
    set_fault("mid-stream-cut")
    said = []
    try:
        for chunk in ask(client(), stream=True):
            said.append(chunk.choices[0].delta.content or "")
    except openai.APIError as error:
        assert error.code == "bad_upstream", error
    else:
        raise AssertionError("half an answer looked whole")
    finally:
        set_fault(None)
    assert len("".join(said).split()) == 4, said


def comes_back_when_told():
    """The engine is busy for as long as it says so; whoever comes back earlier meets the same answer."""
    answers = []

    def note(response):
        answers.append((response.status_code, time.monotonic(), response.request.headers))
        if response.status_code == 503:
            set_fault(None)

    set_fault("429-retry-after")
    patient = client(max_retries=2, http_client=openai.DefaultHttpxClient(event_hooks={"response": [note]}))
    assert ask(patient).choices[0].message.content
    assert [status for status, _, _ in answers] == [503, 200], answers
    (_, refused_at, _), (_, served_at, sent) = answers
    assert sent["x-stainless-retry-count"] == "1"
    assert served_at - refused_at >= 1, "came back too early"


run([maps_its_own_errors, maps_the_engines_errors, hears_of_a_cut_within_the_stream, comes_back_when_told, *STEPS])
