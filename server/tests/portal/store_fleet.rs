//! Tests of stored nodes, boards, offerings, attempts and allocations, on every engine.

use crate::common::{StoreLocation, engines};
use crate::fleet::*;
use berth_store::attempts::{HeldAllocation, StoredAllocation};
use berth_store::nodes::{BoardName, BoardOwner, GpuReport, NodeReport, StoredNode};
use berth_store::offerings::StoredPrice;
use berth_store::types::JsonColumn;
use berth_store::{self as store, StoreError};
use berth_types::ids::JobId;
use berth_types::jobs::JobState;
use futures::FutureExt;

#[tokio::test]
async fn a_join_token_is_used_once_before_its_expiry() {
    for (engine, db, _location) in engines("fleet_join_tokens").await {
        write(&db, |tx| {
            async move {
                store::nodes::insert_join_token(tx, join_token_id(1), "h1", "a@b", now(), later(60)).await?;
                store::nodes::insert_join_token(tx, join_token_id(2), "h2", "a@b", now(), later(60)).await
            }
            .boxed()
        })
        .await;
        assert!(!use_join_token(&db, "h9", now()).await, "{engine}: nobody made it");
        assert!(!use_join_token(&db, "h1", later(60)).await, "{engine}: its time is over");
        assert!(use_join_token(&db, "h1", later(59)).await, "{engine}");
        assert!(!use_join_token(&db, "h1", later(59)).await, "{engine}: it is spent");
        let spent = futures::future::join_all((0..8).map(|_| use_join_token(&db, "h2", now()))).await;
        assert_eq!(spent.into_iter().filter(|won| *won).count(), 1, "{engine}: one of eight wins");
        for (id, hash) in [(join_token_id(2), "h3"), (join_token_id(3), "h2")] {
            let twice = db
                .write(move |tx| {
                    async move {
                        store::nodes::insert_join_token(tx, id, hash, "a@b", now(), later(60)).await
                    }
                    .boxed()
                })
                .await;
            assert!(matches!(twice, Err(StoreError::Duplicate)), "{engine}: {twice:?}");
        }
    }
}

#[tokio::test]
async fn nodes_are_stored_with_unique_ids_and_states() {
    for (engine, db, _location) in engines("fleet_nodes").await {
        with_nodes(&db).await;
        let again = join(&db, 1, "gamma").await;
        assert!(matches!(again, Err(StoreError::Duplicate)), "{engine}: {again:?}");
        // Names are not unique; ids are.
        join(&db, 3, "alpha").await.unwrap();
        let rows = nodes(&db).await;
        let ids = rows.iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(ids, [node(1), node(3), node(2)], "{engine}: by name, then id");
        let fresh = &rows[0];
        assert_eq!((fresh.cordoned, fresh.simulated, fresh.unisolated), (false, false, false), "{engine}");
        assert_eq!((fresh.driver_version.as_str(), fresh.last_seen_at), ("", None), "{engine}");

        for (n, there) in [(2, true), (2, true), (9, false)] {
            let answer = write(&db, move |tx| {
                async move {
                    store::nodes::touch(tx, node(n), later(7)).await?;
                    store::nodes::set_cordoned(tx, node(n), true).await
                }
                .boxed()
            });
            assert_eq!(answer.await, there, "{engine}: node {n}");
        }
        let after = |row: &StoredNode| (row.name.clone(), row.cordoned, row.last_seen_at);
        let rows = nodes(&db).await;
        assert_eq!(rows.len(), 3, "{engine}: a word of an unknown node makes none");
        assert_eq!(after(&rows[0]), ("alpha".to_owned(), false, None), "{engine}");
        assert_eq!(after(&rows[2]), ("beta".to_owned(), true, Some(later(7))), "{engine}");
        write(&db, |tx| async move { store::nodes::set_cordoned(tx, node(2), false).await }.boxed()).await;
        assert!(!nodes(&db).await[2].cordoned, "{engine}");
    }
}

