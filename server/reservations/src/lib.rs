//! Reservations: promises of future capacity, priced by quotes, and maintenance windows.
//!
//! `confirm` books, `change` cancels and extends, `tick` follows the clock, and `show` has the API's view.
//! The engine chooses the devices. The transaction of the record checks them once more against the stored
//! bookings.

mod boards;
mod capacity;
mod change;
mod charges;
mod checks;
mod confirm;
mod obstacle;
pub mod routes;
mod show;
pub mod tick;

use std::collections::HashSet;

use berth_core::admission::MAX_SLUG_BYTES;
use berth_core::rating::{total_rate, worst_case_micros};
use berth_engine::{Refusal, Window as Span, power_shortage_text};
use berth_placement::request::Request;
use berth_types::ids::{OrgId, QuoteId};
use berth_types::jobs::Topology;
use berth_types::money::per_hour_micros;
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use berth_types::reservations::{Conflict, NewQuote, Quote, ReservationPolicy, SpanKind, Window};
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::Context;
use berth_foundation::{Caller, Right};
use berth_jobs::planner::bookings::{booking_id, reservation_request};
use berth_jobs::quotas::{self, peak_milli};
use berth_jobs::{Attempts, Planner};
use berth_store::offerings::StoredOffering;
use berth_store::{self as store, StoreError, Tx, WriteError};

/// The setting with the operator's terms.
const POLICY_SETTING: &str = "reservation_policy";
/// A begin at most this long ago means now, in seconds.
const LATE_S: i64 = 60;
/// The shortest reservation in seconds.
const MIN_LENGTH_S: i64 = 60;
/// The longest reservation, and the longest time until its begin, in seconds.
const MAX_LENGTH_S: i64 = 366 * 86_400;
const MAX_NODES: u32 = 1_024;
const MAX_GPUS: u32 = 64;
/// Boards in the request of a maintenance window.
const MAX_BOARDS: usize = 64;
/// Characters of the UUID of a board.
const MAX_UUID_CHARS: usize = 256;

/// The present terms.
pub(crate) async fn policy(tx: &mut Tx<'_>) -> Result<ReservationPolicy, StoreError> {
    let text = store::accounts::find_setting(tx, POLICY_SETTING).await?;
    text.map_or(Ok(ReservationPolicy::default()), |text| {
        serde_json::from_str(&text).map_err(|e| StoreError::corrupt("settings", POLICY_SETTING, "value", e))
    })
}

/// All windows of a request. A first window with a begin of a moment ago begins now.
fn windows(input: &NewQuote, now: Timestamp) -> Result<Vec<Window>, Vec<FieldError>> {
    let mut errors = Vec::new();
    let mut refuse = |pointer: &str, detail: &str| errors.push(FieldError::new(pointer, detail));
    let recent = input.starts_at >= now.plus_seconds(-LATE_S);
    // The begin is a whole second, so that a window of one hour from now is exactly one hour long.
    let second = Timestamp::from_micros(now.micros().div_euclid(1_000_000) * 1_000_000);
    let starts_at = if recent { input.starts_at.max(second) } else { input.starts_at };
    if !recent {
        refuse("/starts_at", "The time is in the past. Choose a later time.");
    } else if starts_at > now.plus_seconds(MAX_LENGTH_S) {
        refuse("/starts_at", "Choose a start within a year from now.");
    }
    let length_s = input.ends_at.millis_since(starts_at) / 1_000;
    if length_s < MIN_LENGTH_S {
        refuse("/ends_at", "The end is at least one minute after the start.");
    } else if length_s > MAX_LENGTH_S {
        refuse("/ends_at", "A reservation lasts at most one year.");
    }
    let mut out = vec![Window { starts_at, ends_at: input.ends_at }];
    if let Some(repeat) = input.repeat {
        if !(2..=52).contains(&repeat.count) {
            refuse("/repeat/count", "Enter 2 to 52 windows, including the first.");
        } else if length_s > repeat.every.seconds() {
            refuse("/repeat/every", "A window is longer than the time to the next one.");
        } else {
            for n in 1..i64::from(repeat.count) {
                let later = |t: Timestamp| t.plus_seconds(n * repeat.every.seconds());
                out.push(Window { starts_at: later(input.starts_at), ends_at: later(input.ends_at) });
            }
        }
        if out.last().is_some_and(|w| w.starts_at > now.plus_seconds(MAX_LENGTH_S)) {
            refuse("/repeat/count", "The last window would start more than a year from now.");
        }
    }
    if errors.is_empty() { Ok(out) } else { Err(errors) }
}

