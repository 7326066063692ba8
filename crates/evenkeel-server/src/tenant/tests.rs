//! Claims about tenants, keys and who is let in.

use super::*;
use http::HeaderValue;

const HERE: &str = "127.0.0.1:1";
const THERE: &str = "192.0.2.1:1";

fn tenant(name: &str, keys: &[&str]) -> TenantSettings {
    let key_hashes = keys.iter().map(|key| KeyHash::of(key)).collect();
    TenantSettings { name: name.to_owned(), key_hashes, ..TenantSettings::default() }
}

fn gate(tenants: Vec<TenantSettings>, admin: &[&str], exposure: Exposure) -> Authenticator {
    let admin = admin.iter().map(|key| KeyHash::of(key)).collect();
    Authenticator::new(Tenants::new(tenants, admin).unwrap(), exposure, InsecurePolicy::Allow).unwrap()
}

fn call(gate: &Authenticator, access: Access, key: Option<&str>, peer: &str) -> Result<String, ApiError> {
    let mut headers = HeaderMap::new();
    if let Some(key) = key {
        headers.insert("x-api-key", HeaderValue::from_str(key).unwrap());
    }
    Ok(match gate.caller(access, &headers, peer.parse().unwrap())? {
        Caller::Public => "public".to_owned(),
        Caller::Tenant(tenant) => tenant.settings.name.clone(),
        Caller::Admin => "admin".to_owned(),
    })
}

#[test]
fn each_key_of_a_tenant_opens_and_no_other_does() {
    let gate = gate(vec![tenant("a", &["ek-1", "ek-2"]), tenant("b", &["ek-3"])], &[], Exposure::Loopback);
    let by = |key| call(&gate, Access::Tenant, key, HERE);
    assert_eq!(by(Some("ek-1")), Ok("a".to_owned()));
    assert_eq!(by(Some("ek-2")), Ok("a".to_owned()));
    assert_eq!(by(Some("ek-3")), Ok("b".to_owned()));
    assert_eq!(by(Some("ek-4")), Err(ApiError::Unauthenticated));
    assert_eq!(by(None), Err(ApiError::Unauthenticated));
    assert_eq!(call(&gate, Access::Public, None, THERE), Ok("public".to_owned()));
}

#[test]
fn a_disabled_tenant_is_told_so() {
    let off = TenantSettings { state: TenantState::Disabled, ..tenant("a", &["ek-1"]) };
    let gate = gate(vec![off], &[], Exposure::Loopback);
    assert_eq!(call(&gate, Access::Tenant, Some("ek-1"), HERE), Err(ApiError::TenantDisabled));
}

#[test]
fn without_tenants_everybody_is_the_open_tenant() {
    let gate = gate(vec![], &[], Exposure::Loopback);
    assert_eq!(call(&gate, Access::Tenant, None, HERE), Ok("open".to_owned()));
}

#[test]
fn the_open_tenants_id_is_given_to_nobody_else() {
    let gate = gate(vec![], &[], Exposure::Loopback);
    let open = gate.tenants().open.id;
    gate.reload(vec![tenant("a", &[]), tenant("b", &[])], vec![]).unwrap();
    let tenants = gate.tenants();
    assert!(["a", "b"].iter().all(|name| tenants.get(name).unwrap().id != open));
}

#[test]
fn all_tenants_are_listed_by_id_the_open_one_too() {
    let tenants = Tenants::new(vec![tenant("b", &[]), tenant("a", &[])], vec![]).unwrap();
    let all = tenants.all();
    assert_eq!(
        all.iter().map(|tenant| tenant.settings.name.as_str()).collect::<Vec<_>>(),
        ["open", "b", "a"]
    );
    assert!(all.is_sorted_by_key(|tenant| tenant.id));
}

