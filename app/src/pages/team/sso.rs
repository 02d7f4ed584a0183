//! The single sign-on of the organization, for owners.

use berth_types::accounts::Role;
use berth_types::ids::OrgId;
use berth_types::sso::{GroupRole, PutSsoProvider, SsoDomain, SsoSettings};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::provisioning::ProvisioningState;
use super::sso_domains::DomainList;
use crate::api;
use crate::pages::confirm::ConfirmDialog;
use crate::pages::parts::{Call, CallProblem, Submit, ready};
use crate::ui::*;

const FIELDS: &[&str] = &["/issuer", "/client_id", "/client_secret", "/group_claim", "/roles", "/domains"];

/// Returns the roles in lines such as `admins = owner`, or the first wrong line.
fn read_roles(text: &str) -> Result<Vec<GroupRole>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let read = |line: &str| {
        let pair = line.rsplit_once('=').map(|(group, role)| (group.trim(), Role::parse(role.trim())));
        match pair {
            Some((group, Some(role))) if !group.is_empty() => Ok(GroupRole { group: group.to_owned(), role }),
            _ => Err(format!("Enter one group a line, such as “admins = owner”. Wrong: “{line}”.")),
        }
    };
    lines.map(read).collect()
}

/// Returns the lines of roles.
fn write_roles(roles: &[GroupRole]) -> String {
    let lines: Vec<String> =
        roles.iter().map(|entry| format!("{} = {}", entry.group, entry.role.name())).collect();
    lines.join("\n")
}

/// Returns the domains of a text, separated by commas or white space.
fn read_domains(text: &str) -> Vec<String> {
    text.split(|c: char| c == ',' || c.is_whitespace())
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The fields of the form.
#[derive(Clone, Copy)]
struct Fields {
    issuer: RwSignal<String>,
    client_id: RwSignal<String>,
    client_secret: RwSignal<String>,
    domains: RwSignal<String>,
    group_claim: RwSignal<String>,
    roles: RwSignal<String>,
    default_role: RwSignal<Option<Role>>,
    create_members: RwSignal<bool>,
    required: RwSignal<bool>,
    /// The domains with their confirmation.
    known: RwSignal<Vec<SsoDomain>>,
    is_set: RwSignal<bool>,
}

impl Fields {
    fn new(settings: SsoSettings) -> Self {
        let is_set = settings.provider.is_some();
        let new = |text: String| RwSignal::new(text);
        let Some(provider) = settings.provider else {
            return Self {
                issuer: new(String::new()),
                client_id: new(String::new()),
                client_secret: new(String::new()),
                domains: new(String::new()),
                group_claim: new("groups".to_owned()),
                roles: new(String::new()),
                default_role: RwSignal::new(Some(Role::Member)),
                create_members: RwSignal::new(true),
                required: RwSignal::new(false),
                known: RwSignal::new(Vec::new()),
                is_set: RwSignal::new(is_set),
            };
        };
        let domains: Vec<&str> = provider.domains.iter().map(|known| known.domain.as_str()).collect();
        Self {
            domains: new(domains.join(", ")),
            issuer: new(provider.issuer),
            client_id: new(provider.client_id),
            client_secret: new(String::new()),
            group_claim: new(provider.group_claim),
            roles: new(write_roles(&provider.roles)),
            default_role: RwSignal::new(provider.default_role),
            create_members: RwSignal::new(provider.create_members),
            required: RwSignal::new(provider.required),
            known: RwSignal::new(provider.domains),
            is_set: RwSignal::new(is_set),
        }
    }

    fn input(self) -> Result<PutSsoProvider, String> {
        let text = |field: RwSignal<String>| field.with_untracked(|text| text.trim().to_owned());
        Ok(PutSsoProvider {
            issuer: text(self.issuer),
            client_id: text(self.client_id),
            client_secret: Some(text(self.client_secret)).filter(|secret| !secret.is_empty()),
            group_claim: text(self.group_claim),
            roles: self.roles.with_untracked(|text| read_roles(text))?,
            default_role: self.default_role.get_untracked(),
            create_members: self.create_members.get_untracked(),
            required: self.required.get_untracked(),
            domains: self.domains.with_untracked(|text| read_domains(text)),
        })
    }
}

/// The section of single sign-on.
#[component]
pub(super) fn SsoSection(
    /// The organization.
    org: OrgId,
    /// The present settings.
    settings: SsoSettings,
) -> impl IntoView {
    let addresses = (settings.callback_url.clone(), settings.logout_url.clone(), settings.start_url.clone());
    let provisioning = settings.provisioning.clone();
    let fields = Fields::new(settings);
    view! {
        <section class="section" id="single-sign-on">
            <div class="section__head"><h2>"Single sign-on"</h2></div>
            <p class="quiet">
                "Members sign in with the OpenID Connect service of your organization. Set-up in ten lines: "
                <a href="/docs/sso" rel="external">"Single sign-on"</a> "."
            </p>
            {address_list(addresses)}
            <SsoForm org=org fields=fields/>
            <DomainList org=org known=fields.known/>
            <ProvisioningState state=provisioning/>
            <RemoveProvider org=org fields=fields/>
        </section>
    }
}

/// The addresses for the registration of the portal at the provider.
fn address_list((callback, logout, start): (String, String, String)) -> AnyView {
    view! {
        <dl class="kv">
            <dt>"Redirect URI"</dt>
            <dd class="mono break">{callback}</dd>
            <dt>"Back-channel logout"</dt>
            <dd class="mono break">{logout}</dd>
            <dt>"Sign-in address"</dt>
            <dd class="mono break">{start}</dd>
        </dl>
    }
    .into_any()
}

#[component]
fn SsoForm(org: OrgId, fields: Fields) -> impl IntoView {
    let call = Call::idle();
    let saved = RwSignal::new(false);
    let wrong_roles = RwSignal::new(None::<String>);
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        saved.set(false);
        let input = match fields.input() {
            Ok(input) => input,
            Err(error) => return wrong_roles.set(Some(error)),
        };
        wrong_roles.set(None);
        call.run(api::sso::put_provider(org, &input), move |fresh: SsoSettings| {
            fields.known.set(fresh.provider.map(|provider| provider.domains).unwrap_or_default());
            fields.client_secret.set(String::new());
            fields.is_set.set(true);
            saved.set(true);
        });
    };
    let secret_hint = "Stored encrypted and never shown. Leave it empty to keep the present secret.";
    view! {
        <form class="form card" method="post" on:submit=submit>
            <CallProblem call=call beside_fields=FIELDS/>
            <Field
                label="Issuer"
                name="sso-issuer"
                kind="url"
                value=fields.issuer
                hint=Some("Such as https://id.example.org/realms/main.".to_owned())
                error=call.field("/issuer")
            />
            <Field
                label="Client ID"
                name="sso-client-id"
                kind="text"
                value=fields.client_id
                error=call.field("/client_id")
            />
            <Field
                label="Client secret"
                name="sso-client-secret"
                kind="password"
                value=fields.client_secret
                hint=Some(secret_hint.to_owned())
                error=call.field("/client_secret")
            />
            <Field
                label="Domains"
                name="sso-domains"
                kind="text"
                value=fields.domains
                hint=Some("Domains of e-mail addresses, separated by commas.".to_owned())
                error=call.list_field("/domains")
            />
            <RoleFields fields=fields call=call wrong_roles=wrong_roles/>
            <Choice
                name="sso-create-members"
                value=fields.create_members
                label="Create members at their first sign-in"
            />
            <Choice name="sso-required" value=fields.required label="Only single sign-on"/>
            <p class="field__hint">
                "With “Only single sign-on” members with an address of a confirmed domain have no sign-in by password, and their sessions by password end now. Owners keep the password as a way back. Another issuer or client ID ends the sessions of single sign-on, and the API tokens that were made in them."
            </p>
            <div class="form__actions">
                <Submit call=call>"Save single sign-on"</Submit>
                <span class="quiet" role="status">{move || saved.get().then_some("Saved.")}</span>
            </div>
        </form>
    }
}

