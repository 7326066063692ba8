//! Tests of the tenant table and of authentication.

use super::*;
use http::HeaderValue;

const LOCAL: &str = "127.0.0.1:1";
/// Allows everything.
const OPEN_ALLOWED: InsecurePolicy = InsecurePolicy { allow_open: true, allow_plaintext: true };
const REMOTE: &str = "192.0.2.1:1";

fn tenant(name: &str, keys: &[&str]) -> TenantSettings {
    let keys = keys.iter().map(|key| TenantKey::unnamed(KeyHash::of(key))).collect();
    TenantSettings { name: name.to_owned(), keys, ..TenantSettings::default() }
}

fn auth(tenants: Vec<TenantSettings>, admin: &[&str], exposure: Exposure) -> Authenticator {
    let admin = admin.iter().map(|key| KeyHash::of(key)).collect();
    Authenticator::new(Tenants::new(tenants, admin).unwrap(), exposure, OPEN_ALLOWED).unwrap()
}

fn call(auth: &Authenticator, access: Access, key: Option<&str>, peer: &str) -> Result<String, ApiError> {
    let mut headers = HeaderMap::new();
    if let Some(key) = key {
        headers.insert("x-api-key", HeaderValue::from_str(key).unwrap());
    }
    Ok(match auth.caller(access, &headers, peer.parse().unwrap())? {
        Caller::Public => "public".to_owned(),
        Caller::Tenant(tenant) => tenant.settings.name.clone(),
        Caller::Admin(_) => "admin".to_owned(),
    })
}

#[test]
fn only_the_keys_of_a_tenant_authenticate_it() {
    let auth = auth(vec![tenant("a", &["ek-1", "ek-2"]), tenant("b", &["ek-3"])], &[], Exposure::Loopback);
    let by = |key| call(&auth, Access::Tenant, key, LOCAL);
    assert_eq!(by(Some("ek-1")), Ok("a".to_owned()));
    assert_eq!(by(Some("ek-2")), Ok("a".to_owned()));
    assert_eq!(by(Some("ek-3")), Ok("b".to_owned()));
    assert_eq!(by(Some("ek-4")), Err(ApiError::Unauthenticated));
    assert_eq!(by(None), Err(ApiError::Unauthenticated));
    assert_eq!(call(&auth, Access::Public, None, REMOTE), Ok("public".to_owned()));
}

#[test]
fn a_disabled_tenant_gets_tenant_disabled() {
    let off = TenantSettings { state: TenantState::Disabled, ..tenant("a", &["ek-1"]) };
    let auth = auth(vec![off], &[], Exposure::Loopback);
    assert_eq!(call(&auth, Access::Tenant, Some("ek-1"), LOCAL), Err(ApiError::TenantDisabled));
}

#[test]
fn without_tenants_every_caller_is_the_open_tenant() {
    let auth = auth(vec![], &[], Exposure::Loopback);
    assert_eq!(call(&auth, Access::Tenant, None, LOCAL), Ok("open".to_owned()));
}

#[test]
fn no_other_tenant_gets_the_id_of_the_open_tenant() {
    let auth = auth(vec![], &[], Exposure::Loopback);
    let open = auth.tenants().open.id;
    auth.reload(vec![tenant("a", &[]), tenant("b", &[])], vec![]).unwrap();
    let tenants = auth.tenants();
    assert!(["a", "b"].iter().all(|name| tenants.get(name).unwrap().id != open));
}

#[test]
fn all_lists_the_tenants_by_id_including_the_open_one() {
    let tenants = Tenants::new(vec![tenant("b", &[]), tenant("a", &[])], vec![]).unwrap();
    let all = tenants.all();
    assert_eq!(
        all.iter().map(|tenant| tenant.settings.name.as_str()).collect::<Vec<_>>(),
        ["open", "b", "a"]
    );
    assert!(all.is_sorted_by_key(|tenant| tenant.id));
}

