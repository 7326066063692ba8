// Calls every operation with the AWS SDK for JavaScript v2, which uses the query protocol.
// Arguments: the server's URL, an access key id, its secret, and the directory in which the SDK is installed.

process.env.AWS_SDK_JS_SUPPRESS_MAINTENANCE_MODE_MESSAGE = "1";
const assert = require("node:assert/strict");
const [endpoint, accessKeyId, secretAccessKey, installed] = process.argv.slice(2);
const AWS = require(require.resolve("aws-sdk", { paths: [installed] }));

const client = (secret = secretAccessKey) =>
  new AWS.SQS({ endpoint, region: "us-east-1", maxRetries: 0, accessKeyId, secretAccessKey: secret });
const sqs = client();
const called = new Set();
const call = (operation, input = {}) => {
  called.add(operation);
  return sqs[operation](input).promise();
};
const make = async (QueueName, Attributes = {}) => (await call("createQueue", { QueueName, Attributes })).QueueUrl;
const receive = async (QueueUrl, more = {}) =>
  (await call("receiveMessage", { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, ...more })).Messages ?? [];
const attributes = async (QueueUrl, ...AttributeNames) =>
  (await call("getQueueAttributes", { QueueUrl, AttributeNames })).Attributes;

async function raises(code, statusCode, act, message) {
  await assert.rejects(act, (error) => {
    assert.deepEqual([error.code, error.statusCode], [code, statusCode], error.message);
    assert.ok(error.requestId, "an error without request id");
    if (message) assert.equal(error.message, message);
    return true;
  });
}

async function managesQueues() {
  const QueueUrl = await make("old-life", { VisibilityTimeout: "45" });
  assert.equal((await call("getQueueUrl", { QueueName: "old-life" })).QueueUrl, QueueUrl);
  assert.deepEqual((await call("listQueues", { QueueNamePrefix: "old-" })).QueueUrls, [QueueUrl]);
  await call("setQueueAttributes", { QueueUrl, Attributes: { DelaySeconds: "3", MessageRetentionPeriod: "60" } });
  assert.deepEqual(await attributes(QueueUrl, "DelaySeconds", "VisibilityTimeout"),
    { DelaySeconds: "3", VisibilityTimeout: "45" });
  await call("tagQueue", { QueueUrl, Tags: { team: "a<&>b", "k\"'": "" } });
  await call("untagQueue", { QueueUrl, TagKeys: ["k\"'"] });
  assert.deepEqual((await call("listQueueTags", { QueueUrl })).Tags, { team: "a<&>b" });
  const permission = { QueueUrl, Label: "one", AWSAccountIds: ["111111111111"], Actions: ["SendMessage", "ReceiveMessage"] };
  await call("addPermission", permission);
  const policy = JSON.parse((await attributes(QueueUrl, "Policy")).Policy);
  assert.deepEqual(policy.Statement[0].Action, ["SQS:SendMessage", "SQS:ReceiveMessage"]);
  await call("removePermission", { QueueUrl, Label: "one" });
  await call("purgeQueue", { QueueUrl });
  await raises("AWS.SimpleQueueService.PurgeQueueInProgress", 403, () => call("purgeQueue", { QueueUrl }),
    "Only one PurgeQueue operation on old-life is allowed every 60 seconds.");
  await call("deleteQueue", { QueueUrl });
  await raises("AWS.SimpleQueueService.NonExistentQueue", 400, () => call("sendMessage", { QueueUrl, MessageBody: "x" }),
    "The specified queue does not exist for this wsdl version.");
}

