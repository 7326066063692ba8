"""Signs requests with valid and invalid credentials, and checks the errors.

Arguments: the server's URL, and three pairs of access key id and secret: of an active tenant, of a disabled one,
and of one with a rate limit of one request per minute.
"""

import datetime
import sys
import types

import boto3
import botocore.auth
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

url, key, secret, off_key, off_secret, slow_key, slow_secret = sys.argv[1:]

def client(key=key, secret=secret, region="us-east-1", **config):
    return boto3.client(
        "sqs", endpoint_url=url, region_name=region, aws_access_key_id=key, aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


def rejected(code, status, client, contains=""):
    try:
        client.list_queues()
    except ClientError as error:
        found = (error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"])
        hint = error.response["ResponseMetadata"]["HTTPHeaders"].get("x-evenkeel-hint", "")
        assert found == (code, status) and contains in hint, (found, error, hint)
        return
    raise AssertionError(f"no {code}")


def shift_clock(minutes):
    shifted = datetime.datetime.utcnow() + datetime.timedelta(minutes=minutes)
    if hasattr(botocore.auth, "get_current_datetime"):
        botocore.auth.get_current_datetime = lambda *args, **more: shifted
    else:
        botocore.auth.datetime = types.SimpleNamespace(datetime=types.SimpleNamespace(utcnow=lambda: shifted))


client().list_queues()
client(region="eu-central-1").list_queues()
rejected("SignatureDoesNotMatch", 403, client(secret="wrong"))
rejected("SignatureDoesNotMatch", 403, client(secret=off_secret))
for unknown in ["AKIAIOSFODNN7EXAMPLE", key + "0", key.rsplit(".", 1)[0], "nobody." + key.rsplit(".", 1)[1]]:
    rejected("InvalidClientTokenId", 403, client(key=unknown), "evenkeel tenant sqs-key")
rejected("MissingAuthenticationToken", 403, client(signature_version=UNSIGNED), "evenkeel tenant sqs-key")
rejected("AccessDenied", 403, client(off_key, off_secret))
client(slow_key, slow_secret).list_queues()
rejected("RequestThrottled", 403, client(slow_key, slow_secret))
for minutes in (-16, 16):
    shift_clock(minutes)
    rejected("RequestTimeTooSkewed", 403, client())
for minutes in (-14, 14):
    shift_clock(minutes)
    client().list_queues()
print("all as expected")
