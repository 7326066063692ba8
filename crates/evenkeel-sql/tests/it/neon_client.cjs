// Queries PostgreSQL through Evenkeel with an unmodified @neondatabase/serverless, and checks values and errors.
// Arguments: the directory in which the driver is installed, and JSON with the server's URL (`endpoint`), the name of
// the PostgreSQL database (`database`), a role (`role`), and the API keys of two tenants (`keys`). The first tenant's
// statements run as the role, with the setting `app.tenant`, and it may use only the datasource `main`.

const assert = require("node:assert/strict");
const [installed, config] = process.argv.slice(2);
const driver = require(require.resolve("@neondatabase/serverless", { paths: [installed] }));
const { neon, neonConfig, NeonDbError, Pool, types } = driver;
const { endpoint, database, role, keys: [first, second] } = JSON.parse(config);
neonConfig.fetchEndpoint = endpoint;

const connectionString = (key, name = "main") => `postgresql://anyone:${key}@ignored.example/${name}?sslmode=require`;
const connect = (options) => neon(connectionString(second), options);
const sql = connect();

async function bindsParametersOfEveryType() {
  const date = new Date("2024-02-29T12:34:56.789Z");
  for (const [type, value, expected = value] of [
    ["text", "it's \"quoted\" \\ {1} é \u{1f6a2}"],
    ["text", ""],
    ["text", null],
    ["text", undefined, null],
    ["int4", -7],
    ["int8", 9007199254740993n, "9007199254740993"],
    ["numeric", "12345678901234567890.10"],
    ["float8", 0.1],
    ["float8", NaN],
    ["float8", -Infinity],
    ["bool", true],
    ["bool", false],
    ["timestamptz", date],
    ["jsonb", { a: [1, null, { b: "\u00e9\"" }] }],
    ["jsonb", JSON.stringify([1, "x"]), [1, "x"]],
    ["int4[]", [1, null, 3]],
    ["int4[]", [[1, 2], [3, 4]]],
    ["int4[]", []],
    ["text[]", ["a,b", "\"", "\\", "NULL", "", null]],
    ["bool[]", [true, false]],
    ["timestamptz[]", [date]],
    ["uuid", "00000000-0000-4000-8000-000000000001"],
    ["text", { toPostgres: () => "converted" }, "converted"],
  ]) {
    const [row] = await sql.query(`select $1::${type} as value`, [value]);
    assert.deepEqual(row, { value: expected }, type);
  }
  const bytes = Uint8Array.from([0, 255, 92, 39]);
  assert.deepEqual(Buffer.from((await sql`select ${bytes} as value`)[0].value), Buffer.from(bytes));
  const [{ values }] = await sql.query("select $1::bytea[] as values", [[Buffer.from(bytes)]]);
  assert.deepEqual(values.map((value) => Buffer.from(value)), [Buffer.from(bytes)]);
}

async function composesTemplates() {
  const where = sql`where n > ${2} and n < ${5}`;
  const rows = await sql`select n from ${sql.unsafe("generate_series(1, 9)")} n ${where}`;
  assert.deepEqual(rows, [{ n: 3 }, { n: 4 }]);
}

async function returnsRowsInTheFormThatOptionsChoose() {
  const query = "select 1 as a, 'x' as b, null::int4 as c union all select 2, 'y', 3";
  assert.deepEqual(await sql.query(query), [{ a: 1, b: "x", c: null }, { a: 2, b: "y", c: 3 }]);
  assert.deepEqual(await sql.query(query, [], { arrayMode: true }), [[1, "x", null], [2, "y", 3]]);
  assert.deepEqual(await connect({ arrayMode: true }).query("select 1 as a, 2 as a"), [[1, 2]]);
  const raw = { getTypeParser: () => (text) => `<${text}>` };
  assert.deepEqual(
    await sql.query("select 1.50 as n, true as b, '{1,2}'::int4[] as l, 'infinity'::date as d", [], { types: raw }),
    [{ n: "<1.50>", b: "<t>", l: "<{1,2}>", d: "<infinity>" }],
  );
}

