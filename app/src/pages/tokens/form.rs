//! Form of a new token. The portal checks the fields; its errors are shown at them.

use berth_types::accounts::{CreatedToken, NewToken, Role, Token};
use berth_types::ids::{OrgId, UserId};
use berth_types::service_accounts::ServiceAccount;
use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::scopes::{ScopeChoice, ScopeFields};
use crate::api;
use crate::pages::card_form::CardForm;
use crate::pages::curl;
use crate::pages::parts::{Call, FormKey, now_ms, origin};
use crate::pages::roles::RoleField;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/role", "/scopes", "/networks", "/expires_at", "/service_account"];

/// The choices of an expiry in days, with their labels; an empty value means no expiry.
const EXPIRIES: [(&str, &str); 5] =
    [("30", "in 30 days"), ("90", "in 90 days"), ("365", "in 365 days"), ("1", "in 1 day"), ("", "never")];

/// Returns the next full hour in milliseconds. Expiries count from it, so that a repeated request after a lost
/// answer has the same body.
const fn next_hour(ms: i64) -> i64 {
    const HOUR: i64 = 3_600_000;
    ms.div_euclid(HOUR).saturating_add(1).saturating_mul(HOUR)
}

/// Returns the expiry of a token created at `now_ms`; `None` without an expiry.
fn expires_at(days: &str, now_ms: i64) -> Option<Timestamp> {
    let days: i64 = days.parse().ok()?;
    Some(Timestamp::from_micros(now_ms.saturating_mul(1_000)).plus_seconds(days.saturating_mul(86_400)))
}

/// Returns the networks of a text, with lines, commas or spaces between them.
fn split_networks(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| c == ',' || c.is_whitespace());
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The state of the form.
#[derive(Clone, Copy)]
struct Draft {
    name: RwSignal<String>,
    role: RwSignal<Role>,
    /// The service account; the own user without one.
    account: RwSignal<Option<(UserId, Role)>>,
    choice: ScopeChoice,
    networks: RwSignal<String>,
    days: RwSignal<String>,
}

impl Draft {
    fn new() -> Self {
        Self {
            name: RwSignal::new(String::new()),
            role: RwSignal::new(Role::Member),
            account: RwSignal::new(None),
            choice: ScopeChoice::new(),
            networks: RwSignal::new(String::new()),
            days: RwSignal::new("30".to_owned()),
        }
    }

    /// The body of the request without an expiry.
    fn body(self) -> NewToken {
        let account = self.account.get();
        NewToken {
            name: self.name.with(|name| name.trim().to_owned()),
            role: account.map_or_else(|| self.role.get(), |(_, role)| role),
            scopes: self.choice.scopes.get(),
            networks: self.networks.with(|text| split_networks(text)),
            expires_at: None,
            service_account: account.map(|(id, _)| id),
        }
    }
}

