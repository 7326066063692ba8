"""Checks with boto3 that a tenant neither sees nor uses the queues of another.

Arguments: the server's URL, and the account number, access key id and secret of three tenants; the third may own two queues.
The server has a shared queue `common`.
"""

import json
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

url = sys.argv[1]
SHARED = "000000000000"
NONE = "AWS.SimpleQueueService.NonExistentQueue"
GONE = "ResourceNotFoundException"


def client(key, secret):
    config = Config(retries={"max_attempts": 1}, read_timeout=60)
    return boto3.client("sqs", endpoint_url=url, region_name="us-east-1", config=config,
                        aws_access_key_id=key, aws_secret_access_key=secret)


A, B, LIMITED = sys.argv[2], sys.argv[5], sys.argv[8]
acme, mallory, limited = client(*sys.argv[3:5]), client(*sys.argv[6:8]), client(*sys.argv[9:11])


def arn(account, name):
    return f"arn:aws:sqs:us-east-1:{account}:{name}"


def address(account, name):
    return f"{url}/{account}/{name}"


def error_of(act):
    try:
        act()
    except ClientError as error:
        return error.response["Error"], error.response["ResponseMetadata"]["HTTPStatusCode"]
    raise AssertionError("no error")


def raises(code, act):
    assert error_of(act)[0]["Code"] == code, error_of(act)


def bodies(sqs, queue):
    found = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1, VisibilityTimeout=0)
    return sorted(message["Body"] for message in found.get("Messages", []))


def operations(sqs, queue):
    """Returns every operation on a queue URL."""
    receipt = [{"Id": "a", "ReceiptHandle": "x"}]
    return [
        lambda: sqs.add_permission(QueueUrl=queue, Label="a", AWSAccountIds=[B], Actions=["*"]),
        lambda: sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle="x", VisibilityTimeout=1),
        lambda: sqs.change_message_visibility_batch(QueueUrl=queue, Entries=receipt),
        lambda: sqs.delete_message(QueueUrl=queue, ReceiptHandle="x"),
        lambda: sqs.delete_message_batch(QueueUrl=queue, Entries=receipt),
        lambda: sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"]),
        lambda: sqs.list_queue_tags(QueueUrl=queue),
        lambda: sqs.list_dead_letter_source_queues(QueueUrl=queue),
        lambda: sqs.purge_queue(QueueUrl=queue),
        lambda: sqs.receive_message(QueueUrl=queue),
        lambda: sqs.remove_permission(QueueUrl=queue, Label="a"),
        lambda: sqs.send_message(QueueUrl=queue, MessageBody="x"),
        lambda: sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "a", "MessageBody": "x"}]),
        lambda: sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "1"}),
        lambda: sqs.tag_queue(QueueUrl=queue, Tags={"a": "b"}),
        lambda: sqs.untag_queue(QueueUrl=queue, TagKeys=["a"]),
        lambda: sqs.delete_queue(QueueUrl=queue),
    ]


def two_tenants_have_a_queue_of_the_same_name():
    own = acme.create_queue(QueueName="jobs")["QueueUrl"]
    assert own == address(A, "jobs"), own
    others = mallory.create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "7"})["QueueUrl"]
    assert others == address(B, "jobs"), others
    acme.send_message(QueueUrl=own, MessageBody="of acme")
    mallory.send_message(QueueUrl="jobs", MessageBody="of mallory")
    assert bodies(acme, own) == ["of acme"] and bodies(acme, "jobs") == ["of acme"]
    assert bodies(mallory, others) == ["of mallory"] and bodies(mallory, "jobs") == ["of mallory"]
    assert acme.get_queue_attributes(QueueUrl=own, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"] == arn(A, "jobs")
    assert mallory.get_queue_url(QueueName="jobs")["QueueUrl"] == others


def every_operation_on_another_tenants_queue_fails_as_if_it_did_not_exist():
    for act, unknown in zip(operations(mallory, address(A, "jobs")), operations(mallory, address(A, "nowhere"))):
        found = error_of(act)
        assert found[0]["Code"] == NONE and found == error_of(unknown), found
    for name in ["jobs", "nowhere"]:
        raises(NONE, lambda: mallory.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=A))
    raises(NONE, lambda: mallory.get_queue_url(QueueName="jobs", QueueOwnerAWSAccountId="1"))
    assert bodies(acme, "jobs") == ["of acme"]


