//! The tasks between gateway and portal: snapshots, reports and credit.
//!
//! Without the portal the gateway goes on with its last snapshot, and repeats reports and messages until they are
//! answered.

use std::sync::Arc;
use std::time::Duration;

use berth_serving::reports::GatewayReport;
use rand::Rng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::portal::{MAX_MESSAGES, Portal};
use crate::shared::Shared;

/// The pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The least time of a question that the portal answers with nothing.
const LEAST_POLL: Duration = Duration::from_secs(1);
/// The time between two reports, and the least one.
const REPORT_EVERY: Duration = Duration::from_secs(1);
const REPORT_PAUSE: Duration = Duration::from_millis(50);
/// The time between two looks at what is due by time alone.
const TICK_EVERY: Duration = Duration::from_secs(1);
/// The time between two rounds of messages about credit, without and with a waiting request.
const CREDIT_EVERY: Duration = Duration::from_secs(1);
const CREDIT_AGAIN: Duration = Duration::from_millis(100);
/// The time for which an ask that no request waits for yet is kept for those of other keys.
const CREDIT_TOGETHER: Duration = Duration::from_millis(20);
/// The longest time of the last reports at a stop.
const LAST_REPORTS: Duration = Duration::from_secs(5);
/// Rounds of the last messages about credit.
const LAST_ROUNDS: usize = 8;

/// Growing pauses after failures, with a random part. The first success of a task ends the pauses of the others: the
/// portal is there again, and requests wait for credit.
struct Backoff {
    failures: u32,
    /// The number of returns of the portal.
    returns: watch::Sender<u64>,
    seen: watch::Receiver<u64>,
}

impl Backoff {
    fn new(returns: &watch::Sender<u64>) -> Self {
        Self { failures: 0, returns: returns.clone(), seen: returns.subscribe() }
    }

    /// Waits after a failure, at most until the next return of the portal. Only the first of a row is a warning.
    async fn wait(&mut self, what: &'static str, error: &str) {
        if self.failures == 0 {
            tracing::warn!(error, "{what}");
        } else {
            tracing::debug!(error, "{what}");
        }
        let pause = self.pause();
        // A return during the failed request counts too.
        let _ = timeout(pause, self.seen.changed()).await;
    }

    /// The next pause.
    fn pause(&mut self) -> Duration {
        let longest = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        longest.mul_f64(rand::rng().random_range(0.5..1.0))
    }

    fn succeed(&mut self, what: &'static str) {
        if std::mem::take(&mut self.failures) > 0 {
            tracing::info!("{what}");
            self.returns.send_modify(|count| *count = count.wrapping_add(1));
        }
        // A return before this success is no reason to try again after the next failure.
        self.seen.mark_unchanged();
    }
}

/// Starts the tasks. None of them ends by itself.
pub fn start(shared: &Arc<Shared>, portal: &Portal) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let returns = watch::Sender::default();
    tasks.spawn(follow_snapshots(shared.clone(), portal.clone(), Backoff::new(&returns)));
    tasks.spawn(send_reports(shared.clone(), portal.clone(), Backoff::new(&returns)));
    tasks.spawn(exchange_credit(shared.clone(), portal.clone(), Backoff::new(&returns)));
    tasks.spawn(tick(shared.clone()));
    tasks
}

/// Does what is due by time alone. Nothing of it waits for the portal.
async fn tick(shared: Arc<Shared>) {
    loop {
        sleep(TICK_EVERY).await;
        shared.tick();
    }
}

async fn follow_snapshots(shared: Arc<Shared>, portal: Portal, mut backoff: Backoff) {
    loop {
        let began = Instant::now();
        match next_snapshot(&shared, &portal).await {
            Ok(is_new) => {
                shared.confirm();
                backoff.succeed("the portal answers again");
                if !is_new {
                    // A portal that answers at once is asked no more than once a second.
                    tokio::time::sleep_until(began + LEAST_POLL).await;
                }
            }
            Err(error) => {
                backoff.wait("the gateway gets no snapshot and goes on with the last one", &error).await
            }
        }
    }
}

/// Waits for the next snapshot and takes it over. Returns false if there is none yet.
async fn next_snapshot(shared: &Arc<Shared>, portal: &Portal) -> Result<bool, String> {
    if shared.is_unkept() {
        let shared = shared.clone();
        tokio::task::spawn_blocking(move || shared.keep_again()).await.map_err(|e| e.to_string())?;
    }
    let Some(text) = portal.snapshot(shared.snapshot_number()).await? else { return Ok(false) };
    let shared = shared.clone();
    let taken = tokio::task::spawn_blocking(move || shared.renew(&text));
    taken.await.map_err(|e| e.to_string())?.map(|()| true)
}

async fn send_reports(shared: Arc<Shared>, portal: Portal, mut backoff: Backoff) {
    loop {
        // A waiting request is reported at once.
        let _ = timeout(REPORT_EVERY, shared.report_due.notified()).await;
        match send_report(&shared, &portal).await {
            Ok(()) => {
                backoff.succeed("the portal gets reports again");
                sleep(REPORT_PAUSE).await;
            }
            Err(error) => backoff.wait("a report does not reach the portal", &error).await,
        }
    }
}

