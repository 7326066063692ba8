// Consumes messages with sqs-consumer.
// Arguments: the server's URL, an access key id, its secret, and the directory in which sqs-consumer is installed.

const assert = require("node:assert/strict");
const { once } = require("node:events");
const [endpoint, accessKeyId, secretAccessKey, installed] = process.argv.slice(2);
const from = { paths: [installed] };
const aws = require(require.resolve("@aws-sdk/client-sqs", from));
const { Consumer } = require(require.resolve("sqs-consumer", from));

const sqs = new aws.SQSClient({ endpoint, region: "us-east-1", credentials: { accessKeyId, secretAccessKey } });
const call = (operation, input) => sqs.send(new aws[`${operation}Command`](input));
const make = async (QueueName, Attributes = {}) => (await call("CreateQueue", { QueueName, Attributes })).QueueUrl;

async function fill(QueueUrl, bodies) {
  const Entries = bodies.map((body, index) => ({ Id: `${index}`, MessageBody: body, MessageGroupId: "acme" }));
  assert.equal((await call("SendMessageBatch", { QueueUrl, Entries })).Successful.length, bodies.length);
}

async function isEmpty(QueueUrl) {
  const { Attributes } = await call("GetQueueAttributes", { QueueUrl, AttributeNames: ["All"] });
  return Attributes.ApproximateNumberOfMessages === "0" && Attributes.ApproximateNumberOfMessagesNotVisible === "0";
}

// Creates a consumer that records its failures, so that an unexpected one fails the test.
function createConsumer(queueUrl, options) {
  const consumer = Consumer.create({ queueUrl, sqs, waitTimeSeconds: 1, pollingCompleteWaitTimeMs: 30000, ...options });
  consumer.failures = [];
  for (const event of ["error", "processing_error", "timeout_error"]) {
    consumer.on(event, (error) => consumer.failures.push(`${event}: ${error.message}`));
  }
  return consumer;
}

async function stop(consumer) {
  const stopped = once(consumer, "stopped");
  consumer.stop();
  await stopped;
}

async function consumesOneByOneInOrder() {
  const queueUrl = await make("consumer-singles");
  const bodies = [..."abcdefgh"];
  await fill(queueUrl, bodies);
  const seen = [];
  const consumer = createConsumer(queueUrl, { handleMessage: async ({ Body }) => void seen.push(Body) });
  const drained = once(consumer, "empty");
  consumer.start();
  await drained;
  await stop(consumer);
  assert.deepEqual([seen, consumer.failures], [bodies, []]);
  assert.ok(await isEmpty(queueUrl));
}

async function consumesInBatches() {
  const queueUrl = await make("consumer-batches");
  const bodies = [..."abcdefghij"];
  await fill(queueUrl, bodies);
  const batches = [];
  const handleMessageBatch = async (messages) => {
    batches.push(messages.map(({ Body }) => Body));
    // Messages that are not returned are not deleted, and are delivered again.
    return batches.length === 1 ? messages.slice(0, 7) : messages;
  };
  const consumer = createConsumer(queueUrl, { batchSize: 10, visibilityTimeout: 3, handleMessageBatch, waitTimeSeconds: 5 });
  const drained = once(consumer, "empty");
  consumer.start();
  await drained;
  await stop(consumer);
  assert.deepEqual(batches[0], bodies);
  assert.deepEqual(batches.slice(1).flat().sort(), [..."hij"]);
  assert.deepEqual(consumer.failures, []);
  assert.ok(await isEmpty(queueUrl));
}

async function deadLettersAfterTwoFailures() {
  const dead = await make("consumer-dead");
  const deadLetterTargetArn = `arn:aws:sqs:us-east-1:${new URL(dead).pathname.split("/")[1]}:consumer-dead`;
  const RedrivePolicy = JSON.stringify({ deadLetterTargetArn, maxReceiveCount: 2 });
  const queueUrl = await make("consumer-failing", { RedrivePolicy });
  await fill(queueUrl, ["good", "bad"]);
  const seen = [];
  const handleMessage = async ({ Body }) => {
    seen.push(Body);
    if (Body === "bad") throw new Error("cannot be done");
  };
  const consumer = createConsumer(queueUrl, { handleMessage, terminateVisibilityTimeout: true });
  consumer.start();
  const received = await new Promise((resolve) => {
    const deadLetterConsumer = createConsumer(dead, {
      handleMessage: async (message) => {
        resolve({ deadLetterConsumer, message });
      },
    });
    deadLetterConsumer.start();
  });
  await Promise.all([stop(consumer), stop(received.deadLetterConsumer)]);
  assert.equal(received.message.Body, "bad");
  assert.deepEqual(seen.sort(), ["bad", "bad", "good"]);
  assert.equal(consumer.failures.length, 2, consumer.failures);
  assert.ok(consumer.failures.every((failure) => failure.startsWith("processing_error") && failure.includes("cannot be done")));
  assert.ok((await isEmpty(queueUrl)) && (await isEmpty(dead)));
}

// The message being handled is finished and deleted; waiting messages stay for other consumers.
async function stopsGracefully() {
  const queueUrl = await make("consumer-stopping");
  await fill(queueUrl, ["first", "second"]);
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const handleMessage = () => finished;
  const consumer = createConsumer(queueUrl, { handleMessage });
  const started = once(consumer, "message_received");
  consumer.start();
  await started;
  const stopping = stop(consumer);
  finish();
  await stopping;
  assert.deepEqual(consumer.failures, []);
  const { Messages } = await call("ReceiveMessage", { QueueUrl: queueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20 });
  assert.deepEqual(Messages.map(({ Body }) => Body), ["second"]);
}

// A consumer that is stopped during a long poll receives no message.
async function stopsDuringALongPoll() {
  const queueUrl = await make("consumer-waiting");
  const consumer = createConsumer(queueUrl, { handleMessage: async () => {}, pollingCompleteWaitTimeMs: 0 });
  consumer.start();
  const stopped = once(consumer, "stopped");
  consumer.stop({ abort: true });
  await stopped;
  await fill(queueUrl, ["mine"]);
  const { Messages } = await call("ReceiveMessage", { QueueUrl: queueUrl, WaitTimeSeconds: 20 });
  assert.deepEqual(Messages.map(({ Body }) => Body), ["mine"]);
}

(async () => {
  const steps = [consumesOneByOneInOrder, consumesInBatches, deadLettersAfterTwoFailures, stopsGracefully, stopsDuringALongPoll];
  for (const step of steps) {
    await step();
    console.log(step.name);
  }
  console.log("all as expected");
})();
