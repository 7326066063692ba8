// Uses the gateway through openai-node: all features, errors of the gateway, and faults of its node.
// The arguments are the base URL of the gateway, the URL of its only node, and the directory where openai is installed.

const assert = require("node:assert/strict");
const [gateway, engine, installed] = process.argv.slice(2);
const OpenAI = require(require.resolve("openai", { paths: [installed] }));

const messages = [{ role: "user", content: "hello" }];
const client = (key = "ek-acme", options = {}) => new OpenAI({ baseURL: gateway, apiKey: key, maxRetries: 0, ...options });
const createChat = (target, fields = {}) =>
  target.chat.completions.create({ model: "sim", messages, max_tokens: 8, ...fields });

async function setFault(kind) {
  const response = await fetch(`${engine}/sim/fault`, { method: "POST", body: JSON.stringify({ kind }) });
  assert.equal(response.status, 200);
}

async function raises(kind, status, code, call) {
  let raised;
  await assert.rejects(call, (error) => {
    raised = error;
    assert.ok(error instanceof kind, `${error.constructor.name}, not ${kind.name}`);
    assert.deepEqual([error.status, error.code], [status, code]);
    assert.ok(error.requestID);
    return true;
  });
  return raised;
}

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

async function chats() {
  const response = await createChat(client());
  assert.equal(response.choices[0].message.role, "assistant");
  assert.equal(response.choices[0].finish_reason, "length");
  assert.equal(response.usage.completion_tokens, 8);
}

async function streamsWithUsage() {
  const whole = await createChat(client());
  const withUsage = await collect(await createChat(client(), { stream: true, stream_options: { include_usage: true } }));
  assert.equal(textOf(withUsage), whole.choices[0].message.content);
  assert.equal(withUsage.at(-1).usage.total_tokens, whole.usage.total_tokens);
  assert.ok(withUsage.slice(0, -1).every((chunk) => chunk.usage === null));
  const withoutUsage = await collect(await createChat(client(), { stream: true }));
  assert.equal(textOf(withoutUsage), whole.choices[0].message.content);
  assert.ok(withoutUsage.every((chunk) => chunk.choices.length === 1 && !chunk.usage), "usage was not requested");
}

async function callsTools() {
  const parameters = { type: "object", properties: { city: { type: "string" } } };
  const tools = [{ type: "function", function: { name: "weather", parameters } }];
  const fields = { tools, tool_choice: "required", max_tokens: 50 };
  const response = await createChat(client(), fields);
  const call = response.choices[0].message.tool_calls[0];
  assert.equal(call.function.name, "weather");
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "sample" });
  const chunks = await collect(await createChat(client(), { ...fields, stream: true }));
  const pieces = chunks.flatMap((chunk) => chunk.choices[0].delta.tool_calls ?? []);
  assert.equal(pieces.map((piece) => piece.function.arguments ?? "").join(""), call.function.arguments);
  const conversation = [...messages, response.choices[0].message, { role: "tool", tool_call_id: call.id, content: "rain" }];
  assert.ok((await createChat(client(), { messages: conversation, tools })).choices[0].message.content);
}

async function embeds() {
  const encoded = await client().embeddings.create({ model: "sim", input: ["a", "b"] });
  const plain = await client().embeddings.create({ model: "sim", input: ["a", "b"], encoding_format: "float" });
  assert.equal(encoded.data[1].embedding.length, 64);
  encoded.data[1].embedding.forEach((x, index) => assert.ok(Math.abs(x - plain.data[1].embedding[index]) < 1e-6));
}

async function completesAndLists() {
  const response = await client().completions.create({ model: "sim", prompt: "hello", max_tokens: 4 });
  assert.equal(response.choices[0].text.split(" ").length, 4);
  const models = await collect(await client().models.list());
  assert.deepEqual(models.map((model) => model.id), ["sim"]);
}

async function mapsErrors() {
  await raises(OpenAI.AuthenticationError, 401, "invalid_api_key", () => createChat(client("ek-unknown")));
  await raises(OpenAI.PermissionDeniedError, 403, "tenant_disabled", () => createChat(client("ek-off")));
  await raises(OpenAI.PermissionDeniedError, 403, "model_forbidden", () => createChat(client("ek-narrow")));
  await raises(OpenAI.NotFoundError, 404, "model_not_found", () => createChat(client(), { model: "gpt" }));
  const wrong = await raises(OpenAI.BadRequestError, 400, "invalid_request", () => createChat(client(), { max_tokens: "many" }));
  assert.equal(wrong.param, "max_tokens");
  await createChat(client("ek-slow"));
  const limited = await raises(OpenAI.RateLimitError, 429, "rate_limit_exceeded", () => createChat(client("ek-slow")));
  assert.ok(Number(limited.headers.get("retry-after")) >= 1);
  await setFault("reset");
  await raises(OpenAI.InternalServerError, 502, "bad_upstream", () => createChat(client()));
  await setFault(null);
}

async function getsAnErrorEventForACutStream() {
  await setFault("mid-stream-cut");
  const chunks = [];
  await assert.rejects(
    async () => {
      for await (const chunk of await createChat(client(), { stream: true })) chunks.push(chunk);
    },
    (error) => error instanceof OpenAI.APIError && error.code === "bad_upstream",
  );
  await setFault(null);
  assert.equal(textOf(chunks).split(" ").length, 4);
}

// The node is overloaded until `Retry-After` has passed; an earlier retry would be rejected again.
async function retriesAfterRetryAfter() {
  const responses = [];
  const recording = async (url, init) => {
    const response = await fetch(url, init);
    responses.push([response.status, performance.now(), new Headers(init.headers).get("x-stainless-retry-count")]);
    if (response.status === 429) await setFault(null);
    return response;
  };
  await setFault("429-retry-after");
  assert.ok((await createChat(client("ek-acme", { maxRetries: 2, fetch: recording }))).choices[0].message.content);
  assert.deepEqual(responses.map(([status, , retries]) => [status, retries]), [[429, "0"], [200, "1"]]);
  assert.ok(responses[1][1] - responses[0][1] >= 999, "retried too early");
}

async function usesTheResponsesApi() {
  const respond = (fields) => client().responses.create({ model: "sim", input: "hello", ...fields });
  const whole = await respond();
  assert.equal(whole.status, "completed");
  const events = await collect(await respond({ stream: true }));
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), whole.output_text);
  assert.equal(events.at(-1).type, "response.completed");
  assert.equal(events.at(-1).response.usage.output_tokens, whole.usage.output_tokens);
  await setFault("mid-stream-cut");
  const cut = async () => collect(await respond({ stream: true }));
  await assert.rejects(cut, (error) => error instanceof OpenAI.APIError && error.code === "bad_upstream");
  await setFault(null);
}

async function disconnectsMidStream() {
  const stream = await createChat(client(), { stream: true, max_tokens: 20000 });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;
  }
  stream.controller.abort();
}

(async () => {
  const steps = [chats, streamsWithUsage, callsTools, embeds, completesAndLists, mapsErrors];
  for (const step of [...steps, getsAnErrorEventForACutStream, retriesAfterRetryAfter, usesTheResponsesApi, disconnectsMidStream]) {
    await step();
    console.log(step.name);
  }
  console.log("all as expected");
})();
