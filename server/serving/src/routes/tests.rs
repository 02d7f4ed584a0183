use crate::snapshot::samples::{key, name, revision, service, small, snapshot};
use crate::snapshot::{Access, Address, Allowed};

use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_000_000);

/// Two organizations: the first has a chat model and a plain service, the second a private and a public model.
fn routes() -> Routes {
    let mut chat = service(1, 1, "chat", &["llama", "shared"]);
    chat.addresses = vec![Address::Host(name("chat.example.org"))];
    let mut digits = service(2, 1, "digits", &[]);
    digits.addresses = vec![Address::Prefix(name("/digits")), Address::Prefix(name("/digits/new"))];
    let mut private = service(3, 2, "private", &["gemma"]);
    private.addresses = vec![Address::Host(name("private.example.org")), Address::Prefix(name("/private"))];
    let mut public = service(4, 2, "public", &["open", "shared"]);
    public.access = Access::Public;
    public.addresses = vec![Address::Prefix(name("/open"))];
    let mut short = key(3, 1, "short");
    short.allowed = Allowed::Only(vec![name("llama")]);
    let mut old = key(4, 1, "old");
    old.expires_at = Some(NOW);
    let keys = vec![key(1, 1, "one"), key(2, 2, "two"), short, old];
    Routes::new(snapshot(vec![chat, digits, private, public], keys)).unwrap()
}

/// The name of the service and the path that it gets.
fn address(host: &str, path: &str, secret: Option<&str>) -> Result<(String, String), Refusal> {
    let routes = routes();
    let key = secret.map(|secret| routes.key(secret, NOW).unwrap());
    match routes.target(host, path, key)? {
        Target::Service { service, path, .. } => Ok((service.name.to_string(), path.to_owned())),
        Target::Model(endpoint) => Ok(("by model".to_owned(), format!("{endpoint:?}"))),
    }
}

#[test]
fn only_a_whole_present_key_is_accepted() {
    let routes = routes();
    assert_eq!(routes.key("one", NOW).unwrap().id, key(1, 1, "").id);
    let long = "x".repeat(257);
    for wrong in ["", "on", "onee", "One", long.as_str()] {
        assert_eq!(routes.key(wrong, NOW).err(), Some(Refusal::KeyRefused), "{wrong}");
    }
    assert_eq!(routes.key("old", NOW).err(), Some(Refusal::KeyExpired));
    assert!(routes.key("old", Timestamp::from_micros(999_999)).is_ok(), "a key is valid until its end");
    let mut without = small();
    without.keys.clear();
    assert_eq!(Routes::new(without).unwrap().key("one", NOW).err(), Some(Refusal::KeyRefused));
}

#[test]
fn hosts_and_prefixes_lead_to_their_service() {
    let found = |host: &str, path: &str| address(host, path, Some("one")).unwrap();
    let expected = |name: &str, path: &str| (name.to_owned(), path.to_owned());
    for host in ["chat.example.org", "CHAT.example.org", "chat.example.org:8443", "chat.example.org."] {
        assert_eq!(found(host, "/v1/models"), expected("chat", "/v1/models"), "{host}");
    }
    assert_eq!(found("gw", "/digits"), expected("digits", "/"));
    assert_eq!(found("gw", "/digits/a/b"), expected("digits", "/a/b"));
    assert_eq!(found("gw", "/digits/new/b"), expected("digits", "/b"), "the longest prefix");
    assert_eq!(found("[::1]:80", "/digits/newer"), expected("digits", "/newer"));
    assert_eq!(found("gw", "/v1/chat/completions"), expected("by model", "ChatCompletions"));
    assert_eq!(found("gw", "/open/x"), expected("public", "/x"));
    let long = format!("/digits/{}", "é/".repeat(5_000));
    assert_eq!(found("gw", &long).0, "digits");
    for (host, path) in
        [("gw", "/"), ("gw", ""), ("gw", "/digitsx"), ("gw", "/v1/files"), ("gw", "/v1"), ("chat", "/")]
    {
        assert_eq!(address(host, path, Some("one")), Err(Refusal::UnknownAddress), "{host}{path}");
    }
}

