//! Page of a reservation: times, devices, price, use and actions. Fees come from the portal.

use std::future::Future;

use berth_types::ids::{OrgId, ReservationId};
use berth_types::jobs::Device;
use berth_types::money::{column_decimals, column_text, money_text, per_hour_micros, reserved_text};
use berth_types::problems::Problem;
use berth_types::reservations::{Reservation, ReservationState};
use berth_types::time::{Timestamp, duration_text};
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;

use super::change::{CancelDialog, ExtendDialog};
use super::live::LiveReservation;
use super::steps::Steps;
use super::text::{cause_text, devices_text, length_text, part_tiles, portal_time, terms_text, used_text};
use super::zone::ZoneNote;
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::identity::window_title;
use crate::pages::job::facts::device_line;
use crate::pages::org_data::org_object_view;
use crate::pages::parts::{every_visible, now_ms, ready, when_some};
use crate::pages::text::{price_text, topology_text};
use crate::session::use_object_org;
use crate::ui::*;

/// Milliseconds between two requests.
const REFRESH_MS: u64 = 5_000;
/// The remaining milliseconds with a warning about the end.
const WARN_MS: i64 = 30 * 60 * 1_000;
/// The number of cells of a bar.
const PARTS: u32 = 48;

fn load(org: OrgId, id: Option<ReservationId>) -> impl Future<Output = Answer<Reservation>> + Send + 'static {
    let call = id.map(|id| api::reservations::get(org, id));
    async move {
        // Other text than an id is not found.
        match call {
            Some(call) => call.await,
            None => Err(Problem::not_found()),
        }
    }
}

/// The page of one reservation.
#[component]
pub fn ReservationPage() -> impl IntoView {
    let org = use_object_org();
    let params = use_params_map();
    let id = Memo::new(move |_| {
        params.with(|params| params.get("reservation")).and_then(|text| text.parse::<ReservationId>().ok())
    });
    let data: Resource<Answer<Option<(OrgId, Reservation)>>> = Resource::new(
        move || (org.get(), id.get()),
        |(org, id): (Option<OrgId>, Option<ReservationId>)| {
            when_some(org.map(|org| {
                let one = load(org, id);
                async move { one.await.map(|one| (org, one)) }
            }))
        },
    );
    org_object_view(data, |(org, one)| view! { <ReservationView org=org one=one/> }.into_any())
}

#[component]
fn ReservationView(org: OrgId, one: Reservation) -> impl IntoView {
    let name = one.name.clone();
    let title = window_title(&name);
    let ready = ready();
    let zone = use_zone();
    let now = RwSignal::new(portal_time(&one));
    let live = LiveReservation { org, id: one.id, one: RwSignal::new(one), zone, now };
    let tick = move || now.set(Some(Timestamp::from_micros(now_ms().saturating_mul(1_000))));
    Effect::new(tick);
    every_visible(REFRESH_MS, move || {
        tick();
        if untrack(move || live.holds()) {
            live.reload();
        }
    });
    view! {
        <Title text=title/>
        <div class="page">
            <Crumbs list="Reservations" path=Signal::derive(org_link("/reservations")) name=name/>
            <Head live=live ready=ready/>
            {move || live.one.with(|one| notices(one, live.now.get()))}
            <Steps live=live/>
            <ZoneNote/>
            {move || live.one.with(figures)}
            {move || live.one.with(bars)}
            <section class="section">
                <div class="section__head"><h2>"Devices"</h2></div>
                <Devices live=live/>
            </section>
            <section class="section">
                <div class="section__head"><h2>"Details"</h2></div>
                <div class="card">{move || live.one.with(|one| facts(one, zone))}</div>
            </section>
        </div>
    }
}

/// Name, state and actions with their dialogs.
#[component]
fn Head(live: LiveReservation, ready: ReadSignal<bool>) -> impl IntoView {
    let one = live.one;
    let (ending, extending) = (RwSignal::new(false), RwSignal::new(false));
    let state = Memo::new(move |_| one.with(|one| one.state));
    let holds = Memo::new(move |_| live.holds());
    let usable = Memo::new(move |_| live.usable());
    let name = one.with_untracked(|one| one.name.clone());
    let (id, launch) = (live.id.to_string(), org_link(&format!("/launch?reservation={}", live.id)));
    let verb = move || if state.get() == ReservationState::Active { "Return" } else { "Cancel" };
    view! {
        <div class="page__head">
            <h1>{name}</h1>
            {move || view! { <ReservationBadge state=state.get()/> }}
            <span class="id">{id}</span>
            <div class="page__actions">
                {move || {
                    holds
                        .get()
                        .then(|| {
                            view! {
                                <button
                                    class="btn btn--danger"
                                    type="button"
                                    disabled=move || !ready.get()
                                    on:click=move |_| {
                                        // The dialog shows the present fee.
                                        live.reload();
                                        ending.set(true);
                                    }
                                >
                                    {verb}
                                </button>
                                <button
                                    class="btn"
                                    type="button"
                                    disabled=move || !ready.get()
                                    on:click=move |_| extending.set(true)
                                >
                                    "Extend"
                                </button>
                            }
                        })
                }}
                {move || {
                    let path = launch.clone();
                    usable.get().then(|| view! { <a class="btn btn--primary" href=path>"Launch job"</a> })
                }}
            </div>
        </div>
        <CancelDialog live=live open=ending/>
        <ExtendDialog live=live open=extending/>
    }
}

