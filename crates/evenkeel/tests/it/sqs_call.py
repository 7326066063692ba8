"""Calls one operation with boto3 and prints the response, or the code of the error, as JSON.

Arguments: the gateway's URL, the operation, and parameters as `Name=value`. Credentials come from the environment.
"""

import json
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

url, operation, *parameters = sys.argv[1:]
config = Config(retries={"total_max_attempts": 1}, read_timeout=60)
sqs = boto3.client("sqs", endpoint_url=url, region_name="us-east-1", config=config)
LISTS = ["AttributeNames", "AWSAccountIds", "Actions"]


def value_of(name, text):
    if name in LISTS:
        return text.split(",")
    if text.startswith("{"):
        return json.loads(text)
    return int(text) if text.isdigit() and name != "QueueOwnerAWSAccountId" else text


parameters = dict(parameter.split("=", 1) for parameter in parameters)
try:
    response = getattr(sqs, operation)(**{name: value_of(name, text) for name, text in parameters.items()})
    response.pop("ResponseMetadata")
except ClientError as error:
    response = {"error": error.response["Error"]["Code"]}
print(json.dumps(response))