#[test]
fn a_foreign_service_looks_like_none() {
    for (foreign, absent) in [
        (("private.example.org", "/x"), ("none.example.org", "/x")),
        (("gw", "/private/x"), ("gw", "/none/x")),
    ] {
        for secret in [None, Some("one")] {
            let answer = |(host, path)| address(host, path, secret).unwrap_err().problem();
            assert_eq!(answer(foreign), answer(absent));
            assert_eq!(answer(foreign).status, if secret.is_some() { 404 } else { 401 });
        }
    }
    let routes = routes();
    for secret in [None, Some("one")] {
        let key = secret.map(|secret| routes.key(secret, NOW).unwrap());
        let answer = |model: &str| routes.by_model(model, key).unwrap_err().problem();
        assert_eq!(answer("gemma"), answer("none"));
        assert_eq!(answer("gemma").status, if secret.is_some() { 404 } else { 401 });
    }
}

#[test]
fn a_model_leads_to_the_own_service_first() {
    let routes = routes();
    let found = |model: &str, secret: Option<&str>| {
        let key = secret.map(|secret| routes.key(secret, NOW).unwrap());
        routes.by_model(model, key).map(|service| service.name.to_string())
    };
    assert_eq!(found("shared", Some("one")), Ok("chat".to_owned()));
    assert_eq!(found("shared", Some("two")), Ok("public".to_owned()));
    assert_eq!(found("shared", None), Ok("public".to_owned()));
    assert_eq!(found("open", None), Ok("public".to_owned()));
    assert_eq!(found("open", Some("one")), Err(Refusal::UnknownModel), "a key stays in its organization");
    assert_eq!(found("llama", Some("short")), Ok("chat".to_owned()));
    assert_eq!(found("shared", Some("short")), Err(Refusal::NotAllowed));
    assert_eq!(found("gemma", Some("short")), Err(Refusal::UnknownModel), "an unknown model says no more");
    assert_eq!(address("gw", "/digits", Some("short")), Err(Refusal::NotAllowed));
}

#[test]
fn lists_of_models_have_what_the_key_may_use() {
    let routes = routes();
    let listed = |secret: Option<&str>| {
        let key = secret.map(|secret| routes.key(secret, NOW).unwrap());
        routes.models(key).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(listed(None), ["open", "shared"]);
    assert_eq!(listed(Some("one")), ["llama", "shared"]);
    assert_eq!(listed(Some("two")), ["gemma", "open", "shared"]);
    assert_eq!(listed(Some("short")), ["llama"]);
    for secret in [None, Some("one"), Some("two"), Some("short")] {
        let key = secret.map(|secret| routes.key(secret, NOW).unwrap());
        for model in ["llama", "shared", "gemma", "open", "none"] {
            let is_listed = listed(secret).contains(&model);
            assert_eq!(routes.by_model(model, key).is_ok(), is_listed, "{secret:?} {model}");
        }
    }
}

#[test]
fn a_body_has_the_limit_of_its_service() {
    let service = service(1, 1, "chat", &["llama"]);
    assert_eq!(check_body(&service, 1_000), Ok(()));
    assert_eq!(check_body(&service, 1_001), Err(Refusal::BodyTooLarge { max_bytes: 1_000 }));
}

#[test]
fn the_limit_of_a_body_without_a_model_is_that_of_the_models_of_its_key() {
    let mut chat = service(1, 1, "chat", &["llama"]);
    chat.max_body_bytes = 5_000;
    let mut plain = service(2, 1, "plain", &[]);
    plain.max_body_bytes = 9_000;
    let limits = |access: Access| {
        let mut open = service(3, 2, "open", &["gemma"]);
        open.access = access;
        let keys = vec![key(1, 1, "one"), key(2, 2, "two"), key(3, 3, "three")];
        let routes = Routes::new(snapshot(vec![chat.clone(), plain.clone(), open], keys)).unwrap();
        [None, Some("one"), Some("two"), Some("three")]
            .map(|secret| routes.body_limit(secret.map(|secret| routes.key(secret, NOW).unwrap())))
    };
    assert_eq!(limits(Access::Public), [Ok(1_000), Ok(5_000), Ok(1_000), Ok(1_000)]);
    let (none, no_key) = (Err(Refusal::UnknownModel), Err(Refusal::KeyRequired));
    assert_eq!(limits(Access::Organization), [no_key, Ok(5_000), Ok(1_000), none]);
}

#[test]
fn a_host_of_a_service_is_known() {
    let routes = routes();
    assert!(routes.has_host("chat.example.org:8443"));
    assert!(!routes.has_host("gw") && !routes.has_host(""));
}

#[test]
fn a_snapshot_with_a_fault_makes_no_routes() {
    let mut chat = service(1, 1, "chat", &["llama"]);
    chat.revisions = vec![revision(1, 99, Vec::new())];
    assert!(Routes::new(snapshot(vec![chat], Vec::new())).is_err());
}
