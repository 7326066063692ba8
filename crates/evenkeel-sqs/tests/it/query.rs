//! The query protocol without a client library: GET and POST, malformed forms, limits, and requests that browsers send.

use serde_json::json;

use crate::harness::{Reply, Setup, SqsServer, tenant};

const FORM: &str = "content-type: application/x-www-form-urlencoded; charset=utf-8\r\n";

fn post(server: &SqsServer, form: &str) -> Reply {
    server.request("POST /", FORM, form)
}

#[track_caller]
fn assert_code(reply: &Reply, status: u16, code: &str) {
    assert_eq!(reply.status, status, "{reply:?}");
    assert!(reply.head.contains("content-type: text/xml"), "{reply:?}");
    assert!(reply.body.contains(&format!("<Code>{code}</Code>")), "{reply:?}");
    let id = reply.body.split("<RequestId>").nth(1).unwrap().split('<').next().unwrap();
    assert!(reply.head.contains(&format!("x-amzn-requestid: {id}")), "{reply:?}");
}

#[test]
fn a_form_a_query_string_and_the_path_of_a_queue_name_the_same_operation() {
    let server = SqsServer::start("query-forms");
    assert_eq!(post(&server, "Action=CreateQueue&Version=2012-11-05&QueueName=q").status, 200);
    let path = "/000000000000/q";
    for (line, headers, form) in [
        ("POST /000000000000/q", FORM, "Action=SendMessage&MessageBody=a+b"),
        ("POST /000000000000/q?Action=SendMessage&MessageBody=a%20b", "", ""),
        (
            "GET /000000000000/q?Action=SendMessage&MessageBody=a+b",
            "authorization: AWS4-HMAC-SHA256 any\r\n",
            "",
        ),
        (
            "GET /?Action=SendMessage&QueueUrl=q&MessageBody=a+b",
            "authorization: AWS4-HMAC-SHA256 any\r\n",
            "",
        ),
    ] {
        let sent = server.request(line, headers, form);
        assert_eq!(sent.status, 200, "{line}: {sent:?}");
        assert!(sent.body.contains("<SendMessageResult>"), "{line}: {sent:?}");
        let received =
            server.request(&format!("POST {path}"), FORM, "Action=ReceiveMessage&WaitTimeSeconds=5");
        assert!(received.body.contains("<Body>a b</Body>"), "{line}: {received:?}");
    }
    let listed = server.request("GET /?Action=ListQueues", "", "");
    assert!(listed.body.contains("<QueueUrl>http://localhost/000000000000/q</QueueUrl>"), "{listed:?}");
    // Without an operation, `GET /` is not a request of SQS.
    assert_eq!(server.request("GET /", "", "").status, 404);
}

#[test]
fn malformed_requests_get_errors_in_xml() {
    let server = SqsServer::start("query-malformed");
    server.ok("CreateQueue", &json!({"QueueName": "q"}));
    for (form, code) in [
        ("", "MissingAction"),
        ("Action=", "InvalidAction"),
        ("Action=StealQueue", "InvalidAction"),
        ("Action=ListQueues&Version=2008-01-01", "NoSuchVersion"),
        ("Action=ListQueues&Action=ListQueues", "MalformedInput"),
        ("Action=ListQueues&MaxResults=x", "MalformedInput"),
        ("Action=ListQueues&QueueNamePrefix=%zz", "MalformedInput"),
        ("Action=ListQueues&QueueNamePrefix.1=x", "MalformedInput"),
        ("Action=CreateQueue&QueueName=%00%3C", "InvalidParameterValue"),
        ("Action=SendMessage&QueueUrl=q&MessageBody=x&MessageAttribute.1.Name=a", "InvalidParameterValue"),
        ("Action=GetQueueUrl&QueueName=none", "AWS.SimpleQueueService.NonExistentQueue"),
    ] {
        assert_code(&post(&server, form), 400, code);
    }
    let many: String = (0..1_001).map(|n| format!("&a{n}=")).collect();
    assert_code(&post(&server, &format!("Action=ListQueues{many}")), 400, "MalformedInput");
    let without = server.request("GET /000000000000/q", "", "");
    assert_eq!((without.status, without.body.as_str()), (404, "<UnknownOperationException/>"), "{without:?}");
    // The URL of a queue is not an endpoint of the operations on all queues.
    for action in ["CreateQueue&QueueName=other", "ListQueues"] {
        assert_code(
            &server.request(&format!("GET /000000000000/q?Action={action}"), "", ""),
            400,
            "InvalidAction",
        );
    }
    // A signature is valid for all of these paths, which would name other queues than the one that was signed.
    for path in ["/000000000000//q", "/000000000000/./q", "/000000000000/x/../q", "/000000000000/q/x/.."] {
        let other = server.request(&format!("POST {path}"), FORM, "Action=SendMessage&MessageBody=x");
        assert_code(&other, 400, "AWS.SimpleQueueService.NonExistentQueue");
    }
    // HEAD matches the routes of GET, but must not receive messages.
    let head = server.request("HEAD /000000000000/q?Action=ReceiveMessage", "authorization: any\r\n", "");
    assert_eq!(head.status, 404, "{head:?}");
    // A message of more than 1 MiB, of which every byte is escaped, is within the limit on the wire.
    let send = |bytes: usize| {
        post(&server, &format!("Action=SendMessage&QueueUrl=q&MessageBody={}", "%61".repeat(bytes)))
    };
    assert_eq!(send(1 << 20).status, 200);
    assert_code(&send((1 << 20) + 1), 400, "InvalidParameterValue");
    assert_code(&send(3 << 20), 413, "RequestEntityTooLarge");
}