#[tokio::test]
async fn a_node_report_replaces_the_previous_one() {
    for (engine, db, _location) in engines("fleet_reports").await {
        with_nodes(&db).await;
        report(&db, 1, host(vec![board("gpu-a", 0), board("gpu-b", 1)]), now()).await.unwrap();
        let places = async || {
            let rows = read!(db, store::nodes::list_gpus);
            rows.into_iter().map(|g| (g.uuid, g.node_id, g.idx, g.present)).collect::<Vec<_>>()
        };
        let place = |gpu: &str, n, idx: i64, present| (gpu.to_owned(), node(n), idx, present);
        assert_eq!(places().await, [place("gpu-a", 1, 0, true), place("gpu-b", 1, 1, true)], "{engine}");
        let alpha = nodes(&db).await.remove(0);
        assert_eq!((alpha.simulated, alpha.unisolated), (true, false), "{engine}");
        assert_eq!(alpha.last_seen_at, Some(now()), "{engine}");

        let other = GpuReport {
            model: "A100".to_owned(),
            memory_mib: 40_960,
            mig_enabled: false,
            foreign_instances: JsonColumn(vec![(19, 0)]),
            ..board("gpu-b", 0)
        };
        let second = NodeReport {
            labels: JsonColumn::default(),
            isolation: JsonColumn([("memory".to_owned(), "cgroup v2".to_owned())].into()),
            images: true,
            gang_ports: None,
            rdma_ports: JsonColumn::default(),
            egress: true,
            host_network: true,
            host_mounts: JsonColumn::default(),
            checks_rdma_links: false,
            inference_port: 0,
            simulated: false,
            unisolated: true,
            driver_version: "560".to_owned(),
            worker_version: "0.2".to_owned(),
            cpu_milli: 8_000,
            memory_mib: 32_000,
            address: "10.0.0.2".to_owned(),
            boards: vec![other],
        };
        report(&db, 1, second.clone(), later(10)).await.unwrap();
        assert_eq!(places().await, [place("gpu-a", 1, 0, false), place("gpu-b", 1, 0, true)], "{engine}");
        let rows = read!(db, store::nodes::list_gpus);
        assert_eq!((rows[0].model.as_str(), rows[0].memory_mib), ("H100", 81_920), "{engine}");
        assert_eq!((rows[1].model.as_str(), rows[1].memory_mib), ("A100", 40_960), "{engine}");
        assert_eq!((rows[1].mig_enabled, rows[1].foreign_instances.as_slice()), (false, &[(19, 0)][..]));
        let alpha = nodes(&db).await.remove(0);
        assert_eq!((alpha.simulated, alpha.unisolated), (false, true), "{engine}");
        assert_eq!(alpha.isolation["memory"], "cgroup v2", "{engine}");
        assert_eq!((alpha.egress, alpha.host_network), (true, true), "{engine}");
        assert_eq!((alpha.driver_version.as_str(), alpha.worker_version.as_str()), ("560", "0.2"));
        assert_eq!((alpha.cpu_milli, alpha.memory_mib, alpha.address.as_str()), (8_000, 32_000, "10.0.0.2"));
        assert_eq!(alpha.last_seen_at, Some(later(10)), "{engine}");

        let asked = ["gpu-b".to_owned(), "gpu-x".to_owned()];
        let (uuid, node_name, model) = ("gpu-b".to_owned(), "alpha".to_owned(), "A100".to_owned());
        let names = [BoardName { uuid, node_id: node(1), node_name, idx: 0, model }];
        assert_eq!(read!(db, store::nodes::list_board_names, &asked), names, "{engine}");

        // A board moves to another host, and a later report of the old host leaves it there.
        report(&db, 2, host(vec![board("gpu-a", 3)]), later(20)).await.unwrap();
        report(&db, 1, second, later(30)).await.unwrap();
        let carried = [place("gpu-b", 1, 0, true), place("gpu-a", 2, 3, true)];
        assert_eq!(places().await, carried, "{engine}");

        report(&db, 9, host(vec![]), now()).await.unwrap();
        for gpu in ["gpu-a", "gpu-c"] {
            let unknown = report(&db, 9, host(vec![board(gpu, 0)]), now()).await;
            assert!(matches!(unknown, Err(StoreError::Engine(_))), "{engine}: {unknown:?}");
        }
        assert_eq!(places().await, carried, "{engine}: an unknown node has no boards and takes none");
        assert_eq!(nodes(&db).await.len(), 2, "{engine}");
    }
}

