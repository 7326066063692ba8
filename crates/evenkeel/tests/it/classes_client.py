"""Names classes and sessions through openai-python. The argument is the base URL; OPENAI_API_KEY is the key."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], max_retries=0)
messages = [{"role": "user", "content": "hello"}]


def chat(request_id, headers={}, **fields):
    extra_headers = {"X-Request-Id": request_id, **headers}
    client.chat.completions.create(
        model="sim", messages=messages, max_tokens=2, extra_headers=extra_headers, **fields
    )


named = {"X-Evenkeel-Priority": "low", "X-Evenkeel-Session": "agent-7"}
chat("named", named)
# The header comes before the body.
chat("named-again", named, user="amy")
chat("amy", user="amy")
chat("amy-in-another-conversation", user="amy", prompt_cache_key="conversation-2")
chat("ben", user="ben")
chat("nobody")
try:
    chat("invalid", {"X-Evenkeel-Priority": "urgent"})
except openai.BadRequestError as error:
    assert error.param == "x-evenkeel-priority" and "high, normal and low" in error.message, error
else:
    raise AssertionError("an invalid priority was accepted")
print("all as expected")
