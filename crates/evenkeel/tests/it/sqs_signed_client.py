"""Lists queues with boto3, signed with the credentials in the environment.

Arguments: the gateway's URL, and optionally the code of the error that it must answer with.
"""

import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

url, *expected = sys.argv[1:]
config = Config(retries={"total_max_attempts": 1})
try:
    boto3.client("sqs", endpoint_url=url, region_name="us-east-1", config=config).list_queues()
    found = []
except ClientError as error:
    found = [error.response["Error"]["Code"]]
assert found == expected, (found, expected)
print("all as expected")