#[test]
fn only_an_admin_key_administers_whatever_the_address() {
    let tenants = || vec![tenant("a", &["ek-1"])];
    for auth in [auth(tenants(), &["ek-root"], Exposure::Loopback), auth(vec![], &["ek-root"], Exposure::Tls)]
    {
        for peer in [LOCAL, REMOTE] {
            let by = |key| call(&auth, Access::Admin, key, peer);
            assert_eq!(by(None), Err(ApiError::Unauthenticated));
            assert_eq!(by(Some("ek-1")), Err(ApiError::AdminOnly));
            assert_eq!(by(Some("ek-typo")), Err(ApiError::AdminOnly));
            assert_eq!(by(Some("ek-root")), Ok("admin".to_owned()));
        }
    }
    let unkeyed = auth(tenants(), &[], Exposure::Loopback);
    assert_eq!(call(&unkeyed, Access::Admin, Some("ek-1"), LOCAL), Err(ApiError::AdminOnly));
    assert_eq!(call(&unkeyed, Access::Tenant, Some("ek-root"), LOCAL), Err(ApiError::Unauthenticated));
}

#[test]
fn tenant_or_admin_routes_distinguish_tenants_from_administrators() {
    let both = |auth: &Authenticator, key| call(auth, Access::TenantOrAdmin, key, LOCAL);
    let keyed = auth(vec![tenant("a", &["ek-1"])], &["ek-root"], Exposure::Loopback);
    assert_eq!(both(&keyed, Some("ek-1")), Ok("a".to_owned()));
    assert_eq!(both(&keyed, Some("ek-root")), Ok("admin".to_owned()));
    assert_eq!(both(&keyed, Some("ek-typo")), Err(ApiError::Unauthenticated));
    assert_eq!(both(&keyed, None), Err(ApiError::Unauthenticated));
    let open = auth(vec![], &["ek-root"], Exposure::Loopback);
    assert_eq!(both(&open, None), Ok("open".to_owned()));
    assert_eq!(both(&open, Some("ek-root")), Ok("admin".to_owned()));
    assert_eq!(both(&open, Some("ek-typo")), Err(ApiError::Unauthenticated));
    let off = TenantSettings { state: TenantState::Disabled, ..tenant("a", &["ek-1"]) };
    let disabled = auth(vec![off], &["ek-root"], Exposure::Loopback);
    assert_eq!(both(&disabled, Some("ek-1")), Err(ApiError::TenantDisabled));
}

#[test]
fn an_open_server_on_loopback_serves_no_forwarded_request() {
    let forwarded = |auth: &Authenticator, access, key: Option<&str>| {
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", HeaderValue::from_static("192.0.2.1"));
        if let Some(key) = key {
            headers.insert("x-api-key", HeaderValue::from_str(key).unwrap());
        }
        auth.caller(access, &headers, LOCAL.parse().unwrap()).map(drop)
    };
    let strict = |tenants| {
        let tenants = Tenants::new(tenants, vec![KeyHash::of("ek-root")]).unwrap();
        Authenticator::new(tenants, Exposure::Loopback, InsecurePolicy::default()).unwrap()
    };
    for access in [Access::Public, Access::Tenant, Access::TenantOrAdmin] {
        assert_eq!(forwarded(&strict(vec![]), access, None), Err(ApiError::Forwarded), "{access:?}");
        assert_eq!(forwarded(&auth(vec![], &[], Exposure::Loopback), access, None), Ok(()), "{access:?}");
        assert_eq!(
            forwarded(&strict(vec![tenant("a", &["ek-1"])]), access, Some("ek-1")),
            Ok(()),
            "{access:?}"
        );
    }
    for access in [Access::Admin, Access::TenantOrAdmin] {
        assert_eq!(forwarded(&strict(vec![]), access, Some("ek-root")), Ok(()), "{access:?}");
    }
    assert_eq!(forwarded(&strict(vec![]), Access::Unchecked, None), Ok(()), "probes work behind a proxy");
}

