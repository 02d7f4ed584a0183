//! Tests of the server-rendered pages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::common::{Caller, TestPortal, engines};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use axum::middleware::{Next, from_fn};
use berth_foundation::Settings;
use berth_server::web;
use berth_store::Db;
use serde_json::json;
use tower::ServiceExt;

struct Page {
    status: StatusCode,
    location: String,
    policy: String,
    html: String,
}

async fn open(router: &Router, caller: &Caller, path: &str) -> Page {
    let mut request = Request::builder().uri(path).header(header::ACCEPT, "text/html");
    if let Caller::Cookie(cookie) = caller {
        request = request.header(header::COOKIE, cookie);
    }
    let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let text = |name| response.headers().get(name).map_or("", |v| v.to_str().unwrap()).to_owned();
    let (status, location, policy) =
        (response.status(), text(header::LOCATION), text(header::CONTENT_SECURITY_POLICY));
    let html = String::from_utf8(to_bytes(response.into_body(), 1 << 24).await.unwrap().to_vec()).unwrap();
    Page { status, location, policy, html }
}

#[tokio::test]
async fn pages_have_their_data_and_a_strict_content_security_policy() {
    let t = TestPortal::sqlite().await;
    let pages = web::router(t.router.clone(), None, false);
    let nobody = Caller::Nobody;
    assert_eq!(open(&pages, &nobody, "/").await.location, "/setup", "a fresh portal is set up first");
    let operator = t.operator().await;
    let start = open(&pages, &nobody, "/").await;
    assert_eq!(start.status, StatusCode::OK);
    assert!(start.html.contains("GPUs for your jobs") && start.html.contains("<noscript>"), "{}", start.html);
    assert!(!start.html.contains(" style="), "no inline style");
    let away = open(&pages, &nobody, "/jobs?state=queued").await;
    assert_eq!(away.status, StatusCode::SEE_OTHER);
    assert_eq!(away.location, "/sign-in?next=/jobs%3Fstate%3Dqueued");
    let page = open(&pages, &nobody, "/sign-in").await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(
        page.policy.contains("script-src 'nonce-") && !page.policy.contains("unsafe-inline"),
        "{}",
        page.policy
    );
    assert!(!page.html.contains(" style="), "no inline style");
    for path in ["/join", "/forgot", "/reset", "/verify"] {
        let page = open(&pages, &nobody, path).await;
        assert_eq!(page.status, StatusCode::OK, "{path}: nobody has to be signed in");
    }

    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 5_000_000).await;
    let body = crate::common::job();
    let job = t.post(&ada, &format!("/orgs/{org}/jobs"), body).await.expect(201);
    let id = job["id"].as_str().unwrap();
    for (path, expected) in [
        ("", "train"),
        ("/launch", "h100-80gb.1g.10gb"),
        ("/jobs", "train"),
        ("/cluster", "Cluster"),
        ("/billing", "Welcome"),
        ("/team", "Member since"),
        ("/secrets", "No secrets yet"),
        ("/volumes", "No volumes yet"),
        ("/tokens", "Tokens"),
        ("/services", "No services yet"),
        ("/services/new", "Model in a volume"),
        ("/inference-keys", "No inference keys yet"),
        (&format!("/jobs/{id}"), id),
    ] {
        let page = open(&pages, &ada, &format!("/orgs/lab{path}")).await;
        assert_eq!(page.status, StatusCode::OK, "{path}");
        assert!(page.html.contains(expected), "{path} says {expected}: {}", page.html);
        assert!(!page.html.contains(" style="), "{path}: no inline style");
    }
    for path in
        ["/operator/nodes", "/operator/prices", "/operator/orgs", "/nowhere", "/orgs/lab/jobs/nonsense"]
    {
        assert_eq!(open(&pages, &ada, path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let account = open(&pages, &ada, "/account").await;
    assert!(account.html.contains("this browser"), "{}", account.html);
    for path in ["/operator/nodes", "/operator/prices", "/operator/orgs", "/operator/people"] {
        assert_eq!(open(&pages, &operator, path).await.status, StatusCode::OK, "{path}");
    }
    let (eve, _) = t.tenant("other").await;
    for path in [format!("/orgs/lab/jobs/{id}"), format!("/orgs/other/jobs/{id}")] {
        let foreign = open(&pages, &eve, &path).await;
        assert_eq!(foreign.status, StatusCode::NOT_FOUND, "{path}");
        assert!(!foreign.html.contains("train"), "{path}");
    }
    assert_eq!(open(&pages, &nobody, "/api/v1/info").await.status, StatusCode::OK);
    let balance = format!("/api/v1/orgs/{org}/balance");
    assert_eq!(
        open(&pages, &ada, &balance).await.status,
        StatusCode::OK,
        "a path's parameters reach the API"
    );
    assert_eq!(open(&pages, &nobody, "/api/nothing").await.status, StatusCode::NOT_FOUND);
    assert_eq!(open(&pages, &nobody, "/pkg/old/berth_app.js").await.status, StatusCode::NOT_FOUND);
}

/// Returns the API with the numbers of its requests by address.
fn counted(api: Router) -> (Router, Arc<Mutex<BTreeMap<String, u32>>>) {
    let counts = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let known = Arc::clone(&counts);
    let count = move |request: Request<Body>, next: Next| {
        *known.lock().unwrap().entry(request.uri().to_string()).or_default() += 1;
        next.run(request)
    };
    (api.layer(from_fn(count)), counts)
}

#[tokio::test]
async fn a_page_requests_its_data_once() {
    let t = TestPortal::sqlite().await;
    let (api, counts) = counted(t.router.clone());
    let pages = web::router(api, None, false);
    let operator = t.operator().await;
    let (ada, org) = t.tenant("lab").await;
    t.add_price_and_credit(&operator, &org, 5_000_000).await;
    let job = t.post(&ada, &format!("/orgs/{org}/jobs"), crate::common::job()).await.expect(201);
    let id = job["id"].as_str().unwrap();
    for (caller, path, data) in [
        (&ada, "/orgs/lab", format!("/orgs/{org}/job-counts")),
        (&ada, "/orgs/lab/jobs", format!("/orgs/{org}/jobs?")),
        (&ada, "/orgs/lab/cluster?view=table", format!("/orgs/{org}/cluster")),
        (&ada, "/orgs/lab/team", format!("/orgs/{org}/members")),
        (&ada, "/orgs/lab/secrets", format!("/orgs/{org}/secrets")),
        (&ada, "/orgs/lab/volumes", format!("/orgs/{org}/volumes")),
        (&ada, &format!("/orgs/lab/jobs/{id}"), format!("/orgs/{org}/jobs/{id}/events")),
        (&ada, "/account", "/sessions".to_owned()),
        (&ada, "/account/second-factors", "/passkeys".to_owned()),
        (&operator, "/operator/prices", "/operator/prices/planned".to_owned()),
        (&operator, "/operator/settings", "/operator/portal-settings".to_owned()),
        (&Caller::Nobody, "/sign-in", "/info".to_owned()),
    ] {
        counts.lock().unwrap().clear();
        assert_eq!(open(&pages, caller, path).await.status, StatusCode::OK, "{path}");
        let counts = counts.lock().unwrap().clone();
        assert!(counts.keys().any(|address| address.contains(&data)), "{path}: {counts:?}");
        assert!(counts.values().all(|count| *count == 1), "{path}: {counts:?}");
    }
}

#[tokio::test]
async fn an_address_without_an_organization_redirects_to_one() {
    let t = TestPortal::sqlite().await;
    let pages = web::router(t.router.clone(), None, false);
    let operator = t.operator().await;
    let (ada, _) = t.tenant("lab").await;
    let (eve, other) = t.tenant("other").await;
    t.add_price_and_credit(&operator, &other, 5_000_000).await;
    let job = t.post(&eve, &format!("/orgs/{other}/jobs"), crate::common::job()).await.expect(201);
    let id = job["id"].as_str().unwrap();
    let to = async |caller: &Caller, path: &str| {
        let page = open(&pages, caller, path).await;
        assert_eq!(page.status, StatusCode::SEE_OTHER, "{path}");
        page.location
    };
    assert_eq!(to(&ada, "/").await, "/orgs/lab");
    assert_eq!(to(&ada, "/usage?group=label&label=a%20b").await, "/orgs/lab/usage?group=label&label=a%20b");
    assert_eq!(to(&operator, "/").await, "/operator", "an operator without an organization");

    // With two organizations the address of an object leads to its own one.
    let invited = json!({"email": "lab@example.org", "role": "member"});
    let sent = t.post(&eve, &format!("/orgs/{other}/invitations"), invited).await.expect(201);
    let (_, token) = sent["link"].as_str().unwrap().split_once('#').unwrap();
    t.post(&ada, "/invitations/accept", json!({"token": token})).await.expect(200);
    assert_eq!(to(&ada, "/jobs").await, "/orgs/lab/jobs");
    assert_eq!(to(&ada, &format!("/jobs/{id}")).await, format!("/orgs/other/jobs/{id}"));
    let unknown = "job_01h455vb4pex5vsknk084sn02q";
    assert_eq!(to(&ada, &format!("/jobs/{unknown}")).await, format!("/orgs/lab/jobs/{unknown}"));

    // The cookie has the last organization of the browser; a foreign one has no effect.
    let Caller::Cookie(session) = &ada else { panic!("ada has a session") };
    for (slug, path) in [("other", "/orgs/other/team"), ("elsewhere", "/orgs/lab/team")] {
        let with_last = Caller::Cookie(format!("{session}; berth_org={slug}"));
        assert_eq!(to(&with_last, "/team").await, path, "{slug}");
    }
}

#[tokio::test]
async fn the_first_html_has_the_theme_the_name_and_the_look() {
    let t = TestPortal::sqlite().await;
    let pages = web::router(t.router.clone(), None, false);
    let operator = t.operator().await;
    let body = serde_json::json!({"name": "Harbour <b> & Co", "accent": "rose", "offer_public": true});
    t.call(&operator, "PUT", "/operator/portal-settings", body).await.expect(200);
    let plain = open(&pages, &Caller::Nobody, "/").await;
    assert!(plain.html.contains("data-accent=\"rose\""), "{}", plain.html);
    assert!(!plain.html.contains("data-theme") && !plain.html.contains("<b>"), "{}", plain.html);
    assert!(plain.html.contains("<title>Harbour &lt;b&gt; &amp; Co</title>"), "{}", plain.html);
    assert!(plain.html.contains("Prices and free boards"), "{}", plain.html);
    for (cookie, expected) in [
        ("berth_theme=dark", Some("data-theme=\"dark\"")),
        ("a=b; berth_theme=light", Some("data-theme=\"light\"")),
        ("berth_theme=\"><script>", None),
        ("berth_theme=system", None),
    ] {
        let page = open(&pages, &Caller::Cookie(cookie.to_owned()), "/sign-in").await;
        match expected {
            Some(attribute) => assert!(page.html.contains(attribute), "{cookie}: {}", page.html),
            None => assert!(!page.html.contains("data-theme"), "{cookie}: {}", page.html),
        }
    }
    let settings = open(&pages, &operator, "/operator/settings").await;
    assert!(settings.html.contains("Name and look"), "{}", settings.html);
    let (ada, _) = t.tenant("lab").await;
    assert_eq!(open(&pages, &ada, "/operator/settings").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_gallery_needs_its_option_and_an_operator() {
    for gallery in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
        let t = TestPortal::with(db, |settings| Settings { gallery, ..settings });
        let pages = web::router(t.router.clone(), None, false);
        let operator = t.operator().await;
        let (ada, _) = t.tenant("lab").await;
        let expected = if gallery { StatusCode::OK } else { StatusCode::NOT_FOUND };
        let page = open(&pages, &operator, "/operator/gallery").await;
        assert_eq!(page.status, expected, "{gallery}");
        assert_eq!(page.html.contains("Berth bar"), gallery, "{}", page.html);
        assert_eq!(open(&pages, &ada, "/operator/gallery").await.status, StatusCode::NOT_FOUND, "{gallery}");
    }
}

#[tokio::test]
async fn the_first_html_has_times_in_the_zone_of_the_cookie() {
    let t = TestPortal::sqlite().await;
    let pages = web::router(t.router.clone(), None, false);
    t.operator().await;
    let (ada, _) = t.tenant("lab").await;
    let Caller::Cookie(session) = &ada else { panic!("ada has a session") };
    let plain = open(&pages, &ada, "/orgs/lab/team").await;
    assert!(plain.html.contains("data-zone=\"0\"") && !plain.html.contains("UTC+"), "{}", plain.html);
    for (cookie, attribute, offset) in [
        ("utc", "utc", None),
        ("20700", "20700", Some("UTC+5:45")),
        ("-12600.4102444800.3600", "-12600.4102444800.3600", Some("UTC−3:30")),
        ("999999", "0", None),
        ("\"><script>", "0", None),
    ] {
        let with_zone = Caller::Cookie(format!("{session}; berth_zone={cookie}"));
        let page = open(&pages, &with_zone, "/orgs/lab/team").await;
        assert!(page.html.contains(&format!("data-zone=\"{attribute}\"")), "{cookie}: {}", page.html);
        match offset {
            Some(offset) => assert!(page.html.contains(offset), "{cookie}: {}", page.html),
            None => assert!(!page.html.contains("UTC+"), "{cookie}: {}", page.html),
        }
    }
}

#[tokio::test]
async fn the_documents_are_pages_without_a_script_or_a_session() {
    let t = TestPortal::sqlite().await;
    let pages = web::router(t.router.clone(), None, false);
    let nobody = Caller::Nobody;
    let list = open(&pages, &nobody, "/docs").await;
    assert_eq!(list.status, StatusCode::OK);
    assert!(list.html.contains("href=\"/docs/volumes\"") && list.html.contains("/api/docs"), "{}", list.html);
    assert!(list.html.contains("href=\"/docs/services\">Services</a>"), "{}", list.html);
    let one = open(&pages, &nobody, "/docs/volumes").await;
    assert_eq!(one.status, StatusCode::OK);
    assert!(one.html.contains("<h1 id=\"volumes\">Volumes</h1>"), "{}", one.html);
    assert!(one.html.contains("href=\"/docs/files#limits\""), "{}", one.html);
    assert!(!one.html.contains("<script") && !one.html.contains(" style="), "{}", one.html);
    assert!(
        one.policy.contains("default-src 'none'") && !one.policy.contains("script-src"),
        "{}",
        one.policy
    );
    for unknown in ["/docs/glossary", "/docs/architecture", "/docs/..%2FREADME", "/docs/volumes.md"] {
        assert_eq!(open(&pages, &nobody, unknown).await.status, StatusCode::NOT_FOUND, "{unknown}");
    }
}

#[tokio::test]
async fn pages_may_ask_the_gateways_of_services() {
    let t = TestPortal::sqlite().await;
    let pages = web::router(t.router.clone(), None, false);
    let operator = t.operator().await;
    let body = json!({"name": "edge-1", "url": "https://models.example.org/"});
    t.post(&operator, "/operator/gateways", body).await.expect(201);
    let page = open(&pages, &Caller::Nobody, "/sign-in").await;
    assert!(page.policy.contains("connect-src 'self' https://models.example.org;"), "{}", page.policy);
}

#[tokio::test]
async fn pages_may_ask_each_of_many_gateways() {
    for (engine, db, _location) in engines("policy_gateways").await {
        let t = TestPortal::on(db);
        let pages = web::router(t.router.clone(), None, false);
        let operator = t.operator().await;
        // The first two have one address.
        for n in 0..35_u32 {
            let url = format!("https://m{}.example.org", n.max(1));
            let body = json!({"name": format!("edge-{n}"), "url": url});
            t.post(&operator, "/operator/gateways", body).await.expect(201);
        }
        let page = open(&pages, &Caller::Nobody, "/sign-in").await;
        let hosts: Vec<String> = (1..35).map(|n| format!("https://m{n}.example.org")).collect();
        let sources = format!("connect-src 'self' {};", hosts.join(" "));
        assert!(page.policy.contains(&sources), "{engine}: {}", page.policy);
    }
}
