"""Uses receipt handles after their visibility timeout with boto3, and checks when messages become dead letters.

Argument: the server's URL. Credentials come from the environment.
"""

import json
import time

from sqs_client import arn, attributes, counts, invalid, make, raises, receive, send, sqs, until


def change(queue, handle, timeout):
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=timeout)


def delete(queue, handle):
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle)


def receive_one(queue, **more):
    [message] = receive(queue, WaitTimeSeconds=20, **more)
    return message["ReceiptHandle"]


def receive_expired(queue):
    """Receives a message; returns its handle once the message is visible again."""
    handle = receive_one(queue, MaxNumberOfMessages=1, VisibilityTimeout=0)
    until(lambda: counts(queue) == (1, 0, 0))
    return handle


def redrive(name, receives):
    return json.dumps({"deadLetterTargetArn": arn(name), "maxReceiveCount": receives})


def leases_a_visible_message_again_and_deletes_it():
    queue = make("late")
    send(queue, "x")
    late = receive_expired(queue)
    change(queue, late, 600)
    assert counts(queue) == (0, 1, 0) and receive(queue, WaitTimeSeconds=0) == []
    for _ in range(2):
        change(queue, late, 0)
        assert counts(queue) == (1, 0, 0), "terminating a timeout twice changes nothing"
    entry = {"Id": "a", "ReceiptHandle": late}
    done = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=[{**entry, "VisibilityTimeout": 600}])
    assert [one["Id"] for one in done["Successful"]] == ["a"] and counts(queue) == (0, 1, 0), done
    change(queue, late, 0)
    [message] = receive(queue, AttributeNames=["ApproximateReceiveCount"], VisibilityTimeout=0)
    assert message["Attributes"]["ApproximateReceiveCount"] == "2", message
    until(lambda: counts(queue) == (1, 0, 0))
    for _ in range(2):
        delete(queue, message["ReceiptHandle"])
        assert counts(queue) == (0, 0, 0)
    gone = "Message does not exist or is not available for visibility timeout change."
    invalid(lambda: change(queue, late, 5), gone)
    invalid(lambda: change(queue, message["ReceiptHandle"], 0), gone)


def ignores_an_older_handle_of_a_message_in_flight():
    queue = make("older")
    send(queue, "x")
    older = receive_expired(queue)
    newer = receive_one(queue, VisibilityTimeout=600)
    entry = {"Id": "a", "ReceiptHandle": older}
    acts = [
        lambda: change(queue, older, 0), lambda: change(queue, older, 1), lambda: delete(queue, older),
        lambda: sqs.change_message_visibility_batch(QueueUrl=queue, Entries=[{**entry, "VisibilityTimeout": 0}]),
        lambda: sqs.delete_message_batch(QueueUrl=queue, Entries=[entry]),
    ]
    for act in acts:
        done = act()
        assert done is None or [one["Id"] for one in done["Successful"]] == ["a"], done
        assert counts(queue) == (0, 1, 0)
    # A timeout of a second would have ended.
    assert receive(queue, WaitTimeSeconds=2) == []
    delete(queue, newer)
    assert counts(queue) == (0, 0, 0)


def rejects_forged_handles_and_those_of_another_queue():
    queue, other = make("mine"), make("other")
    send(other, "x")
    foreign = receive_one(other)
    for handle in ["forged", foreign[:-1] + ("A" if foreign[-1] != "A" else "E"), foreign]:
        raises("ReceiptHandleIsInvalid", lambda: change(queue, handle, 5), "ReceiptHandleIsInvalid")
        raises("ReceiptHandleIsInvalid", lambda: delete(queue, handle), "ReceiptHandleIsInvalid")
        done = sqs.delete_message_batch(QueueUrl=queue, Entries=[{"Id": "a", "ReceiptHandle": handle}])
        assert [failed["Code"] for failed in done["Failed"]] == ["ReceiptHandleIsInvalid"], done
    assert counts(other) == (0, 1, 0)


def makes_a_message_receivable_at_once():
    queue = make("at-once")
    send(queue, "x")
    send(queue, "another group", MessageGroupId="another")
    receive_one(queue, MaxNumberOfMessages=1)
    for number in range(500):
        found = receive(queue, MaxNumberOfMessages=1, WaitTimeSeconds=0)
        assert len(found) == 1, f"receive {number} was empty"
        change(queue, found[0]["ReceiptHandle"], 0)


def lets_a_late_delete_win_against_the_dead_letter_queue():
    dead = make("dead")
    source = make("source", RedrivePolicy=redrive("dead", 1))
    send(source, "late")
    late = receive_expired(source)
    delete(source, late)
    assert receive(source, WaitTimeSeconds=0) == [] and counts(source) == counts(dead) == (0, 0, 0)
    send(source, "extended")
    late = receive_expired(source)
    change(source, late, 600)
    assert receive(source, WaitTimeSeconds=0) == [] and counts(dead) == (0, 0, 0)
    delete(source, late)
    # The next receive moves a message that was neither deleted nor extended.
    send(source, "dead")
    late = receive_expired(source)
    assert receive(source, WaitTimeSeconds=0) == []
    [letter] = receive(dead, WaitTimeSeconds=20)
    assert letter["Body"] == "dead" and counts(source) == (0, 0, 0)
    delete(source, late)
    assert counts(dead) == (0, 1, 0), "a late delete reached the dead-letter queue"
    delete(dead, letter["ReceiptHandle"])
    # Terminating the timeout of the last allowed receive moves it at once.
    send(source, "terminated")
    change(source, receive_one(source), 0)
    until(lambda: counts(dead) == (1, 0, 0))


def accepts_a_queue_as_its_own_dead_letter_queue():
    queue = make("own")
    policy = redrive("own", 1)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})
    assert json.loads(attributes(queue, "RedrivePolicy")["RedrivePolicy"]) == json.loads(policy)
    sent = send(queue, "x")
    for count in range(1, 5):
        [message] = receive(queue, WaitTimeSeconds=20, VisibilityTimeout=0, AttributeNames=["All"])
        assert message["MessageId"] == sent["MessageId"], message
        assert message["Attributes"]["ApproximateReceiveCount"] == str(count), message
        assert "DeadLetterQueueSourceArn" not in message["Attributes"], message
    sqs.start_message_move_task(SourceArn=arn("own"))
    tasks = lambda: sqs.list_message_move_tasks(SourceArn=arn("own"))["Results"]
    until(lambda: tasks()[0]["Status"] != "RUNNING")
    until(lambda: counts(queue) == (1, 0, 0))
    delete(queue, message["ReceiptHandle"])
    sqs.delete_queue(QueueUrl=queue)


STEPS = [
    leases_a_visible_message_again_and_deletes_it, ignores_an_older_handle_of_a_message_in_flight,
    rejects_forged_handles_and_those_of_another_queue, makes_a_message_receivable_at_once,
    lets_a_late_delete_win_against_the_dead_letter_queue, accepts_a_queue_as_its_own_dead_letter_queue,
]

if __name__ == "__main__":
    for step in STEPS:
        began = time.monotonic()
        step()
        print(f"{step.__name__}: {time.monotonic() - began:.1f} s")
    print("all as expected")
