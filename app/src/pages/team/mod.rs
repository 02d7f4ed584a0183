//! Page of the team: members, roles, service accounts, invitations and the latest changes.
//!
//! The portal checks all rights; the page only hides buttons without effect. The link of an invitation exists
//! only in one signal of this page.

mod changes;
mod invitations;
mod invite;
mod people;
mod policy;
mod provisioning;
mod service_accounts;
mod sso;
mod sso_domains;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::factors::SignInPolicy;
use berth_types::ids::OrgId;
use berth_types::members::{Invitation, Member};
use berth_types::quotas::AuditEvent;
use berth_types::service_accounts::ServiceAccount;
use berth_types::sso::SsoSettings;
use futures::try_join;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::changes::Changes;
use self::invitations::Invitations;
use self::invite::{InvitationLink, InviteForm};
use self::people::People;
use self::policy::PolicyForm;
use self::service_accounts::ServiceAccounts;
use self::sso::SsoSection;
use super::org_data::data_view;
use super::parts::when_some;
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};

/// The data for owners.
#[derive(Clone, Serialize, Deserialize)]
struct OwnerData {
    invitations: Vec<Invitation>,
    changes: Vec<AuditEvent>,
    policy: SignInPolicy,
    sso: SsoSettings,
}

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    members: Rows<Member>,
    accounts: Vec<ServiceAccount>,
    owner_data: Option<OwnerData>,
}

fn load(org: OrgId, owns: bool) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let members = api::members::list(org, None);
    let accounts = api::service_accounts::list(org);
    let requests = owns.then(|| {
        let (invitations, changes) = (api::members::invitations(org), api::quotas::changes(org));
        (invitations, changes, api::factors::policy(org), api::sso::settings(org))
    });
    async move {
        let owner_data = when_some(requests.map(|(invitations, changes, policy, sso)| async move {
            let (invitations, changes, policy, sso) = try_join!(invitations, changes, policy, sso)?;
            Answer::Ok(OwnerData { invitations: invitations.items, changes: changes.items, policy, sso })
        }));
        let (members, accounts, owner_data) = try_join!(members, accounts, owner_data)?;
        Ok(Loaded { org, members, accounts: accounts.items, owner_data })
    }
}

/// The shared state of the parts of the page.
#[derive(Clone, Copy)]
struct PageState {
    org: OrgId,
    members: RwSignal<Vec<Member>>,
    invitations: RwSignal<Vec<Invitation>>,
    /// The audit events; read again after each change on this page.
    changes: RwSignal<Vec<AuditEvent>>,
    /// The address and the link of the latest invitation.
    sent: RwSignal<Option<(String, Option<String>)>>,
    /// True for owners of the organization.
    owns: bool,
}

impl PageState {
    /// Reads the audit events again; a failed request leaves the shown ones.
    fn reload_changes(self) {
        let fresh = api::quotas::changes(self.org);
        leptos::task::spawn_local(async move {
            if let Ok(fresh) = fresh.await {
                let _ = self.changes.try_set(fresh.items);
            }
        });
    }
}

/// The page of the members of the organization.
#[component]
pub fn TeamPage() -> impl IntoView {
    let session = use_session();
    let org = session.org;
    let data: Resource<Answer<Option<Loaded>>> = Resource::new(
        move || org.get().map(|org| (org, session.owns(org))),
        |key: Option<(OrgId, bool)>| when_some(key.map(|(org, owns)| load(org, owns))),
    );
    view! {
        <Page title="Team".to_owned()>
            <p class="page__lead">
                "Members of this organization and their roles. Programs use a "
                <a href=org_link("/tokens")>"token"</a> "."
            </p>
            {data_view(data, |loaded: Loaded| view! { <Team loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn Team(loaded: Loaded) -> impl IntoView {
    let Loaded { org, members, accounts, owner_data } = loaded;
    let owns = owner_data.is_some();
    let policy = owner_data.as_ref().map(|data| data.policy);
    let sso = owner_data.as_ref().map(|data| data.sso.clone());
    let (invitations, changes) =
        owner_data.map_or_else(Default::default, |data| (data.invitations, data.changes));
    let state = PageState {
        org,
        members: RwSignal::new(members.items),
        invitations: RwSignal::new(invitations),
        changes: RwSignal::new(changes),
        sent: RwSignal::new(None),
        owns,
    };
    let form = owns.then(|| view! { <InvitationLink sent=state.sent/> <InviteForm state=state/> });
    let rest = owns.then(|| view! { <Invitations state=state/> <Changes org=org changes=state.changes/> });
    let policy = policy.map(|policy| view! { <PolicyForm org=org policy=policy/> });
    let sso = sso.map(|settings| view! { <SsoSection org=org settings=settings/> });
    view! {
        {form}
        <People state=state cursor=members.next_cursor/>
        <ServiceAccounts state=state accounts=accounts/>
        {rest}
        {policy}
        {sso}
    }
}
