//! Page of the organizations with their balances, credits, debits and credit limits. It shows only numbers of
//! jobs.

pub mod debit;
pub mod egress;
pub mod limit;
pub mod list;
pub mod networks;
pub mod nodes;

use berth_types::Page as Items;
use berth_types::accounts::OrgSummary;
use berth_types::change_requests::{ChangeRequest, Outcome};
use berth_types::egress::NamedNetwork;
use berth_types::ids::OrgId;
use berth_types::ledger::{Balance, NewCredit};
use berth_types::money::{column_decimals, column_text, money_text, parse_amount_micros};
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError as Wrong, Problem};
use leptos::prelude::*;
use leptos_router::hooks::use_query_map;

use self::debit::DebitDialog;
use self::egress::EgressDialog;
use self::limit::CreditLimitDialog;
use self::list::{Loaded, OrgListing, filter_form, load};
use self::networks::NetworksSection;
use self::nodes::OrgNodesDialog;
use super::super::curl::ListCurl;
use super::super::dialog_form::DialogForm;
use super::super::load_more::LoadMore;
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, FormKey, ready};
use super::super::text::counted;
use super::super::time_field::TimeField;
use super::waiting::{EffectTime, WaitingNotice, second_operator_required};
use super::{is_operator, may};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

const FIELDS: &[&str] = &["/amount_micros", "/memo", "/expires_at"];

