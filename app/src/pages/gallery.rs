//! Gallery of the components in all their states, for operators: the page for a change of a style or a component. Only
//! portals with the option `--gallery` have it.
//!
//! Everything on it is a sample. Its buttons send no request.

use berth_types::invoices::InvoiceState;
use berth_types::jobs::JobState;
use berth_types::nodes::{Gpu, NodeState};
use berth_types::payments::PaymentState;
use berth_types::problems::{FieldError as Wrong, Problem};
use berth_types::quotas::QuotaRequestState;
use berth_types::reservations::ReservationState;
use berth_types::time::Timestamp;
use berth_types::webhooks::DeliveryState;
use leptos::prelude::*;

use super::call_button::CallButton;
use super::card_form::CardForm;
use super::confirm::ConfirmDialog;
use super::dialog_form::DialogForm;
use super::limits::form::NumberField;
use super::load_more::LoadMore;
use super::parts::{Call, Loading, NoOrg, PasswordField, Submit};
use crate::identity::use_identity;
use crate::live::{Feed, FeedBadge, FeedState};
use crate::session::{Page, use_session};
use crate::theme::ThemeSwitch;
use crate::ui::*;

/// A board in JSON with an own slice, a slice of another organization and a slice out of service.
const BOARD: &str = r#"{
    "uuid": "GPU-0", "index": 1, "model": "H100-80GB", "memory_mib": 81920, "cells": 8, "blocked_cells": [7],
    "mig_enabled": true,
    "tiles": [
        {"placement": {"start": 0, "size": 4}, "profile": "3g.40gb", "owner": {"job": "job_00000000000000000000000001",
         "job_name": "finetune-ocr", "org_name": "Kelda Lab", "hue": 3, "pattern": "stripes"}},
        {"placement": {"start": 4, "size": 2}, "profile": "2g.20gb"},
        {"placement": {"start": 6, "size": 1}, "profile": "1g.10gb", "quarantined": "Not proved clean."}
    ]
}"#;

/// The patterns of tiles.
const PATTERNS: [&str; 3] = ["plain", "stripes", "dots"];

/// The page of the gallery.
#[component]
pub fn GalleryPage() -> impl IntoView {
    if use_identity().gallery && use_session().me.user.operator {
        view! { <Gallery/> }.into_any()
    } else {
        view! { <NotFound/> }.into_any()
    }
}

#[component]
fn Gallery() -> impl IntoView {
    let sections = [
        section("gallery-states", "States", view! { <States/> }.into_any()),
        section("gallery-bars", "Berth bar", view! { <Bars/> }.into_any()),
        section("gallery-buttons", "Buttons", view! { <Buttons/> }.into_any()),
        section("gallery-fields", "Fields", view! { <Fields/> }.into_any()),
        section("gallery-notices", "Notices", view! { <Notices/> }.into_any()),
        section("gallery-tables", "Tables and lists", view! { <Tables/> }.into_any()),
        section("gallery-parts", "Small parts", view! { <SmallParts/> }.into_any()),
    ];
    view! {
        <Page title="Gallery".to_owned()>
            <p class="page__lead">
                "The components of the pages in their states, with sample data. The buttons send no request."
            </p>
            {sections.into_iter().collect_view()}
        </Page>
    }
}

fn section(id: &'static str, title: &'static str, content: AnyView) -> AnyView {
    view! {
        <section class="section" data-sample="" aria-labelledby=id>
            <div class="section__head"><h2 id=id>{title}</h2></div>
            {content}
        </section>
    }
    .into_any()
}

/// Returns a named row of badges.
fn badges(name: &'static str, badges: Vec<AnyView>) -> AnyView {
    view! { <h3>{name}</h3><div class="row">{badges}</div> }.into_any()
}

