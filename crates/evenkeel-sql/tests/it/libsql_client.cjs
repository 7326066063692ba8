// Queries SQLite through Evenkeel with an unmodified @libsql/client, and checks values, transactions and errors.
// Arguments: the directory in which the client is installed, and JSON with the server's URL (`url`) and the API keys of
// two tenants (`keys`).

const assert = require("node:assert/strict");
const [installed, config] = process.argv.slice(2);
const { createClient, LibsqlError } = require(require.resolve("@libsql/client", { paths: [installed] }));
const { url, keys: [first, second] } = JSON.parse(config);

const connect = (authToken, options) => createClient({ url, authToken, ...options });
const client = connect(first);
const value = async (sql, args, from = client) => (await from.execute({ sql, args })).rows[0][0];
const count = () => value("select count(*) from t", []);

async function rejects(promise, expected) {
  await assert.rejects(promise, (error) => {
    assert.ok(error instanceof LibsqlError, `${error}`);
    for (const [field, wanted] of Object.entries(expected)) {
      if (wanted instanceof RegExp) assert.match(String(error[field]), wanted, `${error}`);
      else assert.equal(error[field], wanted, `${error}`);
    }
    return true;
  });
}

async function reset() {
  await client.executeMultiple("drop table if exists t; create table t (id integer primary key, v text unique)");
}

async function bindsAndReturnsValuesOfEveryType() {
  const bytes = new Uint8Array([0, 255, 1]);
  const { columns, columnTypes, rows } = await client.execute({
    sql: "select ? as n, ? as i, ? as f, ? as t, ? as b, ? as y",
    args: [null, 9007199254740991, 0.5, "it's \"é\"", bytes, true],
  });
  assert.deepEqual(columns, ["n", "i", "f", "t", "b", "y"]);
  assert.deepEqual(columnTypes, ["", "", "", "", "", ""]);
  const [n, i, f, t, b, y] = Array.from(rows[0]);
  assert.deepEqual([n, i, f, t, new Uint8Array(b), y], [null, 9007199254740991, 0.5, "it's \"é\"", bytes, 1]);
  assert.equal(rows[0].t, "it's \"é\"");
  const big = connect(first, { intMode: "bigint" });
  assert.equal(await value("select ?", [-9223372036854775808n], big), -9223372036854775808n);
  await assert.rejects(value("select 9223372036854775807", []), RangeError);
  const text = connect(first, { intMode: "string" });
  assert.equal(await value("select 9223372036854775807", [], text), "9223372036854775807");
  assert.equal(await value("select 9e999", []), Infinity);
  assert.equal(await value("select length(?)", [new Uint8Array(100000)]), 100000);
}

async function bindsNamesWithAndWithoutPrefix() {
  for (const args of [{ a: 1, b: 2, c: 3 }, { ":a": 1, "@b": 2, $c: 3 }]) {
    const { rows } = await client.execute({ sql: "select :a, @b, $c, :a + @b", args });
    assert.deepEqual(Array.from(rows[0]), [1, 2, 3, 3]);
  }
  await rejects(client.execute({ sql: "select :a", args: {} }), { code: "ARGS_INVALID", message: /missing/ });
  await rejects(client.execute({ sql: "select :a", args: { a: 1, z: 2 } }), { code: "ARGS_INVALID" });
}

async function reportsChanges() {
  await reset();
  const inserted = await client.execute("insert into t (v) values ('a'), ('b')");
  assert.deepEqual([inserted.rowsAffected, inserted.lastInsertRowid, inserted.rows.length], [2, 2n, 0]);
  const returned = await client.execute("update t set v = v || '!' returning id, v");
  assert.deepEqual(returned.rows.map((row) => [row.id, row.v]), [[1, "a!"], [2, "b!"]]);
  assert.deepEqual([returned.rowsAffected, returned.columnTypes], [2, ["INTEGER", "TEXT"]]);
}

async function runsBatchesInATransaction() {
  await reset();
  for (const mode of ["write", "deferred"]) {
    const results = await client.batch([
      { sql: "insert into t (v) values (?)", args: [mode] },
      ["insert into t (v) values (:v)", { v: `${mode}2` }],
      "select count(*) as n from t",
    ], mode);
    assert.deepEqual(results.map((result) => result.rowsAffected), [1, 1, 0]);
  }
  assert.equal(await count(), 4);
  await rejects(client.batch([
    "insert into t (v) values ('rolled back')", "insert into t (v) values ('write')", "select 1",
  ], "write"), { code: "SQLITE_CONSTRAINT", message: /UNIQUE constraint failed: t.v/, statementIndex: 1 });
  assert.equal(await count(), 4);
  const [read] = await client.batch(["select count(*) as n from t"], "read");
  assert.equal(read.rows[0].n, 4);
  await rejects(client.batch(["insert into t (v) values ('x')"], "read"), { code: "SQLITE_READONLY" });
  const many = Array.from({ length: 100 }, (_, index) => ({ sql: "insert into t (v) values (?)", args: [`m${index}`] }));
  assert.equal((await client.batch(many, "write")).length, 100);
  await rejects(client.batch([...many, "select 1"], "write"), { code: "INVALID_REQUEST", message: /more than 100/ });
}