#[test]
fn a_tenants_key_is_no_admin_key() {
    let gate = gate(vec![tenant("a", &["ek-1"])], &["ek-root"], Exposure::Loopback);
    assert_eq!(call(&gate, Access::Admin, Some("ek-1"), HERE), Err(ApiError::AdminOnly));
    assert_eq!(call(&gate, Access::Admin, None, HERE), Err(ApiError::Unauthenticated));
    assert_eq!(call(&gate, Access::Admin, Some("ek-root"), THERE), Ok("admin".to_owned()));
    assert_eq!(call(&gate, Access::Tenant, Some("ek-root"), HERE), Err(ApiError::Unauthenticated));
}

#[test]
fn what_both_may_use_tells_tenants_from_administrators() {
    let both = |gate: &Authenticator, key, peer| call(gate, Access::TenantOrAdmin, key, peer);
    let keyed = gate(vec![tenant("a", &["ek-1"])], &["ek-root"], Exposure::Loopback);
    assert_eq!(both(&keyed, Some("ek-1"), HERE), Ok("a".to_owned()));
    assert_eq!(both(&keyed, Some("ek-root"), THERE), Ok("admin".to_owned()));
    assert_eq!(both(&keyed, None, HERE), Err(ApiError::Unauthenticated));
    let unkeyed = gate(vec![tenant("a", &["ek-1"])], &[], Exposure::Loopback);
    assert_eq!(both(&unkeyed, None, HERE), Ok("admin".to_owned()));
    assert_eq!(both(&unkeyed, Some("ek-typo"), HERE), Err(ApiError::Unauthenticated));
    let open = gate(vec![], &[], Exposure::Loopback);
    assert_eq!(both(&open, None, HERE), Ok("admin".to_owned()));
    assert_eq!(both(&open, None, THERE), Ok("open".to_owned()));
}

#[test]
fn without_an_admin_key_only_this_machine_administers() {
    let local = gate(vec![], &[], Exposure::Loopback);
    assert_eq!(call(&local, Access::Admin, None, HERE), Ok("admin".to_owned()));
    assert_eq!(call(&local, Access::Admin, None, THERE), Err(ApiError::AdminOnly));
    let exposed = gate(vec![], &[], Exposure::Tls);
    assert_eq!(call(&exposed, Access::Admin, None, HERE), Err(ApiError::AdminOnly));
}

#[test]
fn what_others_reach_needs_tenants_and_tls_or_a_flag() {
    let started = |tenants: Vec<TenantSettings>, exposure, unprotected| {
        Authenticator::new(Tenants::new(tenants, vec![]).unwrap(), exposure, unprotected).err()
    };
    let some = || vec![tenant("a", &["ek-1"])];
    use Exposure::{Clear, Loopback, Tls};
    use InsecurePolicy::{Allow, Refuse};
    assert_eq!(started(vec![], Loopback, Refuse), None);
    assert_eq!(started(vec![], Clear, Refuse), Some(TenantsError::Open));
    assert_eq!(started(vec![], Tls, Refuse), Some(TenantsError::Open));
    assert_eq!(started(some(), Clear, Refuse), Some(TenantsError::Clear));
    assert_eq!(started(some(), Tls, Refuse), None);
    assert_eq!(started(vec![], Clear, Allow), None);
}

#[test]
fn a_reload_cannot_open_what_others_reach() {
    let tenants = Tenants::new(vec![tenant("a", &["ek-1"])], vec![]).unwrap();
    let gate = Authenticator::new(tenants, Exposure::Tls, InsecurePolicy::Refuse).unwrap();
    assert_eq!(gate.reload(vec![], vec![]), Err(TenantsError::Open));
    assert_eq!(call(&gate, Access::Tenant, Some("ek-1"), THERE), Ok("a".to_owned()), "the old ones stay");
}

