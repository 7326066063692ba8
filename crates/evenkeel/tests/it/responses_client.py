"""Uses the Responses, transcription and speech APIs of the gateway through openai-python.

The arguments are the base URL of the gateway and the URL of its only node; OPENAI_API_KEY is the key.
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


def create(**fields):
    return client.responses.create(**{"model": "sim", "input": "hello", **fields})


def responds():
    response = create()
    assert response.status == "completed" and response.output_text, response
    assert response.usage.output_tokens == len(response.output_text.split()), response.usage
    short = create(max_output_tokens=4, input=[{"role": "user", "content": "hello"}])
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens", short
    assert short.usage.output_tokens == 4, short.usage


def streams():
    whole = create()
    events = list(create(stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text, text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens, events[-1]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers)), numbers


def calls_functions():
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "name": "weather", "parameters": parameters}]
    call = create(tools=tools).output[0]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "sample"}, call
    conversation = [{"role": "user", "content": "hello"}, call.model_dump()]
    with_output = conversation + [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    assert create(input=with_output, tools=tools).output_text
    streamed = [event for event in create(tools=tools, stream=True)]
    assert streamed[-1].response.output[0].arguments == call.arguments, streamed[-1]


def maps_errors():
    try:
        create(model="gpt")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("a model that does not exist responded")


def gets_an_error_event_for_a_cut_stream():
    set_fault("mid-stream-cut")
    kinds = []
    try:
        for event in create(stream=True):
            kinds.append(event.type)
    except openai.APIError as error:
        assert error.code == "bad_upstream", error
    else:
        raise AssertionError("a truncated response looked complete")
    finally:
        set_fault(None)
    assert "response.output_text.delta" in kinds and "response.completed" not in kinds, kinds


def transcribes():
    audio = ("speech.wav", b"RIFF" + bytes(50_000), "audio/wav")
    response = client.audio.transcriptions.create(model="sim", file=audio)
    assert response.text and response.usage.input_tokens == 49, response
    plain = client.audio.transcriptions.create(model="sim", file=audio, response_format="text")
    assert plain.strip() == response.text, plain


def speaks():
    text = "four words are these"
    with client.audio.speech.with_streaming_response.create(
        model="sim", voice="alloy", input=text, response_format="wav"
    ) as response:
        assert response.headers["content-type"] == "audio/wav"
        audio = b"".join(response.iter_bytes())
    assert audio[:4] == b"RIFF" and len(audio) == 44 + 3_200 * (len(text) // 4), len(audio)


def disconnects_mid_stream():
    stream = create(stream=True, max_output_tokens=20000, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()


for step in [
    responds,
    streams,
    calls_functions,
    maps_errors,
    gets_an_error_event_for_a_cut_stream,
    transcribes,
    speaks,
    disconnects_mid_stream,
]:
    step()
    print(step.__name__)
print("all as expected")
