//! Capacity for a time to come: priced by a quote, promised by a reservation.
//!
//! `confirm` promises, `change` takes back and makes longer, `tick` follows the clock, `show` shows.
//! Where something is placed is the engine's word; that nothing is promised twice is checked once
//! more against what is stored, in the transaction that records it.

mod change;
mod charges;
mod confirm;
mod show;
pub mod tick;

use berth_core::engine::{Refusal, Window as Span, short_text};
use berth_core::rating::{total_rate, worst_case_micros};
use berth_core::request::Request;
use berth_types::ids::{OrgId, QuoteId};
use berth_types::jobs::Topology;
use berth_types::money::per_hour_micros;
use berth_types::problems::{FieldError, Problem};
use berth_types::reservations::{
    Conflict, NewQuote, Quote, ReservationPolicy, ReservationState, SpanKind, Window,
};
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::Context;
use berth_foundation::{Caller, Right};
use berth_jobs::planner::bookings::{booking_id, reserved};
use berth_jobs::quotas::{self, peak_milli};
use berth_jobs::{Attempts, Planner};
use berth_store::offerings::StoredOffering;
use berth_store::reservations::ReservationRow;
use berth_store::{self as store, StoreError, Tx};

/// Where the operator's terms are kept.
const POLICY: &str = "reservation_policy";
/// A begin so recently past means now.
const LATE_S: i64 = 60;
/// The shortest reservation.
const LEAST_S: i64 = 60;
/// The longest, and how far ahead one may begin.
const MOST_S: i64 = 366 * 86_400;
const MAX_NODES: u32 = 1_024;
const MAX_GPUS: u32 = 64;

/// The terms as they are now.
pub(crate) async fn policy(tx: &mut Tx<'_>) -> Result<ReservationPolicy, StoreError> {
    let text = store::accounts::find_setting(tx, POLICY).await?;
    text.map_or(Ok(ReservationPolicy::default()), |text| {
        serde_json::from_str(&text).map_err(|_| StoreError::Corrupt(POLICY.to_owned()))
    })
}

/// Every window of a request, the first moved to now when it began a moment ago.
fn windows(input: &NewQuote, now: Timestamp) -> Result<Vec<Window>, Vec<FieldError>> {
    let mut errors = Vec::new();
    let mut refuse = |pointer: &str, detail: &str| errors.push(FieldError::new(pointer, detail));
    let recent = input.starts_at >= now.plus_seconds(-LATE_S);
    // Whole seconds: an hour from now is an hour.
    let second = Timestamp::from_micros(now.micros().div_euclid(1_000_000) * 1_000_000);
    let starts_at = if recent { input.starts_at.max(second) } else { input.starts_at };
    if !recent {
        refuse("/starts_at", "This is in the past; choose a time from now on.");
    } else if starts_at > now.plus_seconds(MOST_S) {
        refuse("/starts_at", "Reservations begin within a year from now.");
    }
    let length_s = input.ends_at.millis_since(starts_at) / 1_000;
    if length_s < LEAST_S {
        refuse("/ends_at", "The end is at least a minute after the begin.");
    } else if length_s > MOST_S {
        refuse("/ends_at", "A reservation lasts a year at most.");
    }
    let mut out = vec![Window { starts_at, ends_at: input.ends_at }];
    if let Some(repeat) = input.repeat {
        if !(2..=52).contains(&repeat.count) {
            refuse("/repeat/count", "Repeat it 2 to 52 times, the first among them.");
        } else if length_s > repeat.every.seconds() {
            refuse("/repeat/every", "A window is longer than the time until the next one.");
        } else {
            for n in 1..i64::from(repeat.count) {
                let later = |t: Timestamp| t.plus_seconds(n * repeat.every.seconds());
                out.push(Window { starts_at: later(input.starts_at), ends_at: later(input.ends_at) });
            }
        }
        if out.last().is_some_and(|w| w.starts_at > now.plus_seconds(MOST_S)) {
            refuse("/repeat/count", "The last one would begin more than a year from now.");
        }
    }
    if errors.is_empty() { Ok(out) } else { Err(errors) }
}

