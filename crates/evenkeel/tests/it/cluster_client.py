"""Sends statements to a full node with unmodified HTTP clients, which follow its redirect to a peer.

Argument: the URL of the full node.
"""

import json
import sys
import urllib.error
import urllib.request

import httpx2 as httpx

url = sys.argv[1]
body = {"sql": "insert into marks values ($1) returning node", "params": ["python"]}

# httpx repeats the method and the body.
reply = httpx.post(f"{url}/execute", json=body, follow_redirects=True, timeout=30)
assert reply.status_code == 200, reply.text
assert [hop.status_code for hop in reply.history] == [307], reply.history
assert reply.json()["rows"] == [["node-b"]], reply.text

# It forwards instead if the client asks for it.
reply = httpx.post(f"{url}/execute", json=body, headers={"x-evenkeel-redirect": "forward"}, timeout=30)
assert (reply.status_code, reply.history) == (200, []), reply.text
assert reply.json()["rows"] == [["node-b"]], reply.text

# urllib does not follow the redirect of a POST, but reads the URL from the body.
data = json.dumps(body).encode()
try:
    urllib.request.urlopen(urllib.request.Request(f"{url}/execute", data), timeout=30)
    raise AssertionError("urllib followed the redirect of a POST")
except urllib.error.HTTPError as error:
    assert error.code == 307, error
    redirect = json.load(error)["redirect"]
    assert redirect["url"] == error.headers["location"], redirect
with urllib.request.urlopen(urllib.request.Request(redirect["url"], data), timeout=30) as reply:
    assert json.load(reply)["rows"] == [["node-b"]]

print("all as expected")
