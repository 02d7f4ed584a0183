//! Tests of stored jobs, queue, events and meters, on every engine.

use crate::common::engines;
use crate::stores::{later, now, write};
use berth_core::jobs::StopCause;
use berth_store::jobs::{JobInputs, JobSearch, NewStoredJob, StoredJob};
use berth_store::offerings::StoredOffering;
use berth_store::orgs::{OrgPlace, OrgSearch};
use berth_store::stops::Stop;
use berth_store::types::JsonColumn;
use berth_store::{self as store, Db, StoreError};
use berth_types::Sort;
use berth_types::accounts::{Org, OrgOrder, Role, User};
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, OfferingId, OrgId, TransferId, UserId};
use berth_types::jobs::{JobState, NewJob};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;
use futures::FutureExt;
use uuid::Uuid;

fn org(n: u128) -> OrgId {
    OrgId::from_uuid(Uuid::from_u128(n))
}

fn job(n: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(n))
}

fn offering(n: u128) -> OfferingId {
    OfferingId::from_uuid(Uuid::from_u128(n))
}

fn tenant(n: u128) -> Org {
    Org { id: org(n), name: format!("org {n}"), slug: format!("org-{n}"), created_at: now() }
}

fn user(n: u128) -> User {
    let id = UserId::from_uuid(Uuid::from_u128(n));
    User { id, email: format!("{n}@b"), name: "A".to_owned(), operator: n == 1 }
}

/// Returns a submission of the first organization for one slice of an H100.
fn new_job(n: u128) -> NewStoredJob {
    NewStoredJob {
        id: job(n),
        org: org(1),
        name: format!("job {n}"),
        offering: offering(1),
        spec: JsonColumn(NewJob { name: format!("job {n}"), ..NewJob::default() }),
        inputs: JobInputs::default(),
        priority: 1,
        preemptible: false,
        cpu_milli: 0,
        memory_mib: 0,
        nodes: 1,
        grace_s: 10,
        board_milli: 125,
        reservation: None,
        labels: JsonColumn::default(),
        device_milli: 1_000,
        device_count: 1,
        max_duration_s: 60,
        price_version: 3,
        nano_per_second: 1_000,
        surcharge_basis_points: 250,
        held_micros: 60,
        hold: None,
        created_by: "a@b".to_owned(),
        created_at: now(),
    }
}

fn event(n: u128, seq: i64, at: Timestamp, state: JobState) -> JobEvent {
    JobEvent { job: job(n), seq, at, state, attempt: u32::from(seq > 1), detail: format!("step {seq}") }
}

/// Inserts two organizations, two users and three offerings: two of the H100, one of the A100.
async fn with_catalogue(db: &Db) {
    write(db, |tx| {
        async move {
            for n in [1, 2] {
                store::accounts::insert_org(tx, &tenant(n)).await?;
                store::accounts::insert_user(tx, &user(n), "hash", now()).await?;
            }
            for (n, slug, model, cells) in
                [(1, "h100.1g", "H100", 1), (2, "h100", "H100", 8), (3, "a100.1g", "A100", 1)]
            {
                let new = StoredOffering {
                    id: offering(n),
                    slug: slug.to_owned(),
                    gpu_model: model.to_owned(),
                    mig_profile: (cells < 8).then(|| "1g".to_owned()),
                    memory_mib: cells * 10_240,
                    cells,
                    board_cells: 8,
                    simulated: true,
                    price: None,
                };
                store::offerings::insert(tx, &new, now()).await?;
            }
            Ok(())
        }
        .boxed()
    })
    .await;
}

async fn submit(db: &Db, new: NewStoredJob) -> Result<(), StoreError> {
    db.write(move |tx| {
        let new = new.clone();
        async move { store::jobs::insert(tx, &new).await }.boxed()
    })
    .await
}

