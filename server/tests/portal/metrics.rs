//! Tests of the Prometheus metrics of portal and host with their access rights, and of readings after the end
//! of a job and of the portal.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use crate::common::{Caller, TestPortal, engines, job};
use crate::worker_portal::{Worker, WorkerPortal, eventually, without_worker, worker_program};
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use berth_foundation::Settings;
use berth_foundation::telemetry;
use berth_proto::device_metrics::DEVICE_FAMILIES;
use berth_recordings::Recorded;
use berth_types::ids::JobId;
use berth_types::metrics::Sample;
use berth_types::time::Timestamp;
use serde_json::{Value, json};
use tower::ServiceExt;

/// One row of an exposition text: name, labels and value.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

fn is_name(text: &str, colons: bool) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    !text.is_empty() && text.chars().all(good) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// Parses the labels between the braces; `None` for an invalid format.
fn labels(mut text: &str) -> Option<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"")?;
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    _ => return None,
                }),
                (_, '\n') => return None,
                (_, c) => value.push(c),
            }
        };
        if !is_name(name, false) || out.insert(name.to_owned(), value).is_some() {
            return None;
        }
        text = &rest[end + 1..];
        if !text.is_empty() {
            text = text.strip_prefix(',').filter(|rest| !rest.is_empty())?;
        }
    }
    Some(out)
}

/// Parses a text strictly by the format; returns its rows and the types of its families.
fn parse(text: &str) -> Result<(Vec<Row>, BTreeMap<String, String>), String> {
    let (mut rows, mut kinds) = (Vec::<Row>::new(), BTreeMap::new());
    let (mut helped, mut family) = (String::new(), String::new());
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = help.split_once(' ').ok_or(line)?.0.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').ok_or(line)?;
            let known = ["gauge", "counter", "histogram"].contains(&kind);
            if !known || name != helped || !is_name(name, true) {
                return Err(format!("a type that is none: {line}"));
            }
            if kinds.insert(name.to_owned(), kind.to_owned()).is_some() {
                return Err(format!("a family that comes twice: {line}"));
            }
            family = name.to_owned();
        } else {
            let (head, value) = line.rsplit_once(' ').ok_or(line)?;
            let value: f64 = value.parse().map_err(|_| format!("no number: {line}"))?;
            let (name, inside) = match head.split_once('{') {
                Some((name, rest)) => (name, rest.strip_suffix('}').ok_or(line)?),
                None => (head, ""),
            };
            let part =
                name.strip_prefix(family.as_str()).ok_or_else(|| format!("outside its family: {line}"))?;
            let histogram = kinds.get(&family).is_some_and(|kind| kind == "histogram");
            if !(part.is_empty() && !histogram || histogram && ["_bucket", "_sum", "_count"].contains(&part))
            {
                return Err(format!("outside its family: {line}"));
            }
            let labels = labels(inside).ok_or_else(|| format!("labels that are none: {line}"))?;
            let row = Row { name: name.to_owned(), labels, value };
            if rows.iter().any(|r| r.name == row.name && r.labels == row.labels) {
                return Err(format!("told twice: {line}"));
            }
            rows.push(row);
        }
    }
    Ok((rows, kinds))
}

#[test]
fn the_exposition_parser_rejects_malformed_text() {
    let good = "# HELP x X.\n# TYPE x gauge\nx{a=\"q\\\"b\\\\c\\n,}=\",b=\"\"} 1.5\nx 2\n";
    let (rows, kinds) = parse(good).unwrap();
    assert_eq!(rows[0].labels["a"], "q\"b\\c\n,}=");
    assert_eq!((rows[1].value, kinds["x"].as_str()), (2.0, "gauge"));
    let head = "# HELP x X.\n# TYPE x gauge\n";
    for bad in [
        "x 1\n",
        "x{a=\"b\" 1\n",
        "x{a=\"b\",} 1\n",
        "x{a=b} 1\n",
        "x{1a=\"b\"} 1\n",
        "x one\n",
        "y 1\n",
        "x 1\nx 2\n",
        "x{a=\"\\q\"} 1\n",
        "x 1",
        "x_sum 1\n",
        "# TYPE y gauge\n",
        "# HELP x X.\n# TYPE x gauge\n",
    ] {
        let text = if bad == "x 1\n" { bad.to_owned() } else { format!("{head}{bad}") };
        assert!(parse(&text).is_err(), "{text}");
    }
}