fn check(input: &NewQuote) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut refuse = |pointer: &str, detail: &str| errors.push(FieldError::new(pointer, detail));
    if input.nodes == 0 || input.nodes > MAX_NODES {
        refuse("/nodes", "Ask for 1 to 1024 nodes.");
    }
    if input.gpus_per_node == 0 || input.gpus_per_node > MAX_GPUS {
        refuse("/gpus_per_node", "Ask for 1 to 64 devices on each node.");
    }
    if input.topology == Topology::SameNode && input.nodes > 1 {
        refuse("/topology", "Several nodes are never the same node; ask for one, or for same_switch.");
    }
    errors
}

/// The request behind a quote.
fn request_of_quote(quote: &Quote, offering: &StoredOffering) -> Request {
    let counts = (quote.gpus_per_node, quote.nodes);
    reserved(&offering.gpu_model, offering.mig_profile.as_deref(), counts, quote.topology)
}

fn request_of(input: &NewQuote, offering: &StoredOffering) -> Request {
    let counts = (input.gpus_per_node, input.nodes);
    reserved(&offering.gpu_model, offering.mig_profile.as_deref(), counts, input.topology)
}

/// Why nodes that are not connected are not booked at once.
fn away_text(nodes: u32) -> Option<String> {
    let nodes = match nodes {
        0 => return None,
        1 => "1 node that could hold this is not connected".to_owned(),
        nodes => format!("{nodes} nodes that could hold this are not connected"),
    };
    Some(format!("{nodes}. Try again in a moment, or choose a begin that is more than a minute ahead."))
}

fn span(window: Window) -> Span {
    Span { from: window.starts_at, until: window.ends_at }
}

/// Thousandths of whole boards that a reservation takes.
fn board_milli(offering: &StoredOffering, nodes: u32, gpus_per_node: u32) -> i64 {
    let devices = i64::from(nodes) * i64::from(gpus_per_node);
    devices.saturating_mul(offering.cells * 1_000 / offering.board_cells.max(1))
}

/// Why the limits of an organization refuse it; `None` when they do not.
async fn beyond_limits(
    tx: &mut Tx<'_>,
    org: OrgId,
    milli: i64,
    windows: &[Window],
) -> Result<Option<String>, StoreError> {
    let (limits, _) = quotas::effective(tx, org).await?;
    let Some(most) = limits.reserved_boards_milli else { return Ok(None) };
    let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return Ok(None) };
    let (from, until) = (first.starts_at.micros(), last.ends_at.micros());
    let rows = store::reservations::list_between(tx, from, until).await?;
    let used = peak_milli(&rows, &org.to_string(), windows);
    let text = |n: i64| {
        format!("{}.{:03}", n / 1_000, n % 1_000).trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    Ok((used + milli > most).then(|| {
        format!(
            "The organization may have {} whole boards reserved at one time and has {} then; this takes {}.",
            text(most),
            text(used),
            text(milli)
        )
    }))
}

