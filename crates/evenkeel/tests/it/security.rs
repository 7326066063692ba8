//! The table of `docs/security.md`: every route and SQS operation, and who may call it.

mod audit_records;
mod aws;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use aws::Credentials;

const TABLE: &str = include_str!("../../../../docs/security.md");
const COLUMNS: [&str; 8] =
    ["no key", "tenant", "other tenant", "admin", "wrong key", "cross-site", "open", "open, cross-site"];
/// Makes the server serve its peers too.
const CLUSTER: &str = "[cluster]\nname = 'a'\nsecret = 'a secret of the cluster'\n\
                       [[cluster.peers]]\nname = 'b'\nurl = 'http://127.0.0.1:1'\n";
/// Headers of a poll that is not signed with the secret of the cluster.
const FORGED_POLL: &str = "x-evenkeel-node: b\r\nx-evenkeel-target: a\r\nx-evenkeel-nonce: AAAAAAAAAAAAAAAA\r\n\
                           x-evenkeel-signature: AAAA\r\n";
const ORIGIN: &str = "origin: https://evil.example\r\n";
/// Operations that AWS clients sign.
const RDS_PATHS: [&str; 5] =
    ["/Execute", "/BatchExecute", "/BeginTransaction", "/CommitTransaction", "/RollbackTransaction"];

/// Prefix of rows that a test adds for operations in the query protocol.
const QUERY: &str = "QUERY";

/// A server, and the identities of its callers.
struct Gateway {
    dir: TestDir,
    server: ServerProcess,
    admin: String,
    /// Account in the URL of the queue `q`.
    account: String,
    /// Path segment of the queue `q`.
    queue: &'static str,
    acme: Option<Identity>,
    bolt: Option<Identity>,
}

/// Keys of a tenant.
struct Identity {
    key: String,
    aws: Credentials,
}

/// Credentials that a request carries.
#[derive(Clone, Copy)]
enum Caller<'a> {
    None,
    Tenant(&'a Identity),
    Admin,
    Wrong,
}

impl Gateway {
    fn with_tenants() -> Self {
        let dir = TestDir::new("security-tenants");
        dir.write("evenkeel.toml", CLUSTER);
        let server = ServerProcess::start(&dir, &[]);
        let acme = Identity::create(&dir, "acme");
        let bolt = Identity::create(&dir, "bolt");
        let tenants = server.get("/api/tenants").json();
        let account = tenants["tenants"][0]["account"].as_str().unwrap().to_owned();
        let admin = server.admin_key().unwrap();
        Self { dir, server, admin, account, queue: "acme%2Fq", acme: Some(acme), bolt: Some(bolt) }
    }

    fn open() -> Self {
        let dir = TestDir::new("security-open");
        dir.write("evenkeel.toml", CLUSTER);
        let server = ServerProcess::start(&dir, &[]);
        let admin = server.admin_key().unwrap();
        let account = "000000000000".to_owned();
        Self { dir, server, admin, account, queue: "q", acme: None, bolt: None }
    }

    /// Creates the queue, if an earlier request deleted it.
    fn create_queue(&self) {
        let reply = self.server.send("PUT", &format!("/api/queues/{}", self.queue), "", &json!({}));
        let status = evenkeel_sim_node::testing::read(reply).status;
        assert!(matches!(status, 200 | 201), "{status}");
    }

