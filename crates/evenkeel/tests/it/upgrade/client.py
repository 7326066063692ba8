"""Uses the queues of an upgraded gateway with the credentials, URLs, ARNs and receipt handles from before, with boto3.

Arguments: the gateway's URL, `clients.json`, and the account number of the tenant `acme`.
"""

import json
import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

url, file, account = sys.argv[1:]
kept = json.load(open(file))
NONE = "AWS.SimpleQueueService.NonExistentQueue"


def client(name):
    tenant = kept["tenants"][name]
    config = Config(retries={"max_attempts": 1}, read_timeout=60)
    return boto3.client("sqs", endpoint_url=url, region_name="us-east-1", config=config,
                        aws_access_key_id=tenant["access_key_id"], aws_secret_access_key=tenant["secret_access_key"])


acme, beta = client("acme"), client("beta")


def old(name):
    """Returns the URL that clients have kept; the old gateway had another port."""
    return f"http://127.0.0.1:7070/000000000000/{name}"


def arn(name):
    return f"arn:aws:sqs:us-east-1:000000000000:{name}"


def attributes(queue, sqs=acme):
    return sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]


def counts(queue):
    found = attributes(queue)
    return found["ApproximateNumberOfMessages"], found["ApproximateNumberOfMessagesNotVisible"]


def take(sqs, queue):
    """Receives and deletes a message."""
    found = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"][0]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=found["ReceiptHandle"])
    return found


NAMES = ["dead", "hooks", "jobs", "orders.fifo", "poison", "policied"]
for sqs in [acme, beta]:
    assert sqs.list_queues()["QueueUrls"] == [f"{url}/000000000000/{name}" for name in NAMES], sqs.list_queues()
    # Celery creates its queues at every start.
    assert sqs.create_queue(QueueName="jobs")["QueueUrl"] == f"{url}/000000000000/jobs"
    assert sqs.get_queue_url(QueueName="jobs", QueueOwnerAWSAccountId="000000000000")["QueueUrl"].endswith("/000000000000/jobs")

assert counts(old("jobs")) == ("2", "2"), counts(old("jobs"))
receipts = kept["receipts"]["jobs"]
acme.delete_message(QueueUrl=old("jobs"), ReceiptHandle=receipts["leased 1"])
beta.change_message_visibility(QueueUrl=old("jobs"), ReceiptHandle=receipts["leased 2"], VisibilityTimeout=0)
found = {take(sqs, old("jobs"))["Body"] for sqs in [acme, beta, beta]}
assert found == {"ready", "of beta", "leased 2"} and counts(old("jobs")) == ("0", "0"), found

assert json.loads(attributes(old("poison"))["RedrivePolicy"]) == {"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1}
assert attributes(old("dead"))["QueueArn"] == arn("dead")
assert beta.list_dead_letter_source_queues(QueueUrl=old("dead"))["queueUrls"] == [
    f"{url}/000000000000/{name}" for name in ["jobs", "poison"]]
acme.start_message_move_task(SourceArn=arn("dead"))
returned = take(acme, old("poison"))
assert returned["MessageId"] == kept["ids"]["poison"] and returned["Body"] == "poison", returned

# A policy that the old version stored did not limit anybody, and still does not.
policy = json.loads(attributes(old("policied"), beta)["Policy"])
assert policy["Statement"][0]["Principal"] == {"AWS": "arn:aws:iam::111111111111:root"}, policy
beta.send_message(QueueUrl=old("policied"), MessageBody="second")
assert {take(beta, old("policied"))["Body"] for _ in range(2)} == {"behind a policy", "second"}

assert counts(old("orders.fifo")) == ("2", "1"), counts(old("orders.fifo"))
assert "Messages" not in beta.receive_message(QueueUrl=old("orders.fifo"), WaitTimeSeconds=0)
acme.delete_message(QueueUrl=old("orders.fifo"), ReceiptHandle=kept["receipts"]["orders.fifo"])
assert [take(beta, old("orders.fifo"))["Body"] for _ in range(2)] == ["order 1", "order 2"]

# Shared queues are changed by all tenants as before.
beta.set_queue_attributes(QueueUrl=old("jobs"), Attributes={"DelaySeconds": "0"})
beta.tag_queue(QueueUrl=old("jobs"), Tags={"team": "b"})
assert acme.list_queue_tags(QueueUrl=old("jobs"))["Tags"] == {"team": "b"}

# A new queue has an owner.
fresh = acme.create_queue(QueueName="fresh")["QueueUrl"]
assert fresh == f"{url}/{account}/fresh", fresh
try:
    beta.send_message(QueueUrl=fresh, MessageBody="x")
    raise AssertionError("another tenant's queue was used")
except ClientError as error:
    assert error.response["Error"]["Code"] == NONE, error
acme.send_message(QueueUrl=old("jobs"), MessageBody="kept by assign")
print("all as expected")
