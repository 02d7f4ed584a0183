//! Members of an organization, and invitations into it.

use std::future::Future;

use berth_types::Page;
use berth_types::accounts::Role;
use berth_types::ids::{InvitationId, OrgId, UserId};
use berth_types::members::{
    AcceptInvitation, ChangeMember, Invitation, InvitationInfo, Joined, LookAtInvitation, Member,
    NewInvitation, SentInvitation,
};

use super::{Answer, get, list_all, send};

/// Who is in an organization, oldest account first.
pub fn list(
    org: OrgId,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Member>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/orgs/{org}/members?sort=asc&limit=100{cursor}"))
}

/// Gives a member another role.
pub fn change(org: OrgId, user: UserId, role: Role) -> impl Future<Output = Answer<Member>> + Send + 'static {
    let body = ChangeMember { role };
    async move { send("PATCH", format!("/orgs/{org}/members/{user}"), &body, None).await }
}

/// Takes somebody out of an organization; oneself: leaves it.
pub fn remove(org: OrgId, user: UserId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/members/{user}"), &(), None)
}

/// Invitations that nobody has accepted yet, for owners.
pub fn invitations(org: OrgId) -> impl Future<Output = Answer<Page<Invitation>>> + Send + 'static {
    list_all(format!("/orgs/{org}/invitations"))
}

/// Invites somebody.
pub fn invite(
    org: OrgId,
    input: &NewInvitation,
) -> impl Future<Output = Answer<SentInvitation>> + Send + 'static {
    send("POST", format!("/orgs/{org}/invitations"), input, None)
}

/// Sends an invitation again, with another link.
pub fn resend(org: OrgId, id: InvitationId) -> impl Future<Output = Answer<SentInvitation>> + Send + 'static {
    send("POST", format!("/orgs/{org}/invitations/{id}/resend"), &(), None)
}

/// Takes an invitation back.
pub fn withdraw(org: OrgId, id: InvitationId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/invitations/{id}"), &(), None)
}

/// What an invitation is about, for whoever has its secret.
pub fn look(token: String) -> impl Future<Output = Answer<InvitationInfo>> + Send + 'static {
    let body = LookAtInvitation { token };
    async move { send("POST", "/invitations/look", &body, None).await }
}

/// Accepts an invitation, as whoever is signed in or as somebody new.
pub fn accept(input: &AcceptInvitation) -> impl Future<Output = Answer<Joined>> + Send + 'static {
    send("POST", "/invitations/accept", input, None)
}