/// Reads a job, changes it and writes it back.
async fn change(db: &Db, n: u128, how: fn(&mut StoredJob)) {
    write(db, move |tx| {
        async move {
            let mut row = store::jobs::find_any(tx, job(n)).await?.unwrap();
            how(&mut row);
            row.generation += 1;
            store::jobs::update(tx, &row, row.generation - 1).await
        }
        .boxed()
    })
    .await;
}

async fn update(db: &Db, row: &StoredJob) -> Result<(), StoreError> {
    let before = row.generation;
    let row = StoredJob { generation: before + 1, ..row.clone() };
    db.write(move |tx| {
        let row = row.clone();
        async move { store::jobs::update(tx, &row, before).await }.boxed()
    })
    .await
}

async fn meter(db: &Db, row: &StoredJob) -> Result<(), StoreError> {
    let row = row.clone();
    db.write(move |tx| {
        let row = row.clone();
        async move { store::jobs::update_meter(tx, &row).await }.boxed()
    })
    .await
}

async fn extend(db: &Db, n: u128, generation: i64, limit_s: i64, held: i64) -> Result<(), StoreError> {
    db.write(move |tx| {
        async move { store::jobs::update_limit(tx, job(n), generation, limit_s, held).await }.boxed()
    })
    .await
}

async fn record(db: &Db, org: OrgId, event: JobEvent) -> Result<(), StoreError> {
    db.write(move |tx| {
        let event = event.clone();
        async move { store::job_events::insert_event(tx, org, &event).await }.boxed()
    })
    .await
}

fn numbers(rows: &[StoredJob]) -> Vec<u128> {
    rows.iter().map(|row| row.id.uuid().as_u128()).collect()
}

async fn page(db: &Db, org: OrgId, state: Option<JobState>, cursor: Option<JobId>, limit: u32) -> Vec<u128> {
    let options = ListOptions { cursor, ..ListOptions::newest(limit) };
    let search = JobSearch { state, ..JobSearch::default() };
    let rows = read!(db, store::jobs::list, org, &search, &options);
    numbers(&options.page(rows, |row| row.id).items)
}

async fn queue(db: &Db, limit: i64) -> Vec<u128> {
    numbers(&read!(db, store::jobs::list_queued, limit, Ok))
}

#[tokio::test]
async fn a_job_is_found_only_in_its_organization() {
    for (engine, db, _location) in engines("jobs_found").await {
        with_catalogue(&db).await;
        submit(&db, new_job(1)).await.unwrap();
        let row = read!(db, store::jobs::find, org(1), job(1)).unwrap();
        assert_eq!((row.id, row.org_id), (job(1), org(1)), "{engine}");
        assert_eq!(
            (row.name.as_str(), row.spec.name.as_str(), row.phase.state),
            ("job 1", "job 1", JobState::Queued)
        );
        assert_eq!((row.slug.as_str(), row.gpu_model.as_str()), ("h100.1g", "H100"), "{engine}");
        assert_eq!((row.mig_profile.as_deref(), row.simulated), (Some("1g"), true), "{engine}");
        assert_eq!((row.generation, row.attempt, row.priority, row.device_count), (1, 0, 1, 1), "{engine}");
        assert_eq!((row.price_version, row.nano_per_second, row.max_duration_s), (3, 1_000, 60), "{engine}");
        assert_eq!(row.surcharge_basis_points, 250, "{engine}");
        assert_eq!((row.held_micros, row.cost_micros, row.posted_micros), (60, 0, 0), "{engine}");
        assert_eq!((row.created_at, row.metered_ms), (now(), 0), "{engine}");
        assert_eq!((row.started_at, row.ended_at, row.exit_code), (None, None, None), "{engine}");
        assert_eq!((row.phase.stop, row.failure_code, row.failure_detail), (None, None, None), "{engine}");
        assert!(read!(db, store::jobs::find, org(2), job(1)).is_none(), "{engine}: a foreign job is none");
        assert!(read!(db, store::jobs::find, org(1), job(2)).is_none(), "{engine}");
        assert_eq!(read!(db, store::jobs::find_any, job(1)).unwrap().org_id, org(1), "{engine}");
        assert!(read!(db, store::jobs::find_any, job(2)).is_none(), "{engine}");

        let twice = submit(&db, new_job(1)).await;
        assert!(matches!(twice, Err(StoreError::Duplicate)), "{engine}: {twice:?}");
        let below = submit(&db, NewStoredJob { held_micros: -1, ..new_job(2) }).await;
        assert!(matches!(below, Err(StoreError::Refused)), "{engine}: {below:?}");
        for new in
            [NewStoredJob { offering: offering(9), ..new_job(2) }, NewStoredJob { org: org(9), ..new_job(2) }]
        {
            let unknown = submit(&db, new).await;
            assert!(matches!(unknown, Err(StoreError::Engine(_))), "{engine}: {unknown:?}");
        }
    }
}

