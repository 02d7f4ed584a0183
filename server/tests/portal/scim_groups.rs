//! Tests of the groups of SCIM: the roles that they give and take, and the last owner. The bodies are those of the public
//! documentation that `scim.rs` names.

use serde_json::{Value, json};

use crate::common::{Reply, TestPortal, engines};
use crate::scim::{ScimSetup, entra_user, patch, scim_error};
use crate::sso::session;

/// Creates a group; returns the id.
async fn create(m: &ScimSetup, name: &str, members: &[&str]) -> String {
    let members: Vec<Value> = members.iter().map(|id| json!({"value": id, "display": "a person"})).collect();
    let body = json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:Group"], "displayName": name,
        "externalId": format!("8aa1a0c0-{name}"), "members": members,
    });
    let made = m.call("POST", "/Groups", body).await.expect(201);
    made["id"].as_str().unwrap().to_owned()
}

async fn change(m: &ScimSetup, id: &str, operations: Value) -> Reply {
    m.call("PATCH", &format!("/Groups/{id}"), patch(operations)).await
}

#[tokio::test]
async fn groups_give_and_take_roles() {
    for (engine, db, _location) in engines("scim_groups").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        let (grace, bob) = (m.create(entra_user("grace")).await, m.create(entra_user("bob")).await);
        let ml = create(&m, "ML", &[&grace]).await;
        // The roles of single sign-on name the group `ml`: names of groups are exact there.
        assert_eq!(m.role("grace").await.as_deref(), Some("viewer"), "{engine}");
        let renamed = json!([{"op": "replace", "value": {"id": ml, "displayName": "ml"}}]);
        change(&m, &ml, renamed).await.expect(200);
        assert_eq!(m.role("grace").await.as_deref(), Some("member"), "{engine}");
        let add = json!([{"op": "Add", "path": "members", "value": [{"value": bob}]}]);
        assert_eq!(
            change(&m, &ml, add).await.expect(200)["members"].as_array().unwrap().len(),
            2,
            "{engine}"
        );
        assert_eq!(m.role("bob").await.as_deref(), Some("member"), "{engine}");
        let event = m.event("scim.group_changed").await;
        assert!(event["after"].as_str().unwrap().contains("\"members\":2"), "{engine}: {event}");
        assert_eq!(m.event("member.role_changed").await["after"], json!({"role": "member"}).to_string());

        // The forms of Entra ID and of Okta for a removal.
        let remove = json!([{"op": "Remove", "path": "members", "value": [{"$ref": null, "value": bob}]}]);
        change(&m, &ml, remove).await.expect(200);
        assert_eq!(m.role("bob").await.as_deref(), Some("viewer"), "{engine}");
        let remove = json!([{"op": "remove", "path": format!("members[value eq \"{grace}\"]")}]);
        assert_eq!(change(&m, &ml, remove).await.expect(200)["members"], json!([]), "{engine}");
        assert_eq!(m.role("grace").await.as_deref(), Some("viewer"), "{engine}");

        // The id at the provider is a name of the group too, as in the claims of Entra ID.
        m.s.put(|body| body["roles"] = json!([{"group": "8aa1a0c0-staff", "role": "billing"}])).await;
        let staff = create(&m, "staff", &[&grace]).await;
        assert_eq!(m.role("grace").await.as_deref(), Some("billing"), "{engine}");
        // Sign-ins apply the groups of both.
        session(&m.s.sign_in("grace", |claims| claims["groups"] = json!([])).await);
        assert_eq!(m.role("grace").await.as_deref(), Some("billing"), "{engine}");
        let shown = m.get(&format!("/Users/{grace}")).await;
        assert_eq!(shown["groups"], json!([{"value": staff, "display": "staff"}]), "{engine}");
        m.call("DELETE", &format!("/Groups/{staff}"), Value::Null).await.expect(204);
        assert_eq!(m.role("grace").await.as_deref(), Some("viewer"), "{engine}");
    }
}

#[tokio::test]
async fn a_person_without_a_role_waits_for_a_group() {
    for (engine, db, _location) in engines("scim_wait").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        m.s.put(|body| body["default_role"] = Value::Null).await;
        let grace = m.create(entra_user("grace")).await;
        assert_eq!(m.role("grace").await, None, "{engine}");
        let ml = create(&m, "ml", &[&grace]).await;
        assert_eq!(m.role("grace").await.as_deref(), Some("member"), "{engine}");
        let off = json!([{"op": "replace", "path": "active", "value": false}]);
        m.change(&grace, off).await.expect(200);
        // A group gives no role to a person without access.
        let put = json!({"displayName": "ml", "members": [{"value": grace}]});
        m.call("PUT", &format!("/Groups/{ml}"), put).await.expect(200);
        assert_eq!(m.role("grace").await, None, "{engine}");
        m.change(&grace, json!([{"op": "replace", "path": "active", "value": true}])).await.expect(200);
        assert_eq!(m.role("grace").await.as_deref(), Some("member"), "{engine}");
        let put = json!({"displayName": "ml", "members": []});
        m.call("PUT", &format!("/Groups/{ml}"), put).await.expect(200);
        assert_eq!(m.role("grace").await, None, "{engine}: no group and no default");
    }
}