/// Returns the remaining milliseconds of an active reservation near its end.
fn near_end(one: &Reservation, now: Option<Timestamp>) -> Option<i64> {
    let left = one.ends_at.millis_since(now?);
    (one.state == ReservationState::Active && left > 0 && left < WARN_MS).then_some(left)
}

fn banner(tone: &'static str, title: String, text: String) -> AnyView {
    view! {
        <div class=tone role="status">
            <div class="banner__text"><strong class="banner__title">{title}</strong>{text}</div>
        </div>
    }
    .into_any()
}

/// Returns the banners of a reservation.
fn notices(one: &Reservation, now: Option<Timestamp>) -> Vec<AnyView> {
    let mut out = Vec::new();
    let text = |micros: i64| money_text(micros, &one.currency);
    if one.state == ReservationState::Pending {
        let title = "Pending operator approval".to_owned();
        let rest = format!(
            "Its devices and {} are reserved meanwhile. Without approval before the start, the reservation expires free of charge.",
            reserved_text(one.held_micros, &one.currency)
        );
        out.push(banner("banner banner--info", title, rest));
    }
    if let Some(left) = near_end(one, now) {
        let minutes = (left / 60_000).max(1);
        let title = format!("Ends in {}", length_text(minutes.saturating_mul(60)));
        let rest =
            "Jobs in this reservation are stopped at the end. Save their state, or extend the reservation."
                .to_owned();
        out.push(banner("banner banner--warn", title, rest));
    }
    if one.degraded_milli > 0 {
        let title = format!("{} of its devices out of service", percent(one.degraded_milli));
        let rest = format!(
            "Devices out of service are not charged: {} credited so far; the rest follows after the repair or at the end. Jobs continue on the other devices.",
            text(one.credited_micros)
        );
        out.push(banner("banner banner--warn", title, rest));
    }
    if !one.state.holds() && !one.cause.is_empty() {
        let rest =
            format!("Charged: {}. The rest of the reserved money is released.", text(one.posted_micros));
        out.push(banner("banner banner--info", cause_text(&one.cause), rest));
    }
    out
}

fn stat(label: &'static str, value: String, note: String) -> AnyView {
    view! {
        <div class="stat">
            <dt class="stat__label">{label}</dt>
            <dd class="stat__value">{value}</dd>
            <dd class="stat__note">{note}</dd>
        </div>
    }
    .into_any()
}

fn figures(one: &Reservation) -> AnyView {
    let text = |micros: i64| money_text(micros, &one.currency);
    let hourly = per_hour_micros(one.nano_per_second).unwrap_or(i64::MAX);
    let rate = format!("{}/h, price version {}", price_text(hourly, &one.currency), one.price_version);
    let credited = match one.credited_micros {
        0 => "as time passes".to_owned(),
        micros => format!("{} credited", text(micros)),
    };
    let held = if one.state.holds() { "from your balance" } else { "rest released" };
    let length = length_text(one.ends_at.millis_since(one.starts_at) / 1_000);
    view! {
        <dl class="stats">
            {stat("Price", reserved_text(one.total_micros, &one.currency), rate)}
            {stat("Charged", text(one.posted_micros), credited)}
            {stat("Reserved", reserved_text(one.held_micros, &one.currency), held.to_owned())}
            {stat("Duration", length, used_text(one))}
        </dl>
    }
    .into_any()
}

fn bar(label: String, line: String, tiles: Vec<BarTile>) -> AnyView {
    view! {
        <div class="berth">
            <BerthBar
                tiles=tiles
                cells=PARTS
                undivided=true
                size=BarSize::Row
                label=label
            />
            <p class="quiet small num">{line}</p>
        </div>
    }
    .into_any()
}

/// Returns the bars of money and device time.
fn bars(one: &Reservation) -> AnyView {
    let decimals = column_decimals([one.total_micros, one.posted_micros, one.held_micros]);
    let text = |micros: i64| column_text(micros, &one.currency, decimals);
    let released = one.total_micros.saturating_sub(one.posted_micros).saturating_sub(one.held_micros);
    let money = [("charged", one.posted_micros, 1, "plain"), ("reserved", one.held_micros, 1, "stripes")];
    let tiles = part_tiles(&money, released, PARTS);
    let money_line = format!(
        "Price {}: {} charged, {} reserved.",
        text(one.total_micros),
        text(one.posted_micros),
        text(one.held_micros)
    );
    let devices = i64::from(one.nodes).saturating_mul(i64::from(one.gpus_per_node));
    let whole = one.ends_at.millis_since(one.starts_at).saturating_mul(devices);
    let used = one.used_device_ms.clamp(0, one.elapsed_device_ms.max(0));
    let idle = one.elapsed_device_ms.saturating_sub(used).max(0);
    let left = whole.saturating_sub(one.elapsed_device_ms).max(0);
    let time = [("used", used, 3, "plain"), ("idle", idle, 5, "dots")];
    let time_tiles = part_tiles(&time, left, PARTS);
    let time_line = format!(
        "Time of all devices, {} in total: {} used, {} idle, {} {}.",
        duration_text(whole),
        duration_text(used),
        duration_text(idle),
        duration_text(left),
        if one.state.holds() { "remaining" } else { "returned" }
    );
    view! {
        <section class="section">
            <div class="section__head"><h2>"Charges and use"</h2></div>
            <div class="card">
                {bar(money_line.clone(), money_line, tiles)}
                {bar(time_line.clone(), time_line, time_tiles)}
            </div>
        </section>
    }
    .into_any()
}