/// Returns status and text of `/metrics` for a token.
async fn scrape(t: &TestPortal, token: Option<&str>) -> (u16, String) {
    let mut request = Request::builder().uri("/metrics");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let response = t.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

async fn metrics_token(t: &TestPortal, operator: &Caller) -> (String, String) {
    let made = t.post(operator, "/operator/metrics-tokens", json!({"name": "prometheus"})).await.expect(201);
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    (text(&made["token"]["id"]), text(&made["secret"]))
}

#[tokio::test]
async fn only_operators_and_metrics_tokens_read_the_metrics() {
    for (engine, db, _location) in engines("metrics_rights").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        assert_eq!(scrape(&t, None).await.0, 401, "{engine}: never open");
        assert_eq!(scrape(&t, Some("nonsense")).await.0, 401);
        let Caller::Cookie(cookie) = &operator else { panic!("a person") };
        let request = Request::builder().uri("/metrics").header(header::COOKIE, cookie);
        assert_eq!(
            t.send(request.body(Body::empty()).unwrap()).await.status,
            401,
            "cookies mean nothing here"
        );
        let secret = |v: Value| v["secret"].as_str().unwrap().to_owned();
        let new = json!({"name": "script", "role": "owner"});
        let tenant = secret(t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201));
        let (status, text) = scrape(&t, Some(&tenant)).await;
        assert_eq!((status, text.contains(&org)), (403, false), "{engine} {text}");
        let own = secret(t.post(&operator, "/operator/tokens", json!({"name": "script"})).await.expect(201));
        assert_eq!(scrape(&t, Some(&own)).await.0, 200);

        let (id, secret) = metrics_token(&t, &operator).await;
        assert_eq!(scrape(&t, Some(&secret)).await.0, 200);
        // A metrics token works for `/metrics` only, and only operators create, list or revoke it.
        for path in ["/me", "/operator/nodes", "/operator/metrics-tokens"] {
            t.get(&Caller::Token(secret.clone()), path).await.problem(401, "auth.required");
        }
        let path = format!("/operator/metrics-tokens/{id}");
        t.post(&ada, "/operator/metrics-tokens", json!({"name": "x"})).await.problem(404, "object.not_found");
        t.get(&ada, "/operator/metrics-tokens").await.problem(404, "object.not_found");
        t.call(&ada, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        for bad in [json!({"name": " "}), json!({"name": "x", "expires_at": "2020-01-01T00:00:00Z"})] {
            t.post(&operator, "/operator/metrics-tokens", bad).await.problem(422, "request.invalid");
        }
        let listed = t.get(&operator, "/operator/metrics-tokens").await.expect(200);
        assert_eq!((&listed["items"][0]["id"], listed["items"].as_array().unwrap().len()), (&json!(id), 1));
        assert!(listed["items"][0]["last_used_at"].is_string(), "{listed}");
        assert!(!listed.to_string().contains(&secret), "shown once");
        t.call(&operator, "DELETE", &path, Value::Null).await.expect(204);
        t.call(&operator, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
        assert_eq!(scrape(&t, Some(&secret)).await.0, 401, "taken back");
        for action in ["metrics_token.created", "metrics_token.revoked"] {
            let path = format!("/operator/audit-events?action={action}");
            let events = t.get(&operator, &path).await.expect(200);
            assert_eq!(events["items"][0]["subject"], id.as_str(), "{engine} {action}");
        }

        let until = t.portal.context.now().plus_seconds(60);
        let short = json!({"name": "short", "expires_at": until});
        let made = t.post(&operator, "/operator/metrics-tokens", short).await.expect(201);
        let short = made["secret"].as_str().unwrap();
        assert_eq!(scrape(&t, Some(short)).await.0, 200);
        t.clock.advance_s(61);
        assert_eq!(scrape(&t, Some(short)).await.0, 401, "it has expired");
    }
}

fn value(rows: &[Row], name: &str, wanted_labels: &[(&str, &str)]) -> Option<f64> {
    let fits = |r: &&Row| {
        r.name == name && wanted_labels.iter().all(|(k, v)| r.labels.get(*k).is_some_and(|label| label == v))
    };
    rows.iter().find(fits).map(|r| r.value)
}

#[tokio::test]
async fn the_portal_exports_metrics_of_itself() {
    for (engine, db, _location) in engines("metrics_own").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (_, secret) = metrics_token(&t, &operator).await;
        let before = parse(&scrape(&t, Some(&secret)).await.1).unwrap();
        assert_eq!(value(&before.0, "berth_jobs", &[("state", "queued")]), Some(0.0), "{engine}");
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        for _ in 0..2 {
            t.post(&ada, &format!("/orgs/{org}/jobs"), job()).await.expect(201);
        }
        let waited = |rows: &[Row]| value(rows, "berth_queue_oldest_seconds", &[]).unwrap();
        // 200 s is longer than the portal's wait for open transactions before it counts their postings.
        for seconds in [10, 200, 10] {
            t.clock.advance_s(seconds);
            let (status, text) = scrape(&t, Some(&secret)).await;
            let (rows, kinds) = parse(&text).unwrap_or_else(|why| panic!("{engine} {why}: {text}"));
            assert_eq!(status, 200);
            for family in telemetry::FAMILIES {
                assert_eq!(kinds.get(family.name).map(String::as_str), Some(family.kind), "{engine} {text}");
            }
            let posted = |kind: &str| value(&rows, "berth_ledger_postings_total", &[("kind", kind)]);
            assert_eq!((posted("credit"), posted("hold")), (Some(1.0), Some(2.0)), "{engine} {text}");
            assert_eq!(value(&rows, "berth_jobs", &[("state", "queued")]), Some(2.0), "{engine}");
            assert!(waited(&rows) >= seconds as f64, "{engine} {text}");
            let seen = [("method", "POST"), ("code", "201")];
            assert!(value(&rows, "berth_http_requests_total", &seen).unwrap() >= 5.0, "{engine} {text}");
            assert!(!text.contains("train"), "jobs' names are their organization's");
        }
    }
}

