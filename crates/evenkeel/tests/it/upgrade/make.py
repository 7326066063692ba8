"""Writes `before-owners.tar.gz`: the data directory of a gateway of a version whose queues have no owners.

Argument: the `evenkeel` binary of that version. Run it with the clock in the far future, so that no message expires:

    FAKETIME_DONT_FAKE_MONOTONIC=1 faketime -f '@2096-01-01 00:00:00' target/python/bin/python make.py OLD_EVENKEEL
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile

import boto3
from botocore.config import Config

binary = os.path.abspath(sys.argv[1])
here = os.path.dirname(os.path.abspath(__file__))
directory = tempfile.mkdtemp()
kept = {"tenants": {}, "receipts": {}, "ids": {}}


def pause(seconds):
    # `time.sleep` does not work with a fake clock.
    select.select([], [], [], seconds)


def evenkeel(*arguments):
    return subprocess.run([binary, *arguments], cwd=directory, check=True, capture_output=True, text=True).stdout


for name in ["acme", "beta"]:
    key = evenkeel("tenant", "add", name).strip()
    pair = [line.split("=", 1)[1] for line in evenkeel("tenant", "sqs-key", name).split()]
    kept["tenants"][name] = {"key": key, "access_key_id": pair[0], "secret_access_key": pair[1]}

log = open(os.path.join(directory, "log"), "w")
server = subprocess.Popen([binary, "serve", "--listen", "127.0.0.1:0"], cwd=directory, stderr=log)
lock = os.path.join(directory, "evenkeel-data", "lock")
while not (os.path.exists(lock) and open(lock).read().endswith("\n")):
    pause(0.05)
url = open(lock).read().strip()


def client(name):
    tenant = kept["tenants"][name]
    return boto3.client("sqs", endpoint_url=url, region_name="us-east-1", config=Config(retries={"max_attempts": 1}),
                        aws_access_key_id=tenant["access_key_id"], aws_secret_access_key=tenant["secret_access_key"])


acme, beta = client("acme"), client("beta")
LONG = {"VisibilityTimeout": "43200", "MessageRetentionPeriod": "1209600"}


def make(name, **attributes):
    return acme.create_queue(QueueName=name, Attributes={**LONG, **attributes})["QueueUrl"]


def lease(queue, count):
    found = acme.receive_message(QueueUrl=queue, MaxNumberOfMessages=count, WaitTimeSeconds=5)["Messages"]
    assert len(found) == count, found
    return found


dead = make("dead")
redrive = lambda count: json.dumps({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead", "maxReceiveCount": count})
jobs = make("jobs", RedrivePolicy=redrive(5))
poison = make("poison", RedrivePolicy=redrive(1))
fifo = make("orders.fifo", FifoQueue="true", ContentBasedDeduplication="true")
policied = make("policied")
acme.add_permission(QueueUrl=policied, Label="partner", AWSAccountIds=["111111111111"], Actions=["SendMessage"])

acme.send_message(QueueUrl=jobs, MessageBody="leased 1", MessageGroupId="acme/mail")
acme.send_message(QueueUrl=jobs, MessageBody="leased 2", MessageGroupId="beta")
kept["receipts"]["jobs"] = {message["Body"]: message["ReceiptHandle"] for message in lease(jobs, 2)}
kept["ids"]["ready"] = acme.send_message(QueueUrl=jobs, MessageBody="ready", MessageGroupId="acme")["MessageId"]
beta.send_message(QueueUrl=jobs, MessageBody="of beta", MessageGroupId="beta")

kept["ids"]["poison"] = acme.send_message(QueueUrl=poison, MessageBody="poison")["MessageId"]
acme.receive_message(QueueUrl=poison, VisibilityTimeout=0, WaitTimeSeconds=5)
attributes = lambda queue: acme.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
while attributes(dead)["ApproximateNumberOfMessages"] != "1":
    pause(0.05)

for number in range(3):
    acme.send_message(QueueUrl=fifo, MessageBody=f"order {number}", MessageGroupId="customer")
kept["receipts"]["orders.fifo"] = lease(fifo, 1)[0]["ReceiptHandle"]
acme.send_message(QueueUrl=policied, MessageBody="behind a policy")

# Jobs of a webhook that never responds are leased by the gateway itself.
webhook = socket.create_server(("127.0.0.1", 0))
port = webhook.getsockname()[1]
evenkeel("queue", "create", "hooks", f'dispatch={{"target": "http://127.0.0.1:{port}/", "concurrency": 1}}',
         "lease_ms=43200000", "retention_ms=1209600000")
for body in ["first", "second"]:
    evenkeel("queue", "send", "hooks", "--key", "acme", body)
webhook.accept()
# Leases are written without delay, but nobody waits for them.
pause(3)
server.send_signal(signal.SIGKILL)
server.wait()

with open(os.path.join(directory, "evenkeel-data", "clients.json"), "w") as file:
    json.dump(kept, file, indent=2)
os.remove(lock)
with tarfile.open(os.path.join(here, "before-owners.tar.gz"), "w:gz", compresslevel=9) as archive:
    archive.add(os.path.join(directory, "evenkeel-data"), "evenkeel-data")
print(directory, os.path.getsize(os.path.join(here, "before-owners.tar.gz")))
