"""Errors of the RDS Data API as boto3 raises them, and its retries. Argument: JSON with endpoint and keys."""

import http.client
import json
import sys
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

CONFIG = json.loads(sys.argv[1])
SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:unused"
MAIN = {"resourceArn": "arn:aws:rds:us-east-1:123456789012:cluster:main", "secretArn": SECRET}
LITE = {"resourceArn": "arn:aws:rds:us-east-1:123456789012:cluster:lite", "secretArn": SECRET}
ATTEMPTS = []


def client(tenant=None, key=None, **config):
    access, secret = key or CONFIG["keys"][tenant]
    made = boto3.client(
        "rds-data",
        endpoint_url=CONFIG["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=Config(**config),
    )
    made.meta.events.register("before-send.rds-data", lambda request, **_: ATTEMPTS.append(request.url))
    return made


A = client("a")
B = client("b")


def raises(code, call, part="", attempts=1, status=None):
    """The call fails with this error, after this many requests."""
    ATTEMPTS.clear()
    try:
        call()
    except A.exceptions.ClientError as error:
        found = error.response["Error"]
        assert found["Code"] == code, error
        assert part in found["Message"], error
        found_status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert status in (None, found_status), error
        is_modelled = code not in ("InvalidSignatureException", "UnrecognizedClientException", "ThrottlingException")
        assert not is_modelled or isinstance(error, getattr(A.exceptions, code)), type(error)
    else:
        raise AssertionError(f"{code} was not raised")
    assert len(ATTEMPTS) == attempts, ATTEMPTS


def execute(sql, rds=A, target=MAIN, **options):
    return rds.execute_statement(**target, sql=sql, **options)


def count():
    [[field]] = execute("select count(*) from t")["records"]
    return field["longValue"]


# Statements.
raises("DatabaseErrorException", lambda: execute("select nothing"), "SQLState: 42703", status=400)
raises("DatabaseErrorException", lambda: execute("insert into t values (1), (1)"), "Detail: Key (id)=(1) already exists.")
raises("DatabaseErrorException", lambda: execute("select 1/0", target=MAIN), "SQLState: 22012")
raises("BadRequestException", lambda: execute("begin"), "BeginTransaction")
raises("BadRequestException", lambda: execute("copy t to stdout"), "not supported")
raises("BadRequestException", lambda: execute("select $1"), "use a name")
raises("BadRequestException", lambda: execute("select :a"), "parameter :a has no value")
raises("BadRequestException", lambda: execute("select 1", continueAfterTimeout=True), "continueAfterTimeout")
raises("BadRequestException", lambda: execute("select 1", schema="s"), "schema is not supported")
raises("BadRequestException", lambda: execute("select repeat('x', 200000)"), "larger than 100000 bytes")
raises("BadRequestException", lambda: A.batch_execute_statement(**MAIN, sql="select 1"), "parameterSets is empty")
ended = "the statement of a batch may not begin or end a transaction"
raises("BadRequestException", lambda: A.batch_execute_statement(**MAIN, sql="commit", parameterSets=[[], []]), ended)
array = [{"name": "a", "value": {"arrayValue": {"longValues": [1]}}}]
raises("BadRequestException", lambda: execute("select :a", target=LITE, parameters=array), "SQLite has no arrays")

# Datasources.
unknown = {**MAIN, "resourceArn": "arn:aws:rds:us-east-1:123456789012:cluster:other"}
raises("NotFoundException", lambda: execute("select 1", target=unknown), 'no datasource "other"', status=404)
raises("NotFoundException", lambda: A.begin_transaction(**unknown), status=404)
raises("BadRequestException", lambda: execute("select 1", database="other"), "is not that of datasource")
raises("ForbiddenException", lambda: execute("select 1", rds=B, target=LITE), status=403)

# Credentials.
access, secret = CONFIG["keys"]["a"]
raises("InvalidSignatureException", lambda: execute("select 1", rds=client(key=(access, secret + "x"))), status=403)
raises("UnrecognizedClientException", lambda: execute("select 1", rds=client(key=("AKIDEXAMPLE", secret))), status=403)
raises("AccessDeniedException", lambda: execute("select 1", rds=client("disabled")), status=403)


def post(headers):
    connection = http.client.HTTPConnection(urlsplit(CONFIG["endpoint"]).netloc, timeout=60)
    connection.request("POST", "/Execute", json.dumps({**MAIN, "sql": "select 1"}), headers)
    response = connection.getresponse()
    return response.status, response.headers["x-amzn-errortype"], json.loads(response.read())


status, kind, _ = post({})
assert (status, kind) == (403, "MissingAuthenticationTokenException")
status, kind, _ = post({"Authorization": "Bearer ek-a"})
assert (status, kind) == (403, "MissingAuthenticationTokenException"), "an API key is no signature"


def resigned(request, **_):
    """Replaces the body of a signed request."""
    request.body = request.body.replace(b"select 1", b"select 2")


tampered = client("a")
tampered.meta.events.register("before-send.rds-data", resigned)
raises("InvalidSignatureException", lambda: execute("select 1", rds=tampered), status=403)
sqs = boto3.client("sqs", endpoint_url=CONFIG["endpoint"] + "/Execute", region_name="us-east-1", aws_access_key_id=access, aws_secret_access_key=secret)
try:
    sqs.list_queues()
    raise AssertionError("a signature for SQS was accepted")
except sqs.exceptions.ClientError as error:
    assert "scoped to rds-data" in str(error), error

# Transactions.
transaction = A.begin_transaction(**MAIN)["transactionId"]
raises("ForbiddenException", lambda: execute("select 1", rds=B, transactionId=transaction), "another tenant", status=403)
raises("ForbiddenException", lambda: B.commit_transaction(**MAIN, transactionId=transaction), status=403)
raises("BadRequestException", lambda: execute("select 1", target=LITE, transactionId=transaction), 'one of datasource "main"')
raises("BadRequestException", lambda: A.commit_transaction(**LITE, transactionId=transaction), 'one of datasource "main"')
forged = transaction[:-2] + ("AA" if transaction[-2:] != "AA" else "BB")
for wrong in [forged, "x", "'; drop table t; --"]:
    raises("TransactionNotFoundException", lambda: execute("select 1", transactionId=wrong), status=404)
    raises("TransactionNotFoundException", lambda: A.rollback_transaction(**MAIN, transactionId=wrong), status=404)
raises("TransactionNotFoundException", lambda: execute("select 1", transactionId=""), status=404)
execute("insert into t values (1)", transactionId=transaction)
A.rollback_transaction(**MAIN, transactionId=transaction)
raises("TransactionNotFoundException", lambda: A.commit_transaction(**MAIN, transactionId=transaction), "was rolled back", status=404)
raises("TransactionNotFoundException", lambda: execute("select 1", transactionId=transaction), "was rolled back")
assert count() == 0
# A statement that fails leaves a transaction that only a rollback ends.
transaction = A.begin_transaction(**MAIN)["transactionId"]
raises("DatabaseErrorException", lambda: execute("select 1/0", transactionId=transaction), "22012")
raises("DatabaseErrorException", lambda: execute("select 1", transactionId=transaction), "25P02")
raises("DatabaseErrorException", lambda: A.commit_transaction(**MAIN, transactionId=transaction), "SQLState: 40000")
transaction = A.begin_transaction(**MAIN)["transactionId"]
raises("DatabaseErrorException", lambda: execute("select 1/0", transactionId=transaction), "22012")
raises("DatabaseErrorException", lambda: execute("/* a /* b */ c */ commit", transactionId=transaction), "SQLState: 40000")
# A batch in a transaction whose first statement ends it.
transaction = A.begin_transaction(**MAIN)["transactionId"]
raises("BadRequestException", lambda: A.batch_execute_statement(**MAIN, sql="rollback", parameterSets=[[], []], transactionId=transaction), ended)

# A statement or a commit that may have taken effect is never sent again, whatever the retry mode.
for mode in ["legacy", "standard", "adaptive"]:
    rds = client("a", retries={"mode": mode, "total_max_attempts": 3})
    raises("StatementTimeoutException", lambda: execute("insert into t select 1 from pg_sleep(600)", rds=rds), "time limit", status=400)
    assert count() == 0
    killed = "insert into t select 1 from (select pg_terminate_backend(pg_backend_pid())) k"
    raises("DatabaseErrorException", lambda: execute(killed, rds=rds), "SQLState: 08007", status=400)
    transaction = rds.begin_transaction(**MAIN)["transactionId"]
    execute("insert into dies values (1)", rds=rds, transactionId=transaction)
    raises("DatabaseErrorException", lambda: rds.commit_transaction(**MAIN, transactionId=transaction), "SQLState: 08007", status=400)
    raises("TransactionNotFoundException", lambda: rds.commit_transaction(**MAIN, transactionId=transaction), "outcome is unknown")
    transaction = rds.begin_transaction(**MAIN)["transactionId"]
    execute("insert into sleeps values (1)", rds=rds, transactionId=transaction)
    raises("DatabaseErrorException", lambda: rds.commit_transaction(**MAIN, transactionId=transaction), "outcome of the statement is unknown", status=400)
# Neither is one whose client stops waiting: a sequence counts the executions, even those that are rolled back.
hasty = client("a", read_timeout=1, retries={"mode": "standard", "total_max_attempts": 3})
slow = "select v, pg_sleep(600) from (select nextval('calls') as v offset 0) n"
raises("BadRequestException", lambda: execute(slow, rds=hasty), "earlier attempt", attempts=2, status=409)
batch = lambda: hasty.batch_execute_statement(**MAIN, sql=slow, parameterSets=[[]])
raises("BadRequestException", batch, "earlier attempt", attempts=2, status=409)
transaction = A.begin_transaction(**MAIN)["transactionId"]
raises("BadRequestException", lambda: execute(slow, rds=hasty, transactionId=transaction), attempts=2)
assert execute("select last_value from calls")["records"] == [[{"longValue": 3}]]
# One that was not executed is.
limited = client("limited", retries={"mode": "standard", "total_max_attempts": 2})
execute("select 1", rds=limited)
raises("ThrottlingException", lambda: execute("insert into t values (1)", rds=limited), attempts=2, status=429)
assert count() == 0
print("all as expected")
