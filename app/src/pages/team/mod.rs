//! Team: who is in the organization, what each may do, and who is invited.
//!
//! What a person may not do is left out here and refused by the portal. Must not keep the link of an
//! invitation longer than it is shown: it lives in one signal of this page and nowhere else.

mod changes;
mod invitations;
mod invite;
mod people;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::ids::OrgId;
use berth_types::members::{Invitation, Member};
use berth_types::quotas::AuditEvent;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::changes::Changes;
use self::invitations::Invitations;
use self::invite::{InviteForm, Link};
use self::people::People;
use super::of_org::drawn;
use super::parts::when_some;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};

/// What only owners see.
#[derive(Clone, Serialize, Deserialize)]
struct Owned {
    invitations: Vec<Invitation>,
    changes: Vec<AuditEvent>,
}

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    members: Rows<Member>,
    owned: Option<Owned>,
}

fn load(org: OrgId, owns: bool) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let members = api::members::list(org, None);
    let owned = owns.then(|| (api::members::invitations(org), api::quotas::changes(org)));
    async move {
        let owned = match owned {
            None => None,
            Some((invitations, changes)) => {
                Some(Owned { invitations: invitations.await?.items, changes: changes.await?.items })
            }
        };
        Ok(Loaded { org, members: members.await?, owned })
    }
}

/// What the parts of the page share.
#[derive(Clone, Copy)]
struct Desk {
    org: OrgId,
    members: RwSignal<Vec<Member>>,
    invitations: RwSignal<Vec<Invitation>>,
    /// What was done on purpose; read again after each change that is made here.
    changes: RwSignal<Vec<AuditEvent>>,
    /// The address and link of the invitation that was sent last, until the page is left.
    sent: RwSignal<Option<(String, Option<String>)>>,
    /// Whether the person owns the organization.
    owns: bool,
}

impl Desk {
    /// Reads the record again; what cannot be read leaves what is shown.
    fn look_again(self) {
        let fresh = api::quotas::changes(self.org);
        leptos::task::spawn_local(async move {
            if let Ok(fresh) = fresh.await {
                let _ = self.changes.try_set(fresh.items);
            }
        });
    }
}

/// The page with everybody in the organization.
#[component]
pub fn TeamPage() -> impl IntoView {
    let session = use_session();
    let org = session.org;
    let data: Resource<Answer<Option<Loaded>>> = Resource::new(
        move || org.get().map(|org| (org, session.owns(org))),
        |wanted: Option<(OrgId, bool)>| when_some(wanted.map(|(org, owns)| load(org, owns))),
    );
    view! {
        <Page title="Team".to_owned()>
            <p class="page__lead">
                "Who is in this organization, and what each may do here. A program has a "
                <a href="/tokens">"token"</a> " instead."
            </p>
            {drawn(data, |loaded: Loaded| view! { <Team loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn Team(loaded: Loaded) -> impl IntoView {
    let Loaded { org, members, owned } = loaded;
    let owns = owned.is_some();
    let Owned { invitations, changes } =
        owned.unwrap_or(Owned { invitations: Vec::new(), changes: Vec::new() });
    let desk = Desk {
        org,
        members: RwSignal::new(members.items),
        invitations: RwSignal::new(invitations),
        changes: RwSignal::new(changes),
        sent: RwSignal::new(None),
        owns,
    };
    let form = owns.then(|| view! { <Link sent=desk.sent/> <InviteForm desk=desk/> });
    let rest = owns.then(|| view! { <Invitations desk=desk/> <Changes changes=desk.changes/> });
    view! {
        {form}
        <People desk=desk cursor=members.next_cursor/>
        {rest}
    }
}