def lists_contain_own_and_shared_queues_only():
    acme.create_queue(QueueName="only-acme")
    expected = sorted([address(SHARED, "common"), address(A, "jobs"), address(A, "only-acme")])
    assert sorted(acme.list_queues()["QueueUrls"]) == expected
    assert sorted(mallory.list_queues()["QueueUrls"]) == sorted([address(SHARED, "common"), address(B, "jobs")])
    pages = acme.get_paginator("list_queues").paginate(PaginationConfig={"PageSize": 1})
    assert sorted(found for page in pages for found in page.get("QueueUrls", [])) == expected


def a_shared_queue_is_returned_by_create_queue_and_used_by_all():
    for sqs in [acme, mallory]:
        assert sqs.create_queue(QueueName="common")["QueueUrl"] == address(SHARED, "common")
        assert sqs.get_queue_url(QueueName="common", QueueOwnerAWSAccountId=SHARED)["QueueUrl"] == address(SHARED, "common")
    acme.send_message(QueueUrl="common", MessageBody="from acme")
    # Clients may have kept URLs with another host.
    assert bodies(mallory, "http://elsewhere.example/000000000000/common") == ["from acme"]
    # The account in a URL is part of the queue's name.
    raises(NONE, lambda: acme.receive_message(QueueUrl=address(A, "common")))
    raises(NONE, lambda: acme.receive_message(QueueUrl=address(SHARED, "jobs")))


def receipts_and_task_handles_do_not_cross_owners():
    acme.set_queue_attributes(QueueUrl="jobs", Attributes={"VisibilityTimeout": "60"})
    message = acme.receive_message(QueueUrl="jobs", WaitTimeSeconds=5)["Messages"][0]
    receipt = message["ReceiptHandle"]
    raises("ReceiptHandleIsInvalid", lambda: mallory.delete_message(QueueUrl="jobs", ReceiptHandle=receipt))
    raises("ReceiptHandleIsInvalid",
           lambda: mallory.change_message_visibility(QueueUrl="jobs", ReceiptHandle=receipt, VisibilityTimeout=0))
    failed = mallory.delete_message_batch(QueueUrl="jobs", Entries=[{"Id": "a", "ReceiptHandle": receipt}])["Failed"]
    assert failed[0]["Code"] == "ReceiptHandleIsInvalid", failed
    acme.change_message_visibility(QueueUrl="jobs", ReceiptHandle=receipt, VisibilityTimeout=0)
    assert bodies(acme, "jobs") == ["of acme"]