async function sendsReceivesAndDeletes() {
  const QueueUrl = await make("old-singles");
  const MessageBody = "résumé & <b>\"quoted\"</b> 'x'\r\n\t \u{1f6a2}";
  const MessageAttributes = {
    kind: { DataType: "String", StringValue: "a<&>\r\n" }, "größe": { DataType: "Number", StringValue: "7" },
    blob: { DataType: "Binary", BinaryValue: Buffer.from([0, 1, 255]) },
  };
  // The SDK compares the digests of bodies.
  const sent = await call("sendMessage", { QueueUrl, MessageBody, MessageAttributes, MessageGroupId: "acme" });
  const [message] = await receive(QueueUrl, { AttributeNames: ["All"], MessageAttributeNames: ["All"] });
  assert.deepEqual([message.MessageId, message.Body], [sent.MessageId, MessageBody]);
  assert.equal(message.MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
  assert.equal(message.MessageAttributes.kind.StringValue, "a<&>\r\n");
  assert.equal(message.MessageAttributes["größe"].StringValue, "7");
  assert.deepEqual([...message.MessageAttributes.blob.BinaryValue], [0, 1, 255]);
  assert.deepEqual([message.Attributes.MessageGroupId, message.Attributes.SenderId], ["acme", "acme"]);
  const { ReceiptHandle } = message;
  await call("changeMessageVisibility", { QueueUrl, ReceiptHandle, VisibilityTimeout: 0 });
  const [again] = await receive(QueueUrl);
  await call("deleteMessage", { QueueUrl, ReceiptHandle: again.ReceiptHandle });
  assert.deepEqual(await receive(QueueUrl, { WaitTimeSeconds: 0 }), []);
}

async function sendsAndDeletesInBatches() {
  const QueueUrl = await make("old-batches");
  const kind = { DataType: "String", StringValue: "x" };
  const Entries = [..."abcdefghi"].map((Id) => ({ Id, MessageBody: `body ${Id}`, MessageAttributes: { kind } }));
  Entries.push({ Id: "late", MessageBody: "never", DelaySeconds: 901 });
  const sent = await call("sendMessageBatch", { QueueUrl, Entries });
  assert.deepEqual(sent.Successful.map(({ Id }) => Id), [..."abcdefghi"]);
  const [failed] = sent.Failed;
  assert.deepEqual([failed.Id, failed.Code, failed.SenderFault], ["late", "InvalidParameterValue", true]);
  assert.equal(failed.Message, "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.");
  const messages = await receive(QueueUrl, { MessageAttributeNames: ["kin.*"] });
  assert.ok(messages.every(({ MessageAttributes }) => MessageAttributes.kind.StringValue === "x"));
  const handles = messages.map(({ ReceiptHandle }, index) => ({ Id: `${index}`, ReceiptHandle }));
  const changes = handles.map((entry) => ({ ...entry, VisibilityTimeout: 60 }));
  const changed = await call("changeMessageVisibilityBatch", { QueueUrl, Entries: changes });
  assert.deepEqual([changed.Successful.length, changed.Failed.length], [9, 0]);
  const forged = { Id: "x", ReceiptHandle: "forged" };
  const deleted = await call("deleteMessageBatch", { QueueUrl, Entries: [...handles, forged] });
  assert.equal(deleted.Successful.length, 9);
  assert.deepEqual(deleted.Failed.map(({ Id, Code }) => [Id, Code]), [["x", "ReceiptHandleIsInvalid"]]);
}

async function movesDeadLetters() {
  const dead = await make("old-dead");
  const { QueueArn } = await attributes(dead, "QueueArn");
  const RedrivePolicy = JSON.stringify({ deadLetterTargetArn: QueueArn, maxReceiveCount: 1 });
  const source = await make("old-source", { RedrivePolicy });
  assert.deepEqual((await call("listDeadLetterSourceQueues", { QueueUrl: dead })).queueUrls, [source]);
  const { TaskHandle } = await call("startMessageMoveTask", { SourceArn: QueueArn });
  const [task] = (await call("listMessageMoveTasks", { SourceArn: QueueArn })).Results;
  assert.equal(task.SourceArn, QueueArn);
  assert.equal(typeof task.StartedTimestamp, "number");
  const { taskId, sourceArn } = JSON.parse(Buffer.from(TaskHandle, "base64").toString());
  const unknown = Buffer.from(JSON.stringify({ taskId: `${taskId}0`, sourceArn })).toString("base64");
  await raises("ResourceNotFoundException", 404, () => call("cancelMessageMoveTask", { TaskHandle: unknown }),
    "Task does not exist.");
}

async function rejectsAWrongSecret() {
  await raises("SignatureDoesNotMatch", 403, () => client("wrong").listQueues().promise());
}

(async () => {
  const steps = [managesQueues, sendsReceivesAndDeletes, sendsAndDeletesInBatches, movesDeadLetters, rejectsAWrongSecret];
  for (const step of steps) {
    await step();
    console.log(step.name);
  }
  assert.equal(called.size, Object.keys(sqs.api.operations).length, [...called].join());
  assert.equal(called.size, 23);
  console.log("all as expected");
})();