#[component]
fn States() -> impl IntoView {
    let jobs = JobState::ALL.map(|state| view! { <StateBadge state=state/> }.into_any());
    let nodes = NodeState::ALL.map(|state| view! { <NodeBadge state=state/> }.into_any());
    let reservations =
        ReservationState::ALL.map(|state| view! { <ReservationBadge state=state/> }.into_any());
    let requests = QuotaRequestState::ALL.map(|state| view! { <RequestBadge state=state/> }.into_any());
    let invoices = InvoiceState::ALL.map(|state| view! { <InvoiceBadge state=state/> }.into_any());
    let payments = PaymentState::ALL.map(|state| view! { <PaymentBadge state=state/> }.into_any());
    let deliveries = DeliveryState::ALL.map(|state| view! { <DeliveryBadge state=state/> }.into_any());
    view! {
        <div class="card">
            {badges("Jobs", jobs.into())}
            {badges("Nodes", nodes.into())}
            {badges("Reservations", reservations.into())}
            {badges("Limit requests", requests.into())}
            {badges("Invoices", invoices.into())}
            {badges("Payments", payments.into())}
            {badges("Deliveries", deliveries.into())}
        </div>
    }
}

/// Returns a tile of a bar.
fn tile(start: u32, size: u32, hue: u32, pattern: &str) -> BarTile {
    BarTile {
        start,
        size,
        label: "train-7b".to_owned(),
        meta: format!("{size} of 8"),
        hue,
        pattern: pattern.to_owned(),
        own: true,
        foreign: false,
        level: 13,
        aria: format!("train-7b, {size} slices from {start}"),
    }
}

#[component]
fn Bars() -> impl IntoView {
    let gpu = serde_json::from_str::<Gpu>(BOARD).ok();
    let board = gpu.map(|gpu| view! { <GpuBar gpu=gpu node_name="pier-02".to_owned() free="1 × 1g.10gb".to_owned() size=BarSize::Full/> });
    let bar = |tiles: Vec<BarTile>, blocked: Vec<u32>, quarantined: bool, size: BarSize, label: String| {
        view! {
            <BerthBar tiles=tiles cells=8 blocked=blocked quarantined=quarantined size=size label=label/>
        }
        .into_any()
    };
    let hues: Vec<AnyView> = (1..=8)
        .flat_map(|hue| PATTERNS.map(|pattern| (hue, pattern)))
        .map(|(hue, pattern)| {
            let label = format!("hue {hue}, {pattern}");
            bar(vec![tile(0, 5, hue, pattern)], Vec::new(), false, BarSize::Inline, label)
        })
        .collect();
    let foreign = BarTile { own: false, foreign: true, label: "in use".to_owned(), ..tile(4, 2, 0, "") };
    let row = vec![tile(0, 4, 1, "plain"), foreign];
    view! {
        <div class="stack">
            {board}
            {bar(row, vec![7], false, BarSize::Row, "Own slices, foreign slices and a blocked cell".to_owned())}
            {bar(Vec::new(), Vec::new(), true, BarSize::Row, "Board out of service".to_owned())}
            {bar(Vec::new(), Vec::new(), false, BarSize::Row, "Free board".to_owned())}
            <BerthBar
                tiles=vec![tile(0, 3, 2, "dots")]
                cells=8
                undivided=true
                size=BarSize::Row
                label="Board with shares".to_owned()
            />
            <div class="row">{hues}</div>
        </div>
    }
}