async function returnsTheMetadataOfNodePostgres() {
  await sql`create table full_results (id int4 primary key, name varchar(20))`;
  const inserted = await sql.query("insert into full_results values (1, 'a'), (2, 'b')", [], { fullResults: true });
  assert.deepEqual([inserted.command, inserted.rowCount, inserted.rows, inserted.fields], ["INSERT", 2, [], []]);
  const [{ oid }] = await sql`select 'full_results'::regclass::oid::int4 as oid`;
  const result = await connect({ fullResults: true })`select name from full_results order by id`;
  assert.deepEqual([result.command, result.rowCount, result.rowAsArray], ["SELECT", 2, false]);
  assert.deepEqual(result.rows, [{ name: "a" }, { name: "b" }]);
  assert.deepEqual(result.fields, [{
    name: "name", dataTypeID: types.builtins.VARCHAR, tableID: oid, columnID: 2, dataTypeSize: -1, dataTypeModifier: 24,
    format: "text",
  }]);
  const dropped = await sql.query("drop table full_results", [], { fullResults: true });
  assert.deepEqual([dropped.command, dropped.rowCount], ["DROP", null]);
}

async function rejects(act, expected) {
  await assert.rejects(act, (error) => {
    assert.ok(error instanceof NeonDbError, `${error.name}: ${error.message}`);
    for (const [field, value] of Object.entries(expected)) {
      if (value instanceof RegExp) assert.match(String(error[field]), value, field);
      else assert.equal(error[field], value, `${field} of ${error.message}`);
    }
    return true;
  });
}

async function runsTransactions() {
  await sql`create table ledger (id int4 primary key, parent int4 references ledger deferrable initially deferred)`;
  const [inserted, ids] = await sql.transaction((txn) => [
    txn`insert into ledger values (${1}) returning pg_current_xact_id()::text as xid`,
    txn`select pg_current_xact_id()::text as xid, id from ledger`,
  ]);
  assert.deepEqual(ids, [{ xid: inserted[0].xid, id: 1 }]);
  const fails = (...queries) => sql.transaction(queries.map((query) => sql.query(query)));
  await rejects(fails("insert into ledger values (2)", "insert into ledger values (1)"), { code: "23505" });
  await rejects(fails("insert into ledger values (3, 99)"), { code: "23503" });
  await rejects(fails("insert into ledger values (4)", "commit"), { code: "25001" });
  await rejects(sql`begin`, { code: "25001", message: /transaction\(\)/ });
  // A COMMIT that a client sends as a query has taken effect, as on PostgreSQL itself.
  assert.deepEqual(await sql`select id from ledger where id <> 4`, [{ id: 1 }]);
  const show = (txn) => [txn`select 1 as one`, txn`select 2 as two`];
  assert.deepEqual(await sql.transaction(show, { arrayMode: true }), [[[1]], [[2]]]);
  const [full] = await sql.transaction(show, { fullResults: true });
  assert.deepEqual([full.command, full.rowCount, full.rows], ["SELECT", 1, [{ one: 1 }]]);
  assert.deepEqual(await sql.transaction([]), []);
}

async function appliesTheOptionsOfATransaction() {
  const settings = ["isolation", "read_only", "deferrable"];
  const state = async (options, query = sql) => {
    const rows = await query.transaction(settings.map((name) => query.query(`show transaction_${name}`)), options);
    return rows.map(([row]) => Object.values(row)[0]);
  };
  assert.deepEqual(await state(), ["read committed", "off", "off"]);
  assert.deepEqual(await state({ isolationLevel: "ReadUncommitted" }), ["read committed", "off", "off"]);
  assert.deepEqual(await state({ isolationLevel: "ReadCommitted" }), ["read committed", "off", "off"]);
  const repeatable = { isolationLevel: "RepeatableRead", readOnly: false };
  assert.deepEqual(await state(repeatable), ["repeatable read", "off", "off"]);
  const deferrable = { isolationLevel: "Serializable", readOnly: true, deferrable: true };
  assert.deepEqual(await state(deferrable), ["serializable", "on", "on"]);
  assert.deepEqual(await state({}, connect(deferrable)), ["serializable", "on", "on"]);
  const write = (options) => sql.transaction([sql`create table written ()`], options);
  await rejects(write({ readOnly: true }), { code: "25006" });
  await rejects(write({ isolationLevel: "Chaos" }), { message: /isolation level must be/ });
  await write();
  // A single query may write after a read-only transaction.
  await sql`drop table written`;
}

