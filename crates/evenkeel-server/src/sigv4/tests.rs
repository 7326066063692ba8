//! AWS's published test suite for Signature Version 4, of August 30, 2015.

use super::*;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const SERVICE: &str = "sqs";
const STAMP: &str = "20150830T123600Z";

/// Builds a request of the suite.
fn request(
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    signed: &str,
    signature: &str,
) -> Request<()> {
    let credential = "Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request";
    let authorization = format!("{ALGORITHM} {credential}, SignedHeaders={signed}, Signature={signature}");
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in [("host", "example.amazonaws.com"), (DATE, STAMP)].iter().chain(headers) {
        request = request.header(*name, *value);
    }
    request.header(AUTHORIZATION, authorization).body(()).unwrap()
}

fn checked(request: &Request<()>, body: &str) -> Result<(), SignatureError> {
    SignatureHeader::read(request.headers())?.check(SECRET, request, body.as_bytes())
}

/// A case of the suite.
struct Case {
    name: &'static str,
    method: &'static str,
    target: &'static str,
    headers: &'static [(&'static str, &'static str)],
    signed: &'static str,
    body: &'static str,
    signature: &'static str,
}

/// The simplest case; the others vary it.
const VANILLA: Case = Case {
    name: "get-vanilla",
    method: "GET",
    target: "/",
    headers: &[],
    signed: "host;x-amz-date",
    body: "",
    signature: "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
};

const SUITE: &[Case] = &[
    VANILLA,
    Case {
        name: "get-vanilla-query-order-key-case",
        target: "/?Param2=value2&Param1=value1",
        signature: "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ..VANILLA
    },
    Case {
        name: "post-vanilla",
        method: "POST",
        signature: "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ..VANILLA
    },
    Case {
        name: "post-header-key-sort",
        method: "POST",
        headers: &[("My-Header1", "value1")],
        signed: "host;my-header1;x-amz-date",
        signature: "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
        ..VANILLA
    },
    Case {
        name: "get-header-value-trim",
        headers: &[("My-Header1", " value1"), ("My-Header2", " \"a   b   c\"")],
        signed: "host;my-header1;my-header2;x-amz-date",
        signature: "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        ..VANILLA
    },
    Case {
        name: "post-x-www-form-urlencoded",
        method: "POST",
        headers: &[("Content-Type", "application/x-www-form-urlencoded")],
        signed: "content-type;host;x-amz-date",
        body: "Param1=value1",
        signature: "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ..VANILLA
    },
    Case { name: "normalize-path/get-relative-relative", target: "/example1/example2/../..", ..VANILLA },
    Case { name: "normalize-path/get-slash", target: "//", ..VANILLA },
];

#[test]
fn the_published_signatures_verify() {
    for Case { name, method, target, headers, signed, body, signature } in SUITE {
        let request = request(method, target, headers, signed, signature);
        assert_eq!(checked(&request, body), Ok(()), "{name}");
        assert_eq!(
            checked(&request, &format!("{body}x")),
            Err(SignatureError::Mismatch),
            "{name} with another body"
        );
    }
}

#[test]
fn another_secret_method_path_query_or_header_does_not_verify() {
    let signature = "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b";
    let good = request("POST", "/", &[], "host;x-amz-date", signature);
    let signed = SignatureHeader::read(good.headers()).unwrap();
    assert_eq!(signed.check("another", &good, b""), Err(SignatureError::Mismatch));
    for (method, target) in [("GET", "/"), ("POST", "/x"), ("POST", "/?a=b")] {
        let other = request(method, target, &[], "host;x-amz-date", signature);
        assert_eq!(checked(&other, ""), Err(SignatureError::Mismatch), "{method} {target}");
    }
    let mut moved = good;
    moved.headers_mut().insert(HOST, "other.example".parse().unwrap());
    assert_eq!(checked(&moved, ""), Err(SignatureError::Mismatch));
}

#[test]
fn a_claimed_payload_hash_must_match_unless_the_payload_is_unsigned() {
    let hash = sha256(b"body");
    let claimed = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_HASH, value.parse().unwrap());
        payload_hash(&headers, b"body")
    };
    assert_eq!(claimed(UNSIGNED), Ok(UNSIGNED.to_owned()));
    assert_eq!(claimed(&hash), Ok(hash.clone()));
    assert_eq!(claimed(&sha256(b"other")), Err(SignatureError::Mismatch));
    assert_eq!(claimed("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), Err(SignatureError::Mismatch));
    assert_eq!(payload_hash(&HeaderMap::new(), b"body"), Ok(hash));
}

#[test]
fn a_clock_skew_of_more_than_15_minutes_is_rejected() {
    let request = request("POST", "/", &[], "host;x-amz-date", "00");
    let signed = SignatureHeader::read(request.headers()).unwrap();
    let at = UnixSeconds::parse(STAMP).unwrap().0;
    for good in [at, at + 900, at - 900] {
        assert_eq!(signed.check_date(UnixSeconds(good)), Ok(()));
    }
    for bad in [at + 901, at - 901] {
        assert!(matches!(signed.check_date(UnixSeconds(bad)), Err(SignatureError::Skewed { .. })));
    }
}

#[test]
fn a_signature_must_be_for_this_service_and_cover_the_required_headers() {
    let target = [("x-amz-target", "AmazonSQS.DeleteQueue")];
    let uncovered = request("POST", "/", &target, "host;x-amz-date", "00");
    let mut signed = SignatureHeader::read(uncovered.headers()).unwrap();
    // The suite signs for another service.
    let scope_error = signed.check_scope(SERVICE, uncovered.headers());
    assert_eq!(scope_error, Err(SignatureError::Scope { service: SERVICE }));
    signed.scope[2] = SERVICE.to_owned();
    assert!(matches!(
        signed.check_scope(SERVICE, uncovered.headers()),
        Err(SignatureError::Incomplete { .. })
    ));
    signed.headers.push("x-amz-target".to_owned());
    assert_eq!(signed.check_scope(SERVICE, uncovered.headers()), Ok(()));
    signed.scope[0] = "20150831".to_owned();
    assert!(matches!(
        signed.check_scope(SERVICE, uncovered.headers()),
        Err(SignatureError::Incomplete { .. })
    ));
}

#[test]
fn a_missing_signature_is_distinguished_from_an_incomplete_one() {
    let read = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        headers.insert(DATE, STAMP.parse().unwrap());
        SignatureHeader::read(&headers)
    };
    assert_eq!(SignatureHeader::read(&HeaderMap::new()), Err(SignatureError::NoToken));
    assert_eq!(read("Bearer ek-1"), Err(SignatureError::NoToken));
    for cut in [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=a/b/c/d/e",
        "AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=host, Signature=00",
        "AWS4-HMAC-SHA256 Credential=a/b/c/d/e, Signature=00",
    ] {
        assert!(matches!(read(cut), Err(SignatureError::Incomplete { .. })), "{cut:?}");
    }
    assert!(read("AWS4-HMAC-SHA256 Credential=a/b/c/d/e,SignedHeaders=host,Signature=00").is_ok());
}