#[tokio::test]
async fn the_owner_of_a_board_that_another_node_reports_is_found() {
    for (engine, db, _location) in engines("fleet_claims").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        report(&db, 1, host(vec![board("gpu-a", 0)]), now()).await.unwrap();
        for (gpu, n) in [("gpu-a", 1), ("gpu-x", 2)] {
            let none = read!(db, store::nodes::find_other_owner, gpu, node(n));
            assert_eq!(none, None, "{engine}: its own, or nobody's");
        }
        let of_alpha = |present, held| {
            let (node_id, node_name) = (node(1), "alpha".to_owned());
            Some(BoardOwner { node_id, node_name, present, held, approved: true })
        };
        let other = async || read!(db, store::nodes::find_other_owner, "gpu-a", node(2));
        assert_eq!(other().await, of_alpha(true, false), "{engine}");
        allocate(&db, slice(1, 1, 0, "gpu-a", 0)).await.unwrap();
        assert_eq!(other().await, of_alpha(true, true), "{engine}");
        report(&db, 1, host(vec![]), later(1)).await.unwrap();
        assert_eq!(other().await, of_alpha(false, true), "{engine}");
        release(&db, 1, 1).await;
        assert_eq!(other().await, of_alpha(false, false), "{engine}");

        for (boards, changes) in [("", false), ("gpu-a", true), ("gpu-a", false), ("", true)] {
            let set = write(&db, move |tx| {
                async move { store::nodes::set_gpus_left_out(tx, node(2), boards).await }.boxed()
            });
            assert_eq!(set.await, changes, "{engine} {boards:?}");
            assert_eq!(nodes(&db).await[1].gpus_left_out, boards, "{engine}");
        }
    }
}

#[tokio::test]
async fn a_quarantine_lasts_until_the_board_is_reported_anew() {
    for (engine, db, _location) in engines("fleet_quarantine").await {
        with_nodes(&db).await;
        let all = || host(vec![board("gpu-a", 0), board("gpu-b", 1), board("gpu-c", 2)]);
        let why = |gpu: &str, reason: &str| (gpu.to_owned(), reason.to_owned());
        report(&db, 1, all(), now()).await.unwrap();
        for row in [slice(1, 1, 0, "gpu-a", 0), slice(1, 1, 1, "gpu-b", 0), slice(2, 1, 0, "gpu-b", 1)] {
            allocate(&db, row).await.unwrap();
        }
        quarantine(&db, 1, 2, "another attempt").await;
        assert!(quarantined(&db).await.is_empty(), "{engine}");
        quarantine(&db, 2, 1, "lost").await;
        assert_eq!(quarantined(&db).await, [why("gpu-b", "lost")], "{engine}");
        quarantine(&db, 1, 1, "hot").await;
        assert_eq!(quarantined(&db).await, [why("gpu-a", "hot"), why("gpu-b", "hot")], "{engine}");
        // Reports of other nodes, and reports without the board, do not end the quarantine.
        report(&db, 2, host(vec![board("gpu-d", 0)]), now()).await.unwrap();
        report(&db, 1, host(vec![board("gpu-a", 0)]), now()).await.unwrap();
        assert_eq!(quarantined(&db).await, [why("gpu-b", "hot")], "{engine}");
        report(&db, 1, all(), now()).await.unwrap();
        assert!(quarantined(&db).await.is_empty(), "{engine}");
        assert!(read!(db, store::nodes::list_gpus).iter().all(|gpu| gpu.present), "{engine}");
    }
}

