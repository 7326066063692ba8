"""Uses model names with a slash, aliases and fallbacks through openai-python.

The argument is the base URL of the gateway. Its engine serves `org/name` and `sim`; `gpt` is an alias of `org/name`.
"""

import sys

import openai
from openai_client import messages, run

(gateway,) = sys.argv[1:]


def client(key="ek-acme"):
    return openai.OpenAI(base_url=gateway, api_key=key, max_retries=0)


def lists_models_and_aliases():
    assert [model.id for model in client().models.list()] == ["gpt", "org/name", "sim"]
    assert [model.id for model in client("ek-narrow").models.list()] == ["gpt"]


def retrieves_a_model_with_a_slash():
    assert client().models.retrieve("org/name").id == "org/name"
    assert client().models.retrieve("gpt").id == "gpt"
    for kind, key, model in [
        (openai.NotFoundError, "ek-acme", "org/other"),
        (openai.PermissionDeniedError, "ek-narrow", "org/name"),
    ]:
        try:
            client(key).models.retrieve(model)
        except kind as error:
            assert model in error.message and error.param == "model", error
        else:
            raise AssertionError(f"no {kind.__name__}")


def chats_under_an_alias():
    for key in ["ek-acme", "ek-narrow"]:
        raw = client(key).chat.completions.with_raw_response.create(model="gpt", messages=messages, max_tokens=4)
        assert raw.parse().model == "org/name"
        assert raw.headers["x-evenkeel-model"] == "org/name"
    raw = client().chat.completions.with_raw_response.create(model="sim", messages=messages, max_tokens=4)
    assert "x-evenkeel-model" not in raw.headers
    stream = client().chat.completions.create(model="gpt", messages=messages, max_tokens=4, stream=True)
    assert {chunk.model for chunk in stream} == {"org/name"}


def transcribes_under_an_alias():
    text = client().audio.transcriptions.create(model="gpt", file=("a.wav", b"RIFF" * 100)).text
    assert text, "no text"


if __name__ == "__main__":
    run([lists_models_and_aliases, retrieves_a_model_with_a_slash, chats_under_an_alias, transcribes_under_an_alias])