/// Builds a presigned request with the signature that its other parameters need.
fn presigned(method: &str, query: &str) -> Request<()> {
    let build = |target: &str| {
        let request = Request::builder().method(method).uri(target).header("host", "example.amazonaws.com");
        request.body(()).unwrap()
    };
    let parameters = format!(
        "X-Amz-Algorithm={ALGORITHM}&X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Fus-east-1%2Fsqs%2Faws4_request\
         &X-Amz-Date={STAMP}&X-Amz-SignedHeaders=host&{query}"
    );
    let unsigned = build(&format!("/?{parameters}&X-Amz-Signature=00"));
    let signature = match presigned::read(&unsigned) {
        Ok(Some(signed)) => {
            let canonical = canonical_request(&unsigned, &signed.headers, &sha256(b"")).unwrap();
            signed.sign(SECRET, &canonical)
        }
        _ => "00".to_owned(),
    };
    build(&format!("/?{parameters}&X-Amz-Signature={signature}"))
}

#[test]
fn a_presigned_get_request_is_valid_until_it_expires() {
    let request = presigned("GET", "Action=ListQueues&X-Amz-Expires=3600");
    let signed = presigned::read(&request).unwrap().unwrap();
    assert_eq!(signed.check_scope(SERVICE, request.headers()), Ok(()));
    assert_eq!(signed.check(SECRET, &request, b""), Ok(()));
    assert_eq!(signed.check(SECRET, &request, b"x"), Err(SignatureError::Mismatch));
    assert_eq!(signed.check("another", &request, b""), Err(SignatureError::Mismatch));
    let at = UnixSeconds::parse(STAMP).unwrap().0;
    for good in [at - 900, at, at + 3_600] {
        assert_eq!(signed.check_date(UnixSeconds(good)), Ok(()));
    }
    for bad in [at - 901, at + 3_601] {
        assert!(matches!(signed.check_date(UnixSeconds(bad)), Err(SignatureError::Skewed { .. })));
    }
}

#[test]
fn a_presigned_request_is_a_get_with_each_parameter_once() {
    assert_eq!(presigned::read(&presigned("POST", "X-Amz-Expires=1")), Ok(None));
    let plain = Request::builder().uri("/?Action=ListQueues").body(()).unwrap();
    assert_eq!(presigned::read(&plain), Ok(None));
    for bad in [
        "Action=ListQueues",
        "X-Amz-Expires=0",
        "X-Amz-Expires=604801",
        "X-Amz-Expires=x",
        "X-Amz-Expires=1&X-Amz-Expires=1",
        "X-Amz-Expires=1&X-Amz-Date=20160830T123600Z",
        "X-Amz-Expires=1&X-Amz-Signature=01",
    ] {
        let read = presigned::read(&presigned("GET", bad));
        assert!(matches!(read, Err(SignatureError::Incomplete { .. })), "{bad}: {read:?}");
    }
}

#[test]
fn an_added_parameter_is_not_covered_by_a_presigned_signature() {
    let request = presigned("GET", "Action=ListQueues&X-Amz-Expires=3600");
    let changed = format!("{}&QueueName=x", request.uri());
    let changed = Request::builder().uri(changed).header("host", "example.amazonaws.com").body(()).unwrap();
    let signed = presigned::read(&changed).unwrap().unwrap();
    assert_eq!(signed.check(SECRET, &changed, b""), Err(SignatureError::Mismatch));
}

#[test]
fn a_plus_sign_in_a_query_is_signed_as_the_space_that_it_means() {
    let request = presigned("GET", "Action=SendMessage&MessageBody=a%2Bb&X-Amz-Expires=60");
    let resent = |body: &str| {
        let uri = request.uri().to_string().replace("a%2Bb", body);
        let request = Request::builder().uri(uri).header("host", "example.amazonaws.com").body(()).unwrap();
        let signed = presigned::read(&request).unwrap().unwrap();
        signed.check(SECRET, &request, b"")
    };
    assert_eq!(resent("a%2bb"), Ok(()));
    assert_eq!(resent("a+b"), Err(SignatureError::Mismatch));
    assert_eq!(canonical_query("b=x+y&a=x%20y"), "a=x%20y&b=x%20y");
}