/// The page of all organizations.
#[component]
pub fn OrgsPage() -> impl IntoView {
    if is_operator() { view! { <Orgs/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Orgs() -> impl IntoView {
    let query = use_query_map();
    let listing = Memo::new(move |_| query.with(|query| OrgListing::parse(|name| query.get(name))));
    let data: Resource<Answer<Loaded>> = Resource::new(move || listing.get(), load);
    let networks: Resource<Answer<Items<NamedNetwork>>> = Resource::new(|| (), |()| api::egress::list());
    view! {
        <Page title="Organizations".to_owned()>
            {answer_view(data, |loaded| {
                if loaded.orgs.is_empty() && !loaded.listing.is_filtered() {
                    empty_linked(
                        "No organizations yet. A sign-up creates an organization.",
                        "/sign-up",
                        "Open sign-up page",
                    )
                } else {
                    view! { <OrgTable loaded=loaded/> }.into_any()
                }
            })}
            {answer_view(networks, |networks| view! { <NetworksSection networks=networks.items/> }.into_any())}
        </Page>
    }
}

/// The signals of the rows and the dialogs.
#[derive(Clone, Copy)]
pub struct OrgsState {
    orgs: RwSignal<Vec<OrgSummary>>,
    /// The organization of the open dialog.
    chosen: RwSignal<Option<OrgSummary>>,
    granting: RwSignal<bool>,
    debiting: RwSignal<bool>,
    limiting: RwSignal<bool>,
    dedicating: RwSignal<bool>,
    networking: RwSignal<bool>,
    /// The result of the last action.
    status: RwSignal<String>,
    /// The last action, if it waits for a second operator.
    waiting: RwSignal<Option<ChangeRequest>>,
    /// True with the rule for a second operator.
    second_operator: ReadSignal<bool>,
    ready: ReadSignal<bool>,
}

impl OrgsState {
    /// Shows an action with its status, or its change request.
    fn show(self, org: OrgId, outcome: Outcome<Balance>, status: impl FnOnce(&Balance) -> String) {
        match outcome {
            Outcome::Requested(request) => {
                self.status.set(String::new());
                self.waiting.set(Some(*request));
            }
            Outcome::Done(balance) => {
                self.waiting.set(None);
                self.update_balance(org, &balance, status(&balance));
            }
        }
    }

    /// Updates a balance and shows the result of an action.
    fn update_balance(self, org: OrgId, balance: &Balance, status: String) {
        self.orgs.update(|orgs| {
            if let Some(known) = orgs.iter_mut().find(|known| known.org.id == org) {
                known.posted_micros = balance.posted_micros;
                known.held_micros = balance.held_micros;
                known.credit_limit_micros = balance.credit_limit_micros;
            }
        });
        self.status.set(status);
    }

    /// Returns the title of a dialog with the name of its organization.
    fn title(self, prefix: &str, without_org: &str) -> String {
        self.chosen.with(|org| match org {
            Some(org) => format!("{prefix} {}", org.org.name),
            None => without_org.to_owned(),
        })
    }

    fn currency(self) -> String {
        self.chosen.with(|org| org.as_ref().map(|org| org.currency.clone()).unwrap_or_default())
    }

    fn org(self) -> Option<(OrgId, String)> {
        self.chosen.with_untracked(|org| org.as_ref().map(|org| (org.org.id, org.org.name.clone())))
    }
}

#[component]
fn OrgTable(loaded: Loaded) -> impl IntoView {
    let form = filter_form(&loaded.listing);
    let Loaded { listing, orgs, cursor } = loaded;
    let none = orgs.is_empty();
    let query = StoredValue::new(listing.query());
    let cursor = RwSignal::new(cursor);
    let more = Call::idle();
    let state = OrgsState {
        orgs: RwSignal::new(orgs),
        chosen: RwSignal::new(None),
        granting: RwSignal::new(false),
        debiting: RwSignal::new(false),
        limiting: RwSignal::new(false),
        dedicating: RwSignal::new(false),
        networking: RwSignal::new(false),
        status: RwSignal::new(String::new()),
        waiting: RwSignal::new(None),
        second_operator: second_operator_required(),
        ready: ready(),
    };
    let load_more = move |()| {
        let next = query.with_value(|query| api::accounts::orgs(query, cursor.get_untracked()));
        more.run(next, move |page: berth_types::Page<OrgSummary>| {
            state.orgs.update(|orgs| orgs.extend(page.items));
            cursor.set(page.next_cursor);
        });
    };
    let path = Signal::derive(move || query.with_value(|query| format!("/operator/orgs?{query}")));
    let rows = move || {
        state.orgs.with(|orgs| {
            let decimals = ColumnDecimals::new(orgs);
            orgs.iter().map(|org| row(org, decimals, state)).collect::<Vec<AnyView>>()
        })
    };
    if none {
        return view! {
            {form}
            {empty("No organizations match. Clear the filters to see all organizations.")}
            <ListCurl path=path label="Organizations with curl"/>
        }
        .into_any();
    }
    view! {
        <WaitingNotice waiting=state.waiting/>
        {form}
        {live_table(
            "Organizations",
            &[
                ("Organization", ""),
                ("Running jobs", "num"),
                ("Queued jobs", "num"),
                ("Balance", "num"),
                ("Reserved", "num"),
                ("Charges this month", "num"),
                ("Credit limit", "num"),
                ("Created", "nowrap"),
                ACTIONS,
            ],
            rows.into_any(),
        )}
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
        <p class="quiet said" role="status">{move || state.status.get()}</p>
        <ListCurl path=path label="Organizations with curl"/>
        <GrantDialog state=state/>
        <DebitDialog state=state/>
        <CreditLimitDialog state=state/>
        <OrgNodesDialog state=state/>
        <EgressDialog state=state/>
    }
    .into_any()
}

/// The numbers of decimals of the columns with amounts.
#[derive(Clone, Copy)]
struct ColumnDecimals {
    posted: usize,
    held: usize,
    spent: usize,
    credit_limit: usize,
}

impl ColumnDecimals {
    fn new(orgs: &[OrgSummary]) -> Self {
        Self {
            posted: column_decimals(orgs.iter().map(|org| org.posted_micros)),
            held: column_decimals(orgs.iter().map(|org| org.held_micros)),
            spent: column_decimals(orgs.iter().map(|org| org.spent_micros)),
            credit_limit: column_decimals(orgs.iter().map(|org| org.credit_limit_micros)),
        }
    }
}

fn row(summary: &OrgSummary, decimals: ColumnDecimals, state: OrgsState) -> AnyView {
    let name = summary.org.name.clone();
    let members = counted(usize::try_from(summary.members).unwrap_or(0), "member", "members");
    let posted = column_text(summary.posted_micros, &summary.currency, decimals.posted);
    let posted_class = if summary.posted_micros < 0 { "bad" } else { "" };
    let held = column_text(summary.held_micros, &summary.currency, decimals.held);
    let spent = column_text(summary.spent_micros, &summary.currency, decimals.spent);
    let credit_limit = match summary.credit_limit_micros {
        0 => "none".to_owned(),
        micros => column_text(micros, &summary.currency, decimals.credit_limit),
    };
    let limits = format!("/operator/limits/{}", summary.org.id);
    let limits_label = format!("Limits of {name}");
    let button = |text: &'static str, label: String, open: RwSignal<bool>| {
        let this = summary.clone();
        view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=move || !state.ready.get()
                on:click=move |_| {
                    state.chosen.set(Some(this.clone()));
                    open.set(true);
                }
            >
                {text}
            </button>
        }
    };
    let (money, fleet) = (may(OperatorRight::ManageMoney), may(OperatorRight::ManageFleet));
    let grant = money.then(|| button("Grant credit", format!("Grant credit to {name}"), state.granting));
    let debit = money.then(|| button("Debit", format!("Debit {name}"), state.debiting));
    let limit =
        money.then(|| button("Set credit limit", format!("Set credit limit of {name}"), state.limiting));
    let nodes = fleet.then(|| button("Nodes", format!("Nodes of {name}"), state.dedicating));
    let network = fleet.then(|| button("Network", format!("Network of {name}"), state.networking));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}<span class="table__sub">{members}</span></th>
            <td role="cell" class="num" data-label="Running jobs">{summary.running}</td>
            <td role="cell" class="num" data-label="Queued jobs">{summary.queued}</td>
            <td role="cell" class="num" data-label="Balance"><span class=posted_class>{posted}</span></td>
            <td role="cell" class="num" data-label="Reserved">{held}</td>
            <td role="cell" class="num" data-label="Charges this month">{spent}</td>
            <td role="cell" class="num" data-label="Credit limit">{credit_limit}</td>
            <td role="cell" class="nowrap" data-label="Created"><When at=summary.org.created_at/></td>
            <td role="cell" class="table__actions">
                <span class="btn-grid">
                    <a class="btn btn--small" href=limits aria-label=limits_label>"Limits"</a>
                    {grant}
                    {limit}
                    {debit}
                    {nodes}
                    {network}
                </span>
            </td>
        </tr>
    }
    .into_any()
}