    /// Returns what a caller of a row gets.
    fn call(&self, row: &str, caller: Caller<'_>, extra: &str) -> String {
        self.create_queue();
        let (method, path) = row.split_once(' ').unwrap();
        if method == "SQS" {
            let target = format!("x-amz-target: AmazonSQS.{path}\r\n");
            return self.signed("sqs", "/", &target, &self.sqs_body(path), caller, extra);
        }
        if method == QUERY {
            return self.signed("sqs", "/", "", &self.sqs_form(path), caller, extra);
        }
        if row == "GET /{account}/*" {
            let target = format!("/{}/q?Action=GetQueueAttributes&AttributeName=All", self.account);
            return self.signed_get(&target, caller, extra);
        }
        if RDS_PATHS.contains(&path) {
            return self.signed("rds-data", path, "", "{}", caller, extra);
        }
        if row == "POST /" || path == "/{account}/*" {
            let path = if row == "POST /" { path.to_owned() } else { format!("/{}/q", self.account) };
            let target = "x-amz-target: AmazonSQS.SendMessage\r\n";
            return self.signed("sqs", &path, target, &self.sqs_body("SendMessage"), caller, extra);
        }
        let body = if matches!(method, "POST" | "PUT" | "PATCH") { "{}" } else { "" };
        let path = match row {
            "POST /v1/*" => "/v1/score",
            "GET /dev/*" => "/dev/main/v2",
            "POST /dev/*" => "/dev/main/v2/pipeline",
            _ => path,
        };
        let path = path.replace("{queue}", self.queue).replace('*', "x");
        let path = path.replace(['{', '}'], "");
        let key = match caller {
            Caller::None => None,
            Caller::Tenant(identity) => Some(identity.key.as_str()),
            Caller::Admin => Some(self.admin.as_str()),
            Caller::Wrong => Some("ek-wrong"),
        };
        let headers = match key {
            _ if path == "/cluster/stats" => FORGED_POLL.to_owned(),
            _ if path == "/sql" => {
                let password = key.unwrap_or_default();
                format!("neon-connection-string: postgresql://u:{password}@localhost/main\r\n")
            }
            None => String::new(),
            Some(key) => format!("authorization: Bearer {key}\r\n"),
        };
        self.send(method, &path, &format!("{headers}{extra}content-type: application/json\r\n"), body)
    }

    /// Sends a request that AWS clients sign.
    fn signed(
        &self,
        service: &str,
        path: &str,
        target: &str,
        body: &str,
        caller: Caller<'_>,
        extra: &str,
    ) -> String {
        let unknown = Credentials { id: "EKUNKNOWN".to_owned(), secret: "secret".to_owned() };
        let signed = |credentials: &Credentials| credentials.sign(service, path, target, body);
        let headers = match caller {
            Caller::None => String::new(),
            Caller::Tenant(identity) => signed(&identity.aws),
            Caller::Admin => format!("authorization: Bearer {}\r\n", self.admin),
            Caller::Wrong => signed(&unknown),
        };
        let media_type = if body.starts_with('{') {
            "content-type: application/x-amz-json-1.0\r\n"
        } else {
            "content-type: application/x-www-form-urlencoded\r\n"
        };
        self.send("POST", path, &format!("{headers}{target}{media_type}{extra}"), body)
    }

    /// Sends a signed `GET` request of the query protocol.
    fn signed_get(&self, target: &str, caller: Caller<'_>, extra: &str) -> String {
        let unknown = Credentials { id: "EKUNKNOWN".to_owned(), secret: "secret".to_owned() };
        let headers = match caller {
            Caller::None => String::new(),
            Caller::Tenant(identity) => identity.aws.sign_get("sqs", target),
            Caller::Admin => format!("authorization: Bearer {}\r\n", self.admin),
            Caller::Wrong => unknown.sign_get("sqs", target),
        };
        self.send("GET", target, &format!("{headers}{extra}"), "")
    }

    /// Returns a form with the parameters of every operation.
    fn sqs_form(&self, operation: &str) -> String {
        let account = &self.account;
        let name = if operation == "CreateQueue" { "new" } else { "q" };
        let entry = match operation {
            "SendMessageBatch" | "DeleteMessageBatch" | "ChangeMessageVisibilityBatch" => {
                let entry = format!("&{operation}RequestEntry.1.");
                let fields = ["Id=a", "MessageBody=x", "ReceiptHandle=x", "VisibilityTimeout=1"];
                fields.map(|field| format!("{entry}{field}")).concat()
            }
            _ => String::new(),
        };
        format!(
            "Action={operation}&QueueUrl=http%3A%2F%2Flocalhost%2F{account}%2Fq&QueueName={name}&MessageBody=x\
             &ReceiptHandle=x&Attribute.1.Name=DelaySeconds&Attribute.1.Value=0&TagKey.1=a&Label=l\
             &AWSAccountId.1=123456789012&ActionName.1=SendMessage&SourceArn=arn%3Aaws%3Asqs%3Aus-east-1%3A{account}%3Aq\
             &TaskHandle=x&VisibilityTimeout=1{entry}"
        )
    }