#[tokio::test]
async fn an_attempt_stays_open_on_its_node_until_it_is_closed() {
    for (engine, db, _location) in engines("fleet_attempts").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        for (j, number, n) in [(3, 1, 1), (1, 2, 1), (1, 1, 1), (2, 1, 2)] {
            start(&db, j, number, n).await.unwrap();
        }
        let twice = start(&db, 1, 1, 2).await;
        assert!(matches!(twice, Err(StoreError::Duplicate)), "{engine}: {twice:?}");
        for (j, number, n) in [(9, 1, 1), (1, 3, 9)] {
            let unknown = start(&db, j, number, n).await;
            assert!(matches!(unknown, Err(StoreError::Engine(_))), "{engine}: {unknown:?}");
        }
        let one = |j, number: i64| (job(j), number);
        assert_eq!(open_on(&db, 1).await, [one(1, 1), one(1, 2), one(3, 1)], "{engine}");
        assert_eq!(open_on(&db, 2).await, [one(2, 1)], "{engine}");
        assert!(open_on(&db, 9).await.is_empty(), "{engine}");

        for (j, number, n) in [(1, 1, 2), (1, 3, 1), (9, 1, 1)] {
            let none = read!(db, store::attempts::find, job(j), number, node(n));
            assert!(none.is_none(), "{engine}: {none:?}");
        }
        let rank = read!(db, store::attempts::find_node_rank, job(1), 1, node(1)).unwrap();
        assert_eq!((rank.rank, rank.is_open, rank.created_at), (0, true, now()), "{engine}");
        let none = read!(db, store::attempts::find_node_rank, job(1), 1, node(2));
        assert!(none.is_none(), "{engine}: {none:?}");
        let mut row = read!(db, store::attempts::find, job(1), 1, node(1)).unwrap();
        assert_eq!((row.org_id, row.node_id), (org(), node(1)), "{engine}");
        assert_eq!((row.known, row.ended, row.clean), (false, false, false), "{engine}");
        assert_eq!((row.log_bytes, row.is_open), (None, true), "{engine}");

        row.known = true;
        row.ended = true;
        row.log_bytes = Some(4_096);
        update_attempt(&db, &row).await;
        for (j, number, bytes) in [(1, 1, Some(4_096)), (1, 2, None), (2, 1, None), (9, 1, None)] {
            let answer = read!(db, store::attempts::find_log_end, job(j), number, 0);
            assert_eq!(answer.and_then(|end| end.log_bytes), bytes, "{engine}: job {j}, attempt {number}");
        }
        assert_eq!(open_on(&db, 1).await.len(), 3, "{engine}: an end alone closes nothing");
        let open = read!(db, store::attempts::list_open, node(1));
        let specs: Vec<_> = open.iter().map(|row| (row.known, row.spec.is_some())).collect();
        let unknown = (false, true);
        assert_eq!(specs, [(true, false), unknown, unknown], "{engine}: what is known is not read again");
        assert_eq!(
            (open[1].phase.state, open[1].latest, open[1].lease_ms),
            (JobState::Queued, 0, 0),
            "{engine}"
        );
        row.clean = true;
        row.is_open = false;
        update_attempt(&db, &row).await;
        assert_eq!(open_on(&db, 1).await, [one(1, 2), one(3, 1)], "{engine}");
        assert_eq!(open_on(&db, 2).await, [one(2, 1)], "{engine}");
        let closed = read!(db, store::attempts::find, job(1), 1, node(1)).unwrap();
        assert_eq!((closed.known, closed.ended, closed.clean, closed.is_open), (true, true, true, false));
        assert_eq!(closed.log_bytes, Some(4_096), "{engine}");
        let next = read!(db, store::attempts::find, job(1), 2, node(1)).unwrap();
        assert_eq!((next.known, next.ended, next.clean, next.is_open), (false, false, false, true));
    }
}

#[tokio::test]
async fn an_attempt_has_a_lease_only_on_a_node_that_keeps_leases() {
    for (engine, db, _location) in engines("fleet_leases").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        let lost =
            write(&db, |tx| async move { store::leases::mark_returned(tx, node(1), true).await }.boxed());
        assert!(!lost.await, "{engine}");
        start(&db, 1, 1, 1).await.unwrap();
        start(&db, 2, 1, 2).await.unwrap();
        let unended = async |n| read!(db, store::leases::list_unended, node(n));
        let lease_ms = [unended(1).await[0].lease_ms, unended(2).await[0].lease_ms];
        assert_eq!(lease_ms, [LEASE_MS, 0], "{engine}");
    }
}