#[component]
fn Buttons() -> impl IntoView {
    let (idle, busy) = (Call::idle(), Call::idle());
    busy.pending.set(true);
    let (confirming, disabling) = (RwSignal::new(false), RwSignal::new(false));
    let reason = RwSignal::new(String::new());
    view! {
        <div class="row">
            <button class="btn btn--primary" type="button">"Launch job"</button>
            <button class="btn" type="button">"Reserve"</button>
            <button class="btn" type="button" disabled=true>"Extend limit"</button>
            <button class="btn btn--quiet" type="button">"Copy as curl"</button>
            <button class="btn btn--small" type="button">"Cordon"</button>
            <button class="link-button" type="button">"Show all"</button>
            <Submit call=idle>"Save"</Submit>
            <Submit call=busy>"Saving"</Submit>
            <CallButton call=busy class="btn" send=Callback::new(|()| {})>"Running check"</CallButton>
            <button class="btn btn--danger" type="button" on:click=move |_| confirming.set(true)>"Stop job"</button>
            <button class="btn" type="button" on:click=move |_| disabling.set(true)>"Disable account"</button>
            <Menu label="Actions of the sample">
                <a class="menu__item" href="/operator/gallery">"Open gallery"</a>
                <button class="menu__item menu__item--danger" type="button">"Delete"</button>
            </Menu>
        </div>
        <ConfirmDialog
            id="gallery-confirm"
            title="Stop train-7b?".to_owned()
            open=confirming
            call=idle
            keep="Keep running".to_owned()
            verb="Stop job".to_owned()
            confirm=Callback::new(move |()| confirming.set(false))
        >
            <p>"The job gets SIGTERM and has 60 s to save its work. You pay for 1 h 13 min, about $11.73."</p>
        </ConfirmDialog>
        <DialogForm
            id="gallery-dialog"
            title="Disable the account of Ada?"
            open=disabling
            call=idle
            keep="Keep account enabled"
            verb="Disable account"
            danger=true
            reset=Callback::new(move |()| reason.set(String::new()))
            submit=Callback::new(move |()| disabling.set(false))
        >
            <p>"Sessions of the person end at once. Jobs continue and are charged."</p>
            <TextField
                label="Reason"
                id="gallery-reason"
                max_length=300
                value=reason
                hint="Shown to the person at the sign-in."
                error=fixed(None)
            />
        </DialogForm>
    }
}

/// Returns the signal of a fixed error.
fn fixed(error: Option<&'static str>) -> Signal<Option<String>> {
    Signal::derive(move || error.map(str::to_owned))
}

#[component]
fn Fields() -> impl IntoView {
    let text = |value: &str| RwSignal::new(value.to_owned());
    view! {
        <div class="form card">
            <Field
                label="Name"
                name="gallery-name"
                kind="text"
                value=text("train-7b")
                hint=Some("A hint below the field.".to_owned())
                error=fixed(None)
            />
            <Field
                label="Name with an error"
                name="gallery-wrong"
                kind="text"
                value=text("")
                error=fixed(Some("Give it a name."))
            />
            <NumberField
                label="Time limit"
                id="gallery-number"
                unit="h"
                value=text("3")
                hint="The job is stopped at its time limit."
                error=fixed(None)
            />
            <SelectField
                label="Priority"
                id="gallery-select"
                hint="A job of a higher class starts first."
                choose=Callback::new(|_: String| {})
            >
                <option value="normal" selected=true>"normal"</option>
                <option value="high">"high"</option>
            </SelectField>
            <PasswordField value=text("") error=fixed(None) fresh=true/>
            <label class="check">
                <input type="checkbox"/>
                <span>"Preemptible"<span class="check__hint">"A job of a higher class may stop it."</span></span>
            </label>
            <div class="segmented" role="radiogroup" aria-label="Sample of exclusive choices">
                <label><input type="radio" name="gallery-choice" checked=true/>"low"</label>
                <label><input type="radio" name="gallery-choice"/>"normal"</label>
                <label><input type="radio" name="gallery-choice"/>"high"</label>
            </div>
            <div><ThemeSwitch id="gallery-theme"/></div>
        </div>
        <CardForm
            title="Request another limit"
            lead="The operator of this portal decides about the request."
            call=Call::idle()
            beside_fields=&[]
            verb="Send request"
            status=RwSignal::new("Request sent.")
            submit=Callback::new(|()| {})
        >
            <TextArea
                label="Reason"
                id="gallery-text"
                rows=3
                max_length=1000
                value=text("A deadline in May.")
                hint="The operator reads this text."
                error=fixed(Some("Enter a shorter reason."))
            />
            <TextArea
                label="Networks"
                id="gallery-code"
                rows=2
                mono=true
                value=text("192.0.2.0/24")
                hint="One network per line."
                error=fixed(None)
            />
        </CardForm>
    }
}

/// Returns the badge of a feed in a fixed state.
fn feed(state: FeedState, age_s: u32) -> AnyView {
    let (state, age_s) = (RwSignal::new(state).read_only(), RwSignal::new(age_s).read_only());
    view! { <FeedBadge feed=Feed { state, age_s }/> }.into_any()
}

