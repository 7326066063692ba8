"""Asks for Responses, transcripts and speech through a gateway, with openai-python.

Its arguments are the gateway's base URL and that of the one engine behind it; OPENAI_API_KEY is its key.
"""

import json
import sys
import urllib.request

import openai

gateway, engine = sys.argv[1:]
client = openai.OpenAI(base_url=gateway, max_retries=0)


def set_fault(kind):
    body = json.dumps({"kind": kind}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{engine}/sim/fault", data=body)).read()


def ask(**change):
    return client.responses.create(**{"model": "sim", "input": "hello", **change})


def responds():
    answer = ask()
    assert answer.status == "completed" and answer.output_text, answer
    assert answer.usage.output_tokens == len(answer.output_text.split()), answer.usage
    short = ask(max_output_tokens=4, input=[{"role": "user", "content": "hello"}])
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens", short
    assert short.usage.output_tokens == 4, short.usage


def streams():
    whole, events = ask(), list(ask(stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == whole.output_text, said
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens, events[-1]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers)), numbers


def calls_functions():
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "name": "weather", "parameters": parameters}]
    call = ask(tools=tools).output[0]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "sample"}, call
    asked = [{"role": "user", "content": "hello"}, call.model_dump()]
    told = asked + [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    assert ask(input=told, tools=tools).output_text
    streamed = [event for event in ask(tools=tools, stream=True)]
    assert streamed[-1].response.output[0].arguments == call.arguments, streamed[-1]


def maps_errors():
    try:
        ask(model="gpt")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("a model that does not exist answered")


def hears_of_a_cut_within_the_stream():
    set_fault("mid-stream-cut")
    said = []
    try:
        for event in ask(stream=True):
            said.append(event.type)
    except openai.APIError as error:
        assert error.code == "bad_upstream", error
    else:
        raise AssertionError("half an answer looked whole")
    finally:
        set_fault(None)
    assert "response.output_text.delta" in said and "response.completed" not in said, said


def transcribes():
    sound = ("speech.wav", b"RIFF" + bytes(50_000), "audio/wav")
    answer = client.audio.transcriptions.create(model="sim", file=sound)
    assert answer.text and answer.usage.input_tokens == 49, answer
    plain = client.audio.transcriptions.create(model="sim", file=sound, response_format="text")
    assert plain.strip() == answer.text, plain


def speaks():
    said = "four words are these"
    with client.audio.speech.with_streaming_response.create(
        model="sim", voice="alloy", input=said, response_format="wav"
    ) as response:
        assert response.headers["content-type"] == "audio/wav"
        sound = b"".join(response.iter_bytes())
    assert sound[:4] == b"RIFF" and len(sound) == 44 + 3_200 * (len(said) // 4), len(sound)


def leaves_a_stream():
    stream = ask(stream=True, max_output_tokens=20000, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()


for step in [
    responds,
    streams,
    calls_functions,
    maps_errors,
    hears_of_a_cut_within_the_stream,
    transcribes,
    speaks,
    leaves_a_stream,
]:
    step()
    print(step.__name__)
print("all as expected")
