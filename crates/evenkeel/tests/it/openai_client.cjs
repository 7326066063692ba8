// Talks to a gateway, and meets its refusals and its node's faults, as any program with openai-node does.
// Its arguments are the gateway's base URL, that of the one engine behind it, and the folder openai is installed in.

const assert = require("node:assert/strict");
const [gateway, engine, installed] = process.argv.slice(2);
const OpenAI = require(require.resolve("openai", { paths: [installed] }));

const messages = [{ role: "user", content: "hello" }];
const client = (key = "ek-acme", options = {}) => new OpenAI({ baseURL: gateway, apiKey: key, maxRetries: 0, ...options });
const ask = (who, change = {}) =>
  who.chat.completions.create({ model: "sim", messages, max_tokens: 8, ...change });

async function setFault(kind) {
  const answer = await fetch(`${engine}/sim/fault`, { method: "POST", body: JSON.stringify({ kind }) });
  assert.equal(answer.status, 200);
}

async function raises(kind, status, code, act) {
  let raised;
  await assert.rejects(act, (error) => {
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

const said = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

async function chats() {
  const answer = await ask(client());
  assert.equal(answer.choices[0].message.role, "assistant");
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 8);
}

async function streamsWithUsage() {
  const whole = await ask(client());
  const asked = await collect(await ask(client(), { stream: true, stream_options: { include_usage: true } }));
  assert.equal(said(asked), whole.choices[0].message.content);
  assert.equal(asked.at(-1).usage.total_tokens, whole.usage.total_tokens);
  assert.ok(asked.slice(0, -1).every((chunk) => chunk.usage === null));
  const unasked = await collect(await ask(client(), { stream: true }));
  assert.equal(said(unasked), whole.choices[0].message.content);
  assert.ok(unasked.every((chunk) => chunk.choices.length === 1 && !chunk.usage), "usage that nobody asked for");
}

async function callsTools() {
  const parameters = { type: "object", properties: { city: { type: "string" } } };
  const tools = [{ type: "function", function: { name: "weather", parameters } }];
  const asked = { tools, tool_choice: "required", max_tokens: 50 };
  const answer = await ask(client(), asked);
  const call = answer.choices[0].message.tool_calls[0];
  assert.equal(call.function.name, "weather");
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "sample" });
  const chunks = await collect(await ask(client(), { ...asked, stream: true }));
  const pieces = chunks.flatMap((chunk) => chunk.choices[0].delta.tool_calls ?? []);
  assert.equal(pieces.map((piece) => piece.function.arguments ?? "").join(""), call.function.arguments);
  const conversation = [...messages, answer.choices[0].message, { role: "tool", tool_call_id: call.id, content: "rain" }];
  assert.ok((await ask(client(), { messages: conversation, tools })).choices[0].message.content);
}

async function embeds() {
  const encoded = await client().embeddings.create({ model: "sim", input: ["a", "b"] });
  const plain = await client().embeddings.create({ model: "sim", input: ["a", "b"], encoding_format: "float" });
  assert.equal(encoded.data[1].embedding.length, 64);
  encoded.data[1].embedding.forEach((x, at) => assert.ok(Math.abs(x - plain.data[1].embedding[at]) < 1e-6));
}

async function completesAndLists() {
  const answer = await client().completions.create({ model: "sim", prompt: "hello", max_tokens: 4 });
  assert.equal(answer.choices[0].text.split(" ").length, 4);
  const models = await collect(await client().models.list());
  assert.deepEqual(models.map((model) => model.id), ["sim"]);
}

async function mapsErrors() {
  await raises(OpenAI.AuthenticationError, 401, "invalid_api_key", () => ask(client("ek-nobody")));
  await raises(OpenAI.PermissionDeniedError, 403, "tenant_disabled", () => ask(client("ek-off")));
  await raises(OpenAI.PermissionDeniedError, 403, "model_forbidden", () => ask(client("ek-narrow")));
  await raises(OpenAI.NotFoundError, 404, "model_not_found", () => ask(client(), { model: "gpt" }));
  const wrong = await raises(OpenAI.BadRequestError, 400, "invalid_request", () => ask(client(), { max_tokens: "many" }));
  assert.equal(wrong.param, "max_tokens");
  await ask(client("ek-slow"));
  const limited = await raises(OpenAI.RateLimitError, 429, "rate_limit_exceeded", () => ask(client("ek-slow")));
  assert.ok(Number(limited.headers.get("retry-after")) >= 1);
  await setFault("reset");
  await raises(OpenAI.InternalServerError, 502, "bad_upstream", () => ask(client()));
  await setFault(null);
}

async function hearsOfACutWithinTheStream() {
  await setFault("mid-stream-cut");
  const chunks = [];
  await assert.rejects(
    async () => {
      for await (const chunk of await ask(client(), { stream: true })) chunks.push(chunk);
    },
    (error) => error instanceof OpenAI.APIError && error.code === "bad_upstream",
  );
  await setFault(null);
  assert.equal(said(chunks).split(" ").length, 4);
}

// The engine is busy for as long as it says so; whoever comes back earlier meets the same answer.
async function comesBackWhenTold() {
  const answers = [];
  const noting = async (url, init) => {
    const answer = await fetch(url, init);
    answers.push([answer.status, performance.now(), new Headers(init.headers).get("x-stainless-retry-count")]);
    if (answer.status === 503) await setFault(null);
    return answer;
  };
  await setFault("429-retry-after");
  assert.ok((await ask(client("ek-acme", { maxRetries: 2, fetch: noting }))).choices[0].message.content);
  assert.deepEqual(answers.map(([status, , retries]) => [status, retries]), [[503, "0"], [200, "1"]]);
  assert.ok(answers[1][1] - answers[0][1] >= 999, "came back too early");
}

async function asksForResponses() {
  const respond = (change) => client().responses.create({ model: "sim", input: "hello", ...change });
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

async function leavesAStream() {
  const stream = await ask(client(), { stream: true, max_tokens: 20000 });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;
  }
  stream.controller.abort();
}

(async () => {
  const steps = [chats, streamsWithUsage, callsTools, embeds, completesAndLists, mapsErrors];
  for (const step of [...steps, hearsOfACutWithinTheStream, comesBackWhenTold, asksForResponses, leavesAStream]) {
    await step();
    console.log(step.name);
  }
  console.log("all as expected");
})();
