"""Uses a server through openai-python. The argument is the base URL; OPENAI_API_KEY is the key."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], max_retries=0)
messages = [{"role": "user", "content": "hello"}]


def chats():
    response = client.chat.completions.create(model="sim", messages=messages, max_tokens=8)
    choice = response.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason == "length", choice
    assert len(choice.message.content.split()) == 8, choice
    assert response.usage.completion_tokens == 8, response.usage


def streams_with_usage():
    whole = client.chat.completions.create(model="sim", messages=messages, max_tokens=8)
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="sim", messages=messages, max_tokens=8, stream=True, stream_options=options
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content, text
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens, chunks[-1]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    without_usage = list(client.chat.completions.create(model="sim", messages=messages, max_tokens=8, stream=True))
    assert all(chunk.choices and not chunk.usage for chunk in without_usage), "usage was not requested"


def calls_tools():
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    response = client.chat.completions.create(model="sim", messages=messages, tools=tools, tool_choice="required")
    call = response.choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "sample"}, call
    conversation = messages + [
        response.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    response = client.chat.completions.create(model="sim", messages=conversation, tools=tools)
    assert response.choices[0].message.content, response


def embeds():
    response = client.embeddings.create(model="sim", input=["a", "b"])
    plain = client.embeddings.create(model="sim", input=["a", "b"], encoding_format="float")
    for one, other in zip(response.data, plain.data):
        assert len(one.embedding) == 64
        assert all(abs(x - y) < 1e-6 for x, y in zip(one.embedding, other.embedding))


def completes_and_lists():
    response = client.completions.create(model="sim", prompt="hello", max_tokens=4)
    assert len(response.choices[0].text.split()) == 4, response
    assert [model.id for model in client.models.list()] == ["sim"]


def maps_errors():
    try:
        client.chat.completions.create(model="gpt", messages=messages)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("a model that does not exist responded")


def disconnects_mid_stream():
    stream = client.chat.completions.create(model="sim", messages=messages, max_tokens=20000, stream=True)
    next(iter(stream))
    stream.close()


STEPS = [chats, streams_with_usage, calls_tools, embeds, completes_and_lists, maps_errors, disconnects_mid_stream]


def run(steps):
    for step in steps:
        step()
        print(step.__name__)
    print("all as expected")


if __name__ == "__main__":
    run(STEPS)