/// The reserved boards and slices.
#[component]
fn Devices(live: LiveReservation) -> impl IntoView {
    let devices = Memo::new(move |_| live.one.with(|one| one.devices.clone()));
    let name = live.one.with_untracked(|one| one.name.clone());
    move || {
        let devices = devices.get();
        let many = devices.len() > 1;
        let line = |(i, device): (usize, &Device)| {
            device_line(device, &name, if many { format!("device {i}") } else { name.clone() })
        };
        let lines: Vec<AnyView> = devices.iter().enumerate().map(line).collect();
        let movable =
            live.one.with(|one| matches!(one.state, ReservationState::Pending | ReservationState::Scheduled));
        let note = movable.then(|| {
            view! {
                <p class="quiet small">
                    "Before the start, the portal may move the reservation to other devices of the same kind."
                </p>
            }
        });
        view! { <div class="card"><div class="stack">{lines}</div>{note}</div> }.into_any()
    }
}

fn pair(name: &'static str, value: AnyView) -> AnyView {
    view! { <dt>{name}</dt><dd>{value}</dd> }.into_any()
}

fn facts(one: &Reservation, zone: RwSignal<Zone>) -> AnyView {
    let creator = one.created_by.clone();
    let mut pairs = vec![
        pair("Devices", devices_text(&one.offering, one.nodes, one.gpus_per_node).into_any()),
        pair("Start", view! { <When at=one.starts_at/> }.into_any()),
        pair("End", view! { <When at=one.ends_at/> }.into_any()),
        pair("Created", view! { <When at=one.created_at/> " by " {creator} }.into_any()),
    ];
    if let Some(at) = one.ended_at.filter(|at| *at != one.ends_at) {
        pairs.push(pair("Ended", view! { <When at=at/> }.into_any()));
    }
    if !one.topology.is_any() {
        pairs.push(pair("Topology", topology_text(one.topology).into_any()));
    }
    if !one.series.is_empty() {
        pairs.push(pair("Series", "Part of a series; can be cancelled or returned separately.".into_any()));
    }
    for device in &one.devices {
        let uuid = device.gpu_uuid.clone();
        pairs.push(pair("Board", view! { <span class="mono">{uuid}</span> }.into_any()));
    }
    let (policy, starts_at, created_at) = (one.policy, one.starts_at, one.created_at);
    let terms = move || {
        // The terms at the creation stay in force.
        let lines = terms_text(&policy, starts_at, created_at, zone.get());
        lines.into_iter().map(|line| view! { <li>{line}</li> }).collect_view()
    };
    view! {
        <dl class="kv">{pairs}</dl>
        <ul class="quote__list">{terms}</ul>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_active_reservation_is_near_its_end() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let one = |state: ReservationState| -> Reservation {
            serde_json::from_value(serde_json::json!({
                "id": "res_00000000000000000000000001", "kind": "reservation", "name": "n", "state": state,
                "nodes": 1, "gpus_per_node": 1, "topology": "any", "starts_at": "2026-11-22T09:00:00Z",
                "ends_at": "2026-11-22T11:00:00Z", "degraded_milli": 0, "devices": [], "nano_per_second": 1,
                "price_version": 1, "currency": "USD", "total_micros": 1, "held_micros": 1, "posted_micros": 0,
                "credited_micros": 0, "elapsed_device_ms": 0, "used_device_ms": 0, "cancel_fee_micros": 0,
                "created_at": "2026-11-20T09:00:00Z", "created_by": "a", "generation": 1,
                "policy": berth_types::reservations::ReservationPolicy::default(),
            }))
            .unwrap()
        };
        let active = one(ReservationState::Active);
        assert_eq!(near_end(&active, Some(at("2026-11-22T10:45:00Z"))), Some(900_000));
        assert_eq!(near_end(&active, Some(at("2026-11-22T10:15:00Z"))), None);
        assert_eq!(near_end(&active, Some(at("2026-11-22T11:15:00Z"))), None);
        assert_eq!(near_end(&active, None), None);
        assert_eq!(near_end(&one(ReservationState::Ended), Some(at("2026-11-22T10:45:00Z"))), None);
    }
}