def dead_letters_and_move_tasks_stay_with_their_owner():
    policy = lambda account, name: json.dumps({"deadLetterTargetArn": arn(account, name), "maxReceiveCount": 1})
    redrive = lambda sqs, name, value: sqs.set_queue_attributes(QueueUrl=name, Attributes={"RedrivePolicy": value})
    dead = acme.create_queue(QueueName="dead")["QueueUrl"]
    redrive(acme, "only-acme", policy(A, "dead"))
    for target in [policy(A, "dead"), policy(A, "nowhere"), policy(SHARED, "common")]:
        error, _ = error_of(lambda: redrive(mallory, "jobs", target))
        assert error["Message"].endswith("must have the same owner as the source queue."), error
    error, _ = error_of(lambda: redrive(mallory, "common", policy(B, "jobs")))
    assert error["Message"].endswith("must have the same owner as the source queue."), error
    sources = acme.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"]
    assert sources == [address(A, "only-acme")], sources
    acme.send_message(QueueUrl="only-acme", MessageBody="x")
    while not int(acme.get_queue_attributes(QueueUrl=dead, AttributeNames=["All"])["Attributes"]["ApproximateNumberOfMessages"]):
        acme.receive_message(QueueUrl="only-acme", VisibilityTimeout=0, WaitTimeSeconds=1)
    for act in [
        lambda: mallory.start_message_move_task(SourceArn=arn(A, "dead")),
        lambda: mallory.list_message_move_tasks(SourceArn=arn(A, "dead")),
        lambda: acme.start_message_move_task(SourceArn=arn(A, "dead"), DestinationArn=arn(B, "jobs")),
        lambda: acme.start_message_move_task(SourceArn=arn(A, "dead"), DestinationArn=arn(SHARED, "common")),
    ]:
        raises(GONE, act)
    for number in range(20):
        acme.send_message(QueueUrl=dead, MessageBody=str(number))
    handle = acme.start_message_move_task(SourceArn=arn(A, "dead"), DestinationArn=arn(A, "jobs"),
                                          MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    raises(GONE, lambda: mallory.cancel_message_move_task(TaskHandle=handle))
    assert acme.list_message_move_tasks(SourceArn=arn(A, "dead"))["Results"][0]["Status"] == "RUNNING"
    acme.cancel_message_move_task(TaskHandle=handle)


def grants_of_a_policy_are_enforced():
    queue = address(A, "jobs")
    send = lambda: mallory.send_message(QueueUrl=queue, MessageBody="granted")
    acme.add_permission(QueueUrl=queue, Label="guest", AWSAccountIds=[B], Actions=["SendMessage", "GetQueueUrl"])
    send()
    mallory.send_message_batch(QueueUrl=queue, Entries=[{"Id": "a", "MessageBody": "granted"}])
    assert mallory.get_queue_url(QueueName="jobs", QueueOwnerAWSAccountId=A)["QueueUrl"] == queue
    for act in [
        lambda: mallory.receive_message(QueueUrl=queue), lambda: mallory.purge_queue(QueueUrl=queue),
        lambda: mallory.get_queue_attributes(QueueUrl=queue), lambda: mallory.delete_queue(QueueUrl=queue),
        lambda: limited.send_message(QueueUrl=queue, MessageBody="x"),
    ]:
        raises(NONE, act)
    assert queue not in mallory.list_queues()["QueueUrls"]
    acme.remove_permission(QueueUrl=queue, Label="guest")
    raises(NONE, send)

    def set_policy(*statements):
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements}) if statements else ""
        acme.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})

    def statement(effect, **changes):
        return {"Effect": effect, "Principal": "*", "Action": "sqs:*", "Resource": arn(A, "jobs"), **changes}

    set_policy(statement("Allow"))
    send()
    assert "granted" in bodies(mallory, queue)
    for act in operations(mallory, queue):
        # Operations of the owner cannot be granted; the others do not fail because of the queue.
        operation = act.__code__.co_names[0]
        owners = ["add_permission", "delete_queue", "list_queue_tags", "remove_permission", "set_queue_attributes", "tag_queue",
                  "untag_queue"]
        if operation in owners:
            raises(NONE, act)
        else:
            try:
                act()
            except ClientError as error:
                assert error.response["Error"]["Code"] != NONE, operation
    raises(GONE, lambda: mallory.list_message_move_tasks(SourceArn=arn(A, "jobs")))
    for statements in [
        [statement("Allow"), statement("Deny", Principal={"AWS": B}, Action="sqs:SendMessage")],
        [statement("Allow"), statement("Deny", Condition={"Bool": {"aws:SecureTransport": "false"}})],
        [statement("Allow", Condition={"StringEquals": {"aws:username": "bob"}})],
        [statement("Allow", Resource=arn(SHARED, "jobs"))],
        [statement("Allow", Principal={"AWS": LIMITED})],
        [],
    ]:
        set_policy(*statements)
        raises(NONE, send)
        acme.send_message(QueueUrl=queue, MessageBody="of acme")
    set_policy(statement("Allow", Principal={"AWS": f"arn:aws:iam::{B}:root"}, Action="sqs:SendMessage"))
    send()
    set_policy()
    # A policy that a tenant sets on a shared queue has no effect, because it would lock out the others.
    denied = json.dumps({"Statement": [{"Effect": "Deny", "Principal": "*", "Action": "*", "Resource": "*"}]})
    mallory.set_queue_attributes(QueueUrl="common", Attributes={"Policy": denied})
    acme.send_message(QueueUrl="common", MessageBody="x")


def a_tenant_may_own_a_limited_number_of_queues():
    for name in ["one", "two"]:
        assert limited.create_queue(QueueName=name)["QueueUrl"] == address(LIMITED, name)
    error, status = error_of(lambda: limited.create_queue(QueueName="three"))
    assert error["Code"] == "OverLimit" and status == 403 and "the owner has 2 queues" in error["Message"], error
    assert limited.create_queue(QueueName="one")["QueueUrl"] == address(LIMITED, "one")
    assert limited.create_queue(QueueName="common")["QueueUrl"] == address(SHARED, "common")
    limited.delete_queue(QueueUrl="one")
    limited.create_queue(QueueName="three")


for step in [
    two_tenants_have_a_queue_of_the_same_name, every_operation_on_another_tenants_queue_fails_as_if_it_did_not_exist,
    lists_contain_own_and_shared_queues_only, a_shared_queue_is_returned_by_create_queue_and_used_by_all,
    receipts_and_task_handles_do_not_cross_owners, dead_letters_and_move_tasks_stay_with_their_owner,
    grants_of_a_policy_are_enforced, a_tenant_may_own_a_limited_number_of_queues,
]:
    step()
    print(step.__name__)
print("all as expected")