#[tokio::test]
async fn a_bulk_read_of_jobs_equals_single_reads() {
    for (engine, db, _location) in engines("jobs_many").await {
        with_catalogue(&db).await;
        for n in 1..=20 {
            submit(&db, NewStoredJob { org: org(1 + n % 2), ..new_job(n) }).await.unwrap();
        }
        let asked = [20, 3, 99, 7, 3].map(job);
        let mut rows = read!(db, store::jobs::list_any, &asked);
        rows.sort_by_key(|row| row.id);
        assert_eq!(numbers(&rows), [3, 7, 20], "{engine}");
        for (row, n) in rows.iter().zip([3, 7, 20]) {
            let alone = read!(db, store::jobs::find_any, job(n)).unwrap();
            assert_eq!(format!("{row:?}"), format!("{alone:?}"), "{engine}");
        }
        assert!(read!(db, store::jobs::list_any, &[]).is_empty(), "{engine}");

        change(&db, 7, |row| row.phase.state = JobState::Failed).await;
        let mut states = read!(db, store::jobs::list_states, &asked);
        states.sort();
        let expected = [(3, JobState::Queued), (7, JobState::Failed), (20, JobState::Queued)];
        assert_eq!(states, expected.map(|(n, state)| (job(n), state)), "{engine}");
        // Names are of one organization only.
        let named = read!(db, store::jobs::list_names, org(1), &asked);
        assert_eq!(named, [(job(20), "job 20".to_owned(), JobState::Queued)], "{engine}");
        let mut named = read!(db, store::jobs::list_names, org(2), &asked);
        named.sort();
        let expected = [(3, JobState::Queued), (7, JobState::Failed)];
        assert_eq!(named, expected.map(|(n, state)| (job(n), format!("job {n}"), state)), "{engine}");
    }
}

#[tokio::test]
async fn each_stop_cause_is_stored_and_read_unchanged() {
    let causes = [
        StopCause::Cancelled,
        StopCause::TimedOut,
        StopCause::RankFailed,
        StopCause::Halted,
        StopCause::Spent,
        StopCause::Preempted { for_job: Some(job(9)) },
        StopCause::Preempted { for_job: None },
        StopCause::Idle { percent: 3, for_s: 3_600 },
        StopCause::Drained { again: true, grace_s: 0 },
        StopCause::Drained { again: false, grace_s: u32::MAX },
    ];
    for (engine, db, _location) in engines("jobs_stops").await {
        with_catalogue(&db).await;
        submit(&db, new_job(1)).await.unwrap();
        for cause in causes {
            for reason in [None, Some("new: 30 firmware".to_owned())] {
                if cause == if reason.is_some() { StopCause::Cancelled } else { StopCause::Spent } {
                    continue;
                }
                let mut row = read!(db, store::jobs::find_any, job(1)).unwrap();
                row.phase.state = JobState::Stopping;
                row.phase.stop = Some(Stop { cause, reason });
                update(&db, &row).await.unwrap();
                let stored = read!(db, store::jobs::find_any, job(1)).unwrap();
                assert_eq!(stored.phase, row.phase, "{engine}");
            }
        }
        change(&db, 1, |row| row.phase.stop = None).await;
        assert_eq!(read!(db, store::jobs::find_any, job(1)).unwrap().phase.stop, None, "{engine}");
    }
}