/// Sends the report on its way, or the next one, with the present load.
async fn send_report(shared: &Shared, portal: &Portal) -> Result<(), String> {
    let journal = |e: std::io::Error| format!("the journal: {e}");
    let outgoing = shared.ledger.report().map_err(journal)?;
    let number = outgoing.number;
    if !outgoing.uses.is_empty() || !outgoing.faults.is_empty() {
        // The use in a counted report stays out of all later reports.
        shared.ledger.sync().await.map_err(journal)?;
    }
    let report = GatewayReport {
        life: outgoing.life,
        number,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        snapshot: shared.snapshot_number(),
        loads: shared.loads(),
        uses: outgoing.uses,
        faults: outgoing.faults,
        drained: shared.drained(),
    };
    let answer = portal.report(&report).await;
    if answer.is_err() {
        shared.restore_loads(&report.loads);
    }
    let answer = answer?;
    if answer.counted_through < number {
        return Err(format!("the portal has counted up to report {}, not {number}", answer.counted_through));
    }
    shared.ledger.counted();
    Ok(())
}

async fn exchange_credit(shared: Arc<Shared>, portal: Portal, mut backoff: Backoff) {
    loop {
        let every = if shared.ledger.is_awaited() { CREDIT_AGAIN } else { CREDIT_EVERY };
        let _ = timeout(every, shared.ledger.asked()).await;
        if !shared.ledger.is_awaited() {
            sleep(CREDIT_TOGETHER).await;
        }
        // A message can have an answer that is news for the portal, such as the rest of a recalled block.
        loop {
            let sent = send_messages(&shared, &portal).await;
            shared.ledger.set_reached(sent.is_ok());
            match sent {
                Ok(has_news) => {
                    backoff.succeed("the portal lends again");
                    if !has_news {
                        break;
                    }
                }
                Err(error) => {
                    backoff.wait("the messages about credit do not reach the portal", &error).await;
                    break;
                }
            }
        }
    }
}

/// Sends the present messages about credit and applies the answers. Returns true if an answer ends a block.
async fn send_messages(shared: &Shared, portal: &Portal) -> Result<bool, String> {
    let messages = shared.ledger.messages();
    if messages.is_empty() {
        // The recall of a block comes only in an answer.
        if shared.ledger.has_blocks() {
            return Ok(shared.ledger.receive(&portal.credit(&[]).await?));
        }
        return Ok(false);
    }
    shared.ledger.sync().await.map_err(|e| format!("the journal: {e}"))?;
    let mut has_news = false;
    for part in messages.chunks(MAX_MESSAGES) {
        has_news |= shared.ledger.receive(&portal.credit(part).await?);
    }
    Ok(has_news)
}

/// Sends the last reports at a stop, as far as the portal answers.
pub async fn report_last(shared: &Shared, portal: &Portal) {
    let all = async {
        for _ in 0..LAST_ROUNDS {
            if shared.ledger.messages().is_empty() {
                break;
            }
            send_messages(shared, portal).await?;
        }
        // The one on its way, and one with the rest.
        send_report(shared, portal).await?;
        send_report(shared, portal).await
    };
    match timeout(LAST_REPORTS, all).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error, "the last report waits for the next start"),
        Err(_) => tracing::warn!("the last report waits for the next start: the portal is too slow"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Backoffs of one gateway whose next pause is a longest one.
    fn backoffs() -> [Backoff; 2] {
        let returns = watch::Sender::default();
        [
            Backoff { failures: 20, ..Backoff::new(&returns) },
            Backoff { failures: 20, ..Backoff::new(&returns) },
        ]
    }

    /// True if the next wait ends within a fifth of a longest pause.
    async fn ends_early(backoff: &mut Backoff) -> bool {
        timeout(LONGEST_PAUSE / 5, backoff.wait("no answer", "refused")).await.is_ok()
    }

    /// True if the next wait ends within a moment.
    async fn ends_at_once(backoff: &mut Backoff) -> bool {
        timeout(Duration::from_millis(50), backoff.wait("no answer", "refused")).await.is_ok()
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(&watch::Sender::default());
        for longest_ms in [250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
            let pause = backoff.pause();
            let longest = Duration::from_millis(longest_ms);
            assert!(pause >= longest / 2 && pause < longest, "{longest_ms}: {pause:?}");
        }
        backoff.succeed("again");
        assert!(backoff.pause() < FIRST_PAUSE);
    }

    #[tokio::test]
    async fn the_first_success_ends_the_pauses_of_all_tasks() {
        let [mut one, mut other] = backoffs();
        // The first future waits before the second one begins.
        let (is_early, ()) = tokio::join!(ends_early(&mut other), async { one.succeed("again") });
        assert!(is_early);
        assert!(!ends_at_once(&mut other).await, "one return ends one pause");
    }

    #[tokio::test]
    async fn a_return_during_a_failed_request_ends_the_pause_after_it() {
        let [mut one, mut other] = backoffs();
        one.succeed("again");
        assert!(ends_early(&mut other).await);
        assert!(!ends_at_once(&mut other).await, "one return ends one pause");
    }

    #[tokio::test]
    async fn a_return_before_the_last_success_ends_no_pause() {
        let [mut one, mut other] = backoffs();
        one.succeed("again");
        other.succeed("again");
        other.failures = 20;
        assert!(!ends_at_once(&mut other).await, "also not its own return");
        one.succeed("again");
        assert!(!ends_at_once(&mut other).await, "a success after no failure is no return");
    }
}
