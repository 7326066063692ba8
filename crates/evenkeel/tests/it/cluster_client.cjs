// Sends statements to a full node with unmodified clients. Arguments: `fetch` and the node's URL, or `neon`, the URL,
// the directory in which @neondatabase/serverless is installed, and a statement that returns the executing node.

const assert = require("node:assert/strict");
const [client, url, installed, who] = process.argv.slice(2);

async function useFetch() {
  const sql = "insert into marks values ($1) returning node";
  const request = { method: "POST", headers: { "content-type": "application/json", authorization: "Bearer ignored" } };
  const redirected = await fetch(`${url}/execute`, { ...request, body: JSON.stringify({ sql, params: ["fetch"] }) });
  assert.equal(redirected.status, 200);
  assert.equal(redirected.redirected, true);
  assert.deepEqual((await redirected.json()).rows, [["node-b"]]);

  const manual = await fetch(`${url}/execute`, { ...request, redirect: "manual", body: JSON.stringify({ sql, params: ["x"] }) });
  assert.equal(manual.status, 307);
  const { redirect } = await manual.json();
  assert.equal(redirect.url, manual.headers.get("location"));
  const followed = await fetch(redirect.url, { method: "POST", body: JSON.stringify({ sql, params: ["x"] }) });
  assert.deepEqual((await followed.json()).rows, [["node-b"]]);
}

async function useNeon() {
  const { neon, neonConfig } = require(require.resolve("@neondatabase/serverless", { paths: [installed] }));
  neonConfig.fetchEndpoint = `${url}/sql`;
  const sql = neon("postgresql://anyone:any-key@ignored.example/main");
  assert.deepEqual(await sql.query(who), [{ current_setting: "node-b" }]);
  const [inserted] = await sql`insert into marks values (${"neon"}) returning node, 7 as seven`;
  assert.deepEqual(inserted, { node: "node-b", seven: 7 });
  const results = await sql.transaction([sql`insert into marks values (${"a"})`, sql`insert into marks values (${"b"})`]);
  assert.equal(results.length, 2);
  await assert.rejects(sql`select 1 / ${0}::int4`, (error) => error.code === "22012");
}

const run = { fetch: useFetch, neon: useNeon }[client];
run().then(() => console.log("all as expected"));
