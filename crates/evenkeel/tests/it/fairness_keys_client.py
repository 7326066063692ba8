"""Sends for customers with boto3 as one tenant and receives as another, from shared queues.

Arguments: the gateway's URL, then access key id and secret of the producer and of the worker fleet.
"""

import sys

import boto3
from botocore.config import Config

url, *credentials = sys.argv[1:]


def client(key, secret):
    config = Config(retries={"total_max_attempts": 1})
    return boto3.client(
        "sqs", endpoint_url=url, region_name="us-east-1", config=config,
        aws_access_key_id=key, aws_secret_access_key=secret,
    )


producer = client(*credentials[:2])
fleet = client(*credentials[2:])


def receive(queue, count):
    messages = []
    while len(messages) < count:
        received = fleet.receive_message(
            QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=20, MessageSystemAttributeNames=["All"]
        )
        assert received.get("Messages"), f"{len(messages)} of {count}"
        for message in received["Messages"]:
            fleet.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            messages.append(message)
    return messages


groups = [f"customer-{n}" for n in range(10)]
# CreateQueue of a shared name returns the shared queue, as Celery expects.
queue = producer.create_queue(QueueName="jobs")["QueueUrl"]
assert fleet.get_queue_url(QueueName="jobs")["QueueUrl"] == queue
for group in groups:
    producer.send_message(QueueUrl=queue, MessageBody=group, MessageGroupId=group)
producer.send_message(QueueUrl=queue, MessageBody="none")
received = {message["Body"]: message["Attributes"] for message in receive(queue, 11)}
for group in groups:
    assert received[group]["MessageGroupId"] == group, received[group]
    assert received[group]["SenderId"] == "producer", received[group]
assert "MessageGroupId" not in received["none"], received["none"]

# Each sender's messages of a group stay in order, and nobody's deduplication id suppresses another's message.
fifo = producer.get_queue_url(QueueName="jobs.fifo")["QueueUrl"]
for number in range(5):
    for name, sender in [("producer", producer), ("fleet", fleet)]:
        sender.send_message(
            QueueUrl=fifo, MessageBody=f"{name} {number}", MessageGroupId="customer-1",
            MessageDeduplicationId=str(number),
        )
received = receive(fifo, 10)
assert all(message["Attributes"]["MessageGroupId"] == "customer-1" for message in received), received
for name in ["producer", "fleet"]:
    bodies = [message["Body"] for message in received if message["Attributes"]["SenderId"] == name]
    assert bodies == [f"{name} {number}" for number in range(5)], received
print("all as expected")
