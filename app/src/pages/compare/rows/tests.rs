use super::*;
use serde_json::json;

fn job(number: u32, changes: serde_json::Value) -> ComparedJob {
    let mut body = json!({
        "id": format!("job_{number:0>26}"), "org": "org_00000000000000000000000001", "name": "train",
        "state": "succeeded", "reasons": [], "attempt": 1, "offering": "h100", "simulated": false, "count": 2,
        "priority": "normal", "max_duration_s": 60, "devices": [], "created_at": "2026-03-01T09:00:00Z",
        "created_by": "Ada", "metered_ms": 3_600_000, "cost_micros": 1_500_000, "held_micros": 0,
        "nano_per_second": 1, "currency": "USD", "price_version": 1, "generation": 1, "actions": [],
        "command": ["python3", "train.py"],
    });
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    ComparedJob {
        job: serde_json::from_value(body).unwrap(),
        first_start: None,
        metrics: Metrics { step_s: 1, series: Vec::new() },
        submission: None,
    }
}

fn with_env(number: u32, env: &[(&str, &str)]) -> ComparedJob {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let submission = NewJob { env, ..NewJob::default() };
    ComparedJob { submission: Some(submission), ..job(number, json!({})) }
}

fn find<'a>(sections: &'a [Section], name: &str) -> Option<&'a Row> {
    sections.iter().flat_map(|section| &section.rows).find(|row| row.name == name)
}

/// Returns cells and difference of a row.
fn row(jobs: Jobs<'_>, name: &str) -> (Vec<String>, bool) {
    let sections = sections(jobs);
    let row = find(&sections, name).unwrap_or_else(|| panic!("{name} is absent"));
    (row.cells.iter().map(|cell| cell.clone().unwrap_or_else(|| "-".to_owned())).collect(), row.differs)
}

#[test]
fn jobs_that_can_be_read_are_compared() {
    let image = |name: &str| json!({"image": name});
    let cases: [(Vec<Option<ComparedJob>>, &str, &[&str], bool); 7] = [
        (vec![Some(job(1, image("a"))), Some(job(2, image("a")))], "Image", &["a", "a"], false),
        (vec![Some(job(1, image("a"))), Some(job(2, image("b")))], "Image", &["a", "b"], true),
        (
            vec![Some(job(1, image("a"))), Some(job(2, json!({})))],
            "Image",
            &["a", "none (system of the node)"],
            true,
        ),
        (vec![Some(job(1, image("a"))), None], "Image", &["a", "-"], false),
        (
            vec![None, Some(job(1, image("a"))), None, Some(job(2, image("b")))],
            "Image",
            &["-", "a", "-", "b"],
            true,
        ),
        (
            vec![Some(job(1, json!({"exit_code": 0}))), Some(job(2, json!({})))],
            "Exit code",
            &["0", "-"],
            true,
        ),
        (
            vec![Some(job(1, json!({"labels": {"a": "1"}}))), Some(job(2, json!({"labels": {"b": "1"}})))],
            "a",
            &["1", "-"],
            true,
        ),
    ];
    for (jobs, name, cells, differs) in cases {
        let cells: Vec<String> = cells.iter().map(|cell| (*cell).to_owned()).collect();
        assert_eq!(row(&jobs, name), (cells, differs));
    }
}

#[test]
fn times_are_exact_and_in_utc() {
    let jobs = [Some(job(1, json!({}))), None];
    assert_eq!(row(&jobs, "Submitted"), (vec!["2026-03-01T09:00:00Z".to_owned(), "-".to_owned()], false));
    assert!(find(&sections(&jobs), "Submitted").is_some_and(|row| row.times));
}

#[test]
fn rows_without_a_value_are_absent() {
    let jobs = [Some(job(1, json!({}))), None];
    let sections = sections(&jobs);
    assert!(find(&sections, "Script").is_none());
    assert!(sections.iter().all(|section| !section.rows.is_empty() && !section.differs()));
    assert!(super::sections(&[None, None]).is_empty());
    let columns = Column::list(&[jobs[0].as_ref().unwrap().job.id, job(2, json!({})).job.id], &jobs);
    assert_eq!(columns[0].job, Some(("train".to_owned(), JobState::Succeeded)));
    assert_eq!(columns[1].job, None);
}

#[test]
fn costs_are_compared_with_the_first_job() {
    let cost = |number: u32, micros: i64| Some(job(number, json!({"cost_micros": micros})));
    let jobs = [None, cost(1, 1_500_000), cost(2, 1_250_500), cost(3, 1_500_000)];
    let texts = ["-", "$1.5000", "$1.2505", "$1.5000"].map(str::to_owned).to_vec();
    assert_eq!(row(&jobs, "Cost"), (texts, true));
    let texts = ["-", "-", "−$0.2495", "$0.0000"].map(str::to_owned).to_vec();
    assert_eq!(row(&jobs, "Cost difference from the first job"), (texts, true));
    let equal = [cost(1, 5), cost(2, 5)];
    assert!(!row(&equal, "Cost difference from the first job").1);
    assert_eq!(row(&equal, "Device-hours"), (vec!["2.00".to_owned(), "2.00".to_owned()], false));
    assert_eq!(device_ms(&job(1, json!({"count": 1, "gpu_milli": 250})).job), 900_000);
}

#[test]
fn values_of_secrets_are_hidden_and_still_compared() {
    let jobs = [
        Some(with_env(1, &[("LR", "0.1"), ("HF_TOKEN", "hf_1")])),
        Some(with_env(2, &[("LR", "0.1"), ("HF_TOKEN", "hf_2")])),
        Some(with_env(3, &[("HF_TOKEN", "hf_1")])),
        None,
    ];
    let texts = |texts: [&str; 4]| texts.map(str::to_owned).to_vec();
    assert_eq!(row(&jobs, "LR"), (texts(["0.1", "0.1", "-", "-"]), true));
    let hidden = texts(["hidden value A", "hidden value B", "hidden value A", "-"]);
    assert_eq!(row(&jobs, "HF_TOKEN"), (hidden, true));
    assert!(!row(&jobs[..1], "HF_TOKEN").1);
    // A viewer has no submissions.
    let jobs = [Some(job(1, json!({}))), Some(with_env(2, &[("LR", "0.1")]))];
    assert_eq!(row(&jobs, "LR"), (vec!["-".to_owned(), "0.1".to_owned()], false));
}

#[test]
fn many_variables_and_long_texts_are_shortened() {
    let names: Vec<String> = (0..=MAX_VARIABLES).map(|number| format!("V{number:03}")).collect();
    let env = |last: &'static str| {
        let mut env: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
        env.extend(names.last().map(|name| (name.as_str(), last)));
        env
    };
    let jobs = [Some(with_env(1, &env("1"))), Some(with_env(2, &env("2")))];
    let values = vec!["values A".to_owned(), "values B".to_owned()];
    assert_eq!(row(&jobs, "1 further variable"), (values, true));
    assert!(find(&sections(&jobs), "V200").is_none());
    let script = |end: &str| json!({"script": format!("{}{end}", "ü".repeat(2_000)), "command": null});
    let jobs = [Some(job(1, script("a"))), Some(job(2, script("b")))];
    let (cells, differs) = row(&jobs, "Script");
    assert!(differs, "the whole texts are compared");
    assert_eq!(cells[0], format!("{}… (2,001 characters)", "ü".repeat(MAX_CELL_CHARS)));
}