fn check(input: &NewQuote) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut refuse = |pointer: &str, detail: &str| errors.push(FieldError::new(pointer, detail));
    if input.offering.is_empty() || input.offering.len() > MAX_SLUG_BYTES {
        refuse("/offering", "Enter an offering, such as h100-80gb. GET /api/v1/offerings lists them.");
    }
    if input.nodes == 0 || input.nodes > MAX_NODES {
        refuse("/nodes", "Enter 1 to 1024 nodes.");
    }
    if input.gpus_per_node == 0 || input.gpus_per_node > MAX_GPUS {
        refuse("/gpus_per_node", "Enter 1 to 64 devices per node.");
    }
    if input.topology == Topology::SameNode && input.nodes > 1 {
        refuse("/topology", "Several nodes cannot be the same node. Choose one node, or same_switch.");
    }
    errors
}

/// True if the UUIDs of boards are few, short and different.
fn are_uuids(gpus: &[String]) -> bool {
    let fits = |uuid: &String| (1..=MAX_UUID_CHARS).contains(&uuid.chars().count());
    gpus.len() <= MAX_BOARDS
        && gpus.iter().all(fits)
        && gpus.iter().collect::<HashSet<&String>>().len() == gpus.len()
}

/// The request of a quote for the engine.
fn stored_quote_request(quote: &Quote, offering: &StoredOffering) -> Request {
    let counts = (quote.gpus_per_node, quote.nodes);
    reservation_request(&offering.gpu_model, offering.mig_profile.as_deref(), counts, quote.topology)
}

/// The request of a new quote for the engine.
fn quote_request(input: &NewQuote, offering: &StoredOffering) -> Request {
    let counts = (input.gpus_per_node, input.nodes);
    reservation_request(&offering.gpu_model, offering.mig_profile.as_deref(), counts, input.topology)
}

/// The reason against a booking for now on nodes that are not connected; `None` without such nodes.
fn away_text(nodes: u32) -> Option<String> {
    let nodes = match nodes {
        0 => return None,
        1 => "1 suitable node is not connected".to_owned(),
        nodes => format!("{nodes} suitable nodes are not connected"),
    };
    Some(format!("{nodes}. Try again in a moment, or choose a start more than a minute ahead."))
}

fn span(window: Window) -> Span {
    Span { from: window.starts_at, until: window.ends_at }
}

/// The thousandths of whole boards that a reservation takes.
fn board_milli(offering: &StoredOffering, nodes: u32, gpus_per_node: u32) -> i64 {
    let devices = i64::from(nodes) * i64::from(gpus_per_node);
    devices.saturating_mul(offering.cells * 1_000 / offering.board_cells.max(1))
}

/// The reason against a reservation from the limit of its organization; `None` if it is within the limit.
async fn check_limit(
    tx: &mut Tx<'_>,
    org: OrgId,
    milli: i64,
    windows: &[Window],
) -> Result<Option<String>, StoreError> {
    let (limits, _) = quotas::effective(tx, org).await?;
    let Some(most) = limits.reserved_boards_milli else { return Ok(None) };
    let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return Ok(None) };
    let rows = store::reservations::list_between(tx, first.starts_at, last.ends_at).await?;
    let used = peak_milli(&rows, org, windows);
    let text = |n: i64| {
        format!("{}.{:03}", n / 1_000, n % 1_000).trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    Ok((used + milli > most).then(|| {
        format!(
            "Limit of reserved boards: {}. Reserved in the window: {}; this reservation needs {} more. Reserve less, or ask for a higher limit.",
            text(most),
            text(used),
            text(milli)
        )
    }))
}

/// Open quotes of one organization.
const MAX_OPEN_QUOTES: i64 = 1_000;
/// Seconds before the next quote beyond this number.
const QUOTE_RETRY_S: u64 = 60;

async fn store_quote(
    context: &Context,
    org: OrgId,
    quote: &Quote,
    by: &str,
    now: Timestamp,
) -> Result<(), WriteError> {
    let (stored, by) = (quote.clone(), by.to_owned());
    context
        .db
        .try_write(move |tx| {
            let (quote, by) = (stored.clone(), by.clone());
            async move {
                if store::reservations::count_open_quotes(tx, org, now).await? >= MAX_OPEN_QUOTES {
                    let detail = format!(
                        "The organization has {MAX_OPEN_QUOTES} open quotes. Nothing was stored. Use one of them, or wait until they expire."
                    );
                    return Err(Problem::throttled(detail, QUOTE_RETRY_S).into());
                }
                // Unused quotes of more than a day ago are deleted.
                store::reservations::forget_quotes(tx, now.plus_seconds(-86_400)).await?;
                Ok(store::reservations::insert_quote(tx, org, &quote, &by, now).await?)
            }
            .boxed()
        })
        .await
}

/// The reservations of organizations, and maintenance windows.
#[derive(Clone)]
pub struct Reservations {
    context: Context,
    planner: Planner,
    attempts: Attempts,
}

impl Reservations {
    pub const fn new(context: Context, planner: Planner, attempts: Attempts) -> Self {
        Self { context, planner, attempts }
    }

