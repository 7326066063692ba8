"""The five operations of the RDS Data API with an unmodified boto3. Argument: JSON with endpoint, database and keys."""

import json
import sys
import uuid

import boto3

CONFIG = json.loads(sys.argv[1])
SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:unused"
NAMES = {"main": "arn:aws:rds:us-east-1:123456789012:cluster:main", "lite": "arn:aws:rds:us-east-1:123456789012:cluster:lite"}


def client(tenant):
    key = CONFIG["keys"][tenant]
    return boto3.client(
        "rds-data",
        endpoint_url=CONFIG["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
    )


RDS = client("a")


def target(name):
    return {"resourceArn": NAMES[name], "secretArn": SECRET}


def execute(sql, parameters=(), name="main", **options):
    named = [{"name": key, "value": value} if "value" not in value else {"name": key, **value} for key, value in dict(parameters).items()]
    return RDS.execute_statement(**target(name), sql=sql, parameters=named, **options)


def one(sql, parameters=(), name="main", **options):
    [[field]] = execute(sql, parameters, name, **options)["records"]
    return field


def check_parameters():
    """Each kind of parameter arrives with its type and value."""
    hinted = lambda text, hint: {"value": {"stringValue": text}, "typeHint": hint}
    some_uuid = str(uuid.uuid4())
    for value, type_name, text in [
        ({"longValue": -(2**63)}, "bigint", str(-(2**63))),
        ({"booleanValue": True}, "boolean", "true"),
        ({"doubleValue": 0.1}, "double precision", "0.1"),
        ({"stringValue": "it's :x é🦀"}, "text", "it's :x é🦀"),
        ({"stringValue": ""}, "text", ""),
        ({"blobValue": b"\x00\xff"}, "bytea", "\\x00ff"),
        (hinted("2024-02-29", "DATE"), "date", "2024-02-29"),
        (hinted("12:34:56.789", "TIME"), "time without time zone", "12:34:56.789"),
        (hinted("2024-02-29 12:34:56.789", "TIMESTAMP"), "timestamp without time zone", "2024-02-29 12:34:56.789"),
        (hinted("12345678901234567890.10", "DECIMAL"), "numeric", "12345678901234567890.10"),
        (hinted('{"b": 1, "a": null}', "JSON"), "json", '{"b": 1, "a": null}'),
        (hinted(some_uuid, "UUID"), "uuid", some_uuid),
        ({"arrayValue": {"longValues": [1, 2]}}, "bigint[]", "{1,2}"),
        ({"arrayValue": {"stringValues": ["a,b", 'c"d']}}, "text[]", '{"a,b","c\\"d"}'),
        ({"arrayValue": {"booleanValues": [True]}}, "boolean[]", "{t}"),
        ({"arrayValue": {"doubleValues": [1.5]}}, "double precision[]", "{1.5}"),
        ({"arrayValue": {"arrayValues": [{"longValues": [1]}, {"longValues": [2]}]}}, "bigint[]", "{{1},{2}}"),
        ({"value": {"arrayValue": {"stringValues": [some_uuid]}}, "typeHint": "UUID"}, "uuid[]", "{" + some_uuid + "}"),
    ]:
        [[found_type, found_text]] = execute("select pg_typeof(:v)::text, :v::text", {"v": value})["records"]
        assert found_type == {"stringValue": type_name}, (value, found_type)
        assert found_text == {"stringValue": text}, (value, found_text)
    assert one("select :v::text", {"v": {"isNull": True}}) == {"isNull": True}
    assert one("select pg_typeof(:v)::text", {"v": {"value": {"isNull": True}, "typeHint": "UUID"}}) == {"stringValue": "uuid"}
    assert one("select :v::json is null", {"v": {"value": {"isNull": True}, "typeHint": "JSON"}}) == {"booleanValue": True}
    # Functions that take any type, and a parameter that occurs twice.
    assert one("select concat(:a, '-', :a, :b)", {"a": {"stringValue": "x"}, "b": {"longValue": 1}}) == {"stringValue": "x-x1"}
    assert one("select ':a' || E'\\':a' || $$:a$$ || :a /* :b */", {"a": {"stringValue": "!"}}) == {"stringValue": ":a':a:a!"}


def check_results():
    """Each type of a column becomes its field."""
    for sql, field in [
        ("1::int2", {"longValue": 1}),
        ("1::int4", {"longValue": 1}),
        ("9223372036854775807", {"longValue": 2**63 - 1}),
        ("true", {"booleanValue": True}),
        ("false", {"booleanValue": False}),
        ("1.5::float4", {"doubleValue": 1.5}),
        ("2::float8", {"doubleValue": 2.0}),
        ("'NaN'::float8", {"stringValue": "NaN"}),
        ("1.50::numeric", {"stringValue": "1.50"}),
        ("'\\x00ff'::bytea", {"blobValue": b"\x00\xff"}),
        ("'it''s'", {"stringValue": "it's"}),
        ("''", {"stringValue": ""}),
        ("null", {"isNull": True}),
        ("null::int4[]", {"isNull": True}),
        ("'{\"a\": 1}'::jsonb", {"stringValue": '{"a": 1}'}),
        ("'2024-02-29'::date", {"stringValue": "2024-02-29"}),
        ("'2024-02-29 12:34:56.5'::timestamp", {"stringValue": "2024-02-29 12:34:56.5"}),
        ("'2024-02-29 12:34:56+02'::timestamptz", {"stringValue": "2024-02-29 10:34:56+00"}),
        ("array[1, null, 3]", {"arrayValue": {"longValues": [1, None, 3]}}),
        ("array[[1, 2], [3, 4]]", {"arrayValue": {"arrayValues": [{"longValues": [1, 2]}, {"longValues": [3, 4]}]}}),
        ("array['a', 'b,c']", {"arrayValue": {"stringValues": ["a", "b,c"]}}),
        ("array[true]", {"arrayValue": {"booleanValues": [True]}}),
        ("array[1.5::float8]", {"arrayValue": {"doubleValues": [1.5]}}),
        ("'{}'::int4[]", {"arrayValue": {"longValues": []}}),
    ]:
        found = one(f"select {sql}")
        assert found == field and repr(found) == repr(field), (sql, found)
    numbers = {"resultSetOptions": {"decimalReturnType": "DOUBLE_OR_LONG", "longReturnType": "STRING"}}
    [row] = execute("select 1.50::numeric, 7", **numbers)["records"]
    assert row == [{"doubleValue": 1.5}, {"stringValue": "7"}], row
    whole = {"resultSetOptions": {"decimalReturnType": "DOUBLE_OR_LONG"}}
    assert one("select 7::numeric", **whole) == {"longValue": 7}


def check_metadata_and_json():
    result = execute("select 1::int4 as n, 'x'::varchar(20) as v, 1.5::numeric(10,2) as d", includeResultMetadata=True)
    columns = [(c["name"], c["label"], c["type"], c["typeName"], c["precision"], c["scale"]) for c in result["columnMetadata"]]
    assert columns == [("n", "n", 4, "int4", 10, 0), ("v", "v", 12, "varchar", 20, 0), ("d", "d", 2, "numeric", 10, 2)], columns
    assert "columnMetadata" not in execute("select 1")
    sql = "select 1 as n, null as z, 'a\"b' as t, array[1, 2] as l, true as b, '\\x00'::bytea as y"
    result = execute(sql, formatRecordsAs="JSON")
    assert "records" not in result
    assert json.loads(result["formattedRecords"]) == [{"n": 1, "z": None, "t": 'a"b', "l": [1, 2], "b": True, "y": "AA=="}]
    assert json.loads(execute("select 1 as n where false", formatRecordsAs="JSON")["formattedRecords"]) == []


def check_operations(name):
    """DML, transactions and batches."""
    created = execute("create table rds (id integer primary key, name text)", name=name)
    assert created["numberOfRecordsUpdated"] == 0 and created["generatedFields"] == [] and "records" not in created
    long = lambda number: {"longValue": number}
    text = lambda value: {"stringValue": value}
    insert = "insert into rds values (:id, :name)"
    assert execute(insert, {"id": long(1), "name": text("a")}, name)["numberOfRecordsUpdated"] == 1
    assert execute("update rds set name = :n", {"n": text("b")}, name)["numberOfRecordsUpdated"] == 1
    returned = execute("insert into rds values (2, 'c') returning id, name", name=name)
    assert returned["records"] == [[long(2), text("c")]] and returned["numberOfRecordsUpdated"] == 1
    assert one("select count(*) from rds", name=name) == long(2)

    def begin():
        return RDS.begin_transaction(**target(name))["transactionId"]

    def end(operation, transaction):
        return operation(**target(name), transactionId=transaction)["transactionStatus"]

    transaction = begin()
    execute(insert, {"id": long(3), "name": {"isNull": True}}, name, transactionId=transaction)
    sets = [[{"name": "id", "value": long(number)}, {"name": "name", "value": text("s")}] for number in (4, 5)]
    batch = RDS.batch_execute_statement(**target(name), sql=insert, parameterSets=sets, transactionId=transaction)
    assert batch["updateResults"] == [{"generatedFields": []}] * 2, batch
    assert one("select count(*) from rds", name=name, transactionId=transaction) == long(5)
    assert end(RDS.rollback_transaction, transaction) == "Rollback Complete"
    assert one("select count(*) from rds", name=name) == long(2)
    transaction = begin()
    execute(insert, {"id": long(3), "name": {"isNull": True}}, name, transactionId=transaction)
    assert end(RDS.commit_transaction, transaction) == "Transaction Committed"
    assert execute("select name from rds where id = 3", name=name)["records"] == [[{"isNull": True}]]
    batch = RDS.batch_execute_statement(**target(name), sql=insert, parameterSets=sets)
    assert len(batch["updateResults"]) == 2
    assert one("select count(*) from rds", name=name) == long(5)
    # The second set fails, and the first takes no effect.
    sets = [[{"name": "id", "value": long(number)}, {"name": "name", "value": text("s")}] for number in (6, 1)]
    try:
        RDS.batch_execute_statement(**target(name), sql=insert, parameterSets=sets)
        raise AssertionError("a duplicate key was accepted")
    except RDS.exceptions.DatabaseErrorException as error:
        assert error.response["Error"]["Message"].endswith("SQLState: 23505"), error
    assert one("select count(*) from rds", name=name) == long(5)
    many = [[{"name": "id", "value": long(number)}, {"name": "name", "value": text("m")}] for number in range(100, 1100)]
    assert len(RDS.batch_execute_statement(**target(name), sql=insert, parameterSets=many)["updateResults"]) == 1000
    assert one("select count(*) from rds", name=name) == long(1005)


def check_sqlite():
    kinds = {
        "n": {"longValue": 2**63 - 1},
        "r": {"doubleValue": 2.0},
        "t": {"stringValue": "it's"},
        "y": {"blobValue": b"\x00\xff"},
        "z": {"isNull": True},
    }
    [row] = execute("select :n, :r, :t, :y, :z, typeof(:n)", kinds, "lite")["records"]
    assert row == [*kinds.values(), {"stringValue": "integer"}], row
    assert one("select :b", {"b": {"booleanValue": True}}, "lite") == {"longValue": 1}
    day = {"value": {"stringValue": "2024-02-29"}, "typeHint": "DATE"}
    assert one("select :d", {"d": day}, "lite") == {"stringValue": "2024-02-29"}
    result = execute("select 1 as n", name="lite", includeResultMetadata=True)
    assert result["columnMetadata"][0]["name"] == "n"


def check_injection():
    """Hostile strings stay data, as values and as everything else that names something."""
    execute("create table canary (v text)")
    execute("insert into canary values ('alive')")
    for text in CONFIG["hostile"]:
        assert one("select :v", {"v": {"stringValue": text}}) == {"stringValue": text}, text
        assert one("select :v", {"v": {"stringValue": text}}, "lite") == {"stringValue": text}, text
        assert one("select :v = :v || ''", {"v": {"stringValue": text}}) == {"booleanValue": True}, text
        array = {"arrayValue": {"stringValues": [text, text]}}
        assert one("select :v", {"v": array}) == {"arrayValue": {"stringValues": [text, text]}}, text
        for arguments in [
            {"sql": "select 1", "parameters": [{"name": text, "value": {"longValue": 1}}]},
            {"sql": "select :v::int", "parameters": [{"name": "v", "value": {"stringValue": text}, "typeHint": "UUID"}]},
        ]:
            try:
                RDS.execute_statement(**target("main"), **arguments)
                raise AssertionError(f"accepted: {text!r}")
            except RDS.exceptions.ClientError as error:
                assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 400, error
    assert one("select v from canary") == {"stringValue": "alive"}


check_parameters()
check_results()
check_metadata_and_json()
check_operations("main")
check_operations("lite")
check_sqlite()
check_injection()
assert execute("select 1")["ResponseMetadata"]["RequestId"]
# The database may be named, if it is the datasource's.
for database in ["main", CONFIG["database"]]:
    assert one("select 1", database=database) == {"longValue": 1}
print("all as expected")
