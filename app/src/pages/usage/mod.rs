//! Page of usage and cost by day, grouped by offering, mode, member or label.
//!
//! Period and group are only in the address, so that it can be shared. The portal computes the totals.

pub mod chart;
pub mod choice;
pub mod series;
pub mod table;
pub mod text;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::money::{money_text, reserved_text};
use berth_types::problems::Problem;
use berth_types::usage::{GroupBy, Usage};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::chart::Chart;
use self::choice::{Preset, chosen_days, path};
use self::series::Bands;
use self::text::{device_hours, group_choice};
use super::billing::BillingTabs;
use super::days::{day_at, day_text};
use super::limits::replace;
use super::org_data::data_view;
use super::parts::{FieldError, every_visible, now_ms, origin, ready, when_some};
use super::text::grouped;
use super::{curl, days};
use crate::address::{org_link, use_org_links};
use crate::api;
use crate::api::Answer;
use crate::api::usage::UsageQuery;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The interval of requests; a running job is charged about once a minute.
const REFRESH_MS: u64 = 30_000;

/// A query with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ShownUsage {
    query: UsageQuery,
    usage: Usage,
}

fn load(org: OrgId, query: UsageQuery) -> impl Future<Output = Answer<(OrgId, ShownUsage)>> + Send + 'static {
    let requested = api::usage::get(org, query.clone());
    let fallback = api::usage::get(org, UsageQuery::default());
    async move {
        let shown = match requested.await {
            Ok(usage) => ShownUsage { query, usage },
            // For an invalid address the page starts with the default period. It then repeats the request of
            // the address and shows its error.
            Err(problem) if problem.status == 400 => {
                ShownUsage { query: UsageQuery::default(), usage: fallback.await? }
            }
            Err(problem) => return Err(problem),
        };
        Ok((org, shown))
    }
}

/// The page of the usage of an organization.
#[component]
pub fn UsagePage() -> impl IntoView {
    let org = use_session().org;
    let params = use_query_map();
    let query = Memo::new(move |_| params.with(|params| choice::parse(|name| params.get(name))));
    // The view itself loads another period, so that the shown data remains meanwhile.
    let data: Resource<Answer<Option<(OrgId, ShownUsage)>>> = Resource::new(
        move || org.get(),
        move |org: Option<OrgId>| when_some(org.map(|org| load(org, query.get_untracked()))),
    );
    view! {
        <Page title="Usage".to_owned()>
            <BillingTabs current="/usage"/>
            {data_view(data, move |(org, first): (OrgId, ShownUsage)| {
                view! { <UsageView org=org first=first query=query/> }.into_any()
            })}
        </Page>
    }
}

#[component]
fn UsageView(org: OrgId, first: ShownUsage, query: Memo<UsageQuery>) -> impl IntoView {
    let shown = RwSignal::new(first);
    let busy = RwSignal::new(false);
    let problem = RwSignal::new(None::<Problem>);
    let latest_request = StoredValue::new(0_u64);
    let fetch = move |show_errors: bool| {
        let requested = query.get_untracked();
        let number = latest_request.get_value().wrapping_add(1);
        latest_request.set_value(number);
        let answer = api::usage::get(org, requested.clone());
        spawn_local(async move {
            let answer = answer.await;
            // An answer to an older request would show the wrong days.
            if latest_request.try_get_value() != Some(number) {
                return;
            }
            busy.set(false);
            match answer {
                Ok(usage) => {
                    problem.set(None);
                    replace(shown, ShownUsage { query: requested, usage });
                }
                // A failed refresh leaves the shown data.
                Err(found) if show_errors => problem.set(Some(found)),
                Err(_) => {}
            }
        });
    };
    Effect::new(move |before: Option<UsageQuery>| {
        let now = query.get();
        let before = before.unwrap_or_else(|| shown.with_untracked(|shown| shown.query.clone()));
        if before != now {
            busy.set(true);
            fetch(true);
        }
        now
    });
    every_visible(REFRESH_MS, move || fetch(false));
    let group = Memo::new(move |_| shown.with(|shown| shown.query.answerable().group));
    let bands = Memo::new(move |_| shown.with(|shown| Bands::new(&shown.usage, group.get())));
    let none = Memo::new(move |_| shown.with(|shown| shown.usage.rows.is_empty()));
    let csv = move || shown.with(|shown| shown.query.csv_path(org));
    view! {
        <Filters query=query shown=shown/>
        {move || problem.get().map(|problem| view! { <ProblemNotice problem=problem/> })}
        <div class="stack stack--wide" aria-busy=move || if busy.get() { "true" } else { "false" }>
            {move || shown.with(|shown| figures(&shown.usage))}
            {move || {
                if none.get() {
                    view! { <NoCharges org=org shown=shown/> }.into_any()
                } else {
                    view! {
                        <Chart bands=bands/>
                        {move || group_totals(&bands.get(), group.get())}
                        <section class="section">
                            <div class="section__head">
                                <h2>"Daily usage"</h2>
                                <div class="section__aside">
                                    <a href=csv rel="external" download="usage.csv">"Download CSV"</a>
                                </div>
                            </div>
                            {move || shown.with(|shown| table::by_day(&shown.usage, group.get()))}
                        </section>
                    }
                        .into_any()
                }
            }}
        </div>
    }
}

