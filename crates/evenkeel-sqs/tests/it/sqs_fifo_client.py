"""Uses FIFO queues with boto3, and checks the errors.

Argument: the server's URL. Credentials come from the environment.
"""

import hashlib
import time

from sqs_client import arn, attributes, counts, invalid, make, raises, receive, send, sqs, until

ALL = ["All"]


def fifo(name, **more):
    return make(f"{name}.fifo", FifoQueue="true", **more)


def put(queue, body, group="g", **more):
    return send(queue, body, MessageGroupId=group, **more)


def delete(queue, message):
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def change(queue, message, timeout):
    sqs.change_message_visibility(
        QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=timeout)


def bodies(messages):
    return [message["Body"] for message in messages]


def creates_by_name_and_attribute():
    queue = fifo("created", ContentBasedDeduplication="true")
    assert queue.endswith("/created.fifo"), queue
    found = attributes(queue)
    assert found["FifoQueue"] == "true" and found["ContentBasedDeduplication"] == "true", found
    assert found["DeduplicationScope"] == "queue" and found["FifoThroughputLimit"] == "perQueue", found
    assert fifo("created") == queue, "created again with the same attributes"
    raises("QueueAlreadyExists", lambda: fifo("created", ContentBasedDeduplication="false"), "QueueNameExists")
    invalid(lambda: make("orders", FifoQueue="true"), ".fifo suffix")
    invalid(lambda: make(".fifo", FifoQueue="true"), ".fifo suffix")
    invalid(lambda: make("x" * 76 + ".fifo", FifoQueue="true"), ".fifo suffix")
    make("x" * 75 + ".fifo", FifoQueue="true")
    invalid(lambda: make("orders.fifo"), "hyphens, or underscores")
    invalid(lambda: make("orders.fifo", FifoQueue="false"), "hyphens, or underscores")
    raises("InvalidAttributeName", lambda: make("orders", FifoQueue="false"))
    assert attributes(make("spelled.fifo", FifoQueue="True", ContentBasedDeduplication="TRUE"))["FifoQueue"] == "true"
    text = "You can specify the DeduplicationScope only when FifoQueue is set to true."
    raises("InvalidAttributeName", lambda: make("orders", DeduplicationScope="queue"), text=text)
    text = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    change = lambda: sqs.set_queue_attributes(QueueUrl=queue, Attributes={"FifoQueue": "false"})
    raises("InvalidAttributeValue", change, text=text)
    standard = make("standard")
    assert "FifoQueue" not in attributes(standard)
    for name, value in [("ContentBasedDeduplication", "true"), ("DeduplicationScope", "queue"), ("FifoQueue", "true")]:
        change = lambda: sqs.set_queue_attributes(QueueUrl=standard, Attributes={name: value})
        raises("InvalidAttributeName", change)
    for changed in [{"FifoQueue": "false"}, {"DeduplicationScope": "all"}, {"FifoThroughputLimit": "perMessageGroupId"}]:
        raises("InvalidAttributeValue", lambda: sqs.set_queue_attributes(QueueUrl=queue, Attributes=changed))
    both = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=both)
    assert both.items() <= attributes(queue).items()


def requires_a_group_and_a_deduplication_id():
    queue = fifo("requires")
    raises("MissingParameter", lambda: send(queue, "x", MessageDeduplicationId="a"), contains="MessageGroupId")
    invalid(lambda: put(queue, "x"), "ContentBasedDeduplication")
    invalid(lambda: put(queue, "x", MessageDeduplicationId="x" * 129), "1 to 128")
    invalid(lambda: put(queue, "x", MessageDeduplicationId="ä"), "1 to 128")
    invalid(lambda: put(queue, "x", MessageDeduplicationId="a", DelaySeconds=1), "not valid for this queue type")
    assert put(queue, "x", MessageDeduplicationId="a", DelaySeconds=0)["SequenceNumber"]
    standard = make("standard")
    invalid(lambda: send(standard, "x", MessageDeduplicationId="a"), "not valid for this queue type")
    assert "SequenceNumber" not in send(standard, "x")
    invalid(lambda: receive(standard, ReceiveRequestAttemptId="a"), "not valid for this queue type")
    assert bodies(receive(queue, ReceiveRequestAttemptId="a")) == ["x"]