#[test]
fn without_tenants_a_web_page_of_another_site_can_send_neither_a_form_nor_a_link() {
    let server = SqsServer::start("query-cross-site");
    server.ok("CreateQueue", &json!({"QueueName": "q"}));
    for origin in ["origin: https://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"] {
        let form = server.request("POST /", &format!("{FORM}{origin}"), "Action=DeleteQueue&QueueUrl=q");
        assert_eq!(form.status, 403, "{form:?}");
        let link = server.request("GET /?Action=DeleteQueue&QueueUrl=q", origin, "");
        assert_eq!(link.status, 403, "{link:?}");
    }
    // An image of a page at a plain HTTP address: the browser sends neither header.
    for action in ["DeleteQueue", "ReceiveMessage", "SendMessage&MessageBody=x", "PurgeQueue"] {
        for line in
            [format!("GET /?Action={action}&QueueUrl=q"), format!("GET /000000000000/q?Action={action}")]
        {
            // Nor is the name in a link such as http://a:b@127.0.0.1/ a signature.
            for credentials in ["", "authorization: Basic YTpi\r\n"] {
                let image = server.request(&format!("{line}&X-Amz-Signature=00"), credentials, "");
                assert_code(&image, 403, "AccessDenied");
            }
        }
    }
    assert_eq!(server.request("GET /?Action=GetQueueUrl&QueueName=q", "", "").status, 200);
}

#[test]
fn with_tenants_every_request_of_the_query_protocol_needs_a_signature() {
    let setup = Setup { tenants: vec![tenant("acme")], ..Setup::default() };
    let server = SqsServer::with("query-unsigned", setup);
    assert_code(&post(&server, "Action=ListQueues"), 403, "MissingAuthenticationToken");
    for line in ["GET /?Action=ListQueues", "GET /000000000000/q?Action=SendMessage&MessageBody=x"] {
        assert_code(&server.request(line, "", ""), 403, "MissingAuthenticationToken");
    }
}

#[test]
fn errors_of_the_server_have_the_format_of_the_protocol() {
    let server = SqsServer::start("query-server-errors");
    let foreign = "origin: https://evil.example\r\n";
    assert_code(
        &server.request("POST /", &format!("{FORM}{foreign}"), "Action=ListQueues"),
        403,
        "AccessDenied",
    );
    assert_code(&server.request("GET /?Action=ListQueues", foreign, ""), 403, "AccessDenied");
    let target = format!(
        "content-type: application/x-amz-json-1.0\r\nx-amz-target: AmazonSQS.ListQueues\r\n{foreign}"
    );
    let json = server.request("POST /", &target, "{}");
    assert_eq!(json.status, 403, "{json:?}");
    assert!(json.body.contains("\"__type\":\"com.amazon.coral.service#AccessDeniedException\""), "{json:?}");
    assert!(json.head.contains("x-amzn-query-error: accessdenied;sender"), "{json:?}");
    let put = server.request("PUT /000000000000/q", "", "");
    assert_eq!(put.status, 405, "{put:?}");
    assert!(put.head.contains("allow: post, get"), "{put:?}");
}