#[tokio::test]
async fn job_inputs_are_stored_apart_from_the_job() {
    for (engine, db, _location) in engines("jobs_inputs").await {
        with_catalogue(&db).await;
        let inputs = JobInputs {
            script: Some("#!/bin/sh\n".to_owned()),
            env: JsonColumn([("A".to_owned(), "1".to_owned())].into()),
            files: JsonColumn([("a/b".to_owned(), "text".to_owned())].into()),
        };
        submit(&db, NewStoredJob { inputs: inputs.clone(), ..new_job(1) }).await.unwrap();
        submit(&db, new_job(2)).await.unwrap();
        let stored = read!(db, store::jobs::find_inputs, job(1)).unwrap();
        assert_eq!(format!("{stored:?}"), format!("{inputs:?}"), "{engine}");
        let scripts = read!(db, store::jobs::list_scripts, &[job(1), job(2), job(3)]);
        assert_eq!(scripts, [(job(1), inputs.script.unwrap())], "{engine}: only one has a script");
        assert!(read!(db, store::jobs::find_inputs, job(3)).is_none(), "{engine}");
    }
}

#[tokio::test]
async fn an_update_with_a_stale_generation_is_refused() {
    for (engine, db, _location) in engines("jobs_changed").await {
        with_catalogue(&db).await;
        let hold = TransferId::from_uuid(Uuid::from_u128(77));
        submit(&db, NewStoredJob { hold: Some(hold), ..new_job(1) }).await.unwrap();
        submit(&db, new_job(2)).await.unwrap();
        let based = read!(db, store::jobs::find_any, job(1)).unwrap();
        assert_eq!(based.hold_id, Some(hold), "{engine}: it knows what was set aside for it");
        let mut ended = based.clone();
        ended.phase.state = JobState::Failed;
        let reason = Some("firmware".to_owned());
        ended.phase.stop = Some(Stop { cause: StopCause::Drained { again: true, grace_s: 30 }, reason });
        (ended.attempt, ended.held_micros, ended.exit_code) = (1, 0, Some(3));
        (ended.started_at, ended.ended_at) = (Some(later(5)), Some(later(6)));
        (ended.cost_micros, ended.posted_micros, ended.metered_ms) = (7, 6, 5);
        (ended.failure_code, ended.failure_detail) = (Some("exit".to_owned()), Some("3".to_owned()));
        update(&db, &ended).await.unwrap();
        let stale = update(&db, &based).await;
        assert!(matches!(stale, Err(StoreError::Stale)), "{engine}: {stale:?}");
        let expected = format!("{:?}", StoredJob { generation: 2, ..ended });
        let row = read!(db, store::jobs::find_any, job(1)).unwrap();
        assert_eq!(format!("{row:?}"), expected, "{engine}");

        // A meter update changes neither the generation nor the state.
        let measured =
            StoredJob { held_micros: 40, cost_micros: 20, posted_micros: 10, metered_ms: 9, ..based };
        meter(&db, &measured).await.unwrap();
        let expected =
            StoredJob { held_micros: 40, cost_micros: 20, posted_micros: 10, metered_ms: 9, ..row.clone() };
        let row = read!(db, store::jobs::find_any, job(1)).unwrap();
        assert_eq!(format!("{row:?}"), format!("{expected:?}"), "{engine}");
        let below = meter(&db, &StoredJob { cost_micros: -1, ..row.clone() }).await;
        assert!(matches!(below, Err(StoreError::Refused)), "{engine}: {below:?}");

        for (n, generation) in [(1, 1), (1, 3), (9, 1)] {
            let stale = extend(&db, n, generation, 90, 80).await;
            assert!(matches!(stale, Err(StoreError::Stale)), "{engine}: {stale:?}");
        }
        extend(&db, 1, 2, 120, 100).await.unwrap();
        let expected = StoredJob { generation: 3, max_duration_s: 120, held_micros: 100, ..row };
        let row = read!(db, store::jobs::find_any, job(1)).unwrap();
        assert_eq!(format!("{row:?}"), format!("{expected:?}"), "{engine}");
        let other = read!(db, store::jobs::find_any, job(2)).unwrap();
        assert_eq!(
            (other.generation, other.phase.state, other.metered_ms),
            (1, JobState::Queued, 0),
            "{engine}"
        );
    }
}