    /// Prices a reservation and checks for free devices. A quote holds a price, not devices.
    ///
    /// # Errors
    /// The request is invalid, or its offering is unknown or has no price. 429 with too many open quotes.
    pub async fn quote(&self, caller: &Caller, org: OrgId, input: NewQuote) -> Result<Quote, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let now = self.context.now();
        let mut errors = check(&input);
        let windows = windows(&input, now).unwrap_or_else(|faults| {
            errors.extend(faults);
            Vec::new()
        });
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let offering = store::offerings::find(&mut tx, &input.offering, now).await?;
        let offering = offering.ok_or_else(berth_jobs::jobs::no_such_offering)?;
        let price = offering.price.ok_or_else(berth_jobs::jobs::no_price)?;
        let policy = policy(&mut tx).await?;
        let devices = input.nodes.saturating_mul(input.gpus_per_node);
        let rate = total_rate(price.reserved(), devices);
        let cost = |w: &Window| {
            let seconds = u64::try_from(w.ends_at.millis_since(w.starts_at) / 1_000).ok()?;
            worst_case_micros(rate?, seconds)
        };
        let total = windows.iter().map(cost).try_fold(0i64, |sum, c| sum.checked_add(c?));
        let (Some(rate), Some(total_micros)) = (rate, total) else {
            return Err(Problem::invalid_field(
                "/ends_at",
                "The price exceeds every possible balance. Choose a shorter window or fewer devices.",
            ));
        };
        let milli = board_milli(&offering, input.nodes, input.gpus_per_node);
        let refusals: Vec<String> = check_limit(&mut tx, org, milli, &windows).await?.into_iter().collect();
        let available = store::ledger::available(&mut tx, org).await?;
        drop(conn);
        self.planner.refresh().await?;
        let request = quote_request(&input, &offering);
        let spans: Vec<Span> = windows.iter().copied().map(span).collect();
        let verdict = self.planner.ask(move |engine| match spans.as_slice() {
            [only] => engine.quote(&request, org, *only, now).map(|_| ()),
            several => engine.quote_all(&request, org, several, now),
        });
        let verdict = verdict.await;
        let mut quote = Quote {
            id: self.context.new_id(now),
            offering: offering.slug,
            nodes: input.nodes,
            gpus_per_node: input.gpus_per_node,
            topology: input.topology,
            windows,
            total_micros,
            nano_per_second: rate,
            per_hour_micros: per_hour_micros(rate).unwrap_or(i64::MAX),
            currency: self.context.settings.currency.clone(),
            price_version: price.version,
            available_micros: available,
            affordable: total_micros <= available,
            expires_at: now.plus_seconds(policy.quote_valid_s),
            feasible: verdict.is_ok() && refusals.is_empty(),
            refusals,
            conflicts: Vec::new(),
            alternatives: Vec::new(),
            policy,
            needs_approval: policy.approval_above_boards_milli.is_some_and(|most| milli > most),
        };
        if let Err(refusal) = verdict {
            self.explain_refusal(org, &mut quote, refusal, now).await?;
        }
        store_quote(&self.context, org, &quote, &caller.user.name, now).await?;
        Ok(quote)
    }

    /// Adds to a quote the reasons against it and the feasible alternatives.
    ///
    /// # Errors
    /// The request itself is impossible.
    async fn explain_refusal(
        &self,
        org: OrgId,
        quote: &mut Quote,
        refusal: Refusal,
        now: Timestamp,
    ) -> Result<(), Problem> {
        match refusal {
            Refusal::InvalidRequest(absurd) => {
                return Err(Problem::invalid_field(
                    "/offering",
                    format!("No cluster can provide this: {absurd}."),
                ));
            }
            Refusal::Window => {
                return Err(Problem::invalid_field("/starts_at", Refusal::Window.to_string()));
            }
            Refusal::Never => {
                let detail = "The cluster has too few of these devices within the topology and on nodes that keep the network policy of the organization, even without other use. Request fewer devices or nodes, or ask the operator.";
                quote.refusals.push(detail.to_owned());
            }
            Refusal::Taken { conflicts, running, running_until, power, away, alternatives } => {
                quote.refusals.extend(away_text(away));
                quote.refusals.extend(power.as_ref().map(power_shortage_text));
                quote.conflicts = self.conflicts(org, &conflicts).await?;
                if running > 0 {
                    let ends_at = running_until;
                    let name = String::new();
                    let kind = SpanKind::Job;
                    quote.conflicts.push(Conflict { kind, starts_at: now, ends_at, reservation: None, name });
                }
                let window = |w: Span| Window { starts_at: w.from, ends_at: w.until };
                quote.alternatives = alternatives.into_iter().map(window).collect();
            }
        }
        Ok(())
    }

    /// A stored quote, unchanged by later prices.
    pub async fn get_quote(&self, caller: &Caller, org: OrgId, id: QuoteId) -> Result<Quote, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let found = store::reservations::find_quote(&mut conn.tx(), org, id).await?;
        found.map(|(quote, _)| quote).ok_or_else(Problem::not_found)
    }

    /// The bookings in the way of a quote. Those of other organizations have no names.
    async fn conflicts(
        &self,
        org: OrgId,
        ids: &[berth_placement::cluster::BookingId],
    ) -> Result<Vec<Conflict>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let rows = store::reservations::list_holding(&mut conn.tx()).await?;
        let mut out = Vec::new();
        for row in rows {
            if !ids.contains(&booking_id(row.id)) {
                continue;
            }
            let own = row.org_id == Some(org);
            let maintenance = row.org_id.is_none();
            out.push(Conflict {
                kind: if maintenance { SpanKind::Maintenance } else { SpanKind::Reservation },
                starts_at: row.starts_at,
                ends_at: Some(row.ends_at),
                reservation: own.then_some(row.id),
                name: if own || maintenance { row.name } else { String::new() },
            });
        }
        Ok(out)
    }

    /// The operator's terms.
    pub async fn reservation_policy(&self, caller: &Caller) -> Result<ReservationPolicy, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        Ok(policy(&mut conn.tx()).await?)
    }

    /// Sets the terms of quotes from now on.
    ///
    /// # Errors
    /// A value is out of its range.
    pub async fn set_reservation_policy(
        &self,
        caller: &Caller,
        input: ReservationPolicy,
    ) -> Result<ReservationPolicy, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        let mut errors = Vec::new();
        let mut range = |name: &str, value: i64, least: i64, most: i64| {
            if value < least || value > most {
                errors.push(FieldError::new(format!("/{name}"), format!("Enter {least} to {most}.")));
            }
        };
        range("cancel_free_before_s", input.cancel_free_before_s, 0, MAX_LENGTH_S);
        range("late_cancel_percent", input.late_cancel_percent, 0, 100);
        range("early_release_percent", input.early_release_percent, 0, 100);
        range("no_show_after_s", input.no_show_after_s.unwrap_or(60), 60, MAX_LENGTH_S);
        range(
            "approval_above_boards_milli",
            input.approval_above_boards_milli.unwrap_or(0),
            0,
            1_000_000_000,
        );
        range("quote_valid_s", input.quote_valid_s, 10, 30 * 86_400);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let text = serde_json::to_string(&input).map_err(|_| Problem::internal())?;
        let event =
            self.context.audit_event(caller, "reservation_policy.set", "default".to_owned(), text.clone());
        self.context
            .db
            .write(move |tx| {
                let (text, event) = (text.clone(), event.clone());
                async move {
                    let before = store::accounts::find_setting(tx, POLICY_SETTING).await?;
                    store::accounts::put_setting(tx, POLICY_SETTING, &text).await?;
                    store::quotas::insert_audit(tx, None, &event.with_change(before, Some(text))).await
                }
                .boxed()
            })
            .await?;
        Ok(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::reservations::{Every, Repeat};

    fn ask(from: i64, until: i64, repeat: Option<Repeat>) -> Result<Vec<Window>, Vec<String>> {
        let now = Timestamp::from_micros(1_800_000_000_000_000);
        let input = NewQuote {
            offering: "x".to_owned(),
            nodes: 1,
            gpus_per_node: 1,
            starts_at: now.plus_seconds(from),
            ends_at: now.plus_seconds(until),
            topology: Topology::Any,
            repeat,
        };
        windows(&input, now).map_err(|e| e.into_iter().map(|e| e.pointer).collect())
    }

    #[test]
    fn windows_are_sane_or_refused() {
        let daily = |count| Some(Repeat { every: Every::Day, count });
        assert_eq!(ask(-30, 3_600, None).map(|w| w.len()), Ok(1), "a moment ago means now");
        for (from, until, repeat, pointer) in [
            (-61, 3_600, None, "/starts_at"),
            (400 * 86_400, 401 * 86_400, None, "/starts_at"),
            (0, 0, None, "/ends_at"),
            (100, 50, None, "/ends_at"),
            (0, 10 * 366 * 86_400, None, "/ends_at"),
            (0, 3_600, daily(1), "/repeat/count"),
            (0, 3_600, daily(53), "/repeat/count"),
            (0, 90_000, daily(2), "/repeat/every"),
        ] {
            assert_eq!(ask(from, until, repeat), Err(vec![pointer.to_owned()]), "{from} {until}");
        }
        let three = ask(3_600, 7_200, daily(3)).unwrap();
        assert_eq!(three.len(), 3);
        assert_eq!(three[2].starts_at.millis_since(three[0].starts_at), 2 * 86_400_000);
    }
}