/// Starts a worker with its own `/metrics` on an address that no other program has.
fn start_with_metrics(setup: &WorkerPortal, token: &str) -> (Worker, String) {
    let free = crate::process::free_address();
    let process = Command::new(worker_program())
        .args(["run", "--simulate", "1xH100-80GB,1xA30", "--name", "quay \"1\"", "--allow-unisolated"])
        .args(["--stop-grace-s", "1", "--portal", &setup.address, "--join-token", token])
        .args(["--job-network", "host", "--metrics-listen", &free, "--data"])
        .arg(&setup.data)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (Worker { process }, free)
}

/// Sends one request to a worker; `None` without a listener.
fn ask_worker(address: &str, bearer: Option<&str>) -> Option<(u16, String)> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    let bearer = bearer.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n{bearer}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    // Short answers are not chunked.
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    assert!(!chunked, "{head}");
    Some((status, body.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn portal_and_host_export_devices_like_the_dcgm_exporter() {
    let mut setup = without_worker().await;
    let join = setup.join_token(json!({})).await;
    let (mut worker, address) = start_with_metrics(&setup, &join);
    worker.wait_until_joined().unwrap();
    setup.worker = Some(worker);
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let (_, secret) = metrics_token(&setup.t, &setup.operator).await;
    let job = setup.submit_script("while :; do :; done").await;
    setup.until(&job, |j| j["state"] == "running").await;
    let on_slice =
        [("job", job.as_str()), ("organization", setup.org.as_str()), ("GPU_I_PROFILE", "1g.10gb")];
    // Checks the text of either side: the device, its job, and no value without a meaning under MIG.
    let check = |text: &str, source: &str| -> Option<()> {
        let (rows, kinds) = parse(text).unwrap_or_else(|why| panic!("{source} {why}: {text}"));
        let busy = value(&rows, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", &on_slice)?;
        assert!((0.0..=1.0).contains(&busy), "{source} {busy}");
        assert_eq!(value(&rows, "DCGM_FI_DEV_FB_USED", &on_slice).map(|used| used >= 0.0), Some(true));
        assert!(value(&rows, "DCGM_FI_DEV_FB_FREE", &on_slice)? > 0.0, "{source}");
        let row = rows.iter().find(|r| r.labels.get("job").is_some_and(|j| *j == job)).unwrap();
        let label_names: BTreeSet<&str> = row.labels.keys().map(String::as_str).collect();
        let all = "gpu UUID device modelName GPU_I_PROFILE GPU_I_ID Hostname job organization";
        assert_eq!(label_names, all.split(' ').collect::<BTreeSet<&str>>(), "{source}");
        let names = ["device", "modelName", "Hostname"].map(|label| row.labels[label].as_str());
        assert_eq!(names, ["nvidia0", "NVIDIA H100 80GB HBM3", "quay \"1\""], "{source}");
        for name in ["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK"] {
            let of_boards: Vec<&Row> = rows.iter().filter(|r| r.name == name).collect();
            assert_eq!(of_boards.len(), 2, "{source} {name}: of boards only");
            assert!(
                of_boards.iter().all(|r| r.value > 0.0 && !r.labels.contains_key("GPU_I_ID")),
                "{source} {of_boards:?}"
            );
        }
        // Both boards are in MIG mode, so neither has a utilization.
        assert!(rows.iter().all(|r| r.name != "DCGM_FI_DEV_GPU_UTIL"), "{source} {text}");
        assert!(DEVICE_FAMILIES.iter().any(|f| kinds.contains_key(f.name)), "{source}");
        Some(())
    };
    eventually("the job's slice on the portal", async || {
        let (status, text) = scrape(&setup.t, Some(&secret)).await;
        assert_eq!(status, 200);
        let (rows, _) = parse(&text).unwrap();
        assert_eq!(value(&rows, "berth_queue_wait_seconds_count", &[]), Some(1.0), "{text}");
        check(&text, "portal")
    })
    .await;
    let token = std::fs::read_to_string(setup.data.join("metrics-token")).unwrap();
    for wrong in [None, Some("x"), Some(secret.as_str())] {
        let (address, wrong) = (address.clone(), wrong.map(str::to_owned));
        let asked = tokio::task::spawn_blocking(move || ask_worker(&address, wrong.as_deref()));
        assert_eq!(asked.await.unwrap().unwrap().0, 401);
    }
    eventually("the job's slice on its host", async || {
        let (address, token) = (address.clone(), token.clone());
        let asked = tokio::task::spawn_blocking(move || ask_worker(&address, Some(&token)));
        let (status, text) = asked.await.unwrap()?;
        assert_eq!(status, 200);
        check(&text, "host")
    })
    .await;

    // Another organization sees no readings.
    let (bob, other) = setup.t.tenant("bobs").await;
    for org in [&setup.org, &other] {
        let path = format!("/orgs/{org}/jobs/{job}/metrics");
        setup.t.get(&bob, &path).await.problem(404, "object.not_found");
    }
    // The portal exports no devices of a worker without a session.
    let cancel = format!("/orgs/{}/jobs/{job}/cancel", setup.org);
    setup.t.post(&setup.ada, &cancel, Value::Null).await.expect(202);
    setup.until_ended(&job).await;
    setup.until_all_free().await;
    setup.worker.as_mut().unwrap().kill();
    eventually("no device", async || {
        let (_, text) = scrape(&setup.t, Some(&secret)).await;
        (!text.contains("DCGM_FI_DEV_POWER_USAGE{")).then_some(())
    })
    .await;
}

/// Returns readings of a job's device, one a second.
fn readings(from: Timestamp, seconds: std::ops::Range<i64>) -> Vec<Recorded> {
    let at = |second: i64| Sample {
        at: from.plus_seconds(second),
        rank: 0,
        device: 0,
        utilization_percent: Some((second % 10) as f64 * 10.0),
        memory_used_mib: Some(1_024.0),
        power_watts: Some(300.5),
        temperature_celsius: None,
    };
    seconds.map(|second| Recorded { sample: at(second), memory_total_mib: 9_984.0 }).collect()
}

#[tokio::test]
async fn readings_outlive_job_and_portal_at_longer_steps_by_age() {
    for (engine, db, _location) in engines("metrics_charts").await {
        let t = TestPortal::on(db.clone());
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let made = t.post(&ada, &format!("/orgs/{org}/jobs"), job()).await.expect(201);
        let id: JobId = made["id"].as_str().unwrap().parse().unwrap();
        let path = format!("/orgs/{org}/jobs/{id}");
        // The readings start at a minute, so that all steps are complete.
        let begin = Timestamp::from_micros(t.portal.context.now().micros() / 60_000_000 * 60_000_000);
        t.portal.recordings.append_readings(id, 0, &readings(begin, 0..3_600)).unwrap();
        t.post(&ada, &format!("{path}/cancel"), Value::Null).await.expect(202);
        let points = async |t: &TestPortal, caller: &Caller, query: &str| {
            let answer = t.get(caller, &format!("{path}/metrics{query}")).await.expect(200);
            (answer["step_s"].clone(), answer["series"][0]["at_s"].as_array().map_or(0, Vec::len), answer)
        };
        let from = |second: i64| format!("?from={}", begin.plus_seconds(second));
        let (step, count, _) = points(&t, &ada, "").await;
        assert_eq!((&step, count), (&json!(5), 720), "{engine}: the whole hour, and not more than fits");
        let (step, count, _) = points(&t, &ada, &from(3_300)).await;
        assert_eq!((&step, count), (&json!(1), 300), "{engine}: five minutes by the second");

        // Another portal continues after an hour; its clock starts at the same time as the first one.
        let data = t.data.path().to_owned();
        let next = TestPortal::with(db, |settings| Settings { data, ..settings });
        next.clock.advance_s(2 * 3_600);
        next.portal.recordings.compact(next.portal.context.now()).unwrap();
        let ada = next.sign_in("lab@example.org").await;
        let (_, count, answer) = points(&next, &ada, &from(3_300)).await;
        assert_eq!(count, 30, "{engine}: ten seconds each now");
        let series = &answer["series"][0];
        assert_eq!(
            (&series["utilization_percent"][0], &series["power_watts"][0]),
            (&json!(45.0), &json!(300.5))
        );
        assert_eq!(series["temperature_celsius"][0], Value::Null, "what was absent stays absent");
        next.clock.advance_s(2 * 86_400);
        next.portal.recordings.compact(next.portal.context.now()).unwrap();
        let ada = next.sign_in("lab@example.org").await;
        assert_eq!(points(&next, &ada, "").await.1, 60, "{engine}: a minute each");
        next.clock.advance_s(92 * 86_400);
        next.portal.recordings.compact(next.portal.context.now()).unwrap();
        let ada = next.sign_in("lab@example.org").await;
        assert_eq!(points(&next, &ada, "").await.1, 0, "{engine}: they are gone");
    }
}

/// Returns the metric names in an expression of the dashboard.
fn named(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("DCGM_FI_") || word.starts_with("berth_"));
    ours.map(str::to_owned).collect()
}

#[test]
fn the_dashboard_uses_exported_metrics_and_the_document_names_all() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("docs/grafana/berth.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut exported = BTreeSet::new();
    for family in DEVICE_FAMILIES.iter().chain(&telemetry::FAMILIES) {
        let parts: &[&str] = if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        exported.extend(parts.iter().map(|part| format!("{}{part}", family.name)));
    }
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = |panel: &Value| panel["targets"].as_array().cloned().unwrap_or_default();
    let mut used = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let expressions: Vec<Value> = targets(panel).iter().map(|target| target["expr"].clone()).collect();
        assert!(!expressions.is_empty(), "{}", panel["title"]);
        for expression in expressions {
            let names = named(expression.as_str().unwrap());
            assert!(!names.is_empty(), "{}", panel["title"]);
            used.extend(names);
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    used.extend(variables.iter().filter_map(|v| v["definition"].as_str()).flat_map(named));
    assert!(used.len() >= 15, "{used:?}");
    let unknown: Vec<&String> = used.difference(&exported).collect();
    assert!(unknown.is_empty(), "nobody tells {unknown:?}");
    let document = std::fs::read_to_string(root.join("docs/metrics.md")).unwrap();
    for family in DEVICE_FAMILIES.iter().chain(&telemetry::FAMILIES) {
        assert!(
            document.contains(&format!("`{}`", family.name)),
            "docs/metrics.md leaves out {}",
            family.name
        );
    }
}
