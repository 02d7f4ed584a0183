//! One request of a provider: its audit events, and the effects to publish after its write.

use berth_accounts::grants::{end_without_provider, publish_ended};
use berth_foundation::{Caller, Change, Context};
use berth_store::{StoreError, Tx};
use berth_types::ids::{OrgId, UserId};
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;

/// A request of a provider that may change something.
#[derive(Clone)]
pub(crate) struct Act {
    pub context: Context,
    pub org: OrgId,
    pub now: Timestamp,
    /// An event of the caller without action, subject and detail.
    blank: AuditEvent,
}

impl Act {
    pub fn new(context: &Context, caller: &Caller, org: OrgId) -> Self {
        let blank = context.audit_event(caller, "", String::new(), String::new());
        Self { context: context.clone(), org, now: blank.at, blank }
    }

    /// An event of the caller. The transaction of the act has to write it.
    pub fn event(&self, action: &str, subject: String, detail: String) -> AuditEvent {
        AuditEvent {
            id: self.context.new_id(self.now),
            action: action.to_owned(),
            subject,
            detail,
            ..self.blank.clone()
        }
    }
}

/// The effects of an act on memberships and sessions.
#[derive(Default)]
pub(crate) struct Effects {
    /// The people with another role or membership than before.
    pub people: Vec<UserId>,
    /// The hashes of the cookies of ended sessions.
    pub sessions: Vec<String>,
}

impl Effects {
    /// Ends the sessions that the changed memberships exclude, in the transaction of the act.
    pub async fn end_excluded(&mut self, tx: &mut Tx<'_>, org: OrgId) -> Result<(), StoreError> {
        if !self.people.is_empty() {
            // A new member, or a former owner, has no password by the rule of the organization.
            self.sessions.extend(end_without_provider(tx, org).await?);
        }
        Ok(())
    }

    /// Ends the open streams, terminals and ports, after the write.
    pub fn publish(self, context: &Context, org: OrgId) {
        publish_ended(context, &self.sessions);
        for user in self.people {
            context.publish(Change::Member { org, user });
        }
    }
}
