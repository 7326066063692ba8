// Sends, receives and deletes messages with @aws-sdk/client-sqs, and checks the classes of its errors.
// Arguments: the server's URL, an access key id, its secret, and the directory in which the client is installed.

const assert = require("node:assert/strict");
const [endpoint, accessKeyId, secretAccessKey, installed] = process.argv.slice(2);
const aws = require(require.resolve("@aws-sdk/client-sqs", { paths: [installed] }));

const client = (secret = secretAccessKey) =>
  new aws.SQSClient({
    endpoint, region: "us-east-1", maxAttempts: 1, credentials: { accessKeyId, secretAccessKey: secret },
  });
const sqs = client();
const call = (operation, input) => sqs.send(new aws[`${operation}Command`](input));
const make = async (QueueName, Attributes = {}) => (await call("CreateQueue", { QueueName, Attributes })).QueueUrl;
const receive = async (QueueUrl, more = {}) =>
  (await call("ReceiveMessage", { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, ...more })).Messages ?? [];
const attributes = async (QueueUrl) =>
  (await call("GetQueueAttributes", { QueueUrl, AttributeNames: ["All"] })).Attributes;

async function sendsReceivesAndDeletes() {
  const QueueUrl = await make("node-singles");
  const kind = { DataType: "String", StringValue: "thumbnail" };
  const sent = await call("SendMessage", {
    QueueUrl, MessageBody: "resize 17 \u{1f6a2}", MessageGroupId: "acme", MessageAttributes: { kind },
  });
  // The client itself has compared the digests.
  const [message] = await receive(QueueUrl, { MessageSystemAttributeNames: ["All"], MessageAttributeNames: ["All"] });
  assert.deepEqual([message.MessageId, message.Body], [sent.MessageId, "resize 17 \u{1f6a2}"]);
  assert.equal(message.MessageAttributes.kind.StringValue, "thumbnail");
  assert.deepEqual([message.Attributes.MessageGroupId, message.Attributes.SenderId], ["acme", "acme"]);
  const { ReceiptHandle } = message;
  await call("ChangeMessageVisibility", { QueueUrl, ReceiptHandle, VisibilityTimeout: 0 });
  const [again] = await receive(QueueUrl, { MessageSystemAttributeNames: ["ApproximateReceiveCount"] });
  assert.equal(again.Attributes.ApproximateReceiveCount, "2");
  await call("DeleteMessage", { QueueUrl, ReceiptHandle: again.ReceiptHandle });
  assert.equal((await attributes(QueueUrl)).ApproximateNumberOfMessagesNotVisible, "0");
}

async function sendsAndDeletesInBatches() {
  const QueueUrl = await make("node-batches");
  const Entries = [..."abcdefghi"].map((Id) => ({ Id, MessageBody: `body ${Id}`, MessageGroupId: "acme" }));
  Entries.push({ Id: "late", MessageBody: "never", DelaySeconds: 901 });
  const sent = await call("SendMessageBatch", { QueueUrl, Entries });
  assert.deepEqual(sent.Successful.map(({ Id }) => Id), [..."abcdefghi"]);
  assert.deepEqual(sent.Failed.map(({ Id, Code, SenderFault }) => [Id, Code, SenderFault]), [
    ["late", "InvalidParameterValue", true],
  ]);
  const messages = await receive(QueueUrl);
  assert.deepEqual(messages.map(({ Body }) => Body), [..."abcdefghi"].map((id) => `body ${id}`));
  const handles = messages.map(({ ReceiptHandle }, index) => ({ Id: `${index}`, ReceiptHandle }));
  const deleted = await call("DeleteMessageBatch", { QueueUrl, Entries: [...handles, { Id: "x", ReceiptHandle: "forged" }] });
  assert.equal(deleted.Successful.length, 9);
  assert.deepEqual(deleted.Failed.map(({ Id, Code }) => [Id, Code]), [["x", "ReceiptHandleIsInvalid"]]);
  const { ApproximateNumberOfMessages, ApproximateNumberOfMessagesNotVisible } = await attributes(QueueUrl);
  assert.deepEqual([ApproximateNumberOfMessages, ApproximateNumberOfMessagesNotVisible], ["0", "0"]);
}

async function raises(kind, act) {
  await assert.rejects(act, (error) => {
    assert.ok(error instanceof kind, `${error.name} (${error.constructor.name}), not ${kind.name}: ${error.message}`);
    assert.ok(error.message && error.$metadata.requestId, "an error without message or request id");
    return true;
  });
}

async function throwsTheDocumentedErrors() {
  const QueueUrl = await make("node-errors");
  await raises(aws.QueueDoesNotExist, () => call("GetQueueUrl", { QueueName: "none" }));
  await raises(aws.QueueDoesNotExist, () => call("SendMessage", { QueueUrl: `${QueueUrl}-none`, MessageBody: "x" }));
  await raises(aws.QueueNameExists, () => make("node-errors", { VisibilityTimeout: "1" }));
  await raises(aws.InvalidAttributeValue, () => make("node-wrong", { VisibilityTimeout: "43201" }));
  await raises(aws.InvalidAttributeName, () => call("SetQueueAttributes", { QueueUrl, Attributes: { Colour: "red" } }));
  await raises(aws.EmptyBatchRequest, () => call("SendMessageBatch", { QueueUrl, Entries: [] }));
  const twice = [{ Id: "a", MessageBody: "x" }, { Id: "a", MessageBody: "y" }];
  await raises(aws.BatchEntryIdsNotDistinct, () => call("SendMessageBatch", { QueueUrl, Entries: twice }));
  await raises(aws.ReceiptHandleIsInvalid, () => call("DeleteMessage", { QueueUrl, ReceiptHandle: "forged" }));
  await raises(aws.InvalidMessageContents, () => call("SendMessage", { QueueUrl, MessageBody: "\u0001" }));
  await call("PurgeQueue", { QueueUrl });
  await raises(aws.PurgeQueueInProgress, () => call("PurgeQueue", { QueueUrl }));
  const wrong = client("wrong").send(new aws.ListQueuesCommand({}));
  await assert.rejects(wrong, (error) => error.name === "SignatureDoesNotMatch" && error.$metadata.httpStatusCode === 403);
}

(async () => {
  for (const step of [sendsReceivesAndDeletes, sendsAndDeletesInBatches, throwsTheDocumentedErrors]) {
    await step();
    console.log(step.name);
  }
  console.log("all as expected");
})();