#[test]
fn an_exposed_listener_needs_tenants_and_tls_or_an_explicit_permission() {
    let error = |tenants: Vec<TenantSettings>, exposure, insecure| {
        Authenticator::new(Tenants::new(tenants, vec![]).unwrap(), exposure, insecure).err()
    };
    let some = || vec![tenant("a", &["ek-1"])];
    use Exposure::{Clear, Loopback, Tls};
    let refuse = InsecurePolicy::default();
    let open = InsecurePolicy { allow_open: true, ..refuse };
    let plaintext = InsecurePolicy { allow_plaintext: true, ..refuse };
    assert_eq!(error(vec![], Loopback, refuse), None);
    assert_eq!(error(some(), Loopback, refuse), None);
    for exposed in [Clear, Tls] {
        assert_eq!(error(vec![], exposed, refuse), Some(TenantsError::Open));
        assert_eq!(error(vec![], exposed, plaintext), Some(TenantsError::Open));
        assert_eq!(error(vec![], exposed, open), None);
    }
    assert_eq!(error(some(), Clear, refuse), Some(TenantsError::Clear));
    assert_eq!(error(some(), Clear, open), Some(TenantsError::Clear));
    assert_eq!(error(some(), Clear, plaintext), None);
    assert_eq!(error(some(), Tls, refuse), None);
}

#[test]
fn a_reload_cannot_open_an_exposed_listener() {
    let tenants = Tenants::new(vec![tenant("a", &["ek-1"])], vec![]).unwrap();
    let auth = Authenticator::new(tenants, Exposure::Tls, InsecurePolicy::default()).unwrap();
    assert_eq!(auth.reload(vec![], vec![]), Err(TenantsError::Open));
    assert_eq!(
        call(&auth, Access::Tenant, Some("ek-1"), REMOTE),
        Ok("a".to_owned()),
        "the old tenants were not kept"
    );
}

#[test]
fn a_tenant_keeps_its_id_and_its_rate_usage_across_a_reload() {
    let limited = |name: &str| TenantSettings { rpm: Some(1), ..tenant(name, &[]) };
    let auth = auth(vec![limited("a"), limited("b"), limited("c")], &[], Exposure::Loopback);
    let before = auth.tenants().get("b").unwrap().clone();
    before.take_request(Instant::ORIGIN).unwrap();
    let removed = auth.reload(vec![limited("d"), limited("b")], vec![]).unwrap();
    let after = auth.tenants();
    assert_eq!(after.get("b").unwrap().id, before.id);
    assert!(after.get("b").unwrap().take_request(Instant::ORIGIN).is_err(), "the reload reset the usage");
    assert_eq!(removed, [TenantId(1), TenantId(3)]);
    assert_eq!(after.get("d").unwrap().id, TenantId(4), "a removed id was reused by the same reload");
    assert_eq!((after.len(), after.is_empty()), (2, false));
}

