"""Calls operations by presigned URLs, and checks that expired or changed ones are rejected.

Arguments: the server's URL, and two that are not used. Credentials come from the environment; boto3 uses the query protocol.
"""

import datetime
import sys
import urllib.error
import urllib.parse
import urllib.request

import boto3
import botocore.auth

url = sys.argv[1]
sqs = boto3.client("sqs", endpoint_url=url, region_name="us-east-1")
now = botocore.auth.datetime


def presign(operation, expires=3600, **parameters):
    return sqs.generate_presigned_url(operation, Params=parameters, ExpiresIn=expires, HttpMethod="GET")


def get(address, **more):
    try:
        with urllib.request.urlopen(urllib.request.Request(address, **more)) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def shift_clock(**delta):
    class Shifted(now.datetime):
        @classmethod
        def utcnow(cls):
            return now.datetime.utcnow() + datetime.timedelta(**delta)

    class Module:
        datetime = Shifted
        timedelta = now.timedelta

    botocore.auth.datetime = Module


queue = sqs.create_queue(QueueName="presigned")["QueueUrl"]
body = "a b+c&d=ä <\r\n>"
status, text = get(presign("send_message", QueueUrl=queue, MessageBody=body))
assert status == 200 and "<SendMessageResult>" in text, (status, text)
[message] = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
assert message["Body"] == body, message
listed = presign("list_queues", QueueNamePrefix="presigned")
assert get(listed)[1].count("<QueueUrl>") == 1, get(listed)
for changed in [
    listed.replace("QueueNamePrefix=presigned", "QueueNamePrefix=other"),
    listed.replace("X-Amz-Expires=3600", "X-Amz-Expires=7200"),
    listed.replace("X-Amz-Signature=", "X-Amz-Signature=0"),
]:
    assert changed != listed and "<Code>SignatureDoesNotMatch</Code>" in get(changed)[1], (changed, get(changed))
# The signature covers the method, and without a signature nothing is served.
assert "<Code>MissingAuthenticationToken</Code>" in get(listed, method="POST", data=b"")[1]
assert "<Code>MissingAuthenticationToken</Code>" in get(f"{url}/?Action=ListQueues")[1]
for expires in (0, 604801):
    assert "<Code>IncompleteSignature</Code>" in get(listed.replace("Expires=3600", f"Expires={expires}"))[1]
shift_clock(minutes=-61)
assert "<Code>RequestTimeTooSkewed</Code>" in get(presign("list_queues"))[1]
shift_clock(minutes=-59)
assert get(presign("list_queues"))[0] == 200
shift_clock(minutes=16)
assert "<Code>RequestTimeTooSkewed</Code>" in get(presign("list_queues"))[1]
print("all as expected")