async fn keep_quote(
    context: &Context,
    org: OrgId,
    quote: &Quote,
    by: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (stored, by) = (quote.clone(), by.to_owned());
    context
        .db
        .write(move |tx| {
            let (quote, by) = (stored.clone(), by.clone());
            async move {
                // Old ones that nobody used are of no use to anybody.
                store::reservations::forget_quotes(tx, now.plus_seconds(-86_400)).await?;
                store::reservations::insert_quote(tx, org, &quote, &by, now).await
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

    /// Prices a reservation and says whether there is room for it. Holds a price, not a place.
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
                "The price of this is beyond any account; ask for less.",
            ));
        };
        let milli = board_milli(&offering, input.nodes, input.gpus_per_node);
        let refusals: Vec<String> = beyond_limits(&mut tx, org, milli, &windows).await?.into_iter().collect();
        let available = store::ledger::available(&mut tx, org).await?;
        drop(conn);
        self.planner.refresh().await?;
        let request = request_of(&input, &offering);
        let spans: Vec<Span> = windows.iter().copied().map(span).collect();
        let verdict = self.planner.ask(|engine| match spans.as_slice() {
            [only] => engine.quote(&request, org, *only, now).map(|_| ()),
            several => engine.quote_all(&request, org, several, now),
        });
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
        keep_quote(&self.context, org, &quote, &caller.user.name, now).await?;
        Ok(quote)
    }

    /// Adds to a quote why it is not feasible, and what would be.
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
            Refusal::Absurd(absurd) => {
                return Err(Problem::invalid_field(
                    "/offering",
                    format!("No cloud could give this: {absurd}."),
                ));
            }
            Refusal::Window => {
                return Err(Problem::invalid_field("/starts_at", Refusal::Window.to_string()));
            }
            Refusal::Never => {
                let detail = "This cloud has not so many of these devices near enough to each other, even when it is empty. Ask for fewer devices or nodes.";
                quote.refusals.push(detail.to_owned());
            }
            Refusal::Taken { conflicts, running, running_until, power, away, alternatives } => {
                quote.refusals.extend(away_text(away));
                quote.refusals.extend(power.as_ref().map(short_text));
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

    /// A quote as it was given, whatever prices became since.
    pub async fn get_quote(&self, caller: &Caller, org: OrgId, id: QuoteId) -> Result<Quote, Problem> {
        self.context.authorise(caller, org, Right::Look).await?;
        let mut conn = self.context.db.read().await?;
        let found = store::reservations::find_quote(&mut conn.tx(), org, id).await?;
        found.map(|(quote, _)| quote).ok_or_else(Problem::not_found)
    }

    /// Bookings that are in the way, without names where they are another tenant's.
    async fn conflicts(
        &self,
        org: OrgId,
        ids: &[berth_core::cluster::BookingId],
    ) -> Result<Vec<Conflict>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let rows = store::reservations::list_holding(&mut conn.tx()).await?;
        let mut out = Vec::new();
        for row in rows {
            let id = row.id.parse().map_err(|_| StoreError::Corrupt(row.id.clone()))?;
            if !ids.contains(&booking_id(id)) {
                continue;
            }
            let own = row.org_id.as_deref() == Some(org.to_string().as_str());
            let maintenance = row.org_id.is_none();
            out.push(Conflict {
                kind: if maintenance { SpanKind::Maintenance } else { SpanKind::Reservation },
                starts_at: Timestamp::from_micros(row.starts_at),
                ends_at: Some(Timestamp::from_micros(row.ends_at)),
                reservation: own.then_some(id),
                name: if own || maintenance { row.name } else { String::new() },
            });
        }
        Ok(out)
    }

    /// The operator's terms.
    pub async fn reservation_policy(&self, caller: &Caller) -> Result<ReservationPolicy, Problem> {
        self.context.authorise_operator(caller)?;
        let mut conn = self.context.db.read().await?;
        Ok(policy(&mut conn.tx()).await?)
    }

    /// Sets the terms for what is quoted from now on.
    pub async fn set_reservation_policy(
        &self,
        caller: &Caller,
        input: ReservationPolicy,
    ) -> Result<ReservationPolicy, Problem> {
        self.context.authorise_operator(caller)?;
        let mut errors = Vec::new();
        let mut range = |name: &str, value: i64, least: i64, most: i64| {
            if value < least || value > most {
                errors
                    .push(FieldError::new(format!("/{name}"), format!("Choose between {least} and {most}.")));
            }
        };
        range("cancel_free_before_s", input.cancel_free_before_s, 0, MOST_S);
        range("late_cancel_percent", input.late_cancel_percent, 0, 100);
        range("early_release_percent", input.early_release_percent, 0, 100);
        range("no_show_after_s", input.no_show_after_s.unwrap_or(60), 60, MOST_S);
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
                    store::accounts::put_setting(tx, POLICY, &text).await?;
                    store::quotas::insert_audit(tx, None, &event).await
                }
                .boxed()
            })
            .await?;
        Ok(input)
    }
}

/// A stored reservation's state.
fn state_of(row: &ReservationRow) -> Result<ReservationState, StoreError> {
    ReservationState::parse(&row.state).ok_or_else(|| StoreError::Corrupt(row.state.clone()))
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