def keeps_the_order_of_a_group():
    queue = fifo("ordered", ContentBasedDeduplication="true", VisibilityTimeout=2)
    numbers = [put(queue, f"a{n}", "a")["SequenceNumber"] for n in range(4)]
    assert numbers == sorted(numbers) and len(set(numbers)) == 4 and len(numbers[0]) == 20, numbers
    put(queue, "b0", "b")
    first = receive(queue, MaxNumberOfMessages=3, AttributeNames=ALL)
    assert bodies(first) == ["a0", "a1", "a2"], bodies(first)
    system = first[0]["Attributes"]
    assert system["SequenceNumber"] == numbers[0] and system["MessageGroupId"] == "a", system
    assert system["MessageDeduplicationId"] == hashlib.sha256(b"a0").hexdigest(), system
    other = receive(queue, WaitTimeSeconds=0)
    assert bodies(other) == ["b0"], "the rest of group a waits for its messages in flight"
    for message in [*other, first[0], first[1]]:
        delete(queue, message)
    # a2 is not deleted: it is delivered again, before a3.
    again = receive(queue, WaitTimeSeconds=20, MaxNumberOfMessages=1, VisibilityTimeout=30)
    assert bodies(again) == ["a2"], again
    change(queue, again[0], 0)
    again = receive(queue, WaitTimeSeconds=20)
    assert bodies(again) == ["a2", "a3"], again
    for message in again:
        delete(queue, message)
    assert counts(queue) == (0, 0, 0)


def fills_a_receive_from_one_group_before_the_next():
    queue = fifo("groups", ContentBasedDeduplication="true")
    for body in ["a0", "b0", "a1", "b1", "a2", "c0"]:
        put(queue, body, body[0])
    assert bodies(receive(queue)) == ["a0", "a1", "a2", "b0", "b1", "c0"]


def redelivers_a_returned_message_while_a_later_one_is_in_flight():
    queue = fifo("returned", ContentBasedDeduplication="true")
    for body in ["a0", "a1", "a2"]:
        put(queue, body, "a")
    put(queue, "b0", "b")
    first = receive(queue, MaxNumberOfMessages=2)
    assert bodies(first) == ["a0", "a1"], first
    change(queue, first[0], 0)
    assert bodies(receive(queue, MaxNumberOfMessages=1)) == ["b0"], "group b was not served yet"
    again = receive(queue)
    assert bodies(again) == ["a0"], "a2 waits for a1, which is in flight"
    delete(queue, again[0])
    assert receive(queue, WaitTimeSeconds=0) == []
    delete(queue, first[1])
    assert bodies(receive(queue)) == ["a2"]


def refuses_a_handle_whose_timeout_has_ended():
    queue = fifo("expired", ContentBasedDeduplication="true")
    put(queue, "x")
    [late] = receive(queue, VisibilityTimeout=0)
    until(lambda: counts(queue) == (1, 0, 0))
    entry = {"Id": "a", "ReceiptHandle": late["ReceiptHandle"]}

    def is_refused():
        expired = "The receipt handle has expired."
        invalid(lambda: delete(queue, late), expired)
        invalid(lambda: change(queue, late, 60), expired)
        invalid(lambda: change(queue, late, 0), expired)
        for done in [
            sqs.delete_message_batch(QueueUrl=queue, Entries=[entry]),
            sqs.change_message_visibility_batch(QueueUrl=queue, Entries=[{**entry, "VisibilityTimeout": 60}]),
        ]:
            [failed] = done["Failed"]
            assert failed["Code"] == "InvalidParameterValue" and failed["Message"].endswith(expired), failed

    is_refused()
    [again] = receive(queue, WaitTimeSeconds=0)
    is_refused()
    assert counts(queue) == (0, 1, 0)
    for _ in range(50):
        change(queue, again, 0)
        [again] = receive(queue, WaitTimeSeconds=0)
    for _ in range(2):
        delete(queue, again)
    assert counts(queue) == (0, 0, 0)


def fails_a_whole_batch_for_an_entry_without_its_ids():
    queue = fifo("whole")
    entry = lambda id, **more: {"Id": id, "MessageBody": id, **more}
    good = entry("good", MessageGroupId="g", MessageDeduplicationId="good")
    batch = lambda bad: sqs.send_message_batch(QueueUrl=queue, Entries=[good, bad])
    # `SendMessage` has another code for the same text.
    text = "The request must contain the parameter MessageGroupId."
    raises("InvalidParameterValue", lambda: batch(entry("bad", MessageDeduplicationId="bad")), text=text)
    invalid(lambda: batch(entry("bad", MessageGroupId="g")), "ContentBasedDeduplication")
    assert counts(queue) == (0, 0, 0), "a message of a failed batch was stored"
    assert len(batch(entry("better", MessageGroupId="g", MessageDeduplicationId="better"))["Successful"]) == 2