/// Returns the section with the totals by group; `None` without groups.
fn group_totals(bands: &Bands, group: GroupBy) -> Option<AnyView> {
    let heading = format!("By {}", group_choice(group));
    (group != GroupBy::Day).then(|| {
        view! {
            <section class="section">
                <div class="section__head"><h2>{heading}</h2></div>
                {table::totals(bands, group)}
            </section>
        }
        .into_any()
    })
}

/// The fields for period and group. A change navigates to the address of the new query.
#[component]
fn Filters(query: Memo<UsageQuery>, shown: RwSignal<ShownUsage>) -> impl IntoView {
    let (ready, links) = (ready(), use_org_links());
    let period_error = RwSignal::new(None::<String>);
    let preset = Memo::new(move |_| {
        let today = ready.get().then(|| day_at(now_ms()));
        shown.with(|shown| Preset::selected(&shown.query, &shown.usage, today.as_deref()))
    });
    let choice = move |value: Preset| {
        let initial = preset.get_untracked() == Some(value);
        let pick = move |_: leptos::ev::Event| {
            period_error.set(None);
            go(&links.path(&path(&value.query(&day_at(now_ms()), query.get_untracked()))));
        };
        view! {
            <label>
                <input
                    type="radio"
                    name="days"
                    checked=initial
                    disabled=move || !ready.get()
                    prop:checked=move || { preset.get() == Some(value) }
                    on:change=pick
                />
                {value.text()}
            </label>
        }
    };
    let from = Memo::new(move |_| shown.with(|shown| shown.usage.from.clone()));
    let until = Memo::new(move |_| shown.with(|shown| shown.usage.until.clone()));
    let pick_days = move |from: String, until: String| match chosen_days(&from, &until) {
        Err(text) => period_error.set(Some(text.to_owned())),
        Ok((from, until)) => {
            period_error.set(None);
            let chosen = UsageQuery { from: Some(from), until: Some(until), ..query.get_untracked() };
            go(&links.path(&path(&chosen)));
        }
    };
    let groups: Vec<AnyView> = UsageQuery::GROUPS
        .into_iter()
        .map(|(group, name)| {
            let initial = query.with_untracked(|query| query.group == group);
            view! {
                <option
                    value=name
                    selected=initial
                    prop:selected=move || query.with(|query| query.group == group)
                >
                    {group_choice(group)}
                </option>
            }
            .into_any()
        })
        .collect();
    let pick_group = move |ev: leptos::ev::Event| {
        if let Some(group) = UsageQuery::parse_group(&event_target_value(&ev)) {
            go(&links.path(&path(&UsageQuery { group, ..query.get_untracked() })));
        }
    };
    let by_label = Memo::new(move |_| query.with(|query| query.group == GroupBy::Label));
    let (first_from, first_until) = (from.get_untracked(), until.get_untracked());
    view! {
        <div class="stack">
            <div class="filters">
                <div class="segmented" role="radiogroup" aria-label="Period">
                    {Preset::ALL.map(choice).into_iter().collect_view()}
                </div>
                <label class="filters__field">
                    "From"
                    <input
                        class="input"
                        type="date"
                        value=first_from
                        disabled=move || !ready.get()
                        aria-describedby="usage-days-error"
                        prop:value=move || from.get()
                        on:change=move |ev| pick_days(event_target_value(&ev), until.get_untracked())
                    />
                </label>
                <label class="filters__field">
                    "Until"
                    <input
                        class="input"
                        type="date"
                        value=first_until
                        disabled=move || !ready.get()
                        aria-describedby="usage-days-error"
                        prop:value=move || until.get()
                        on:change=move |ev| pick_days(from.get_untracked(), event_target_value(&ev))
                    />
                </label>
                <label class="filters__field">
                    "Group by"
                    <select class="select" disabled=move || !ready.get() on:change=pick_group>
                        {groups}
                    </select>
                </label>
                {move || by_label.get().then(|| view! { <LabelKey query=query ready=ready/> })}
            </div>
            <FieldError id="usage-days-error" error=Signal::from(period_error)/>
        </div>
    }
}

