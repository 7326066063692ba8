// Does with a gateway what programs with @aws-sdk/client-sqs do with SQS, and meets its refusals as that client names them.
// Its arguments are the gateway's URL, an access key id, its secret, and the folder that the client is installed in.

const assert = require("node:assert/strict");
const [endpoint, accessKeyId, secretAccessKey, installed] = process.argv.slice(2);
const aws = require(require.resolve("@aws-sdk/client-sqs", { paths: [installed] }));

const client = (secret = secretAccessKey) =>
  new aws.SQSClient({
    endpoint, region: "us-east-1", maxAttempts: 1, credentials: { accessKeyId, secretAccessKey: secret },
  });
const sqs = client();
const does = (operation, input) => sqs.send(new aws[`${operation}Command`](input));
const make = async (QueueName, Attributes = {}) => (await does("CreateQueue", { QueueName, Attributes })).QueueUrl;
const take = async (QueueUrl, more = {}) =>
  (await does("ReceiveMessage", { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, ...more })).Messages ?? [];
const held = async (QueueUrl) =>
  (await does("GetQueueAttributes", { QueueUrl, AttributeNames: ["All"] })).Attributes;

async function sendsReceivesAndDeletes() {
  const QueueUrl = await make("node-singles");
  const kind = { DataType: "String", StringValue: "thumbnail" };
  const sent = await does("SendMessage", {
    QueueUrl, MessageBody: "resize 17 \u{1f6a2}", MessageGroupId: "acme", MessageAttributes: { kind },
  });
  // The client has compared the digests by itself.
  const [message] = await take(QueueUrl, { MessageSystemAttributeNames: ["All"], MessageAttributeNames: ["All"] });
  assert.deepEqual([message.MessageId, message.Body], [sent.MessageId, "resize 17 \u{1f6a2}"]);
  assert.equal(message.MessageAttributes.kind.StringValue, "thumbnail");
  assert.deepEqual([message.Attributes.MessageGroupId, message.Attributes.SenderId], ["acme", "acme"]);
  const { ReceiptHandle } = message;
  await does("ChangeMessageVisibility", { QueueUrl, ReceiptHandle, VisibilityTimeout: 0 });
  const [again] = await take(QueueUrl, { MessageSystemAttributeNames: ["ApproximateReceiveCount"] });
  assert.equal(again.Attributes.ApproximateReceiveCount, "2");
  await does("DeleteMessage", { QueueUrl, ReceiptHandle: again.ReceiptHandle });
  assert.equal((await held(QueueUrl)).ApproximateNumberOfMessagesNotVisible, "0");
}

async function doesSoInBatches() {
  const QueueUrl = await make("node-batches");
  const Entries = [..."abcdefghi"].map((Id) => ({ Id, MessageBody: `body ${Id}`, MessageGroupId: "acme" }));
  Entries.push({ Id: "late", MessageBody: "never", DelaySeconds: 901 });
  const sent = await does("SendMessageBatch", { QueueUrl, Entries });
  assert.deepEqual(sent.Successful.map(({ Id }) => Id), [..."abcdefghi"]);
  assert.deepEqual(sent.Failed.map(({ Id, Code, SenderFault }) => [Id, Code, SenderFault]), [
    ["late", "InvalidParameterValue", true],
  ]);
  const messages = await take(QueueUrl);
  assert.deepEqual(messages.map(({ Body }) => Body), [..."abcdefghi"].map((id) => `body ${id}`));
  const handles = messages.map(({ ReceiptHandle }, at) => ({ Id: `${at}`, ReceiptHandle }));
  const deleted = await does("DeleteMessageBatch", { QueueUrl, Entries: [...handles, { Id: "x", ReceiptHandle: "coined" }] });
  assert.equal(deleted.Successful.length, 9);
  assert.deepEqual(deleted.Failed.map(({ Id, Code }) => [Id, Code]), [["x", "ReceiptHandleIsInvalid"]]);
  const { ApproximateNumberOfMessages, ApproximateNumberOfMessagesNotVisible } = await held(QueueUrl);
  assert.deepEqual([ApproximateNumberOfMessages, ApproximateNumberOfMessagesNotVisible], ["0", "0"]);
}

async function raises(kind, act) {
  await assert.rejects(act, (error) => {
    assert.ok(error instanceof kind, `${error.name} (${error.constructor.name}), not ${kind.name}: ${error.message}`);
    assert.ok(error.message && error.$metadata.requestId, "an error that says nothing");
    return true;
  });
}

async function namesWhatIsWrong() {
  const QueueUrl = await make("node-errors");
  await raises(aws.QueueDoesNotExist, () => does("GetQueueUrl", { QueueName: "none" }));
  await raises(aws.QueueDoesNotExist, () => does("SendMessage", { QueueUrl: `${QueueUrl}-none`, MessageBody: "x" }));
  await raises(aws.QueueNameExists, () => make("node-errors", { VisibilityTimeout: "1" }));
  await raises(aws.InvalidAttributeValue, () => make("node-wrong", { VisibilityTimeout: "43201" }));
  await raises(aws.InvalidAttributeName, () => does("SetQueueAttributes", { QueueUrl, Attributes: { Colour: "red" } }));
  await raises(aws.EmptyBatchRequest, () => does("SendMessageBatch", { QueueUrl, Entries: [] }));
  const twice = [{ Id: "a", MessageBody: "x" }, { Id: "a", MessageBody: "y" }];
  await raises(aws.BatchEntryIdsNotDistinct, () => does("SendMessageBatch", { QueueUrl, Entries: twice }));
  await raises(aws.ReceiptHandleIsInvalid, () => does("DeleteMessage", { QueueUrl, ReceiptHandle: "coined" }));
  await raises(aws.InvalidMessageContents, () => does("SendMessage", { QueueUrl, MessageBody: "\u0001" }));
  await does("PurgeQueue", { QueueUrl });
  await raises(aws.PurgeQueueInProgress, () => does("PurgeQueue", { QueueUrl }));
  const wrong = client("wrong").send(new aws.ListQueuesCommand({}));
  await assert.rejects(wrong, (error) => error.name === "SignatureDoesNotMatch" && error.$metadata.httpStatusCode === 403);
}

(async () => {
  for (const step of [sendsReceivesAndDeletes, doesSoInBatches, namesWhatIsWrong]) {
    await step();
    console.log(step.name);
  }
  console.log("all as expected");
})();
