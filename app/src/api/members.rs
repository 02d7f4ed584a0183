//! Members and invitations of an organization.

use std::future::Future;

use berth_types::Page;
use berth_types::accounts::Role;
use berth_types::ids::{InvitationId, OrgId, UserId};
use berth_types::members::{
    AcceptInvitation, ChangeMember, Invitation, InvitationInfo, Joined, LookAtInvitation, Member,
    NewInvitation, SentInvitation,
};

use super::{Answer, get, list_all, send};

/// Lists the members of an organization, oldest account first.
pub fn list(
    org: OrgId,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<Member>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/orgs/{org}/members?sort=asc&limit=100{cursor}"))
}

/// Changes the role of a member.
pub fn change(org: OrgId, user: UserId, role: Role) -> impl Future<Output = Answer<Member>> + Send + 'static {
    let body = ChangeMember { role };
    async move { send("PATCH", format!("/orgs/{org}/members/{user}"), &body, None).await }
}

/// Removes a member from an organization.
pub fn remove(org: OrgId, user: UserId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/members/{user}"), &(), None)
}

/// Lists the open invitations, for owners.
pub fn invitations(org: OrgId) -> impl Future<Output = Answer<Page<Invitation>>> + Send + 'static {
    list_all(format!("/orgs/{org}/invitations"))
}

/// Creates an invitation.
pub fn invite(
    org: OrgId,
    input: &NewInvitation,
) -> impl Future<Output = Answer<SentInvitation>> + Send + 'static {
    send("POST", format!("/orgs/{org}/invitations"), input, None)
}

/// Sends an invitation again with a new link.
pub fn resend(org: OrgId, id: InvitationId) -> impl Future<Output = Answer<SentInvitation>> + Send + 'static {
    send("POST", format!("/orgs/{org}/invitations/{id}/resend"), &(), None)
}

/// Withdraws an invitation.
pub fn withdraw(org: OrgId, id: InvitationId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/invitations/{id}"), &(), None)
}

/// Gets the contents of an invitation by its secret.
pub fn invitation_info(token: String) -> impl Future<Output = Answer<InvitationInfo>> + Send + 'static {
    let body = LookAtInvitation { token };
    async move { send("POST", "/invitations/look", &body, None).await }
}

/// Accepts an invitation as the signed-in user or with a new account.
pub fn accept(input: &AcceptInvitation) -> impl Future<Output = Answer<Joined>> + Send + 'static {
    send("POST", "/invitations/accept", input, None)
}