#[tokio::test]
async fn slices_are_held_until_they_are_released() {
    for (engine, db, _location) in engines("fleet_slices").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        let boards = vec![board("gpu-a", 0), board("gpu-b", 1), board("gpu-c", 2)];
        report(&db, 1, host(boards), now()).await.unwrap();
        let whole = StoredAllocation { profile_id: None, size: 8, ..slice(3, 1, 0, "gpu-c", 0) };
        let first = [slice(1, 1, 1, "gpu-b", 0), slice(1, 1, 0, "gpu-a", 4), slice(2, 1, 0, "gpu-a", 0)];
        for row in first.into_iter().chain([whole]) {
            allocate(&db, row).await.unwrap();
        }
        let twice = allocate(&db, slice(1, 1, 0, "gpu-b", 3)).await;
        assert!(matches!(twice, Err(StoreError::Duplicate)), "{engine}: {twice:?}");
        let unknown = allocate(&db, slice(1, 1, 2, "gpu-x", 0)).await;
        assert!(matches!(unknown, Err(StoreError::Engine(_))), "{engine}: {unknown:?}");
        let all = [hold("gpu-a", 0, 2, 1), hold("gpu-a", 4, 1, 1), hold("gpu-b", 0, 1, 1)];
        assert_eq!(held(&db).await, [&all[..], &[hold("gpu-c", 0, 3, 1)]].concat(), "{engine}");
        let rows = read!(db, store::attempts::list_held);
        let place = |a: &StoredAllocation| (a.gpu_uuid.clone(), a.start, a.job_id);
        let taken: Vec<_> = read!(db, store::attempts::list_held_allocations).iter().map(place).collect();
        assert_eq!(taken, rows.iter().map(|r| place(&r.allocation)).collect::<Vec<_>>(), "{engine}");
        assert_eq!((rows[3].allocation.profile_id, rows[3].allocation.size), (None, 8), "{engine}");
        assert_eq!((rows[0].allocation.profile_id, rows[0].allocation.size), (Some(19), 1), "{engine}");
        assert_eq!((rows[0].job_name.as_str(), rows[0].org_name.as_str()), ("job 2", "harbour"), "{engine}");
        assert_eq!((rows[0].started_at, rows[0].preemptible, rows[0].priority), (None, false, 1), "{engine}");
        assert_eq!((rows[0].phase.state, rows[0].cells), (JobState::Queued, 8), "{engine}");
        assert_eq!((rows[0].cpu_milli, rows[0].memory_mib), (4_000, 0), "{engine}");
        assert_eq!(rows[0].max_duration_s, 60, "{engine}");

        write(&db, |tx| {
            async move { store::attempts::set_mig_uuid(tx, job(1), 1, 1, "MIG-1").await }.boxed()
        })
        .await;
        mark_unclean(&db, 2, 1, "a shim").await;
        mark_unclean(&db, 2, 1, "a process").await;
        let mut stained = hold("gpu-a", 0, 2, 1);
        stained.4 = Some("a process".to_owned());
        assert_eq!(held(&db).await[..2], [stained, hold("gpu-a", 4, 1, 1)], "{engine}");
        let boards = ["gpu-a", "gpu-c", "gpu-x"].map(str::to_owned);
        let devices = read!(db, store::attempts::list_held_devices, &boards);
        let brief: Vec<_> = devices.iter().map(|d| (d.gpu_uuid.as_str(), d.start, d.unclean)).collect();
        assert_eq!(brief, [("gpu-a", 0, true), ("gpu-a", 4, false), ("gpu-c", 0, false)], "{engine}");
        assert!(devices.iter().all(|d| d.reservation_id.is_none()), "{engine}: {devices:?}");
        assert_eq!((devices[0].profile_id, devices[2].profile_id), (Some(19), None), "{engine}");

        // Only the allocations of this attempt are released; its record stays and takes no unclean reason any
        // more.
        release(&db, 1, 2).await;
        assert_eq!(held(&db).await.len(), 4, "{engine}");
        release(&db, 1, 1).await;
        release(&db, 2, 1).await;
        assert_eq!(held(&db).await, [hold("gpu-c", 0, 3, 1)], "{engine}");
        mark_unclean(&db, 1, 1, "too late").await;
        let had = read!(db, store::attempts::list_allocations, job(1), 1);
        let slots = had.iter().map(|a| (a.idx, a.gpu_uuid.as_str(), a.start, a.mig_uuid.as_deref()));
        assert_eq!(slots.collect::<Vec<_>>(), [(0, "gpu-a", 4, None), (1, "gpu-b", 0, Some("MIG-1"))]);
        assert!(had.iter().all(|a| a.unclean.is_none()), "{engine}: {had:?}");
        let had = read!(db, store::attempts::list_allocations, job(2), 1);
        assert_eq!((had.len(), &had[0].unclean), (1, &None), "{engine}: a release washes the stain off");
        assert!(read!(db, store::attempts::list_allocations, job(1), 2).is_empty(), "{engine}");

        allocate(&db, slice(1, 2, 0, "gpu-a", 4)).await.unwrap();
        assert_eq!(held(&db).await, [hold("gpu-a", 4, 1, 2), hold("gpu-c", 0, 3, 1)], "{engine}");
    }
}

