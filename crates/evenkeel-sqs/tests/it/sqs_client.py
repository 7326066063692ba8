"""Calls every operation with boto3, and checks the errors of each. Older versions of boto3 use the query protocol.

Arguments: the server's URL, and the expected sender of messages and its account number. Credentials come from the environment.
"""

import base64
import hashlib
import json
import sys
import threading
import time

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

url = sys.argv[1]
config = Config(retries={"max_attempts": 1}, read_timeout=60)
sqs = boto3.client("sqs", endpoint_url=url, region_name="us-east-1", config=config)
SENDER, ACCOUNT = sys.argv[2:] or ("open", "000000000000")
AWS = "AWS.SimpleQueueService."
IS_JSON = sqs.meta.service_model.metadata["protocol"] == "json"
NO_QUEUE = "The specified queue does not exist" + ("." if IS_JSON else " for this wsdl version.")
# Older versions of boto3 know only the older parameter.
SYSTEM_NAMES = "MessageSystemAttributeNames" if IS_JSON else "AttributeNames"


def md5(text):
    return hashlib.md5(text.encode()).hexdigest()


def arn(name):
    return f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}"


def make(name, **attributes):
    return sqs.create_queue(QueueName=name, Attributes={key: str(value) for key, value in attributes.items()})["QueueUrl"]


def attributes(queue, *names):
    return sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=list(names) or ["All"]).get("Attributes", {})


def counts(queue):
    found = attributes(queue)
    return tuple(int(found[f"ApproximateNumberOfMessages{kind}"]) for kind in ("", "NotVisible", "Delayed"))


def send(queue, body, **more):
    return sqs.send_message(QueueUrl=queue, MessageBody=body, **more)


def receive(queue, **more):
    request = {"MaxNumberOfMessages": 10, "WaitTimeSeconds": 2, **more}
    return sqs.receive_message(QueueUrl=queue, **request).get("Messages", [])