#[tokio::test]
async fn a_group_without_a_role_decides_nothing() {
    for (engine, db, _location) in engines("scim_unlisted").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        m.s.put(|body| body["default_role"] = Value::Null).await;
        // The role comes with the claims of a sign-in, and the provider pushes another group by SCIM.
        session(&m.s.sign_in("grace", |claims| claims["groups"] = json!(["ml"])).await);
        let grace = m.create(entra_user("grace")).await;
        let staff = create(&m, "staff", &[&grace]).await;
        assert_eq!(m.role("grace").await.as_deref(), Some("member"), "{engine}: in the group");
        m.call("PUT", &format!("/Users/{grace}"), entra_user("grace")).await.expect(200);
        assert_eq!(
            m.role("grace").await.as_deref(),
            Some("member"),
            "{engine}: after a change of the person"
        );
        let renamed = json!([{"op": "replace", "path": "displayName", "value": "people"}]);
        change(&m, &staff, renamed).await.expect(200);
        change(&m, &staff, json!([{"op": "remove", "path": "members"}])).await.expect(200);
        assert_eq!(m.role("grace").await.as_deref(), Some("member"), "{engine}: out of the group");
        let put = json!({"displayName": "people", "members": [{"value": grace}]});
        m.call("PUT", &format!("/Groups/{staff}"), put).await.expect(200);
        m.call("DELETE", &format!("/Groups/{staff}"), Value::Null).await.expect(204);
        assert_eq!(m.role("grace").await.as_deref(), Some("member"), "{engine}: without the group");
    }
}

#[tokio::test]
async fn the_last_owner_stays_whatever_the_provider_says() {
    for (engine, db, _location) in engines("scim_owner").await {
        let mut m = ScimSetup::on(TestPortal::on(db)).await;
        let grace = m.create(entra_user("grace")).await;
        let admins = create(&m, "admins", &[&grace]).await;
        assert_eq!(m.role("grace").await.as_deref(), Some("owner"), "{engine}");
        let founder =
            m.s.t.get(&m.s.owner, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
        let path = format!("/orgs/{}/members/{founder}", m.s.org);
        m.s.t.call(&m.s.owner, "DELETE", &path, Value::Null).await.expect(204);
        m.s.owner = session(&m.s.sign_in("grace", |_| {}).await);

        let off = json!([{"op": "replace", "path": "active", "value": false}]);
        let detail = scim_error(m.change(&grace, off).await, 409, Some("mutability"), "members.last_owner");
        assert!(detail.contains("only owner"), "{engine}: {detail}");
        assert_eq!(m.get(&format!("/Users/{grace}")).await["active"], json!(true), "{engine}: undone");
        let reply = m.call("DELETE", &format!("/Users/{grace}"), Value::Null).await;
        scim_error(reply, 409, Some("mutability"), "members.last_owner");
        let empty = json!([{"op": "remove", "path": "members"}]);
        change(&m, &admins, empty).await.expect(200);
        assert_eq!(m.role("grace").await.as_deref(), Some("owner"), "{engine}");
    }
}

#[tokio::test]
async fn groups_are_listed_found_and_refused_like_people() {
    for (engine, db, _location) in engines("scim_group_lists").await {
        let m = ScimSetup::on(TestPortal::on(db)).await;
        let grace = m.create(entra_user("grace")).await;
        let ml = create(&m, "ml", &[&grace]).await;
        create(&m, "staff", &[]).await;
        let page = m.get("/Groups?startIndex=2&count=1&excludedAttributes=members").await;
        assert_eq!((&page["totalResults"], &page["itemsPerPage"]), (&json!(2), &json!(1)), "{engine}");
        assert_eq!(page["Resources"][0]["displayName"], "staff", "{engine}");
        let found = m.get("/Groups?filter=displayName%20eq%20%22ML%22").await;
        assert_eq!(found["Resources"][0]["id"], json!(ml), "{engine}");
        assert!(found["Resources"][0]["members"].is_null(), "{engine}: lists have no members");
        let path = format!("/Groups/{ml}");
        let expected = json!([{"value": grace, "display": "grace@corp.example"}]);
        assert_eq!(m.get(&path).await["members"], expected, "{engine}");
        assert!(m.get(&format!("{path}?excludedAttributes=members")).await["members"].is_null(), "{engine}");
        let again = json!({"displayName": "Ml"});
        let reply = m.call("POST", "/Groups", again).await;
        scim_error(reply, 409, Some("uniqueness"), "scim.exists");
        // A person of another provider is no member.
        let stranger = json!([{"op": "add", "path": "members", "value": [{"value": "user_00000000000000000000000001"}]}]);
        scim_error(change(&m, &ml, stranger).await, 400, Some("invalidValue"), "scim.value");
        let wrong = json!([{"op": "remove", "path": "members[display eq \"x\"]"}]);
        scim_error(change(&m, &ml, wrong).await, 400, Some("invalidPath"), "scim.path");
        let reply = m.call("GET", "/Groups?filter=members%20eq%20%22x%22", Value::Null).await;
        scim_error(reply, 400, Some("invalidFilter"), "scim.filter");
        m.call("DELETE", &path, Value::Null).await.expect(204);
        scim_error(m.call("GET", &path, Value::Null).await, 404, None, "object.not_found");
    }
}