#[test]
fn a_tenant_that_stays_keeps_its_id_and_its_minute() {
    let limited = |name: &str| TenantSettings { rpm: Some(1), ..tenant(name, &[]) };
    let gate = gate(vec![limited("a"), limited("b"), limited("c")], &[], Exposure::Loopback);
    let before = gate.tenants().get("b").unwrap().clone();
    before.take_request(Instant::ORIGIN).unwrap();
    let left = gate.reload(vec![limited("d"), limited("b")], vec![]).unwrap();
    let after = gate.tenants();
    assert_eq!(after.get("b").unwrap().id, before.id);
    assert!(after.get("b").unwrap().take_request(Instant::ORIGIN).is_err(), "a reload gave a new minute");
    assert_eq!(left, [TenantId(1), TenantId(3)]);
    assert_eq!(after.get("d").unwrap().id, TenantId(4), "an id that left was reused at once");
    assert_eq!((after.len(), after.is_empty()), (2, false));
}

#[test]
fn bad_tables_are_refused_by_name() {
    let made = |tenants| Tenants::new(tenants, vec![KeyHash::of("ek-root")]).err().map(|e| e.to_string());
    let keys: Vec<String> = (0..=KEYS_MAX).map(|n| format!("ek-{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for (tenants, refusal) in [
        (vec![tenant("", &[])], "a tenant has no name"),
        (vec![tenant("open", &[])], "no tenant may be named \"open\""),
        (vec![tenant("a", &[]), tenant("a", &[])], "two tenants are named \"a\""),
        (vec![tenant("a", &["k"]), tenant("b", &["k"])], "a key of tenant \"b\" is listed twice"),
        (vec![tenant("a", &["ek-root"])], "a key of tenant \"a\" is listed twice"),
        (vec![tenant("a", &keys)], "tenant \"a\" has more than 16 keys"),
    ] {
        assert_eq!(made(tenants).as_deref(), Some(refusal));
    }
    let many = |count: usize| (0..count).map(|n| tenant(&n.to_string(), &[])).collect::<Vec<_>>();
    assert_eq!(made(many(TENANTS_MAX)), None);
    assert_eq!(made(many(TENANTS_MAX + 1)).as_deref(), Some("more than 10000 tenants"));
}

#[test]
fn a_whole_table_can_be_replaced_by_another() {
    let many = |prefix: &str| (0..TENANTS_MAX).map(|n| tenant(&format!("{prefix}{n}"), &[])).collect();
    let gate = gate(many("old"), &[], Exposure::Loopback);
    assert_eq!(gate.reload(many("new"), vec![]).unwrap().len(), TENANTS_MAX);
}

#[test]
fn models_that_are_not_listed_are_refused_if_any_are() {
    let some = Tenant::new(TenantId(0), TenantSettings { models: vec!["m".to_owned()], ..tenant("a", &[]) });
    assert_eq!(some.check_model("m"), Ok(()));
    assert_eq!(some.check_model("n"), Err(ApiError::ModelForbidden { model: "n".to_owned() }));
    assert_eq!(Tenant::new(TenantId(0), tenant("a", &[])).check_model("n"), Ok(()));
}

#[test]
fn no_requests_per_minute_is_disabled() {
    let tenant = Tenant::new(TenantId(0), TenantSettings { rpm: Some(0), ..tenant("a", &[]) });
    assert_eq!(tenant.take_request(Instant::ORIGIN), Err(ApiError::TenantDisabled));
}

#[test]
fn tokens_are_counted_settled_and_limited() {
    let tenant = Tenant::new(TenantId(0), TenantSettings { tpm: Some(100), ..tenant("a", &[]) });
    let now = Instant::ORIGIN;
    assert_eq!(tenant.take_tokens(80, now), Ok(()));
    assert!(matches!(
        tenant.take_tokens(80, now),
        Err(ApiError::RateLimited { rate: RateLimitKind::Tokens, .. })
    ));
    tenant.settle_tokens(80, 10, now, now);
    assert_eq!(tenant.take_tokens(80, now), Ok(()));
    let never = tenant.take_tokens(101, now).unwrap_err();
    assert_eq!(never.status(), 400, "a client would come back for ever");
}
