"""Runs a Dramatiq worker with the server as its SQS broker.

Argument: the server's URL. Credentials come from the environment.
"""

import sys
import time

import dramatiq
from dramatiq.middleware import Retries
from dramatiq_sqs import SQSBroker

broker = SQSBroker(
    namespace="dramatiq", dead_letter=True, tags={"team": "a"}, middleware=[Retries(min_backoff=100, max_backoff=100)],
    endpoint_url=sys.argv[1], region_name="us-east-1")
dramatiq.set_broker(broker)
done, attempts = [], []


@dramatiq.actor(queue_name="jobs")
def add(a, b):
    done.append(a + b)


@dramatiq.actor(queue_name="jobs")
def fail_twice():
    attempts.append(time.monotonic())
    if len(attempts) < 3:
        raise ValueError("again")


@dramatiq.actor(queue_name="jobs", max_retries=0)
def fail():
    raise ValueError("always")


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition(), f"not within {seconds} s: {done} {attempts}"


def count(queue, kind=""):
    queue.reload()
    return int(queue.attributes[f"ApproximateNumberOfMessages{kind}"])


worker = dramatiq.Worker(broker)
worker.start()
for number in range(20):
    add.send(number, number)
until(lambda: sorted(done) == [2 * number for number in range(20)])
began = time.monotonic()
add.send_with_options(args=(50, 50), delay=1000)
until(lambda: 100 in done)
assert time.monotonic() - began > 0.9
fail_twice.send()
until(lambda: len(attempts) == 3)
fail.send()
queue, dead = broker.queues["jobs"], broker.dead_letter_queues["jobs"]
until(lambda: count(dead) == 1)
until(lambda: [count(queue, kind) for kind in ("", "NotVisible", "Delayed")] == [0, 0, 0])
worker.stop()
print("all as expected")
