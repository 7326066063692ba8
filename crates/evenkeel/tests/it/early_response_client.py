"""httpx (httpx2, which the OpenAI and Anthropic clients use) sends its whole request before it reads: the response to an upload that the server does not read must arrive."""

import sys

import httpx2

URL = sys.argv[1]
KEY = {"authorization": "Bearer wrong"}


def chunks(mib):
    for _ in range(mib):
        yield b"x" * 1024 * 1024


for mib in (8, 30):
    for content in (b"x" * mib * 1024 * 1024, chunks(mib)):
        with httpx2.Client(trust_env=False, timeout=60) as client:
            response = client.post(URL, headers=KEY, content=content)
            assert response.status_code == 401, response
            assert response.json()["error"]["code"] == "invalid_api_key", response.text
            # The client must open another connection for the next request.
            assert client.post(URL, headers=KEY, content=b"{}").status_code == 401

print("all as expected")