/// The field for the key of the label.
#[component]
fn LabelKey(query: Memo<UsageQuery>, ready: ReadSignal<bool>) -> impl IntoView {
    let links = use_org_links();
    let initial = query.with_untracked(|query| query.label.clone());
    let pick = move |ev: leptos::ev::Event| {
        let label = event_target_value(&ev).trim().to_owned();
        go(&links.path(&path(&UsageQuery { label, ..query.get_untracked() })));
    };
    view! {
        <label class="filters__field">
            "Label key"
            <input
                class="input"
                autocomplete="off"
                spellcheck="false"
                maxlength="63"
                placeholder="project"
                value=initial
                disabled=move || !ready.get()
                prop:value=move || query.with(|query| query.label.clone())
                on:change=pick
            />
        </label>
    }
}

fn figures(usage: &Usage) -> AnyView {
    let text = |micros: i64| money_text(micros, &usage.currency);
    let days = format!("{} to {}", days::short_day(&usage.from), days::short_day(&usage.until));
    let (runway, runway_note) = match usage.runway_hours {
        Some(hours) => {
            (view! { {grouped(hours)}<span class="stat__unit">"h"</span> }.into_any(), "at the current cost")
        }
        None => ("–".into_any(), "no jobs charged now"),
    };
    let so_far = format!("{} so far", text(usage.month_to_date_micros));
    view! {
        <dl class="stats">
            <div class="stat">
                <dt class="stat__label">"Cost"</dt>
                <dd class="stat__value">{text(usage.cost_micros)}</dd>
                <dd class="stat__note">{days}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Device-hours"</dt>
                <dd class="stat__value">{device_hours(usage.device_ms)}<span class="stat__unit">"h"</span></dd>
                <dd class="stat__note">"charged in this period"</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Unused reservations"</dt>
                <dd class="stat__value">
                    {device_hours(usage.idle_reserved_device_ms)}<span class="stat__unit">"h"</span>
                </dd>
                <dd class="stat__note">"reserved device-hours without a job"</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Idle cost"</dt>
                <dd class="stat__value">{text(usage.underused_micros)}</dd>
                <dd class="stat__note">"hours of jobs below 40 % utilization"</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Runway"</dt>
                <dd class="stat__value">{runway}</dd>
                <dd class="stat__note">{runway_note}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Month forecast"</dt>
                <dd class="stat__value">{reserved_text(usage.forecast_month_micros, &usage.currency)}</dd>
                <dd class="stat__note">{so_far}". The rest of the month: running jobs and reservations, or the daily mean, whichever is more"</dd>
            </div>
        </dl>
    }
    .into_any()
}

/// The empty state with an example request.
#[component]
fn NoCharges(org: OrgId, shown: RwSignal<ShownUsage>) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || {
        let query = shown.with(|shown| shown.query.answerable().text());
        curl::get(&origin.get(), &format!("/orgs/{org}/usage{query}"))
    });
    let text = move || {
        shown.with(|shown| {
            let (from, until) = (day_text(&shown.usage.from), day_text(&shown.usage.until));
            format!("No charges from {from} to {until}. Running jobs are charged about once a minute; their usage appears here on its day (UTC).")
        })
    };
    view! {
        <div class="empty">
            <p class="empty__text">{text}</p>
            <a class="btn" href=org_link("/launch")>"Launch job"</a>
            <CopyBlock text=line label="Usage with curl".to_owned()/>
        </div>
    }
}