    /// Returns a body with the parameters of every operation.
    fn sqs_body(&self, operation: &str) -> String {
        let account = &self.account;
        // The other tenant may create queues of its own, which must not be the one it looks for.
        let name = if operation == "CreateQueue" { "new" } else { "q" };
        let entry = json!({"Id": "a", "MessageBody": "x", "ReceiptHandle": "x", "VisibilityTimeout": 1});
        json!({
            "QueueUrl": format!("http://localhost/{account}/q"), "QueueName": name, "MessageBody": "x",
            "ReceiptHandle": "x", "Entries": [entry], "Attributes": {}, "Tags": {}, "TagKeys": ["a"],
            "Label": "l", "AWSAccountIds": ["123456789012"], "Actions": ["SendMessage"],
            "SourceArn": format!("arn:aws:sqs:us-east-1:{account}:q"), "TaskHandle": "x", "VisibilityTimeout": 1,
        })
        .to_string()
    }

    /// Sends a request and classifies the response.
    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut socket = TcpStream::connect(self.server.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\
             content-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut reader = BufReader::new(socket);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status: u16 =
            line.split(' ').nth(1).unwrap_or_else(|| panic!("{method} {path}")).parse().unwrap();
        // A stream of messages does not end.
        if status == 200 && path.ends_with("/stream") {
            return "yes".to_owned();
        }
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(
            !rest.contains("unknown_url") && !rest.contains("method_not_allowed"),
            "{method} {path}: {rest}"
        );
        assert!(status != 500, "{method} {path}: {rest}");
        let has = |code: &str| status >= 400 && rest.contains(code);
        if ["there is no queue", "NonExistentQueue", "ResourceNotFoundException"].into_iter().any(has) {
            return "hidden".to_owned();
        }
        // AWS and Neon have their own status for some errors.
        if has("28P01") {
            return "401".to_owned();
        }
        if matches!(status, 401 | 403) && !has("PurgeQueueInProgress") {
            return status.to_string();
        }
        "yes".to_owned()
    }
}

impl Identity {
    fn create(dir: &TestDir, name: &str) -> Self {
        let key = dir.run(&["tenant", "add", name]).ok().trim().to_owned();
        let printed = dir.run(&["tenant", "sqs-key", name]).ok();
        let value = |name: &str| {
            let line = printed.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches('=').to_owned()
        };
        let aws = Credentials { id: value("AWS_ACCESS_KEY_ID"), secret: value("AWS_SECRET_ACCESS_KEY") };
        Self { key, aws }
    }
}

/// Returns the rows that the table must have: the routes and operations of a running server.
fn routes(gateway: &Gateway) -> Vec<String> {
    let listed = gateway.server.get("/api/routes").json();
    let row = |route: &Value| {
        let path = route["path"].as_str().unwrap();
        assert!(!path.starts_with("/api/") || !path.ends_with('*'), "{path} hides the paths below it");
        format!("{} {path}", route["method"].as_str().unwrap())
    };
    let mut rows: Vec<String> = listed["routes"].as_array().unwrap().iter().map(row).collect();
    let operations = listed["sqs_operations"].as_array().unwrap();
    rows.extend(operations.iter().map(|operation| format!("SQS {}", operation.as_str().unwrap())));
    rows
}