/// Parses the form of a credit.
///
/// # Errors
/// One error for each invalid field.
fn parse(amount: &str, memo: &str, expires: &str, zone: Zone) -> Result<NewCredit, Vec<Wrong>> {
    let mut errors = Vec::new();
    let amount = parse_amount_micros(amount);
    if amount.is_none() {
        errors.push(Wrong::new("/amount_micros", "Enter an amount, such as 500 or 12.50."));
    }
    let expires_at = Some(expires.trim()).filter(|text| !text.is_empty()).map(|text| zone.instant(text));
    if let Some(Err(error)) = expires_at {
        errors.push(Wrong::new("/expires_at", format!("{} Empty: no expiry.", error.text())));
    }
    match amount {
        Some(amount_micros) if errors.is_empty() => {
            let expires_at = expires_at.and_then(Result::ok);
            Ok(NewCredit { amount_micros, memo: memo.trim().to_owned(), expires_at })
        }
        _ => Err(errors),
    }
}

#[component]
fn GrantDialog(state: OrgsState) -> impl IntoView {
    let call = Call::idle();
    let open = state.granting;
    let amount = RwSignal::new(String::new());
    let memo = RwSignal::new(String::new());
    let expires = RwSignal::new(String::new());
    let zone = use_zone();
    let key = FormKey::new(call);
    let title = Signal::derive(move || state.title("Grant credit to", "Grant credit"));
    let reset = move |()| {
        for field in [amount, memo, expires] {
            field.set(String::new());
        }
    };
    let submit = move |()| {
        let Some((org, name)) = state.org() else { return };
        let input = (amount.get_untracked(), memo.get_untracked(), expires.get_untracked());
        let zone = zone.get_untracked();
        let body = match parse(&input.0, &input.1, &input.2, zone) {
            Ok(body) => body,
            Err(errors) => {
                call.problem.set(Some(Problem::invalid(errors)));
                return;
            }
        };
        let (amount_micros, expiry) = (body.amount_micros, body.expires_at);
        let once = key.for_text(format!("{org} {amount_micros} {expiry:?} {}", body.memo));
        call.run(api::money::grant(org, &body, once), move |outcome: Outcome<Balance>| {
            key.reset();
            let expiry = expiry.map_or_else(String::new, |at| format!(", expires on {}", zone.minute(at)));
            state.show(org, outcome, |balance| {
                let granted = money_text(amount_micros, &balance.currency);
                format!("{granted} granted to {name}{expiry}.")
            });
            open.set(false);
        });
    };
    view! {
        <DialogForm
            id="grant"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb="Grant credit"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <EffectTime waits=state.second_operator at_once="The credit is available at once."/>
            <p>"The credit stays in the ledger of the organization."</p>
            <CallProblem call=call beside_fields=FIELDS/>
            <NumberField
                label="Amount"
                id="grant-amount"
                unit=Signal::derive(move || state.currency())
                value=amount
                error=call.field("/amount_micros")
            />
            <TextField
                label="Memo"
                id="grant-memo"
                max_length=200
                value=memo
                hint="Shown in the ledger of the organization."
                error=call.field("/memo")
            />
            <TimeField
                label="Expiry"
                id="grant-expires"
                value=expires
                hint="Empty: no expiry. Expiring credit is spent first; the unspent rest is debited at its expiry."
                error=call.field("/expires_at")
            />
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_has_an_optional_expiry() {
        let body = parse("12.50", " trial ", "", Zone::Utc).unwrap();
        assert_eq!((body.amount_micros, body.memo.as_str(), body.expires_at), (12_500_000, "trial", None));
        let until = parse("1", "", "2026-12-31T00:00", Zone::Utc).unwrap().expires_at.unwrap();
        assert_eq!(until.to_string(), "2026-12-31T00:00:00Z");
        let errors = parse("much", "", "soon", Zone::Utc).unwrap_err();
        let at: Vec<String> = errors.into_iter().map(|error| error.pointer).collect();
        assert_eq!(at, ["/amount_micros", "/expires_at"]);
    }
}
