//! The snapshot for all gateways: built once after a change, and waited for by their long polls.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use berth_foundation::replica_tokens::TokenRoot;
use berth_rest::Disconnect;
use berth_serving::snapshot::{Key, MAX_SNAPSHOT_BYTES, Service, Snapshot};
use berth_store as store;
use berth_store::StoreError;
use berth_store::services::snapshots::ReplicaRow;
use berth_types::ids::{JobId, ServiceId};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde::Serialize;
use tokio::sync::{Mutex, watch};

use super::GatewaySync;
use super::callers::{Call, CallingGateway};
use super::contents::{self, Frame, Rows};

/// The longest wait of a poll.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(20);
/// The setting with a number above the numbers of all snapshots.
const RESERVED: &str = "gateway_snapshots";
/// The numbers that one write reserves: milliseconds of the clock.
const RESERVE: u64 = 10_000;

/// A valid snapshot as JSON.
#[derive(Debug, Clone)]
pub(super) struct Published {
    pub number: u64,
    /// The text after its opening brace: the fields of the receiver come before it.
    pub rest: Bytes,
    pub services: Arc<HashSet<ServiceId>>,
}

/// The state of the builder.
#[derive(Default)]
struct Builder {
    rows: Option<Rows>,
    last: u64,
    /// The numbers below it are reserved; absent before the first read.
    reserved: Option<u64>,
}

/// The last snapshot, and the next one in work.
pub(super) struct Snapshots {
    published: watch::Sender<Option<Published>>,
    builder: Mutex<Builder>,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self { published: watch::Sender::new(None), builder: Mutex::default() }
    }
}

impl Snapshots {
    /// The services of the last snapshot.
    pub fn services(&self) -> Arc<HashSet<ServiceId>> {
        self.published.borrow().as_ref().map(|last| last.services.clone()).unwrap_or_default()
    }
}

/// The fields of a snapshot that all gateways have in common.
#[derive(Serialize)]
struct Shared<'a> {
    version: u32,
    number: u64,
    authority: &'a str,
    services: &'a [Service],
    keys: &'a [Key],
}

/// Validates a snapshot and writes it as JSON.
fn publish(snapshot: &Snapshot, replicas: &[ReplicaRow]) -> Result<Published, String> {
    snapshot.validate().map_err(|fault| fault.to_string())?;
    let Snapshot { version, number, authority, services, keys, .. } = snapshot;
    let shared = Shared { version: *version, number: *number, authority, services, keys };
    let mut json = serde_json::to_vec(&shared).map_err(|e| e.to_string())?;
    if json.len() > MAX_SNAPSHOT_BYTES {
        return Err("the snapshot has more than 64 MiB".to_owned());
    }
    drop(json.drain(..1));
    // A stopped service is not in the snapshot, and its replicas wait for their last requests.
    let stopped = replicas.iter().map(|row| row.service_id);
    let services = services.iter().map(|service| service.id).chain(stopped).collect();
    Ok(Published { number: *number, rest: json.into(), services: Arc::new(services) })
}

impl GatewaySync {
    /// Waits for a change that concerns the snapshot.
    pub async fn snapshot_changed(&self) {
        self.wakes.changed().await;
    }

    /// Builds and publishes a snapshot if its contents have changed. Without it the last one stays.
    ///
    /// # Errors
    /// The database or a key cannot be read, or the snapshot has a fault.
    pub async fn refresh_snapshot(&self) -> Result<(), String> {
        let mut builder = self.snapshots.builder.lock().await;
        let now = self.context.now();
        let rows = {
            let mut conn = self.context.db.read().await.map_err(|e| e.to_string())?;
            Rows::read(&mut conn.tx(), now).await.map_err(|e| e.to_string())?
        };
        if builder.rows.as_ref() == Some(&rows) {
            return Ok(());
        }
        let number = self.next_number(&mut builder, now).await.map_err(|e| e.to_string())?;
        let (keys, authority) = (self.context.keys()?, self.enrolment.authority()?.certificate_pem());
        let root = {
            let mut conn = self.context.db.read().await.map_err(|e| e.to_string())?;
            TokenRoot::find(&mut conn.tx(), &keys).await.map_err(|e| e.to_string())?
        };
        let built = tokio::task::spawn_blocking(move || {
            let token = |job: JobId, attempt: u32| root.token(job, attempt, 0);
            let snapshot = contents::build(&rows, Frame { number, now, authority, token: &token });
            publish(&snapshot, &rows.replicas).map(|published| (published, rows))
        });
        let (published, rows) = match built.await {
            Ok(built) => built?,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => return Err(error.to_string()),
        };
        self.wakes.set_replicas(rows.replicas.iter().map(|row| row.job_id).collect());
        builder.rows = Some(rows);
        self.snapshots.published.send_replace(Some(published));
        Ok(())
    }

    /// The number of the next snapshot: the clock in milliseconds, and more than all before, also those before a
    /// restart of the portal.
    async fn next_number(&self, builder: &mut Builder, now: Timestamp) -> Result<u64, StoreError> {
        let reserved = match builder.reserved {
            Some(reserved) => reserved,
            None => {
                let mut conn = self.context.db.read().await?;
                let text = store::accounts::find_setting(&mut conn.tx(), RESERVED).await?;
                let before = text.and_then(|text| text.parse().ok()).unwrap_or(0);
                builder.last = before;
                before
            }
        };
        let number = u64::try_from(now.millis()).unwrap_or(0).max(builder.last.saturating_add(1));
        builder.reserved = Some(reserved);
        if number >= reserved {
            let reserved = number.saturating_add(RESERVE);
            let work = self.context.db.write(move |tx| {
                async move { store::accounts::put_setting(tx, RESERVED, &reserved.to_string()).await }.boxed()
            });
            work.await?;
            builder.reserved = Some(reserved);
        }
        builder.last = number;
        Ok(number)
    }

    /// The first snapshot with a number above `after`; absent if there is none within the time, or the gateway has
    /// disconnected.
    ///
    /// # Errors
    /// 429 if the gateway polls already. 401 if it was removed meanwhile.
    pub(super) async fn poll(
        &self,
        gateway: &CallingGateway,
        (after, wait): (u64, Duration),
        disconnect: &Disconnect,
    ) -> Result<Option<Published>, Problem> {
        let _place = self.callers.find_place(gateway, Call::Snapshot)?;
        let mut published = self.snapshots.published.subscribe();
        let newer = async {
            let is_newer = |last: &Option<Published>| last.as_ref().is_some_and(|last| last.number > after);
            published.wait_for(is_newer).await.ok().and_then(|last| last.clone())
        };
        let found = tokio::select! {
            biased;
            found = newer => found,
            () = tokio::time::sleep(wait.min(MAX_WAIT)) => None,
            () = disconnect.wait() => None,
        };
        self.check_still_valid(gateway).await?;
        Ok(found)
    }
}