async function reportsTheFieldsOfErrors() {
  await sql`create domain even as int4 check (value % 2 = 0)`;
  await sql`create table strict (id int4 constraint strict_key primary key, v text not null)`;
  await sql`insert into strict values (1, 'a')`;
  await rejects(sql`insert into strict values (1, 'b')`, {
    message: "duplicate key value violates unique constraint \"strict_key\"", severity: "ERROR", code: "23505",
    detail: "Key (id)=(1) already exists.", schema: "public", table: "strict", constraint: "strict_key",
    file: /\.c$/, line: /^\d+$/, routine: /./, hint: undefined, position: undefined,
  });
  await rejects(sql`insert into strict values (2, null)`, { code: "23502", column: "v", table: "strict" });
  await rejects(sql`select 3::even`, { code: "23514", dataType: "even", constraint: "even_check" });
  await rejects(sql`select lenght('x')`, { code: "42883", position: "8", hint: /function/ });
  const body = "begin return (select 1 from nowhere); end";
  await sql.query(`create function broken() returns int4 language plpgsql as '${body}'`);
  await rejects(sql`select broken()`, {
    code: "42P01", internalPosition: /^\d+$/, internalQuery: /nowhere/, where: /PL\/pgSQL function broken/,
  });
  await rejects(sql`copy strict to stdout`, { code: "0A000", message: /not supported/ });
  await rejects(sql.query("select $1::int4", ["x"]), { code: "22P02" });
  await rejects(sql.query("select $1::int4", []), { code: "08P01" });
  await rejects(sql.query(""), { code: "08P01", message: "sql is empty" });
}

async function usesTheCredentialsOfEachRequest() {
  const whoami = "select current_user::text as role, current_setting('app.tenant', true) as tenant";
  for (let round = 0; round < 3; round++) {
    assert.deepEqual(await sql.query(whoami, [], { password: first }), [{ role, tenant: "o'hara" }]);
    const [other] = await sql.query(whoami);
    assert.notEqual(other.role, role);
    assert.ok(!other.tenant, `the setting of another tenant: ${other.tenant}`);
  }
  const both = await Promise.all([first, second].map((password) => neon({
    user: "u", password: async () => password, host: "h", database: "main",
  }).query(whoami)));
  assert.deepEqual(both.map(([row]) => row.role === role), [true, false]);
  for (const key of ["wrong", "", `${first}x`]) {
    await rejects(neon(connectionString(key))`select 1`, { code: "28P01", message: /password authentication failed/ });
  }
  await rejects(neon("postgresql://anyone@ignored.example/main")`select 1`, { code: "28P01" });
}

async function selectsAConfiguredDatabase() {
  const current = "select current_database()::text as name";
  for (const name of ["main", database]) {
    assert.deepEqual(await neon(connectionString(second, name)).query(current), [{ name: database }]);
  }
  for (const name of ["nowhere", "postgres", "Main"]) {
    await rejects(neon(connectionString(second, name)).query(current), { code: "3D000", message: /does not exist/ });
  }
  await rejects(neon(connectionString(second, "lite")).query(current), { code: "0A000", message: /is SQLite/ });
  const forbidden = { code: "42501", message: /may not use datasource/ };
  await rejects(neon(connectionString(first, "lite")).query(current), forbidden);
}

async function aPoolCanQueryViaFetch() {
  neonConfig.poolQueryViaFetch = true;
  const pool = new Pool({ connectionString: connectionString(second) });
  const result = await pool.query("select $1::int4 as n", [7]);
  assert.deepEqual([result.rows, result.rowCount, result.command], [[{ n: 7 }], 1, "SELECT"]);
  await rejects(pool.query("select nothing"), { code: "42703" });
  await pool.end();
}

async function abortedRequestsStopTheirStatements() {
  const running = async () => (await sql`
    select count(*)::int4 as n from pg_stat_activity where query like '%pg_sleep(600)%' and pid <> pg_backend_pid()
    and state = 'active'`)[0].n;
  const abort = new AbortController();
  const slow = sql.query("select pg_sleep(600)", [], { fetchOptions: { signal: abort.signal } });
  const stopped = rejects(slow, { message: /Error connecting to database/ });
  while ((await running()) !== 1);
  abort.abort();
  await stopped;
  while ((await running()) !== 0);
}

(async () => {
  for (const step of [
    bindsParametersOfEveryType, composesTemplates, returnsRowsInTheFormThatOptionsChoose,
    returnsTheMetadataOfNodePostgres, runsTransactions, appliesTheOptionsOfATransaction, reportsTheFieldsOfErrors,
    usesTheCredentialsOfEachRequest, selectsAConfiguredDatabase, aPoolCanQueryViaFetch,
    abortedRequestsStopTheirStatements,
  ]) {
    await step();
    console.log(step.name);
  }
  console.log("all as expected");
})();