#[tokio::test]
async fn jobs_are_listed_newest_first() {
    for (engine, db, _location) in engines("jobs_listed").await {
        with_catalogue(&db).await;
        for n in [3, 1, 5, 2, 4] {
            submit(&db, new_job(n)).await.unwrap();
        }
        submit(&db, NewStoredJob { org: org(2), ..new_job(6) }).await.unwrap();
        assert_eq!(page(&db, org(1), None, None, 10).await, [5, 4, 3, 2, 1], "{engine}");
        assert_eq!(page(&db, org(1), None, None, 2).await, [5, 4], "{engine}");
        assert_eq!(page(&db, org(1), None, Some(job(4)), 2).await, [3, 2], "{engine}");
        assert_eq!(page(&db, org(1), None, Some(job(2)), 2).await, [1], "{engine}");
        assert!(page(&db, org(1), None, Some(job(1)), 2).await.is_empty(), "{engine}");
        assert_eq!(page(&db, org(2), None, None, 10).await, [6], "{engine}");
        change(&db, 3, |row| row.phase.state = JobState::Running).await;
        assert_eq!(page(&db, org(1), Some(JobState::Running), None, 10).await, [3], "{engine}");
        assert_eq!(page(&db, org(1), Some(JobState::Queued), None, 3).await, [5, 4, 2], "{engine}");
        assert_eq!(page(&db, org(1), Some(JobState::Queued), Some(job(4)), 3).await, [2, 1], "{engine}");
        assert!(page(&db, org(2), Some(JobState::Running), None, 10).await.is_empty(), "{engine}");
    }
}

#[tokio::test]
async fn the_queue_is_read_by_priority_and_age() {
    for (engine, db, _location) in engines("jobs_queued").await {
        with_catalogue(&db).await;
        for new in [
            NewStoredJob { created_at: later(10), ..new_job(1) },
            NewStoredJob { created_at: later(5), org: org(2), ..new_job(2) },
            NewStoredJob { created_at: later(20), priority: 2, ..new_job(3) },
            NewStoredJob { created_at: later(5), ..new_job(4) },
            NewStoredJob { priority: 0, offering: offering(2), ..new_job(5) },
            NewStoredJob { created_at: later(1), priority: 0, device_count: 4, ..new_job(6) },
            NewStoredJob {
                created_at: later(2),
                priority: 0,
                offering: offering(3),
                org: org(2),
                ..new_job(7)
            },
            NewStoredJob { priority: 2, ..new_job(8) },
        ] {
            submit(&db, new).await.unwrap();
        }
        change(&db, 8, |row| row.phase.state = JobState::Running).await;
        assert_eq!(queue(&db, 10).await, [3, 2, 4, 1, 5, 6, 7], "{engine}: priority, time, id");
        assert_eq!(queue(&db, 4).await, [3, 2, 4, 1], "{engine}");
        change(&db, 3, |row| row.phase.state = JobState::Assigned).await;
        assert_eq!(queue(&db, 10).await, [2, 4, 1, 5, 6, 7], "{engine}: only what waits");
    }
}

