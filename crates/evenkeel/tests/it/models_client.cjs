// Uses model names with a slash and aliases through openai-node.
// The arguments are the base URL of the gateway and the directory where openai is installed.

const assert = require("node:assert/strict");
const [gateway, installed] = process.argv.slice(2);
const OpenAI = require(require.resolve("openai", { paths: [installed] }));

const client = (apiKey) => new OpenAI({ baseURL: gateway, apiKey, maxRetries: 0 });

async function main() {
  assert.equal((await client("ek-acme").models.retrieve("org/name")).id, "org/name");
  await assert.rejects(client("ek-acme").models.retrieve("org/other"), OpenAI.NotFoundError);
  await assert.rejects(client("ek-narrow").models.retrieve("org/name"), OpenAI.PermissionDeniedError);
  const chat = { model: "gpt", messages: [{ role: "user", content: "hello" }], max_tokens: 4 };
  const { data, response } = await client("ek-narrow").chat.completions.create(chat).withResponse();
  assert.deepEqual([data.model, response.headers.get("x-evenkeel-model")], ["org/name", "org/name"]);
  console.log("all as expected");
}

main();