#[tokio::test]
async fn allocations_of_several_jobs_are_read_at_once() {
    for (engine, db, _location) in engines("fleet_several").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        report(&db, 1, host(vec![board("gpu-a", 0), board("gpu-b", 1)]), now()).await.unwrap();
        let others = [slice(3, 1, 0, "gpu-a", 0), slice(2, 1, 0, "gpu-a", 2)];
        let first = [slice(1, 2, 0, "gpu-a", 1), slice(1, 1, 1, "gpu-b", 0), slice(1, 1, 0, "gpu-b", 1)];
        for row in others.into_iter().chain(first) {
            allocate(&db, row).await.unwrap();
        }
        for number in [2, 1] {
            start(&db, 1, number, 1).await.unwrap();
        }
        let asked = [9, 3, 1, 1].map(job);
        let one = |j, attempt: i64, idx: i64| (job(j), attempt, idx);
        let brief = |rows: Vec<HeldAllocation>| -> Vec<(JobId, i64, i64)> {
            rows.into_iter().map(|row| row.allocation).map(|a| (a.job_id, a.attempt, a.idx)).collect()
        };
        let held = brief(read!(db, store::attempts::list_held_by, &asked));
        assert_eq!(held, [one(1, 1, 0), one(1, 1, 1), one(1, 2, 0), one(3, 1, 0)], "{engine}");
        release(&db, 1, 1).await;
        let held = brief(read!(db, store::attempts::list_held_by, &asked));
        assert_eq!(held, [one(1, 2, 0), one(3, 1, 0)], "{engine}");
        assert!(read!(db, store::attempts::list_held_by, &[]).is_empty(), "{engine}");

        // Only allocations of the latest attempt are listed, held or released; at first no attempt is the
        // latest.
        let latest = async || -> Vec<(JobId, i64, i64)> {
            let rows = read!(db, store::attempts::list_latest_allocations, &asked);
            rows.into_iter().map(|a| (a.job_id, a.attempt, a.idx)).collect()
        };
        assert!(latest().await.is_empty(), "{engine}: no attempt is the latest");
        for (number, expected) in [(1, [one(1, 1, 0), one(1, 1, 1)].to_vec()), (2, vec![one(1, 2, 0)])] {
            write(&db, move |tx| {
                async move {
                    let mut row = store::jobs::find_any(tx, job(1)).await?.unwrap();
                    row.attempt = number;
                    row.generation += 1;
                    store::jobs::update(tx, &row, row.generation - 1).await
                }
                .boxed()
            })
            .await;
            assert_eq!(latest().await, expected, "{engine}");
            let ranks = read!(db, store::attempts::list_latest_ranks, &asked);
            let ranks: Vec<_> = ranks.iter().map(|row| (row.job_id, row.number, row.rank)).collect();
            assert_eq!(ranks, [one(1, number, 0)], "{engine}");
        }
        assert!(read!(db, store::attempts::list_latest_allocations, &[]).is_empty(), "{engine}");
    }
}