#[tokio::test]
async fn events_come_in_order_for_a_job_and_for_an_organization() {
    for (engine, db, _location) in engines("jobs_events").await {
        with_catalogue(&db).await;
        for (n, of) in [(1, 1), (2, 1), (3, 2)] {
            submit(&db, NewStoredJob { org: org(of), ..new_job(n) }).await.unwrap();
        }
        let queued = event(1, 1, now(), JobState::Queued);
        let assigned = event(1, 2, later(5), JobState::Assigned);
        let second = event(2, 1, later(5), JobState::Queued);
        for event in [&second, &assigned, &queued] {
            record(&db, org(1), event.clone()).await.unwrap();
        }
        record(&db, org(2), event(3, 1, later(5), JobState::Queued)).await.unwrap();
        let twice = record(&db, org(1), event(1, 2, later(9), JobState::Failed)).await;
        assert!(matches!(twice, Err(StoreError::Duplicate)), "{engine}: {twice:?}");
        let unknown = record(&db, org(1), event(9, 1, now(), JobState::Queued)).await;
        assert!(matches!(unknown, Err(StoreError::Engine(_))), "{engine}: {unknown:?}");

        let of_one = [queued.clone(), assigned.clone()];
        for (after, from) in [(0, 0), (1, 1), (2, 2)] {
            let events = read!(db, store::job_events::list_events, job(1), after);
            assert_eq!(events, of_one[from..], "{engine}: after {after}");
        }
        let of_all = [queued, assigned, second];
        for (since, limit, range) in
            [(now(), 10, 0..3), (now(), 2, 0..2), (later(5), 10, 1..3), (later(6), 10, 3..3)]
        {
            let events = read!(db, store::job_events::list_org_events, org(1), since, limit);
            assert_eq!(events, of_all[range], "{engine}: since {since}");
        }
    }
}

/// The members, queued jobs and running jobs of each organization.
async fn org_counts(db: &Db) -> Vec<(i64, i64, i64)> {
    let search = OrgSearch {
        org: String::new(),
        slug: String::new(),
        name: String::new(),
        without_credit: false,
        order: OrgOrder::Created,
        sort: Sort::Asc,
        after: OrgPlace::default(),
        since_day: 0,
        rows: 10,
    };
    let orgs = read!(db, store::orgs::list_summaries, &search);
    orgs.into_iter().map(|org| (org.members, org.queued, org.running)).collect()
}

#[tokio::test]
async fn open_usage_and_job_counts_are_per_organization() {
    for (engine, db, _location) in engines("jobs_counts").await {
        with_catalogue(&db).await;
        for n in 1..=6 {
            submit(&db, new_job(n)).await.unwrap();
        }
        submit(&db, NewStoredJob { org: org(2), nano_per_second: 7, ..new_job(7) }).await.unwrap();
        assert_eq!(read!(db, store::jobs::open_use, org(1)), (0, 0), "{engine}");
        assert_eq!(org_counts(&db).await, [(0, 6, 0), (0, 1, 0)], "{engine}");
        change(&db, 2, |row| {
            row.phase.state = JobState::Running;
            (row.cost_micros, row.posted_micros) = (70, 50);
        })
        .await;
        change(&db, 3, |row| {
            row.phase.state = JobState::Stopping;
            row.cost_micros = 10;
        })
        .await;
        change(&db, 4, |row| row.phase.state = JobState::Starting).await;
        change(&db, 5, |row| row.phase.state = JobState::Assigned).await;
        change(&db, 6, |row| {
            row.phase.state = JobState::Succeeded;
            (row.cost_micros, row.posted_micros, row.ended_at) = (900, 100, Some(now()));
        })
        .await;
        change(&db, 7, |row| row.phase.state = JobState::Running).await;
        write(&db, |tx| {
            async move {
                store::accounts::insert_member(tx, org(1), user(1).id, Role::Owner).await?;
                store::accounts::insert_member(tx, org(1), user(2).id, Role::Viewer).await
            }
            .boxed()
        })
        .await;
        for (n, open_use) in [(1, (30, 2_000)), (2, (0, 7)), (9, (0, 0))] {
            assert_eq!(read!(db, store::jobs::open_use, org(n)), open_use, "{engine}: org {n}");
        }
        assert_eq!(org_counts(&db).await, [(2, 1, 4), (0, 0, 1)], "{engine}");
    }
}