/// The roles by group, and the role without a group.
#[component]
fn RoleFields(fields: Fields, call: Call, wrong_roles: RwSignal<Option<String>>) -> impl IntoView {
    let by_portal = call.list_field("/roles");
    let error = Signal::derive(move || wrong_roles.get().or_else(|| by_portal.get()));
    let options = std::iter::once(None)
        .chain(Role::ALL.into_iter().map(Some))
        .map(|role| {
            let (name, label) = role.map_or(("", "no access"), |role| (role.name(), role.name()));
            let selected = fields.default_role.get_untracked() == role;
            view! { <option value=name selected=selected>{label}</option> }.into_any()
        })
        .collect::<Vec<AnyView>>();
    view! {
        <Field
            label="Claim with groups"
            name="sso-group-claim"
            kind="text"
            value=fields.group_claim
            error=call.field("/group_claim")
        />
        <TextArea
            label="Roles by group"
            id="sso-roles"
            rows=4
            max_length=20_000
            value=fields.roles
            hint="One group a line, such as “admins = owner”. Each sign-in applies the roles; the only owner stays. Empty: groups have no effect."
            error=error
        />
        <SelectField
            label="Role without a group"
            id="sso-default-role"
            choose=Callback::new(move |name: String| fields.default_role.set(Role::parse(&name)))
        >
            {options}
        </SelectField>
    }
}

/// A check box.
#[component]
fn Choice(name: &'static str, value: RwSignal<bool>, label: &'static str) -> impl IntoView {
    let initial = value.get_untracked();
    view! {
        <label class="check">
            <input
                type="checkbox"
                name=name
                checked=initial
                on:change=move |ev| value.set(event_target_checked(&ev))
            />
            " "
            {label}
        </label>
    }
}

/// The button and the dialog that remove the provider.
#[component]
fn RemoveProvider(org: OrgId, fields: Fields) -> impl IntoView {
    let (call, ready) = (Call::idle(), ready());
    let open = RwSignal::new(false);
    let remove = move |()| {
        call.run(api::sso::delete_provider(org), move |()| {
            fields.known.set(Vec::new());
            fields.is_set.set(false);
            open.set(false);
        });
    };
    view! {
        <p hidden=move || !fields.is_set.get()>
            <button
                class="btn btn--danger btn--small"
                type="button"
                disabled=move || !ready.get()
                on:click=move |_| open.set(true)
            >
                "Remove single sign-on"
            </button>
        </p>
        <ConfirmDialog
            id="remove-sso"
            title="Remove single sign-on?"
            open=open
            call=call
            keep="Keep single sign-on"
            verb="Remove single sign-on"
            confirm=Callback::new(remove)
        >
            <p>
                "All sessions of single sign-on end now. Members without a password set one by a link in mail. Jobs and API tokens continue. The domains need new records in DNS, or the operator, for another confirmation."
            </p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_one_line_each() {
        let roles = read_roles("admins = owner\n\n a=b = member \n").unwrap();
        assert_eq!(write_roles(&roles), "admins = owner\na=b = member");
        for bad in ["admins", "= owner", "admins = king"] {
            assert!(read_roles(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn domains_are_separated_by_commas_or_white_space() {
        assert_eq!(read_domains(" a.org, b.org\nc.org,"), ["a.org", "b.org", "c.org"]);
    }
}