def forgets_deduplication_ids_when_purged():
    queue = fifo("purged", ContentBasedDeduplication="true")
    first = put(queue, "x")
    sqs.purge_queue(QueueUrl=queue)
    assert put(queue, "x")["MessageId"] != first["MessageId"]
    assert bodies(receive(queue)) == ["x"]


def deduplicates():
    queue = fifo("once", ContentBasedDeduplication="true")
    first = put(queue, "same")
    again = put(queue, "same", "another")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    other = put(queue, "same", MessageDeduplicationId="named")
    assert other["MessageId"] != first["MessageId"]
    assert put(queue, "else", MessageDeduplicationId="named")["MessageId"] == other["MessageId"]
    entries = [
        {"Id": str(n), "MessageBody": body, "MessageGroupId": "g"} for n, body in enumerate(["same", "new", "new"])
    ]
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    ids = [entry["MessageId"] for entry in sent["Successful"]]
    assert ids[0] == first["MessageId"] and ids[1] == ids[2], sent
    got = receive(queue)
    assert bodies(got) == ["same", "same", "new"], got
    for message in got:
        delete(queue, message)
    assert put(queue, "same")["MessageId"] == first["MessageId"], "a duplicate of a deleted message was stored"
    assert counts(queue) == (0, 0, 0)
    by_group = fifo("by-group", ContentBasedDeduplication="true", DeduplicationScope="messageGroup")
    assert put(by_group, "same", "a")["MessageId"] != put(by_group, "same", "b")["MessageId"]
    assert put(by_group, "same", "a")["MessageId"] == put(by_group, "again", "a", MessageDeduplicationId=hashlib.sha256(b"same").hexdigest())["MessageId"]


def moves_dead_letters_to_fifo_queues_only():
    dead, plain = fifo("dead"), make("plain-dead")
    policy = lambda name: '{"deadLetterTargetArn": "%s", "maxReceiveCount": 1}' % arn(name)
    invalid(lambda: fifo("source", RedrivePolicy=policy("plain-dead")), "same type of queue")
    invalid(lambda: make("source", RedrivePolicy=policy("dead.fifo")), "same type of queue")
    source = fifo("source", RedrivePolicy=policy("dead.fifo"), VisibilityTimeout=1)
    sent = [put(source, body, MessageDeduplicationId=body) for body in ["one", "two"]]
    assert bodies(receive(source, MaxNumberOfMessages=1)) == ["one"]
    # Once "one" is dead-lettered, the group continues.
    assert bodies(receive(source, WaitTimeSeconds=20, MaxNumberOfMessages=1)) == ["two"]
    got = receive(dead, WaitTimeSeconds=20, AttributeNames=ALL, VisibilityTimeout=0)
    assert bodies(got)[0] == "one" and got[0]["MessageId"] == sent[0]["MessageId"], got
    system = got[0]["Attributes"]
    assert system["DeadLetterQueueSourceArn"] == arn("source.fifo"), system
    assert (system["MessageGroupId"], system["MessageDeduplicationId"]) == ("g", sent[0]["MessageId"]), system
    until(lambda: (receive(source, WaitTimeSeconds=0), counts(dead)[0] == 2)[1])
    wrong = lambda: sqs.start_message_move_task(SourceArn=arn("dead.fifo"), DestinationArn=arn("plain-dead"))
    invalid(wrong, "The source queue and destination queue must be of the same queue type.")
    sqs.start_message_move_task(SourceArn=arn("dead.fifo"))
    until(lambda: counts(dead) == (0, 0, 0))
    assert bodies(receive(source, WaitTimeSeconds=20)) == ["one", "two"]


STEPS = [
    creates_by_name_and_attribute, requires_a_group_and_a_deduplication_id, keeps_the_order_of_a_group,
    fills_a_receive_from_one_group_before_the_next, redelivers_a_returned_message_while_a_later_one_is_in_flight,
    refuses_a_handle_whose_timeout_has_ended, fails_a_whole_batch_for_an_entry_without_its_ids,
    forgets_deduplication_ids_when_purged, deduplicates, moves_dead_letters_to_fifo_queues_only,
]

if __name__ == "__main__":
    for step in STEPS:
        began = time.monotonic()
        step()
        print(f"{step.__name__}: {time.monotonic() - began:.1f} s")
    print("all as expected")
