//! Tests of the parameters that all lists share: `limit`, `cursor` and `sort`.

use std::collections::BTreeSet;

use crate::common::{Caller, PASSWORD, TestPortal, engines, job};
use crate::idle_portal::{HOUR, IdlePortal, node};
use crate::stores::insert_node;
use berth_server::openapi::document;
use futures::FutureExt;
use serde_json::{Value, json};

/// The list of events of a job continues after an event number, not after a cursor.
const EVENT_LOG: &str = "/api/v1/orgs/{org}/jobs/{job}/events";

/// The schema at a reference of the document, or the schema itself.
fn resolve(schema: &'static Value) -> &'static Value {
    match schema["$ref"].as_str() {
        Some(reference) => document().pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

#[test]
fn each_list_of_the_document_has_the_same_parameters() {
    let mut lists = 0;
    for (path, item) in document()["paths"].as_object().unwrap() {
        let schema = &item["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        let fields = &resolve(schema)["properties"];
        if fields["items"].is_null() || fields["next_cursor"].is_null() || path == EVENT_LOG {
            continue;
        }
        let parameters = item["get"]["parameters"].as_array().unwrap();
        for name in ["limit", "cursor", "sort"] {
            let parameter = parameters.iter().find(|p| p["name"] == name && p["in"] == "query");
            let parameter = parameter.unwrap_or_else(|| panic!("{path} has no {name}"));
            assert_ne!(parameter["required"], json!(true), "{path} {name}");
        }
        lists += 1;
    }
    assert_eq!(lists, 59, "lists of the document");
}

/// A list with data.
struct List {
    path: String,
    operator: bool,
    /// The least number of objects.
    least: usize,
    /// The order without the parameter `sort`.
    default: &'static str,
}

fn by_creation(operator: bool, least: usize, path: String) -> List {
    List { path, operator, least, default: "desc" }
}

fn by_name(operator: bool, least: usize, path: String) -> List {
    List { path, operator, least, default: "asc" }
}

/// The address of a list with a query.
fn with(path: &str, query: &str) -> String {
    format!("{path}{}{query}", if path.contains('?') { '&' } else { '?' })
}

/// The identity of an object of any list.
fn identity(item: &Value) -> String {
    let fields = ["/id", "/uuid", "/user", "/org/id", "/node", "/name", "/version", "/host"];
    let value = fields.iter().find_map(|field| item.pointer(field).filter(|v| !v.is_null()));
    value.unwrap_or_else(|| panic!("no identity: {item}")).to_string()
}

/// The identities of all objects of a list, read page by page.
async fn walk(t: &TestPortal, caller: &Caller, path: &str, limit: usize) -> Vec<String> {
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for _ in 0..1_000 {
        let page = t.get(caller, &with(path, &format!("limit={limit}{cursor}"))).await.expect(200);
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= limit, "{path}: {page}");
        seen.extend(items.iter().map(identity));
        let Some(next) = page["next_cursor"].as_str() else { return seen };
        assert_eq!(items.len(), limit, "{path}: only the last page is shorter");
        cursor = format!("&cursor={next}");
    }
    panic!("{path} has no end");
}

async fn post(t: &TestPortal, caller: &Caller, path: &str, body: Value) -> Value {
    t.post(caller, path, body).await.expect(201)
}

/// Adds a third organization, a third node, members and open invitations.
async fn fill_accounts(setup: &IdlePortal) {
    let t = &setup.t;
    t.tenant("third").await;
    let at = t.portal.context.now();
    let join = t
        .portal
        .context
        .db
        .write(move |tx| async move { insert_node(tx, node(3), "node-1b", at).await }.boxed());
    join.await.unwrap();
    setup.report(3).await;
    let path = format!("/orgs/{}/invitations", setup.org);
    for n in 0..5 {
        let new = json!({"email": format!("guest-{n}@example.org"), "role": "member"});
        let sent = post(t, &setup.ada, &path, new).await;
        if n < 2 {
            let secret = sent["link"].as_str().unwrap().split_once('#').unwrap().1;
            let accept = json!({"token": secret, "name": format!("Guest {n}"), "password": PASSWORD});
            t.post(&Caller::Nobody, "/invitations/accept", accept).await.expect(200);
        }
    }
}

/// Adds three objects to each list that can have them without a worker.
async fn fill(setup: &IdlePortal) {
    let (t, ada, operator) = (&setup.t, &setup.ada, &setup.operator);
    let org = format!("/orgs/{}", setup.org);
    fill_accounts(setup).await;
    for n in 1..=3 {
        let name = format!("object-{n}");
        post(t, ada, &format!("{org}/tokens"), json!({"name": name, "role": "viewer"})).await;
        let hook = json!({"url": format!("http://127.0.0.1:9/{n}"), "kinds": ["budget.*"]});
        post(t, ada, &format!("{org}/webhooks"), hook).await;
        post(t, ada, &format!("{org}/volumes"), json!({"name": name, "max_bytes": 10})).await;
        let secret = json!({"value": "long-enough-value"});
        t.call(ada, "PUT", &format!("{org}/secrets/{name}"), secret).await.expect(201);
        post(t, ada, &format!("{org}/budgets"), json!({"name": name, "limit_micros": 1_000_000_000})).await;
        let request = json!({"limits": {"boards_milli": n * 1_000}, "reason": "a deadline"});
        post(t, ada, &format!("{org}/quota-requests"), request).await;
        post(t, ada, &format!("{org}/jobs"), job()).await;
        setup.reserve(1, 1, setup.at(n * 24 * HOUR), setup.at((n * 24 + 1) * HOUR)).await;
        post(t, operator, "/operator/tokens", json!({"name": name})).await;
        post(t, operator, "/operator/metrics-tokens", json!({"name": name})).await;
        let replica = json!({"name": name, "offering": "h100-80gb", "command": ["serve"]});
        let hosts = json!([format!("{name}.example.org")]);
        let service = json!({"name": name, "hosts": hosts, "revision": {"job": replica, "port": 8_000}});
        post(t, ada, &format!("{org}/services"), service).await;
        post(t, ada, &format!("{org}/inference-keys"), json!({"name": name})).await;
        post(t, operator, "/operator/gateways", json!({"name": name})).await;
        let share = json!({"good_ppm": 1, "credit_basis_points": 1});
        let terms = json!({"window": "day", "availability": share});
        post(t, operator, "/operator/promises", json!({"name": name, "terms": terms})).await;
        let class = format!("/operator/storage-classes/{name}");
        for path in [class.clone(), format!("{class}{org}")] {
            t.call(operator, "PUT", &path, Value::Null).await.expect(200);
        }
        let rack = format!("/operator/racks/r{n}");
        t.call(operator, "PUT", &rack, json!({"budget_watts": 2_000})).await.expect(204);
        let network = format!("/operator/networks/object-{n}");
        t.call(operator, "PUT", &network, json!({"ranges": ["10.8.0.0/16"]})).await.expect(200);
        setup.set_price(3_600_000 + n).await;
        let begin = setup.at(n * HOUR);
        let planned = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000, "effective_from": begin});
        post(t, operator, "/operator/prices", planned).await;
    }
    for n in 1..=3 {
        let drain = json!({"reason": "new power supply"});
        t.call(operator, "PUT", &format!("/operator/nodes/{}/drain", node(n)), drain).await.expect(200);
    }
}

/// The lists of a filled portal. A list with `least` 0 is empty or has a single object.
async fn lists(setup: &IdlePortal) -> Vec<List> {
    let org = format!("/orgs/{}", setup.org);
    let first = async |path: &str| {
        let page = setup.t.get(&setup.ada, &format!("{org}/{path}?limit=1")).await.expect(200);
        page["items"][0]["id"].as_str().unwrap().to_owned()
    };
    let (job, hook, service) = (first("jobs").await, first("webhooks").await, first("services").await);
    let mut lists = Vec::new();
    for path in ["tokens", "webhooks", "members", "invitations", "budgets", "jobs", "transfers"] {
        lists.push(by_creation(false, 3, format!("{org}/{path}")));
    }
    for path in ["audit-events", "quota-requests", "reservations", "services", "inference-keys"] {
        lists.push(by_creation(false, 3, format!("{org}/{path}")));
    }
    for path in ["invoices", "top-ups"] {
        lists.push(by_creation(false, 0, format!("{org}/{path}")));
    }
    for path in
        [format!("jobs/{job}/files"), format!("jobs/{job}/terminals"), format!("webhooks/{hook}/deliveries")]
    {
        lists.push(by_creation(false, 0, format!("{org}/{path}")));
    }
    lists.push(by_creation(false, 1, format!("{org}/services/{service}/revisions")));
    for path in ["use", "promise/windows"] {
        lists.push(by_creation(false, 0, format!("{org}/services/{service}/{path}")));
    }
    lists.push(by_name(false, 0, format!("{org}/service-gateways")));
    lists.push(by_creation(false, 3, format!("{org}/promises")));
    for path in ["services", "gateways", "promises"] {
        lists.push(by_creation(true, 3, format!("/operator/{path}")));
    }
    for path in ["volumes", "secrets", "nodes", "boards", "offerings", "storage-classes"] {
        lists.push(by_name(false, 3, format!("{org}/{path}")));
    }
    lists.push(by_name(false, 0, format!("{org}/volumes/object-1/files")));
    lists.push(by_name(false, 3, "/offerings".to_owned()));
    for path in ["orgs", "jobs", "tokens", "metrics-tokens", "audit-events", "quota-requests", "reservations"]
    {
        lists.push(by_creation(true, 3, format!("/operator/{path}")));
    }
    lists.push(by_creation(true, 4, "/operator/prices?offering=h100-80gb".to_owned()));
    for path in ["invoices", "change-requests"] {
        lists.push(by_creation(true, 0, format!("/operator/{path}")));
    }
    lists.push(by_creation(true, 1, "/operator/operators".to_owned()));
    for path in ["nodes", "racks", "drains", "inventory", "networks", "service-hosts", "storage-classes"] {
        lists.push(by_name(true, 3, format!("/operator/{path}")));
    }
    lists.push(by_name(true, 3, "/operator/prices/planned".to_owned()));
    lists.push(by_name(true, 2, format!("/operator/nodes/{}/gpus", node(1))));
    for path in ["stuck", "loops", "audit-destinations"] {
        lists.push(by_name(true, 0, format!("/operator/{path}")));
    }
    lists
}

#[tokio::test]
async fn each_list_has_each_object_once_in_both_directions() {
    for (engine, db, _location) in engines("lists").await {
        let setup = IdlePortal::on(db).await;
        fill(&setup).await;
        let lists = lists(&setup).await;
        assert_eq!(lists.len(), 56, "all lists of the document");
        // A cursor of 4,097 characters.
        let long = format!("cursor=name_{}", "61".repeat(2_046));
        for List { path, operator, least, default } in lists {
            let caller = if operator { &setup.operator } else { &setup.ada };
            let read = async |sort: &str, limit: usize| {
                walk(&setup.t, caller, &with(&path, &format!("sort={sort}")), limit).await
            };
            let (descending, mut ascending) = (read("desc", 1).await, read("asc", 1).await);
            assert!(descending.len() >= least, "{engine} {path}: {descending:?}");
            let different: BTreeSet<&String> = descending.iter().collect();
            assert_eq!(different.len(), descending.len(), "{engine} {path}: {descending:?}");
            assert_eq!(read("desc", 2).await, descending, "{engine} {path}: two a page");
            assert_eq!(
                read(default, 200).await,
                walk(&setup.t, caller, &path, 1).await,
                "{engine} {path}: default"
            );
            ascending.reverse();
            assert_eq!(ascending, descending, "{engine} {path}: the directions");
            let limits = ["limit=0", "limit=201", "limit=x"];
            let others = ["cursor=nonsense", "cursor=", long.as_str(), "sort=up", "colour=red"];
            for bad in limits.into_iter().chain(others) {
                let reply = setup.t.get(caller, &with(&path, bad)).await;
                reply.problem(400, "request.malformed");
            }
        }
    }
}

#[tokio::test]
async fn a_cursor_of_another_list_is_refused() {
    let (_, db, _location) = engines("lists_cursors").await.remove(0);
    let setup = IdlePortal::on(db).await;
    fill(&setup).await;
    let org = format!("/orgs/{}", setup.org);
    let cursor = async |path: &str| {
        let page = setup.t.get(&setup.ada, &format!("{org}/{path}?limit=1")).await.expect(200);
        page["next_cursor"].as_str().unwrap().to_owned()
    };
    let (of_jobs, of_volumes) = (cursor("jobs").await, cursor("volumes").await);
    // A cursor belongs to its order and its filter.
    for query in ["sort=asc", "state=queued", "name=train"] {
        let path = format!("{org}/jobs?{query}&cursor={of_jobs}");
        setup.t.get(&setup.ada, &path).await.problem(400, "request.malformed");
    }
    setup.t.get(&setup.ada, &format!("{org}/jobs?sort=desc&cursor={of_jobs}")).await.expect(200);
    // A NUL is in no name.
    let nul = "name_6100".to_owned();
    let foreign = [("tokens", &of_jobs), ("secrets", &of_jobs), ("jobs", &of_volumes), ("volumes", &nul)];
    for (path, cursor) in foreign {
        let path = format!("{org}/{path}?cursor={cursor}");
        setup.t.get(&setup.ada, &path).await.problem(400, "request.malformed");
    }
}

#[tokio::test]
async fn operators_filter_lists_by_organization_and_state() {
    for (engine, db, _location) in engines("lists_filters").await {
        let setup = IdlePortal::on(db).await;
        fill(&setup).await;
        let (t, org) = (&setup.t, &setup.org);
        for (path, state) in [
            ("audit-events", ""),
            ("quota-requests", "&state=pending"),
            ("reservations", "&state=scheduled"),
            ("invoices", "&state=open"),
        ] {
            let own = walk(t, &setup.ada, &format!("/orgs/{org}/{path}?sort=desc{state}"), 2).await;
            let listed = walk(t, &setup.operator, &format!("/operator/{path}?org={org}{state}"), 2).await;
            assert_eq!(listed, own, "{engine} {path}");
            let unknown = format!("/operator/{path}?org=org_00000000000000000000000000{state}");
            assert!(walk(t, &setup.operator, &unknown, 2).await.is_empty(), "{engine} {path}");
        }
        let declined = "/operator/quota-requests?state=declined";
        assert!(walk(t, &setup.operator, declined, 2).await.is_empty(), "{engine}");
        let pending = "/operator/quota-requests?state=pending";
        assert_eq!(walk(t, &setup.operator, pending, 2).await.len(), 3, "{engine}");
    }
}