/// The name, the owner and the limits of a new token.
#[component]
pub(super) fn NewTokenForm(
    /// The organization of the token.
    org: OrgId,
    /// The listed tokens; a new one comes first.
    tokens: RwSignal<Vec<Token>>,
    /// The secret of the new token, shown once.
    secret: RwSignal<Option<String>>,
    /// The service accounts of the organization.
    accounts: Vec<ServiceAccount>,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let draft = Draft::new();
    let submit = move |()| {
        let expiry = draft.days.with_untracked(|days| expires_at(days, next_hour(now_ms())));
        let body = NewToken { expires_at: expiry, ..untrack(|| draft.body()) };
        call.run(api::accounts::create_token(org, &body, key.for_body(&body)), move |made: CreatedToken| {
            key.reset();
            secret.set(Some(made.secret));
            tokens.update(|tokens| tokens.insert(0, made.token));
            draft.name.set(String::new());
        });
    };
    let origin = origin();
    let line = Signal::derive(move || {
        let body = draft.body();
        if body.name.is_empty() || body.scopes.is_empty() {
            return curl::INCOMPLETE.to_owned();
        }
        let body = serde_json::to_string(&body).unwrap_or_default();
        curl::post(&origin.get(), &format!("/orgs/{org}/tokens"), &body)
    });
    let has_account = move || draft.account.with(Option::is_some);
    view! {
        <CardForm
            title="New token"
            call=call
            beside_fields=FIELDS
            verb="Create token"
            curl=(line, "New token with curl")
            submit=Callback::new(submit)
        >
            <div class="field-row">
                <Field
                    label="Name"
                    name="name"
                    kind="text"
                    value=draft.name
                    hint=Some("Purpose of the token, such as ci-nightly.".to_owned())
                    error=call.field("/name")
                />
                <OwnerField accounts=accounts account=draft.account error=call.field("/service_account")/>
                <div hidden=has_account>
                    <RoleField id="role" role=draft.role error=call.field("/role")/>
                </div>
                <ExpiryField days=draft.days error=call.field("/expires_at")/>
            </div>
            <ScopeFields choice=draft.choice error=call.list_field("/scopes")/>
            <TextArea
                label="Networks"
                id="token-networks"
                rows=2
                max_length=1000
                mono=true
                value=draft.networks
                hint="Optional, at most 16, such as 192.0.2.0/24 or 2001:db8::/32. Requests from other addresses are refused."
                error=call.list_field("/networks")
            />
        </CardForm>
    }
}

/// The choice between the own user and a service account. Absent without service accounts.
#[component]
fn OwnerField(
    /// The service accounts.
    accounts: Vec<ServiceAccount>,
    /// The chosen service account with its role.
    account: RwSignal<Option<(UserId, Role)>>,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let enabled: Vec<ServiceAccount> =
        accounts.into_iter().filter(|account| account.disabled_at.is_none()).collect();
    if enabled.is_empty() {
        return ().into_any();
    }
    let options: Vec<AnyView> = enabled
        .iter()
        .map(|one| {
            let (value, text) = (one.id.to_string(), format!("{} ({})", one.name, one.role.name()));
            view! { <option value=value>{text}</option> }.into_any()
        })
        .collect();
    let choose = move |value: String| {
        let chosen = enabled.iter().find(|one| one.id.to_string() == value);
        account.set(chosen.map(|one| (one.id, one.role)));
    };
    view! {
        <SelectField
            label="Owner"
            id="token-owner"
            hint="A service account keeps its tokens when you leave."
            error=error
            choose=Callback::new(choose)
        >
            <option value="" selected=true>"You"</option>
            {options}
        </SelectField>
    }
    .into_any()
}

#[component]
fn ExpiryField(
    /// The chosen days.
    days: RwSignal<String>,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let expiries: Vec<AnyView> = EXPIRIES
        .into_iter()
        .map(|(value, text)| {
            let selected = value == "30";
            view! { <option value=value selected=selected>{text}</option> }.into_any()
        })
        .collect();
    view! {
        <SelectField
            label="Expires"
            id="expiry"
            error=error
            choose=Callback::new(move |chosen: String| days.set(chosen))
        >
            {expiries}
        </SelectField>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_counts_from_now() {
        let at = expires_at("30", 1_795_214_589_123).map(Timestamp::micros);
        assert_eq!(at, Some((1_795_214_589_123 + 30 * 86_400_000) * 1_000));
        assert_eq!(expires_at("", 5), None);
        assert_eq!(next_hour(1_795_214_589_123), 1_795_215_600_000);
        assert_eq!(next_hour(7_200_000), 10_800_000);
        assert!(EXPIRIES.iter().all(|(days, _)| days.is_empty() || expires_at(days, 0).is_some()));
    }

    #[test]
    fn networks_are_split_at_lines_commas_and_spaces() {
        assert_eq!(
            split_networks(" 192.0.2.0/24,\n2001:db8::/32  10.0.0.1\n"),
            ["192.0.2.0/24", "2001:db8::/32", "10.0.0.1",]
        );
        assert!(split_networks(" \n, ").is_empty());
    }
}