#[tokio::test]
async fn an_offering_shows_its_latest_price() {
    for (engine, db, location) in engines("fleet_offerings").await {
        let add = async |n: u128, slug: &'static str, model: &'static str, cells: i64| {
            db.write(move |tx| {
                async move { store::offerings::insert(tx, &offering(n, slug, model, cells), now()).await }
                    .boxed()
            })
            .await
        };
        let price = async |n: u128, version: i64, nano_per_second: i64| {
            let (id, price) = (
                offering(n, "", "", 1).id,
                StoredPrice { version, nano_per_second, ..StoredPrice::default() },
            );
            db.write(move |tx| {
                async move { store::offerings::insert_price(tx, id, price, now(), "a@b").await }.boxed()
            })
            .await
        };
        assert!(add(1, "h100.1b", "H100", 1).await.unwrap(), "{engine}");
        assert!(add(2, "h100.1a", "H100", 1).await.unwrap(), "{engine}");
        assert!(add(3, "h100", "H100", 8).await.unwrap(), "{engine}");
        assert!(add(4, "a100.1", "A100", 1).await.unwrap(), "{engine}");
        assert!(!add(5, "h100", "A100", 7).await.unwrap(), "{engine}: the slug is taken, the first stays");
        let twice = add(1, "h100.1c", "H100", 1).await;
        assert!(matches!(twice, Err(StoreError::Duplicate)), "{engine}: {twice:?}");
        let catalogue = [
            offering(4, "a100.1", "A100", 1),
            offering(3, "h100", "H100", 8),
            offering(2, "h100.1a", "H100", 1),
            offering(1, "h100.1b", "H100", 1),
        ];
        assert_eq!(read!(db, store::offerings::list, later(1)), catalogue, "{engine}");
        assert_eq!(
            read!(db, store::offerings::find, "h100", later(1)),
            Some(catalogue[1].clone()),
            "{engine}"
        );
        assert_eq!(read!(db, store::offerings::find, "h200", later(1)), None, "{engine}");

        for (n, version, nano) in [(3, 1, 500), (3, 2, 700), (4, 1, 0)] {
            price(n, version, nano).await.unwrap();
        }
        let twice = price(3, 2, 900).await;
        assert!(matches!(twice, Err(StoreError::Duplicate)), "{engine}: {twice:?}");
        let below = price(3, 3, -1).await;
        assert!(matches!(below, Err(StoreError::Refused)), "{engine}: {below:?}");
        let unknown = price(9, 1, 1).await;
        assert!(matches!(unknown, Err(StoreError::Engine(_))), "{engine}: {unknown:?}");
        let latest = Some(StoredPrice { version: 2, nano_per_second: 700, ..StoredPrice::default() });
        let free = Some(StoredPrice { version: 1, ..StoredPrice::default() });
        let prices =
            read!(db, store::offerings::list, later(1)).into_iter().map(|o| o.price).collect::<Vec<_>>();
        assert_eq!(prices, [free, latest, None, None], "{engine}");
        let whole = read!(db, store::offerings::find, "h100", later(1)).unwrap();
        assert_eq!((whole.price, whole.mig_profile), (latest, None), "{engine}");

        // A price version cannot be changed by direct SQL either.
        for sql in ["UPDATE prices SET nano_per_second = 1", "DELETE FROM prices"] {
            use sqlx::Connection;
            let refused = match &location {
                StoreLocation::Sqlite(dir) => {
                    let url = format!("sqlite://{}", dir.path().join("berth.db").display());
                    let mut raw = sqlx::SqliteConnection::connect(&url).await.unwrap();
                    sqlx::query(sql).execute(&mut raw).await.is_err()
                }
                StoreLocation::Postgres(url) => {
                    let mut raw = sqlx::PgConnection::connect(url).await.unwrap();
                    sqlx::query(sql).execute(&mut raw).await.is_err()
                }
            };
            assert!(refused, "{engine}: {sql}");
        }
    }
}