/// Parses the table: cells by row.
fn documented() -> BTreeMap<String, Vec<String>> {
    let header = format!("| route | {} |", COLUMNS.join(" | "));
    let table = TABLE.split(&header).nth(1).unwrap_or_else(|| panic!("no table {header:?}"));
    let lines = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut rows = BTreeMap::new();
    for line in lines {
        let cells: Vec<String> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        let row = cells[0].trim_matches('`').to_owned();
        assert_eq!(cells.len(), COLUMNS.len() + 1, "{row}");
        assert!(rows.insert(row.clone(), cells[1..].to_vec()).is_none(), "{row} is listed twice");
    }
    rows
}

#[test]
fn every_route_and_operation_admits_whom_the_table_says() {
    let tenants = Gateway::with_tenants();
    let open = Gateway::open();
    let documented = documented();
    let routes = routes(&tenants);
    let acme = tenants.acme.as_ref().unwrap();
    let bolt = tenants.bolt.as_ref().unwrap();
    let mut wrong = Vec::new();
    let mut called: Vec<(String, &String)> = routes.iter().map(|row| (row.clone(), row)).collect();
    // The query protocol admits the same callers as JSON.
    let operations = routes.iter().filter_map(|row| Some((row.strip_prefix("SQS ")?, row)));
    called.extend(operations.map(|(operation, row)| (format!("{QUERY} {operation}"), row)));
    for (row, documented_as) in &called {
        let best = if tenants.call(row, Caller::Tenant(acme), "") == "yes" {
            Caller::Tenant(acme)
        } else {
            Caller::Admin
        };
        let actual = [
            tenants.call(row, Caller::None, ""),
            tenants.call(row, Caller::Tenant(acme), ""),
            tenants.call(row, Caller::Tenant(bolt), ""),
            tenants.call(row, Caller::Admin, ""),
            tenants.call(row, Caller::Wrong, ""),
            tenants.call(row, best, ORIGIN),
            open.call(row, Caller::None, ""),
            open.call(row, Caller::None, ORIGIN),
        ];
        if documented.get(*documented_as).is_none_or(|cells| *cells != actual) {
            wrong.push(format!("| `{row}` | {} |", actual.join(" | ")));
        }
    }
    assert!(wrong.is_empty(), "docs/security.md differs from the server in:\n{}\n", wrong.join("\n"));
    let stale: Vec<&String> = documented.keys().filter(|row| !routes.contains(row)).collect();
    assert!(stale.is_empty(), "rows without a route: {stale:?}");
    assert!(routes.len() > 70, "{} routes", routes.len());
    assert_eq!(tenants.server.get("/api/nodes").json()["nodes"], Value::Array(Vec::new()));
    drop((tenants.dir, open.dir));
}

#[test]
fn an_unsigned_payload_is_accepted_only_over_tls() {
    let dir = TestDir::new("security-unsigned");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    dir.write("cert.pem", &made.cert.pem());
    dir.write("key.pem", &made.signing_key.serialize_pem());
    let acme = Identity::create(&dir, "acme");
    let list = |scheme: &str, server: &ServerProcess| {
        let extra = "x-amz-content-sha256: UNSIGNED-PAYLOAD\r\nx-amz-target: AmazonSQS.ListQueues\r\n";
        let signed = acme.aws.sign("sqs", "/", extra, "{}");
        let url = format!("{scheme}://localhost:{}/", server.address.port());
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--noproxy",
            "*",
            "--cacert",
            "cert.pem",
            "--data",
            "{}",
            "--header",
            "host: localhost",
        ]);
        for header in extra.lines().chain(signed.lines()) {
            curl.args(["--header", header]);
        }
        let output = curl.current_dir(dir.file("")).arg(url).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let server = ServerProcess::start(&dir, &[]);
    let refused = list("http", &server);
    assert!(refused["message"].as_str().unwrap().contains("UNSIGNED-PAYLOAD needs TLS"), "{refused}");
    drop(server);
    dir.write("evenkeel.toml", "[server.tls]\ncert = 'cert.pem'\nkey = 'key.pem'\n");
    let server = ServerProcess::start(&dir, &[]);
    let listed = list("https", &server);
    assert!(listed.get("__type").is_none(), "{listed}");
}
