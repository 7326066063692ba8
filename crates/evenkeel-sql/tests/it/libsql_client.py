"""Queries SQLite through Evenkeel with an unmodified libsql (PyPI), and checks values, transactions and errors.

Arguments: the server's URL and an API key.
"""

import sys

import libsql

url, key = sys.argv[1:]


def connect(**options):
    return libsql.connect(database=url, auth_token=key, **options)


def one(connection, sql, params=()):
    return connection.execute(sql, params).fetchone()


def fails(call, part):
    try:
        call()
    except Exception as error:
        assert part in str(error), str(error)
        return
    raise AssertionError(f"no error with {part!r}")


def binds_and_returns_values(connection):
    row = one(connection, "select ?, ?, ?, ?, ?", (None, -(2**63), 0.5, "it's é", b"\x00\xff"))
    assert row == (None, -(2**63), 0.5, "it's é", b"\x00\xff"), row
    cursor = connection.execute("select 1 as a, 'x' as b")
    assert [column[0] for column in cursor.description] == ["a", "b"], cursor.description
    assert cursor.fetchall() == [(1, "x")]


def commits_and_rolls_back(connection):
    connection.execute("create table t (id integer primary key, v text unique)")
    cursor = connection.execute("insert into t (v) values (?), (?)", ("a", "b"))
    assert (cursor.rowcount, cursor.lastrowid) == (2, 2), (cursor.rowcount, cursor.lastrowid)
    other = connect()
    assert one(other, "select count(*) from t") == (0,), "not committed yet"
    connection.commit()
    assert one(other, "select count(*) from t") == (2,)
    connection.execute("delete from t")
    assert one(connection, "select count(*) from t") == (0,)
    connection.rollback()
    assert one(connection, "select count(*) from t") == (2,)


def runs_many_and_scripts(connection):
    connection.executemany("insert into t (v) values (?)", [("c",), ("d",)])
    connection.commit()
    connection.executescript("create table log (v); insert into log values (';'); insert into log values (2);")
    connection.commit()
    assert one(connection, "select count(*) from log") == (2,)
    sql = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 50000) select i from n"
    assert len(connection.execute(sql).fetchall()) == 50000


def reports_errors(connection):
    fails(lambda: connection.execute("insert into t (v) values ('a')"), "UNIQUE constraint failed: t.v")
    connection.rollback()
    fails(lambda: connection.execute("select * from nowhere"), "no such table: nowhere")
    connection.rollback()
    wrong = libsql.connect(database=url, auth_token="wrong")
    fails(lambda: one(wrong, "select 1"), "API key")
    assert one(connection, "select 7") == (7,)


connection = connect()
for step in [binds_and_returns_values, commits_and_rolls_back, runs_many_and_scripts, reports_errors]:
    step(connection)
    print(step.__name__, flush=True)
print("all as expected")