#[component]
fn Notices() -> impl IntoView {
    let wrong = vec![
        Wrong::new("/count", "Choose at most 2 boards."),
        Wrong::new("/max_duration_s", "Choose at most 30 days."),
    ];
    let problem = Problem { request_id: "req_01J9XHC7".to_owned(), ..Problem::invalid(wrong) };
    view! {
        <div class="stack">
            <div class="banner banner--info"><div class="banner__text">"Maintenance of quay-01 tomorrow, 06:00 to 07:30."</div></div>
            <div class="banner banner--good"><div class="banner__text">"Payment of $500.00 received."</div></div>
            <div class="banner banner--warn"><div class="banner__text">"The budget is spent to 90 %."</div></div>
            <ProblemNotice problem=problem/>
            <p class="waking waking--inline">
                "A part of this page did not load; its buttons do not work yet. Retrying."
            </p>
            <p class="noscript">"JavaScript is off."</p>
            <div class="row">
                {feed(FeedState::Connecting, 0)}
                {feed(FeedState::Live, 0)}
                {feed(FeedState::Waiting, 0)}
                {feed(FeedState::Lost, 41)}
                {feed(FeedState::Ended, 0)}
            </div>
            <NoOrg/>
            {empty("No jobs yet.")}
            <Loading/>
        </div>
    }
}

#[component]
fn Tables() -> impl IntoView {
    let row = |name: &'static str, state: JobState, cost: &'static str| {
        view! {
            <tr role="row">
                <th role="rowheader" scope="row">{name}<span class="table__sub mono">"h100-80gb"</span></th>
                <td role="cell" class="table__state" data-label="State"><StateBadge state=state/></td>
                <td role="cell" class="nowrap" data-label="Submitted"><When at=Timestamp::from_micros(0)/></td>
                <td role="cell" class="num" data-label="Cost">{cost}</td>
                <td role="cell" class="table__actions"><button class="btn btn--small" type="button">"Stop"</button></td>
            </tr>
        }
        .into_any()
    };
    let rows =
        vec![row("train-7b", JobState::Running, "$11.57"), row("sweep-03", JobState::Failed, "$0.0067")];
    let cursor = RwSignal::new(Some("next".to_owned()));
    view! {
        {table_of(
            "Sample of a table",
            &[("Job", ""), STATE, ("Submitted", "nowrap"), ("Cost", "num"), ACTIONS],
            rows,
        )}
        <LoadMore cursor=cursor call=Call::idle() load=Callback::new(move |()| cursor.set(None))/>
        <Crumbs list="Jobs" path="/operator/gallery" name="train-7b".to_owned()/>
    }
}

#[component]
fn SmallParts() -> impl IntoView {
    let line = "curl https://berth.example/api/v1/info".to_owned();
    view! {
        <div class="card">
            <div class="row"><PortalName mark="brand__mark"/></div>
            <div class="row">
                <span class="tag">"gang of 4"</span>
                <span class="tag tag--accent">"yours"</span>
                <span class="tag tag--warn">"not isolated"</span>
                <span class="tag tag--simulated">"simulated"</span>
                <span class="tag tag--label">"rack=r12"</span>
            </div>
            <dl class="stats">
                <div class="stat">
                    <dt class="stat__label">"Current cost"</dt>
                    <dd class="stat__value">"$11.49"<span class="stat__unit">"/h"</span></dd>
                    <dd class="stat__note">"all running jobs"</dd>
                </div>
            </dl>
            <dl class="kv"><dt>"Node"</dt><dd>"pier-01"</dd><dt>"Driver"</dt><dd>"580.65.06"</dd></dl>
            <progress class="meter" max="100" value="40" aria-label="Sample of a meter"></progress>
            <progress class="meter meter--warn" max="100" value="90" aria-label="Sample of a meter near its end"></progress>
            <CopyBlock text=line label="Sample with curl".to_owned()/>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_board_is_a_board() {
        let gpu: Gpu = serde_json::from_str(BOARD).unwrap();
        assert_eq!(gpu.tiles.len(), 3);
    }
}