def until(condition, seconds=30):
    """Waits until the condition holds."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition(), f"not within {seconds} s"


def raises(code, act, kind=None, status=400, contains=None, text=None):
    try:
        act()
    except ClientError as error:
        found = error.response["Error"]
        assert found["Code"] == code, found
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == status, error.response
        assert error.response["ResponseMetadata"]["RequestId"], error.response
        assert found["Message"], found
        # Older versions of boto3 have no class for some errors.
        if kind is not None and (IS_JSON or hasattr(sqs.exceptions, kind)):
            assert isinstance(error, getattr(sqs.exceptions, kind)), type(error)
        if contains is not None:
            assert contains in found["Message"], found
        assert text in (None, found["Message"]), found
        return error
    raise AssertionError(f"no {code}")


def invalid(act, contains):
    raises("InvalidParameterValue", act, contains=contains)


def creates_finds_lists_and_deletes_queues():
    first = make("life-1", VisibilityTimeout=45)
    assert first == f"{url}/{ACCOUNT}/life-1", first
    assert make("life-1", VisibilityTimeout=45) == first and make("life-1") == first
    error = raises("QueueAlreadyExists", lambda: make("life-1", VisibilityTimeout=46), "QueueNameExists")
    assert error.response["Error"]["Message"].endswith("VisibilityTimeout"), error
    others = [make(f"life-{n}") for n in range(2, 6)]
    assert sqs.get_queue_url(QueueName="life-1")["QueueUrl"] == first
    assert sqs.get_queue_url(QueueName="life-1", QueueOwnerAWSAccountId=ACCOUNT)["QueueUrl"] == first
    raises(AWS + "NonExistentQueue", lambda: sqs.get_queue_url(QueueName="none"), "QueueDoesNotExist", text=NO_QUEUE)
    elsewhere = lambda: sqs.get_queue_url(QueueName="life-1", QueueOwnerAWSAccountId="111111111111")
    raises(AWS + "NonExistentQueue", elsewhere)
    assert sqs.list_queues(QueueNamePrefix="life-")["QueueUrls"] == [first, *others]
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="none-")
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix="life-", PaginationConfig={"PageSize": 2})
    assert [len(page["QueueUrls"]) for page in pages] == [2, 2, 1]
    invalid(lambda: sqs.list_queues(MaxResults=1001), "MaxResults")
    invalid(lambda: sqs.list_queues(MaxResults=2, NextToken="?"), "next token")
    # A queue is identified by the last segment of its URL, whatever the host.
    send("https://sqs.eu-west-1.amazonaws.com/1/life-1", "by another host")
    assert receive(first)[0]["Body"] == "by another host"
    for name in ["", "a b", "a.b", "ä", "x" * 81]:
        act = lambda: sqs.create_queue(QueueName=name)
        raises("InvalidParameterValue", act)
    make("x" * 80)
    for queue in [first, *others]:
        sqs.delete_queue(QueueUrl=queue)
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="life-")
    raises(AWS + "NonExistentQueue", lambda: sqs.delete_queue(QueueUrl=first), "QueueDoesNotExist")
    raises(AWS + "NonExistentQueue", lambda: send(first, "x"), "QueueDoesNotExist")
    assert make("life-1", VisibilityTimeout=1) == first, "the name of a deleted queue may be reused at once"


def gets_and_sets_attributes():
    before = int(time.time())
    queue = make("settings", DelaySeconds=3, MessageRetentionPeriod=60)
    found = attributes(queue)
    assert before - 1 <= int(found.pop("CreatedTimestamp")) <= before + 60
    assert before - 1 <= int(found.pop("LastModifiedTimestamp")) <= before + 60
    assert found == {
        "QueueArn": arn("settings"),
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "VisibilityTimeout": "30",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "60",
        "DelaySeconds": "3",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
    }, found
    assert attributes(queue, "VisibilityTimeout", "QueueArn").keys() == {"VisibilityTimeout", "QueueArn"}
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue)
    raises("InvalidAttributeName", lambda: attributes(queue, "Colour"), "InvalidAttributeName")
    change = lambda **new: sqs.set_queue_attributes(QueueUrl=queue, Attributes=new)
    changed = {
        "VisibilityTimeout": "43200", "MaximumMessageSize": "1024", "MessageRetentionPeriod": "1209600",
        "DelaySeconds": "900", "ReceiveMessageWaitTimeSeconds": "20", "KmsMasterKeyId": "alias/aws/sqs",
        "KmsDataKeyReusePeriodSeconds": "60", "Policy": '{"Version":"2012-10-17","Statement":[]}',
    }
    change(**changed)
    assert attributes(queue, *changed) == changed
    change(KmsMasterKeyId="", Policy="")
    assert attributes(queue, "KmsMasterKeyId", "Policy") == {}
    encryption = lambda: attributes(queue, "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled")
    both = lambda: change(KmsMasterKeyId="k", SqsManagedSseEnabled="true")
    raises("InvalidAttributeName", both, "InvalidAttributeName", text="You can use one type of server-side encryption "
           "(SSE) at one time. You can either enable KMS SSE or SQS SSE.")
    # One kind of encryption replaces the other; Python's spelling of booleans is accepted.
    change(SqsManagedSseEnabled="True", KmsDataKeyReusePeriodSeconds="300")
    assert encryption() == {"SqsManagedSseEnabled": "true"}, encryption()
    change(KmsMasterKeyId="k")
    assert encryption() == {
        "KmsMasterKeyId": "k", "KmsDataKeyReusePeriodSeconds": "300", "SqsManagedSseEnabled": "false"}, encryption()
    change(SqsManagedSseEnabled="TRUE")
    assert encryption() == {"SqsManagedSseEnabled": "true"}, encryption()
    change(SqsManagedSseEnabled="False")
    assert encryption() == {"SqsManagedSseEnabled": "false"}, encryption()
    for name, values in {
        "VisibilityTimeout": ["-1", "43201", "x", ""], "DelaySeconds": ["-1", "901"],
        "MessageRetentionPeriod": ["59", "1209601"], "ReceiveMessageWaitTimeSeconds": ["-1", "21"],
        "MaximumMessageSize": ["1023", "1048577"], "KmsDataKeyReusePeriodSeconds": ["59", "86401"],
        "SqsManagedSseEnabled": ["maybe"], "Policy": ["no JSON"],
    }.items():
        for value in values:
            text = f"Invalid value for the parameter {name}."
            error = raises("InvalidAttributeValue", lambda: change(**{name: value}), "InvalidAttributeValue", text=text)
            hint = error.response["ResponseMetadata"]["HTTPHeaders"]["x-evenkeel-hint"]
            assert hint.startswith("must be"), hint
    for name in ["QueueArn", "CreatedTimestamp", "ApproximateNumberOfMessages", "Colour"]:
        raises("InvalidAttributeName", lambda: change(**{name: "1"}), "InvalidAttributeName")
    raises("InvalidAttributeValue", lambda: make("never", VisibilityTimeout=-1))
    raises(AWS + "NonExistentQueue", lambda: sqs.get_queue_url(QueueName="never"))


def sends_receives_and_deletes():
    queue = make("plain")
    text = "hello <wörld> \t\r\n \"quoted\" \\ 😀 \ufffd \U00010000"
    sent = send(queue, text)
    assert sent["MD5OfMessageBody"] == md5(text) and "MD5OfMessageAttributes" not in sent, sent
    assert len(sent["MessageId"]) == 36
    assert counts(queue) == (1, 0, 0)
    before = int(time.time() * 1000)
    [message] = receive(queue, AttributeNames=["All"])
    assert (message["Body"], message["MD5OfBody"], message["MessageId"]) == (text, md5(text), sent["MessageId"])
    system = message["Attributes"]
    assert system.keys() == {
        "SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"
    }, system
    assert (system["SenderId"], system["ApproximateReceiveCount"]) == (SENDER, "1")
    assert abs(int(system["SentTimestamp"]) - before) < 60_000
    assert counts(queue) == (0, 1, 0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert counts(queue) == (0, 0, 0)
    # Deleting is idempotent: a client that got no response retries.
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    raises("ReceiptHandleIsInvalid", lambda: sqs.delete_message(QueueUrl=queue, ReceiptHandle="forged"),
           "ReceiptHandleIsInvalid")
    other = make("plain-other")
    send(other, "x")
    [foreign] = receive(other)
    act = lambda: sqs.delete_message(QueueUrl=queue, ReceiptHandle=foreign["ReceiptHandle"])
    raises("ReceiptHandleIsInvalid", act)
    raises("MissingParameter", lambda: sqs.delete_message(QueueUrl=queue, ReceiptHandle=""))


def rejects_invalid_messages():
    queue = make("bodies", MaximumMessageSize=1024)
    raises("MissingParameter", lambda: send(queue, ""))
    for bad in ["\0", "a\x0b", "\x1f", "\ufffe", "\uffff"]:
        raises("InvalidMessageContents", lambda: send(queue, bad), "InvalidMessageContents")
    send(queue, "x" * 1024)
    invalid(lambda: send(queue, "x" * 1025), "shorter than 1024 bytes")
    invalid(lambda: send(queue, "ä" * 513), "shorter than 1024 bytes")
    attribute = {"a": {"DataType": "String", "StringValue": "x" * 10}}
    invalid(lambda: send(queue, "x" * 1010, MessageAttributes=attribute), "shorter than 1024 bytes")
    for delay in (-1, 901):
        invalid(lambda: send(queue, "x", DelaySeconds=delay), "DelaySeconds must be >= 0 and <= 900")
    invalid(lambda: send(queue, "x", MessageDeduplicationId="d"), "not valid for this queue type")
    for group in ["a b", "ä", "x" * 129]:
        invalid(lambda: send(queue, "x", MessageGroupId=group), "MessageGroupId")
    largest = make("largest")
    body = "x" * (1 << 20)
    sent = send(largest, body)
    [message] = receive(largest)
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"] == md5(body)
    invalid(lambda: send(largest, body + "x"), "shorter than 1048576 bytes")


def carries_attributes():
    queue = make("attributes", VisibilityTimeout=0)
    sent = send(queue, "x", MessageAttributes={
        "Hello": {"DataType": "String", "StringValue": "There"},
        "Help.Me": {"DataType": "String.custom", "StringValue": "ä😀"},
        "Number": {"DataType": "Number.int", "StringValue": "-42"},
        "Blob": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
        "Größe": {"DataType": "String", "StringValue": "<&>\r\n\t"},
    }, MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}})
    # boto3 itself compares the digest of attributes with its own.
    assert len(sent["MD5OfMessageAttributes"]) == len(sent["MD5OfMessageSystemAttributes"]) == 32

    def received(**request):
        [message] = receive(queue, **request)
        return message

    everything = received(MessageAttributeNames=["All"], **{SYSTEM_NAMES: ["All"]})
    assert everything["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert everything["MessageAttributes"]["Blob"] == {"DataType": "Binary", "BinaryValue": bytes(range(256))}
    assert everything["MessageAttributes"]["Help.Me"] == {"DataType": "String.custom", "StringValue": "ä😀"}
    assert everything["MessageAttributes"]["Größe"]["StringValue"] == "<&>\r\n\t"
    assert everything["Attributes"]["AWSTraceHeader"] == "Root=1-2-3"
    names = lambda requested: sorted(received(MessageAttributeNames=requested).get("MessageAttributes", {}))
    assert names([".*"]) == names(["*"]) == names(["All"]) == ["Blob", "Größe", "Hello", "Help.Me", "Number"]
    assert names(["Hel.*"]) == ["Hello", "Help.Me"]
    assert names(["Number", "None"]) == ["Number"]
    assert names([]) == names(["None"]) == []
    assert "MD5OfMessageAttributes" not in received()
    assert received(AttributeNames=["SenderId"])["Attributes"] == {"SenderId": SENDER}
    raises("InvalidAttributeName", lambda: receive(queue, AttributeNames=["Colour"]))
    string = lambda **change: {"DataType": "String", "StringValue": "x", **change}
    attach = lambda attached: send(queue, "x", MessageAttributes=attached)
    reserved = ("You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for "
                "internal use. Additionally, they cannot start or end with '.'.")
    characters = ("Invalid characters found. Valid unicode characters are "
                  "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF")
    for attached, text in [
        ({"a": string(StringValue="")}, "Message (user) attribute 'a' must contain a non-empty value of type 'String'."),
        # Not `InvalidMessageContents`, which is for bodies.
        ({"a": string(StringValue="a\x0b")}, characters),
        ({"a": string(DataType="")}, "The message (user) attribute 'a' must contain a non-empty message attribute value."),
        ({"a": string(DataType="Text")}, "The type of message (user) attribute 'a' is invalid. You must use only the "
         "following supported type prefixes: Binary, Number, String."),
        ({"a": string(DataType="Number")}, "Can't cast the value of message (user) attribute 'a' to a number."),
        ({"": string()}, "The request must contain non-empty message (user) attribute names."),
        ({"x" * 257: string()}, "Message (user) attribute name must be shorter than 256 bytes."),
        ({"a": string(DataType="String." + "x" * 250)}, "Message (user) attribute type must be shorter than 256 bytes."),
        ({"a b": string()}, "Message (user) attributes name can only contain upper and lower score characters, digits, "
         "periods, hyphens and underscores. "),
        ({"aws.x": string()}, reserved), ({"a.": string()}, reserved),
        ({f"a{n}": string() for n in range(11)}, "Number of message attributes [11] exceeds the allowed maximum [10]."),
    ]:
        raises("InvalidParameterValue", lambda: attach(attached), text=text)
    lists = {"DataType": "String", "StringListValues": ["x"]}
    raises(AWS + "UnsupportedOperation", lambda: attach({"a": lists}),
           text="Message attribute list values in SendMessage operation are not supported.")
    system = {"Other": {"DataType": "String", "StringValue": "x"}}
    invalid(lambda: send(queue, "x", MessageSystemAttributes=system), "Other")


def sends_and_deletes_in_batches():
    queue = make("batches", MaximumMessageSize=1024)
    entry = lambda n, **more: {"Id": f"id-{n}", "MessageBody": f"body {n}", **more}
    entries = [entry(n) for n in range(8)]
    bad = [entry(8, MessageBody="x" * 1025), entry(9, DelaySeconds=901)]
    done = sqs.send_message_batch(QueueUrl=queue, Entries=entries + bad)
    assert [one["Id"] for one in done["Successful"]] == [f"id-{n}" for n in range(8)]
    assert all(one["MD5OfMessageBody"] == md5(f"body {n}") for n, one in enumerate(done["Successful"]))
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in done["Failed"]] == [
        ("id-8", "InvalidParameterValue", True), ("id-9", "InvalidParameterValue", True)
    ]
    assert "Successful" not in sqs.send_message_batch(QueueUrl=queue, Entries=bad)
    messages = receive(queue)
    assert sorted(message["Body"] for message in messages) == [f"body {n}" for n in range(8)]
    entries = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]
    change = [{**one, "VisibilityTimeout": 60 * n} for n, one in enumerate(entries)]
    change.append({"Id": "late", "ReceiptHandle": messages[0]["ReceiptHandle"], "VisibilityTimeout": 43201})
    done = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=change)
    assert len(done["Successful"]) == 8 and [one["Id"] for one in done["Failed"]] == ["late"], done
    assert counts(queue) == (1, 7, 0)
    [again] = receive(queue)
    entries[0]["ReceiptHandle"] = again["ReceiptHandle"]
    done = sqs.delete_message_batch(QueueUrl=queue, Entries=[*entries, {"Id": "f", "ReceiptHandle": "forged"}])
    assert len(done["Successful"]) == 8
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in done["Failed"]] == [
        ("f", "ReceiptHandleIsInvalid", True)
    ]
    forged = [{"Id": "f", "ReceiptHandle": "forged"}]
    assert "Failed" not in sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert "Successful" not in sqs.delete_message_batch(QueueUrl=queue, Entries=forged)
    forged[0]["VisibilityTimeout"] = 1
    assert "Successful" not in sqs.change_message_visibility_batch(QueueUrl=queue, Entries=forged)
    send(queue, "one more")
    [message] = receive(queue)
    entry = {"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}
    change = [{**entry, "VisibilityTimeout": 60}]
    assert "Failed" not in sqs.change_message_visibility_batch(QueueUrl=queue, Entries=change)
    assert "Failed" not in sqs.delete_message_batch(QueueUrl=queue, Entries=[entry])
    assert counts(queue) == (0, 0, 0)
    calls = {
        "SendMessage": lambda entries: sqs.send_message_batch(
            QueueUrl=queue, Entries=[{"MessageBody": "x", **one} for one in entries]),
        "DeleteMessage": lambda entries: sqs.delete_message_batch(
            QueueUrl=queue, Entries=[{"ReceiptHandle": "x", **one} for one in entries]),
        "ChangeMessageVisibility": lambda entries: sqs.change_message_visibility_batch(
            QueueUrl=queue, Entries=[{"ReceiptHandle": "x", "VisibilityTimeout": 1, **one} for one in entries]),
    }
    for operation, call in calls.items():
        entry = f"{operation}BatchRequestEntry"
        raises(AWS + "EmptyBatchRequest", lambda: call([]), "EmptyBatchRequest",
               text=f"There should be at least one {entry} in the request.")
        many = [{"Id": str(n)} for n in range(11)]
        raises(AWS + "TooManyEntriesInBatchRequest", lambda: call(many), "TooManyEntriesInBatchRequest", contains="sent 11")
        twice = [{"Id": "a"}, {"Id": "a"}]
        raises(AWS + "BatchEntryIdsNotDistinct", lambda: call(twice), "BatchEntryIdsNotDistinct")
        for id in ["", "a:b", "x" * 81]:
            raises(AWS + "InvalidBatchEntryId", lambda: call([{"Id": id}]), "InvalidBatchEntryId")
    long = [{"Id": str(n), "MessageBody": "x" * (1 << 19)} for n in range(3)]
    act = lambda: sqs.send_message_batch(QueueUrl=queue, Entries=long)
    raises(AWS + "BatchRequestTooLong", act, "BatchRequestTooLong", contains=str(3 << 19))


def hides_delays_and_redelivers():
    queue = make("visibility")
    send(queue, "x", DelaySeconds=3)
    assert counts(queue) == (0, 0, 1) and receive(queue, WaitTimeSeconds=0) == []
    [message] = receive(queue, WaitTimeSeconds=20, VisibilityTimeout=1)
    [again] = receive(queue, WaitTimeSeconds=20, AttributeNames=["ApproximateReceiveCount"])
    assert again["MessageId"] == message["MessageId"] and again["ReceiptHandle"] != message["ReceiptHandle"]
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    change = lambda handle, timeout: sqs.change_message_visibility(
        QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=timeout)
    # The receipt of the earlier delivery is stale: it neither extends nor deletes the later one.
    change(message["ReceiptHandle"], 0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert counts(queue) == (0, 1, 0)
    change(again["ReceiptHandle"], 600)
    change(again["ReceiptHandle"], 0)
    assert counts(queue) == (1, 0, 0)
    for timeout in (-1, 43201):
        text = (f"Value {timeout} for parameter VisibilityTimeout is invalid. "
                "Reason: VisibilityTimeout must be an integer between 0 and 43200.")
        raises("InvalidParameterValue", lambda: change(again["ReceiptHandle"], timeout), text=text)
    raises("ReceiptHandleIsInvalid", lambda: change("forged", 5), "ReceiptHandleIsInvalid")
    [third] = receive(queue)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=third["ReceiptHandle"])
    invalid(lambda: receive(queue, MaxNumberOfMessages=11), "Must be between 1 and 10")
    invalid(lambda: receive(queue, MaxNumberOfMessages=0), "Must be between 1 and 10")
    invalid(lambda: receive(queue, WaitTimeSeconds=21), "Must be >= 0 and <= 20")
    invalid(lambda: receive(queue, VisibilityTimeout=43201), "Reason: Must be >= 0 and <= 43200, if provided.")


def polls_for_a_message():
    queue = make("poll", ReceiveMessageWaitTimeSeconds=20)
    got = []
    waiting = threading.Thread(target=lambda: got.extend(sqs.receive_message(QueueUrl=queue).get("Messages", [])))
    waiting.start()
    send(queue, "at last")
    waiting.join(20)
    assert [message["Body"] for message in got] == ["at last"]
    began = time.monotonic()
    assert receive(queue, WaitTimeSeconds=1) == [] and time.monotonic() - began > 0.9


def schedules_groups_fairly():
    queue = make("turns")
    for n in range(0, 100, 10):
        sqs.send_message_batch(QueueUrl=queue, Entries=[
            {"Id": str(m), "MessageBody": f"big {m}", "MessageGroupId": "big/job"} for m in range(n, n + 10)])
    for n in range(3):
        send(queue, f"small {n}", MessageGroupId="small")
    send(queue, "no group")
    messages = receive(queue, AttributeNames=["MessageGroupId"])
    bodies = [message["Body"] for message in messages]
    assert sum(body.startswith("small") for body in bodies) == 3 and "no group" in bodies, bodies
    groups = {message["Body"]: message.get("Attributes", {}).get("MessageGroupId") for message in messages}
    assert groups["small 0"] == "small" and groups["big 0"] == "big/job" and groups["no group"] is None, groups


def moves_dead_letters_there_and_back():
    dead = make("dead")
    policy = lambda target, count: json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": count})
    source = make("source", RedrivePolicy=policy(arn("dead"), 1), VisibilityTimeout=0)
    assert json.loads(attributes(source, "RedrivePolicy")["RedrivePolicy"]) == {
        "deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1}
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [source]
    assert sqs.list_dead_letter_source_queues(QueueUrl=source).get("queueUrls", []) == []
    change = lambda **new: sqs.set_queue_attributes(QueueUrl=source, Attributes=new)
    reasons = [
        (policy("dummy", 1), "Invalid value for deadLetterTargetArn."),
        (policy(arn("none"), 1), "Dead letter target does not exist."),
        (policy(arn("dead"), 0), "Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both inclusive."),
        ('{"maxReceiveCount": 1}', "Redrive policy does not contain mandatory attribute: deadLetterTargetArn."),
        ("{}", "Redrive policy does not contain mandatory attribute: maxReceiveCount."),
        (json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1, "other": 1}),
         "Only following attributes are supported: [maxReceiveCount, deadLetterTargetArn]."),
    ]
    for value, reason in reasons:
        text = f"Value {value} for parameter RedrivePolicy is invalid. Reason: {reason}"
        raises("InvalidParameterValue", lambda: change(RedrivePolicy=value), text=text)
    invalid(lambda: change(RedrivePolicy=policy(arn("dead"), 1001)), "maxReceiveCount: 1001")
    for value in ["[", "[]", "4"]:
        text = "Invalid value for the parameter RedrivePolicy. Reason: Redrive policy is not a valid JSON map."
        raises("InvalidAttributeValue", lambda: change(RedrivePolicy=value), text=text)
    allow = lambda **new: sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(new)})
    allow(redrivePermission="denyAll")
    invalid(lambda: change(RedrivePolicy=policy(arn("dead"), 2)), "does not allow")
    allow(redrivePermission="byQueue", sourceQueueArns=[arn("source")])
    change(RedrivePolicy=policy(arn("dead"), "1"))
    refused = "Amazon SQS can't create the redrive allow policy"
    for wrong, reason in [
        ({"redrivePermission": "byQueue"}, "When you specify the byQueue permission type, you must also specify one or "
         "more sourceQueueArns values."),
        ({"redrivePermission": "byQueue", "sourceQueueArns": ["a"] * 11}, "The maximum number of source queue ARNs you can "
         "specify is 10."),
        ({"redrivePermission": "allowAll", "sourceQueueArns": ["a"]}, "To specify one or more source queue ARNs, you must "
         "set redrivePermission to byQueue."),
    ]:
        text = f"Value {json.dumps(wrong)} for parameter RedriveAllowPolicy is invalid. Reason: {refused}. {reason}"
        raises("InvalidParameterValue", lambda: allow(**wrong), text=text)
    for wrong in [{"redrivePermission": "sometimes"}, {}, {"redrivePermission": "allowAll", "other": 1}]:
        text = f"Invalid value for the parameter RedriveAllowPolicy. Reason: {refused}, as it’s in an unsupported format."
        raises("InvalidAttributeValue", lambda: allow(**wrong), text=text)
    bodies = {f"letter {n}" for n in range(12)}
    for body in bodies:
        send(source, body, MessageAttributes={"a": {"DataType": "String", "StringValue": body}})
    until(lambda: (receive(source, WaitTimeSeconds=0), counts(dead)[0] == 12)[1])
    [letter] = receive(dead, MaxNumberOfMessages=1, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn("source"), letter
    assert letter["MessageAttributes"]["a"]["StringValue"] == letter["Body"]
    sqs.change_message_visibility(QueueUrl=dead, ReceiptHandle=letter["ReceiptHandle"], VisibilityTimeout=0)

    start = lambda **request: sqs.start_message_move_task(**{"SourceArn": arn("dead"), **request})
    tasks = lambda max=1: sqs.list_message_move_tasks(SourceArn=arn("dead"), MaxResults=max).get("Results", [])
    assert tasks() == []
    change(VisibilityTimeout="30")
    handle = start(MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    invalid(lambda: start(), "already a task running")
    [task] = tasks()
    assert (task["Status"], task["TaskHandle"], task["MaxNumberOfMessagesPerSecond"]) == ("RUNNING", handle, 1), task
    assert task["ApproximateNumberOfMessagesToMove"] == 12 and task["SourceArn"] == arn("dead")
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    assert moved < 12
    until(lambda: tasks()[0]["Status"] == "CANCELLED")
    raises(AWS + "UnsupportedOperation", lambda: sqs.cancel_message_move_task(TaskHandle=handle))
    assert 1 <= counts(dead)[0] <= 12 and "TaskHandle" not in tasks()[0]
    start()
    until(lambda: tasks()[0]["Status"] == "COMPLETED")
    assert counts(dead) == (0, 0, 0) and len(tasks(10)) == 2
    back = []
    until(lambda: back.extend(receive(source)) or len(back) == 12)
    assert {message["Body"] for message in back} == bodies
    assert all("DeadLetterQueueSourceArn" not in message.get("Attributes", {}) for message in back)

    elsewhere = make("elsewhere")
    send(dead, "sent here")
    until(lambda: counts(dead)[0] == 1)
    start()
    until(lambda: tasks()[0]["Status"] == "FAILED")
    assert tasks()[0]["FailureReason"] == "CouldNotDetermineMessageSource"
    start(DestinationArn=arn("elsewhere"))
    until(lambda: tasks()[0]["Status"] == "COMPLETED")
    assert tasks()[0]["DestinationArn"] == arn("elsewhere")
    assert [message["Body"] for message in receive(elsewhere)] == ["sent here"]
    gone = make("gone")
    for n in range(5):
        send(dead, str(n))
    start(DestinationArn=arn("gone"), MaxNumberOfMessagesPerSecond=1)
    sqs.delete_queue(QueueUrl=gone)
    until(lambda: tasks()[0]["Status"] == "FAILED")
    assert tasks()[0]["FailureReason"] == AWS + "NonExistentQueue", tasks()
    assert counts(dead)[0] >= 1
    sqs.purge_queue(QueueUrl=dead)
    missing = "ResourceNotFoundException"
    raises(missing, lambda: start(SourceArn=arn("none")), missing, 404)
    raises(missing, lambda: start(DestinationArn=arn("none")), missing, 404)
    raises(missing, lambda: sqs.list_message_move_tasks(SourceArn=arn("none")), missing, 404)
    invalid(lambda: start(SourceArn=arn("source")), "Dead Letter Queue")
    invalid(lambda: start(SourceArn="dummy"), "format")
    invalid(lambda: start(MaxNumberOfMessagesPerSecond=501), "Reason: You must enter a number that's between 1 and 500.")
    invalid(lambda: start(DestinationArn=arn("dead")), "Source queue arn and destination queue arn cannot be the same.")
    invalid(lambda: tasks(11), "MaxResults")
    assert json.loads(base64.b64decode(handle)).keys() == {"taskId", "sourceArn"}, handle
    forge = lambda source: base64.b64encode(json.dumps({"taskId": "none", "sourceArn": source}).encode()).decode()
    cancel = lambda handle: sqs.cancel_message_move_task(TaskHandle=handle)
    invalid(lambda: cancel("?"), "Value for parameter TaskHandle is invalid.")
    raises(missing, lambda: cancel(forge(arn("dead"))), missing, 404, text="Task does not exist.")
    raises(missing, lambda: cancel(forge(arn("none"))), missing, 404,
           text="The resource that you specified for the SourceArn parameter doesn't exist.")
    # A dead-letter queue that is created again receives dead letters again.
    sqs.delete_queue(QueueUrl=dead)
    assert json.loads(attributes(source, "RedrivePolicy")["RedrivePolicy"])["deadLetterTargetArn"] == arn("dead")
    make("dead")
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [source]
    change(RedrivePolicy="")
    assert attributes(source, "RedrivePolicy") == {}


def purges():
    queue = make("purge")
    for n in range(3):
        send(queue, str(n))
    receive(queue, MaxNumberOfMessages=1)
    sqs.purge_queue(QueueUrl=queue)
    until(lambda: counts(queue) == (0, 0, 0))
    act = lambda: sqs.purge_queue(QueueUrl=queue)
    raises(AWS + "PurgeQueueInProgress", act, "PurgeQueueInProgress", 403, contains="purge")
    send(queue, "after")
    assert [message["Body"] for message in receive(queue)] == ["after"]


def manages_tags():
    queue = sqs.create_queue(QueueName="tagged", tags={"team": "a"})["QueueUrl"]
    tags = lambda: sqs.list_queue_tags(QueueUrl=queue).get("Tags", {})
    assert tags() == {"team": "a"}
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "b", "empty": ""})
    assert tags() == {"team": "b", "empty": ""}
    sqs.untag_queue(QueueUrl=queue, TagKeys=["team", "none"])
    assert tags() == {"empty": ""}
    invalid(lambda: sqs.tag_queue(QueueUrl=queue, Tags={str(n): "" for n in range(50)}), "Too many tags added for queue tagged.")
    raises("MissingParameter", lambda: sqs.tag_queue(QueueUrl=queue, Tags={}), contains="Tags")
    length = "Tag keys must be between 1 and 128 characters in length."
    invalid(lambda: sqs.untag_queue(QueueUrl=queue, TagKeys=[]), length)
    for key, value, text in [("", "x", length), ("x" * 129, "", length), ("x", "y" * 257, "Tags"), ("aws:x", "y", "Tags")]:
        invalid(lambda: sqs.tag_queue(QueueUrl=queue, Tags={key: value}), text)
    assert tags() == {"empty": ""}


def manages_permissions():
    queue = make("permitted")
    add = lambda label, accounts=("111111111111",), actions=("SendMessage",): sqs.add_permission(
        QueueUrl=queue, Label=label, AWSAccountIds=list(accounts), Actions=list(actions))
    policy = lambda: json.loads(attributes(queue, "Policy").get("Policy", "null"))
    add("one")
    add("two", ("111111111111", "222222222222"), ("SendMessage", "ReceiveMessage"))
    assert policy()["Statement"][0] == {
        "Sid": "one", "Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
        "Action": "SQS:SendMessage", "Resource": arn("permitted")}
    assert policy()["Statement"][1]["Action"] == ["SQS:SendMessage", "SQS:ReceiveMessage"]
    invalid(lambda: add("one"), "Already exists")
    invalid(lambda: add("a b"), "Label")
    for accounts in [(), ("1",), ("111111111111", "x")]:
        text = f"Value [{', '.join(accounts)}] for parameter PrincipalId is invalid. Reason: Unable to verify."
        raises("InvalidParameterValue", lambda: add("three", accounts), text=text)
    for action in ["Steal", "SendMessageBatch"]:
        text = (f"Value SQS:{action} for parameter ActionName is invalid. "
                "Reason: Please refer to the appropriate WSDL for a list of valid actions.")
        raises("InvalidParameterValue", lambda: add("three", actions=(action,)), text=text)
    invalid(lambda: add("three", actions=("CreateQueue",)), "Reason: Only the queue owner is allowed to invoke this action.")
    raises("MissingParameter", lambda: add("three", actions=()), text="The request must contain the parameter Actions.")
    text = "8 Actions were found, maximum allowed is 7."
    raises("OverLimit", lambda: add("three", actions=("SendMessage",) * 8), "OverLimit", 403, text=text)
    sqs.remove_permission(QueueUrl=queue, Label="one")
    invalid(lambda: sqs.remove_permission(QueueUrl=queue, Label="one"), "can't find label")
    sqs.remove_permission(QueueUrl=queue, Label="two")
    assert policy() is None


def rejects_every_operation_on_an_unknown_queue():
    nowhere = f"{url}/{ACCOUNT}/nowhere"
    for act in [
        lambda: sqs.add_permission(QueueUrl=nowhere, Label="a", AWSAccountIds=["1" * 12], Actions=["*"]),
        lambda: sqs.change_message_visibility(QueueUrl=nowhere, ReceiptHandle="x", VisibilityTimeout=1),
        lambda: sqs.change_message_visibility_batch(QueueUrl=nowhere, Entries=[{"Id": "a", "ReceiptHandle": "x"}]),
        lambda: sqs.delete_message(QueueUrl=nowhere, ReceiptHandle="x"),
        lambda: sqs.delete_message_batch(QueueUrl=nowhere, Entries=[{"Id": "a", "ReceiptHandle": "x"}]),
        lambda: sqs.get_queue_attributes(QueueUrl=nowhere), lambda: sqs.list_queue_tags(QueueUrl=nowhere),
        lambda: sqs.list_dead_letter_source_queues(QueueUrl=nowhere), lambda: sqs.purge_queue(QueueUrl=nowhere),
        lambda: sqs.receive_message(QueueUrl=nowhere), lambda: sqs.remove_permission(QueueUrl=nowhere, Label="a"),
        lambda: sqs.send_message(QueueUrl=nowhere, MessageBody="x"),
        lambda: sqs.send_message_batch(QueueUrl=nowhere, Entries=[{"Id": "a", "MessageBody": "x"}]),
        lambda: sqs.set_queue_attributes(QueueUrl=nowhere, Attributes={}),
        lambda: sqs.tag_queue(QueueUrl=nowhere, Tags={}), lambda: sqs.untag_queue(QueueUrl=nowhere, TagKeys=[]),
    ]:
        raises(AWS + "NonExistentQueue", act, "QueueDoesNotExist", text=NO_QUEUE)


STEPS = [
    creates_finds_lists_and_deletes_queues, gets_and_sets_attributes,
    sends_receives_and_deletes, rejects_invalid_messages, carries_attributes, sends_and_deletes_in_batches,
    hides_delays_and_redelivers, polls_for_a_message, schedules_groups_fairly, moves_dead_letters_there_and_back, purges,
    manages_tags, manages_permissions, rejects_every_operation_on_an_unknown_queue,
]

if __name__ == "__main__":
    for step in STEPS:
        began = time.monotonic()
        step()
        print(f"{step.__name__}: {time.monotonic() - began:.1f} s")
    print("all as expected")
