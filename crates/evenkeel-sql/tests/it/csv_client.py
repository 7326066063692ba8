"""Reads CSV responses with Python's own reader, from PostgreSQL and SQLite. Argument: the server's address."""

import csv
import http.client
import io
import json
import sys

NASTY = ["", " ", "a,b", 'say "x"', '"', '""', "line\nfeed", "carriage\r\nreturn", "\r", ",", "NULL", "\\.", "é🦀", "'", "=1+1"]


def post(path, body, headers=()):
    connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
    connection.request("POST", path, json.dumps(body), {"Accept": "text/csv", **dict(headers)})
    return connection.getresponse()


def text(body, path="/query"):
    response = post(path, body)
    content = response.read().decode()
    assert response.status == 200, content
    assert response.headers["content-type"] == "text/csv; charset=utf-8; header=present", response.headers
    assert content.count("\n") <= content.count("\r\n") + sum(value.count("\n") for value in NASTY), content
    return content


def rows(body, path="/query"):
    return list(csv.reader(io.StringIO(text(body, path), newline=""), strict=True))


def error(body, path="/query", headers=()):
    response = post(path, body, headers)
    assert response.headers["content-type"] == "application/json", response.headers
    return response.status, json.loads(response.read())


def expect_cut(body):
    """The response begins well and is then aborted."""
    response = post("/query", body)
    assert response.status == 200
    try:
        response.read()
    except http.client.IncompleteRead as cut:
        assert cut.partial.startswith(b"i"), cut.partial[:20]
    else:
        raise AssertionError("the cut was not visible")


def check_values(database, placeholder):
    marks = ",".join(placeholder(index) for index in range(1, len(NASTY) + 1))
    header, row = rows({"sql": f"select {marks}", "params": NASTY, "database": database})
    assert row == NASTY and len(header) == len(NASTY), row
    body = {"sql": "select null as a, '' as b, 'c' as \"d,\"\"e\"", "database": database}
    assert text(body) == 'a,b,"d,""e"\r\n,"",c\r\n', text(body)
    assert text({"sql": "select 1 as a where 1 = 0", "database": database}) == "a\r\n"
    write = {"sql": "create table csv_t (id integer, name text)", "database": database}
    assert text(write, "/execute") == "", "no result set"
    insert = "insert into csv_t values (1, null), (2, 'x') returning id, name"
    assert text({"sql": insert, "database": database}, "/execute") == "id,name\r\n1,\r\n2,x\r\n"
    first = {"sql": "select id from csv_t order by id", "database": database, "maxRows": 1}
    assert text(first) == "id\r\n1\r\n"


def check_errors(database):
    status, json_error = error({"sql": "select nothing", "database": database})
    assert status == 400 and json_error["message"], json_error
    status, json_error = error({"statements": [{"sql": "select 1"}], "database": database})
    assert status == 400 and "several results" in json_error["message"], json_error
    key = [("Idempotency-Key", "k")]
    status, json_error = error({"sql": "select 1", "database": database}, "/execute", key)
    assert status == 400 and "Idempotency-Key" in json_error["message"], json_error


check_values("main", lambda index: f"${index}::text")
check_values("lite", lambda index: f"?{index}")
check_errors("main")
check_errors("lite")

types = "select true as b, 9007199254740993 as n, 1.50::numeric as d, '{1,null,\"a,b\"}'::text[] as l, '\\x00ff'::bytea as y, 'NaN'::float8 as f"
assert rows({"sql": types})[1] == ["t", "9007199254740993", "1.50", '{1,NULL,"a,b"}', "\\x00ff", "NaN"]
lite_types = "select 9007199254740993, 0.1, x'00ff', 1e999, 1e300"
assert rows({"sql": lite_types, "database": "lite"})[1] == ["9007199254740993", "0.1", "\\x00ff", "Infinity", "1e300"]

# An error before the first row is a normal error, even if the columns were known.
assert error({"sql": "select 1/0 as i"}) [1]["code"] == "22012"
assert error({"sql": "select pg_sleep(600)", "timeoutMs": 200})[1]["code"] == "57014"
assert error({"sql": "select abs(-9223372036854775807 - 1) as i", "database": "lite"})[0] == 400

# A later error aborts the response.
expect_cut({"sql": "select i, repeat('x', 1000), 1/(20000 - i) from generate_series(1, 30000) i"})
expect_cut({"sql": "select i, case when i = 5000 then pg_sleep(600) end, repeat('x', 1000) from generate_series(1, 30000) i", "timeoutMs": 2000})
numbers = "with recursive n(i) as (select 1 union all select i + 1 from n limit 30000)"
expect_cut({"sql": f"{numbers} select i, hex(zeroblob(500)), case when i = 20000 then abs(-9223372036854775807 - 1) end from n", "database": "lite"})

# The reader sees every row of a large result.
large = rows({"sql": "select i, repeat('y', 1000) from generate_series(1, 20000) i"})
assert len(large) == 20001 and large[-1] == ["20000", "y" * 1000]
print("all as expected")
