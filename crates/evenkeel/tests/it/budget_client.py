"""A tenant whose budget is used up, through openai-python and anthropic-python. The argument is the gateway's URL."""

import sys

import anthropic
import openai

url = sys.argv[1]
messages = [{"role": "user", "content": "hello"}]
responses = []
hooks = {"response": [responses.append]}


def is_refused_once(error_class, request):
    responses.clear()
    try:
        request()
    except error_class as error:
        assert [response.status_code for response in responses] == [429], responses
        headers = responses[0].headers
        assert int(headers["retry-after"]) > 60 or headers["retry-after"] == "1", headers
        assert "budget tokens_per_month reached" in str(error) and "resets at" in str(error), error
        return error
    raise AssertionError("a request over the budget was served")


client = openai.OpenAI(base_url=url + "/v1", max_retries=2, http_client=openai.DefaultHttpxClient(event_hooks=hooks))
for stream in [False, True]:
    error = is_refused_once(
        openai.RateLimitError,
        lambda: client.chat.completions.create(model="sim", messages=messages, max_tokens=8, stream=stream),
    )
    assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota"), error

client = anthropic.Anthropic(
    base_url=url,
    api_key=client.api_key,
    max_retries=2,
    http_client=anthropic.DefaultHttpxClient(event_hooks=hooks),
)
error = is_refused_once(
    anthropic.RateLimitError,
    lambda: client.messages.create(model="sim", messages=messages, max_tokens=8),
)
assert error.body["error"]["type"] == "rate_limit_error", error.body
assert error.body["error"]["details"]["error_code"] == "insufficient_quota", error.body
print("all as expected")
