"""Signs as a tenant, and in every way that is wrong.

Its arguments are the gateway's URL, and an access key id and its secret: of a tenant, of a disabled one,
and of one that may ask once a minute.
"""

import datetime
import sys

import boto3
import botocore.auth
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

url, key, secret, off_key, off_secret, slow_key, slow_secret = sys.argv[1:]
now = botocore.auth.get_current_datetime


def client(key=key, secret=secret, region="us-east-1", **config):
    return boto3.client(
        "sqs", endpoint_url=url, region_name=region, aws_access_key_id=key, aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


def refused(code, status, who, says=""):
    try:
        who.list_queues()
    except ClientError as error:
        found = (error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"])
        assert found == (code, status) and says in str(error), (found, error)
        return
    raise AssertionError(f"no {code}")


def at(minutes):
    botocore.auth.get_current_datetime = lambda *args, **more: now(*args, **more) + datetime.timedelta(minutes=minutes)


client().list_queues()
client(region="eu-central-1").list_queues()
refused("SignatureDoesNotMatch", 403, client(secret="wrong"))
refused("SignatureDoesNotMatch", 403, client(secret=off_secret))
for unknown in ["AKIAIOSFODNN7EXAMPLE", key + "0", key.rsplit(".", 1)[0], "nobody." + key.rsplit(".", 1)[1]]:
    refused("InvalidClientTokenId", 403, client(key=unknown), "evenkeel tenant sqs-key")
refused("MissingAuthenticationToken", 403, client(signature_version=UNSIGNED), "evenkeel tenant sqs-key")
refused("AccessDenied", 403, client(off_key, off_secret))
client(slow_key, slow_secret).list_queues()
refused("RequestThrottled", 403, client(slow_key, slow_secret))
for minutes in (-16, 16):
    at(minutes)
    refused("RequestTimeTooSkewed", 403, client())
for minutes in (-14, 14):
    at(minutes)
    client().list_queues()
print("all as expected")