#[test]
fn an_invalid_table_is_rejected_with_the_tenants_name() {
    let error = |tenants| Tenants::new(tenants, vec![KeyHash::of("ek-root")]).err().map(|e| e.to_string());
    let keys: Vec<String> = (0..=KEYS_MAX).map(|n| format!("ek-{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for (tenants, message) in [
        (vec![tenant("", &[])], "a tenant has no name"),
        (vec![tenant("open", &[])], "no tenant may be named \"open\""),
        (vec![tenant("a", &[]), tenant("a", &[])], "two tenants are named \"a\""),
        (vec![tenant("a", &["k"]), tenant("b", &["k"])], "a key of tenant \"b\" is listed twice"),
        (vec![tenant("a", &["ek-root"])], "a key of tenant \"a\" is listed twice"),
        (vec![tenant("a", &keys)], "tenant \"a\" has more than 16 keys"),
    ] {
        assert_eq!(error(tenants).as_deref(), Some(message));
    }
    let many = |count: usize| (0..count).map(|n| tenant(&n.to_string(), &[])).collect::<Vec<_>>();
    assert_eq!(error(many(TENANTS_MAX)), None);
    assert_eq!(error(many(TENANTS_MAX + 1)).as_deref(), Some("more than 10000 tenants"));
}

#[test]
fn a_full_table_can_be_replaced_by_another() {
    let many = |prefix: &str| (0..TENANTS_MAX).map(|n| tenant(&format!("{prefix}{n}"), &[])).collect();
    let auth = auth(many("old"), &[], Exposure::Loopback);
    assert_eq!(auth.reload(many("new"), vec![]).unwrap().len(), TENANTS_MAX);
}

#[test]
fn a_tenant_with_a_model_list_may_use_no_other_model() {
    let some = Tenant::new(TenantId(0), TenantSettings { models: vec!["m".to_owned()], ..tenant("a", &[]) });
    assert_eq!(some.check_model("m"), Ok(()));
    assert_eq!(some.check_model("n"), Err(ApiError::ModelForbidden { model: "n".to_owned() }));
    assert_eq!(Tenant::new(TenantId(0), tenant("a", &[])).check_model("n"), Ok(()));
}

#[test]
fn a_limit_of_zero_requests_per_minute_disables_a_tenant() {
    let tenant = Tenant::new(TenantId(0), TenantSettings { rpm: Some(0), ..tenant("a", &[]) });
    assert_eq!(tenant.take_request(Instant::ORIGIN), Err(ApiError::TenantDisabled));
}

#[test]
fn estimated_tokens_are_limited_and_settled() {
    let tenant = Tenant::new(TenantId(0), TenantSettings { tpm: Some(100), ..tenant("a", &[]) });
    let now = Instant::ORIGIN;
    assert_eq!(tenant.take_tokens(80, now), Ok(()));
    assert!(matches!(
        tenant.take_tokens(80, now),
        Err(ApiError::RateLimited { rate: RateLimitKind::Tokens, .. })
    ));
    tenant.settle_tokens(80, 10, now, now);
    assert_eq!(tenant.take_tokens(80, now), Ok(()));
    let too_large = tenant.take_tokens(101, now).unwrap_err();
    assert_eq!(too_large.status(), 400, "a client would retry forever");
}

#[test]
fn the_priority_of_a_key_is_within_that_of_its_tenant() {
    use Class::{High, Low, Normal};
    let key = |name: &str, priority| TenantKey { priority, ..TenantKey::unnamed(KeyHash::of(name)) };
    let settings = TenantSettings {
        name: "acme".to_owned(),
        keys: vec![key("ek-plain", None), key("ek-low", Some(Low)), key("ek-high", Some(High))],
        priority: Some(Low),
        priority_max: Some(Normal),
        ..TenantSettings::default()
    };
    let tenants = Tenants::new(vec![settings], vec![]).unwrap();
    let classes = |key: &str| {
        let tenant = tenants.with_hash(&KeyHash::of(key)).unwrap();
        [None, Some(High), Some(Low)].map(|requested| tenant.class_rule().class(requested))
    };
    assert_eq!(classes("ek-plain"), [Low, Normal, Low]);
    assert_eq!(classes("ek-low"), [Low, Low, Low]);
    assert_eq!(classes("ek-high"), [Normal, Normal, Low]);
}

/// Returns a tenant whose keys are named and expire at these times.
fn with_expiring(name: &str, keys: &[(&str, Option<u64>)]) -> TenantSettings {
    let key = |(key, expires_at): &(&str, Option<u64>)| TenantKey {
        name: format!("name of {key}"),
        hash: KeyHash::of(key),
        expires_at: expires_at.map(UnixSeconds),
        priority: None,
    };
    TenantSettings {
        name: name.to_owned(),
        keys: keys.iter().map(key).collect(),
        ..TenantSettings::default()
    }
}

#[test]
fn an_expired_key_is_rejected_with_its_time_and_the_others_work() {
    let tenants =
        Tenants::new(vec![with_expiring("a", &[("ek-1", Some(100)), ("ek-2", None)])], vec![]).unwrap();
    let by = |key, now| tenants.tenant_with_key(key, UnixSeconds(now)).map(drop);
    assert_eq!(by("ek-1", 99), Ok(()));
    assert_eq!(by("ek-1", 100), Err(ApiError::KeyExpired { at: "1970-01-01T00:01:40Z".to_owned() }));
    assert_eq!(by("ek-2", 100), Ok(()));
    assert_eq!(by("ek-3", 100), Err(ApiError::Unauthenticated), "a wrong key learns nothing");
}

#[test]
fn a_tenant_is_current_while_the_key_that_it_used_is_valid() {
    let keys = [("ek-1", Some(100)), ("ek-2", None)];
    let tenants = Tenants::new(vec![with_expiring("a", &keys)], vec![]).unwrap();
    let by = |key| tenants.tenant_with_key(key, UnixSeconds(1)).unwrap();
    let one = by("ek-1");
    let two = by("ek-2");
    assert_eq!(one.key().map(|key| key.name.as_str()), Some("name of ek-1"));
    assert!(tenants.is_current(&one, UnixSeconds(99)) && !tenants.is_current(&one, UnixSeconds(100)));
    assert!(tenants.is_current(&two, UnixSeconds(100)));
    let (without_first, _) = tenants.next(vec![with_expiring("a", &keys[1..])], vec![]).unwrap();
    assert!(
        !without_first.is_current(&one, UnixSeconds(1)) && without_first.is_current(&two, UnixSeconds(1))
    );
}

#[test]
fn the_last_use_of_a_key_survives_a_reload_and_is_restored() {
    let tenants = Tenants::new(vec![tenant("a", &["ek-1", "ek-2"])], vec![]).unwrap();
    let hash = KeyHash::of("ek-1");
    assert_eq!(tenants.last_use(&hash), None);
    tenants.tenant_with_key("ek-1", UnixSeconds(179)).unwrap();
    let (next, _) = tenants.next(vec![tenant("a", &["ek-2", "ek-1"])], vec![]).unwrap();
    assert_eq!(next.last_use(&hash), Some(UnixSeconds(120)));
    assert_eq!(next.last_uses().len(), 1);
    let restarted = Tenants::new(vec![tenant("a", &["ek-1"])], vec![]).unwrap();
    restarted.restore_last_use(&hash, UnixSeconds(120));
    restarted.restore_last_use(&KeyHash::of("ek-9"), UnixSeconds(120));
    assert_eq!(restarted.last_use(&hash), Some(UnixSeconds(120)));
}

#[test]
fn two_keys_of_a_tenant_have_different_names() {
    let mut same = with_expiring("a", &[("ek-1", None), ("ek-2", None)]);
    same.keys[1].name = same.keys[0].name.clone();
    let error = Tenants::new(vec![same], vec![]).unwrap_err().to_string();
    assert_eq!(error, "two keys of tenant \"a\" are named \"name of ek-1\"");
}

#[tokio::test]
async fn a_caller_becomes_invalid_when_its_key_expires_and_an_administrator_when_the_admin_key_changes() {
    let soon = UnixSeconds::now().0 + 1;
    let auth = auth(vec![with_expiring("a", &[("ek-1", Some(soon))])], &["ek-root"], Exposure::Loopback);
    let caller = Caller::Tenant(auth.tenant_with_key("ek-1").unwrap());
    auth.until_invalid(&caller).await;
    assert_eq!(auth.tenant_with_key("ek-1").map(drop).unwrap_err().code(), "api_key_expired");
    let admin = Caller::Admin(AdminKey { hash: KeyHash::of("ek-root") });
    assert!(auth.is_current(&admin));
    auth.reload(vec![], vec![KeyHash::of("ek-other")]).unwrap();
    auth.until_invalid(&admin).await;
}
