//! What the portal says of itself for Prometheus. Sums over everyone: nothing in it tells tenants apart.

use std::fmt::Write;

use crate::portal::Portal;
use crate::store::{self, StoreError};

/// One family in the text format of Prometheus.
fn family(out: &mut String, name: &str, kind: &str, help: &str, rows: &[(String, i64)]) {
    // Writing into a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in rows {
        let _ = writeln!(out, "{name}{labels} {value}");
    }
}

fn plain(value: i64) -> Vec<(String, i64)> {
    vec![(String::new(), value)]
}

impl Portal {
    /// The text of `/metrics`.
    pub async fn metrics(&self) -> Result<String, StoreError> {
        let connected = self.live.connected();
        let last = self.last_reconciliation().await?;
        let mut conn = self.db.read().await?;
        let mut tx = conn.tx();
        let jobs = store::jobs::count_by_state(&mut tx).await?;
        let nodes = store::nodes::list(&mut tx).await?;
        let gpus = store::nodes::list_gpus(&mut tx).await?;
        let reservations = store::reservations::list_holding(&mut tx).await?;
        drop(conn);
        let up = |id: &str| id.parse().is_ok_and(|node| connected.contains(&node));
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let reachable = nodes.iter().filter(|n| up(&n.id)).count();
        let sick = gpus.iter().filter(|g| g.present && g.quarantined.is_some()).count();
        let mut out = String::new();
        let by_state: Vec<(String, i64)> =
            jobs.into_iter().map(|(state, n)| (format!("{{state=\"{state}\"}}"), n)).collect();
        family(&mut out, "berth_jobs", "gauge", "Jobs that have not ended, by state.", &by_state);
        let both = [
            ("{state=\"reachable\"}".to_owned(), count(reachable)),
            ("{state=\"unreachable\"}".to_owned(), count(nodes.len() - reachable)),
        ];
        family(&mut out, "berth_nodes", "gauge", "Nodes, by whether their worker is connected.", &both);
        let present = gpus.iter().filter(|g| g.present).count();
        family(&mut out, "berth_gpus", "gauge", "Boards that workers report.", &plain(count(present)));
        family(&mut out, "berth_gpus_quarantined", "gauge", "Boards out of service.", &plain(count(sick)));
        let active = reservations.iter().filter(|r| r.state == "active").count();
        family(
            &mut out,
            "berth_reservations_active",
            "gauge",
            "Reservations and maintenance now.",
            &plain(count(active)),
        );
        if let Some(last) = last {
            let help = "What did not add up when the books were looked at last; 0 is right.";
            family(&mut out, "berth_ledger_mismatches", "gauge", help, &plain(count(last.mismatches.len())));
            let at_s = last.at.micros() / 1_000_000;
            family(
                &mut out,
                "berth_ledger_reconciled_timestamp_seconds",
                "gauge",
                "When that was.",
                &plain(at_s),
            );
        }
        Ok(out)
    }
}