async function runsInteractiveTransactions() {
  await reset();
  const write = await client.transaction("write");
  await write.execute({ sql: "insert into t (v) values (?)", args: ["a"] });
  await write.batch([{ sql: "insert into t (v) values (?)", args: ["b"] }, "insert into t (v) values ('c')"]);
  await write.executeMultiple("insert into t (v) values ('d'); insert into t (v) values ('e')");
  assert.equal((await write.execute("select count(*) as n from t")).rows[0].n, 5);
  assert.equal(await count(), 0, "nobody else sees it yet");
  await rejects(write.execute("insert into t (v) values ('a')"), { code: "SQLITE_CONSTRAINT" });
  await write.execute("insert into t (v) values ('f')");
  await write.commit();
  assert.equal(write.closed, true);
  assert.equal(await count(), 6);
  await rejects(write.execute("select 1"), { code: "TRANSACTION_CLOSED" });

  const undone = await client.transaction("write");
  await undone.execute("delete from t");
  await undone.rollback();
  const dropped = await client.transaction("deferred");
  await dropped.execute("delete from t");
  dropped.close();
  assert.equal(await count(), 6);

  const read = await client.transaction("read");
  assert.equal((await read.execute("select count(*) as n from t")).rows[0].n, 6);
  await client.execute("insert into t (v) values ('g')");
  assert.equal((await read.execute("select count(*) as n from t")).rows[0].n, 6, "a snapshot");
  await rejects(read.execute("delete from t"), { code: "SQLITE_READONLY" });
  await read.commit();

  // Many transactions at once take turns.
  await Promise.all(Array.from({ length: 8 }, async (_, index) => {
    const one = await client.transaction("write");
    const { rows } = await one.execute("select count(*) as n from t");
    await one.execute({ sql: "insert into t (v) values (?)", args: [`p${index}-${rows[0].n}`] });
    await one.commit();
  }));
  assert.equal(await count(), 15);
  // More texts than the client stores at once.
  const texts = await client.transaction("write");
  for (let index = 0; index < 80; index++) await texts.execute(`select ${index}`);
  await texts.commit();
}

async function migrates() {
  await reset();
  await client.execute("create table child (t integer references t (id) on delete cascade)");
  await client.batch(["insert into t values (1, 'a')", "insert into child values (1)"], "write");
  // A rebuilt table must keep the rows that refer to it.
  await client.migrate([
    "create table t2 (id integer primary key, v text, w text)", "insert into t2 (id, v) select id, v from t",
    "drop table t", "alter table t2 rename to t",
  ]);
  assert.equal(await value("select count(*) from child", []), 1);
  await rejects(client.execute("insert into child values (9)"), { code: "SQLITE_CONSTRAINT", message: /FOREIGN KEY/ });
  await rejects(client.migrate(["create table t3 (a)", "selec"]), { code: "SQLITE_ERROR" });
  assert.equal(await value("select count(*) from sqlite_schema where name = 't3'", []), 0);
  await client.execute("drop table child");
  await client.executeMultiple(`
    create table log (v); -- a comment; with a semicolon
    create trigger logged after insert on t begin insert into log values (new.v || ';'); end;
    begin; insert into t (v) values ('b'); commit;
  `);
  assert.equal(await value("select v from log", []), "b;");
  await rejects(client.executeMultiple("select 1; select * from nowhere; drop table log"), { code: "SQLITE_ERROR" });
  assert.equal(await value("select count(*) from log", []), 1);
}

async function reportsErrors() {
  await rejects(client.execute("select * from nowhere"), { code: "SQLITE_ERROR", message: /no such table: nowhere/ });
  await rejects(client.execute("attach ':memory:' as x"), { code: "SQLITE_AUTH", message: /ATTACH is not allowed/ });
  await rejects(client.execute("commit"), { code: "SQLITE_ERROR", message: /no transaction is active/ });
  await rejects(client.execute("select 1; select 2"), { code: "SQLITE_ERROR", message: /more than one statement/ });
  await rejects(connect("wrong").execute("select 1"), { code: "INVALID_API_KEY" });
  await rejects(connect(undefined).execute("select 1"), { code: "INVALID_API_KEY" });
}

async function tenantsTakeTurns() {
  const other = connect(second);
  const results = await Promise.all([client, other, client, other].map((from) => value("select 7", [], from)));
  assert.deepEqual(results, [7, 7, 7, 7]);
  assert.equal(await value("select 7", [], createClient({ url: `${url}/dev/main/`, authToken: second })), 7);
}

(async () => {
  for (const step of [
    bindsAndReturnsValuesOfEveryType, bindsNamesWithAndWithoutPrefix, reportsChanges, runsBatchesInATransaction,
    runsInteractiveTransactions, migrates, reportsErrors, tenantsTakeTurns,
  ]) {
    await step();
    console.log(step.name);
  }
  console.log("all as expected");
})();
