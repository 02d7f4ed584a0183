//! Tests of the portal settings, the logo and the public offer.

use crate::common::{Caller, TestPortal, engines};
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tower::ServiceExt;

const NOBODY: &Caller = &Caller::Nobody;
const SETTINGS: &str = "/operator/portal-settings";
const LOGO: &str = "/operator/portal-settings/logo";

/// A grey image of one pixel in base64.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg==";

fn settings(offer_public: bool) -> Value {
    json!({
        "name": "Harbour Compute", "support_email": "help@example.org", "terms_url": "https://example.org/terms",
        "accent": "teal", "offer_public": offer_public, "max_token_days": 90, "token_expiry_required": false,
    })
}

#[tokio::test]
async fn settings_are_public_after_their_change_and_recorded() {
    for (engine, db, _location) in engines("portal_settings").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, _) = t.tenant("lab").await;
        let fresh = t.get(NOBODY, "/portal").await.expect(200);
        assert_eq!(fresh, json!({"name": "Berth", "accent": "blue", "offer_public": false}), "{engine}");
        for caller in [NOBODY, &ada] {
            let status = t.call(caller, "PUT", SETTINGS, settings(true)).await.status;
            let expected = if matches!(caller, Caller::Nobody) { 401 } else { 404 };
            assert_eq!(status.as_u16(), expected, "{engine}");
        }
        let saved = t.call(&operator, "PUT", SETTINGS, settings(false)).await.expect(200);
        assert_eq!(saved, settings(false), "{engine}");
        assert_eq!(t.get(&operator, SETTINGS).await.expect(200), saved, "{engine}");
        // The values in memory do not outlive a change.
        assert_eq!(t.get(NOBODY, "/portal").await.expect(200)["name"], "Harbour Compute", "{engine}");
        let events = t.get(&operator, "/operator/audit-events?limit=1").await.expect(200);
        let event = &events["items"][0];
        assert_eq!(event["action"], "portal_settings.set", "{engine}");
        assert!(event["detail"].as_str().unwrap().contains("accent teal"), "{engine}: {event}");
    }
}

#[tokio::test]
async fn settings_have_limits() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    for (field, value) in [
        ("name", json!("")),
        ("name", json!("n".repeat(101))),
        ("name", json!("a\nb")),
        ("support_email", json!("nobody")),
        ("support_email", json!(format!("{}@example.org", "a".repeat(250)))),
        ("terms_url", json!("http://example.org/terms")),
        ("terms_url", json!("javascript:alert(1)")),
        ("terms_url", json!(format!("https://example.org/{}", "a".repeat(2_048)))),
        ("accent", json!("#ff0000")),
        ("offer_public", json!("yes")),
        ("max_token_days", json!(0)),
        ("max_token_days", json!(3_661)),
    ] {
        let mut body = settings(false);
        body[field] = value;
        let problem = t.call(&operator, "PUT", SETTINGS, body).await.problem(422, "request.invalid");
        assert_eq!(problem["errors"][0]["pointer"], format!("/{field}"), "{problem}");
    }
    let mut unknown = settings(false);
    unknown["css"] = json!("body {}");
    t.call(&operator, "PUT", SETTINGS, unknown).await.problem(422, "request.invalid");
    assert_eq!(t.get(NOBODY, "/portal").await.expect(200)["name"], "Berth", "nothing was changed");
}

#[tokio::test]
async fn a_logo_is_a_small_png_at_a_path_of_its_own() {
    for (engine, db, _location) in engines("portal_logo").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let image = STANDARD.decode(PNG).unwrap();
        let svg = STANDARD.encode("<svg xmlns='http://www.w3.org/2000/svg'/>");
        let trailing = STANDARD.encode([image.as_slice(), b"<script>"].concat());
        let large = STANDARD.encode(vec![0; (64 << 10) + 1]);
        for png in [svg, trailing, large, "not base64".to_owned()] {
            let problem = t.call(&operator, "PUT", LOGO, json!({ "png": png })).await;
            let problem = problem.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/png", "{engine}: {problem}");
        }
        let logo = t.call(&operator, "PUT", LOGO, json!({ "png": PNG })).await.expect(200);
        assert_eq!((&logo["width_px"], &logo["height_px"]), (&json!(1), &json!(1)), "{engine}");
        let path = logo["path"].as_str().unwrap();
        assert_eq!(t.get(NOBODY, "/portal").await.expect(200)["logo"], logo, "{engine}");

        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = t.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{engine}");
        for (name, value) in [
            ("content-type", "image/png"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "public, max-age=31536000, immutable"),
        ] {
            assert_eq!(answer.headers()[name], value, "{engine}: {name}");
        }
        assert_eq!(to_bytes(answer.into_body(), usize::MAX).await.unwrap(), image, "{engine}");

        let other = format!("/portal/logo/{}", "0".repeat(64));
        t.get(NOBODY, &other).await.problem(404, "object.not_found");
        t.call(&operator, "DELETE", LOGO, Value::Null).await.expect(204);
        let old = path.strip_prefix("/api/v1").unwrap();
        t.get(NOBODY, old).await.problem(404, "object.not_found");
        assert!(t.get(NOBODY, "/portal").await.expect(200)["logo"].is_null(), "{engine}");
    }
}

#[tokio::test]
async fn the_offer_is_public_only_on_request_and_read_once_in_five_seconds() {
    for (engine, db, _location) in engines("portal_offer").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (_, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 0).await;
        t.get(NOBODY, "/offer").await.problem(404, "object.not_found");
        t.get(NOBODY, "/offerings").await.problem(401, "auth.required");
        t.call(&operator, "PUT", SETTINGS, settings(true)).await.expect(200);
        let offer = t.get(NOBODY, "/offer").await.expect(200);
        assert_eq!(offer["currency"], "USD", "{engine}");
        let model = &offer["models"][0];
        assert_eq!(model["gpu_model"], "H100-80GB", "{engine}: {offer}");
        assert_eq!(model["slice_per_hour_micros"], 3_600_000, "{engine}: {offer}");
        assert!(model["per_hour_micros"].is_null(), "{engine}: a whole board has no price: {offer}");

        let price = json!({"offering": "h100-80gb", "per_hour_micros": 7_200_000});
        t.post(&operator, "/operator/prices", price).await.expect(201);
        assert_eq!(t.get(NOBODY, "/offer").await.expect(200), offer, "{engine}: from memory");
        t.clock.advance_s(6);
        let later = t.get(NOBODY, "/offer").await.expect(200);
        assert_eq!(later["models"][0]["per_hour_micros"], 7_200_000, "{engine}: {later}");

        t.call(&operator, "PUT", SETTINGS, settings(false)).await.expect(200);
        t.get(NOBODY, "/offer").await.problem(404, "object.not_found");
    }
}
