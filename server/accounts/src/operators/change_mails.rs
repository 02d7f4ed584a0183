//! Mails about change requests: to the operators who can decide about them, and to the requester after the decision.
//!
//! A mail quotes no text of a request, because the requester chooses it. The page of the change requests has it. A mail
//! is recorded before its hand-over, so a failure of the mail server loses it and repeats none.

use std::collections::BTreeMap;

use berth_foundation::Context;
use berth_store::{self as store, StoreError, Tx};
use berth_types::change_requests::{ChangeRequest, ChangeState};
use berth_types::ids::UserId;
use berth_types::money::money_text;
use berth_types::operators::OperatorRole;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::Operators;
use crate::mails::Mail;

/// Seconds between two mails about the new requests of one operator. The next mail has all requests of that time.
const PAUSE_S: i64 = 60;
/// Receivers of one mail about new requests.
const MAX_RECEIVERS: usize = 20;

/// The mails that a write has recorded.
#[derive(Default)]
struct Due {
    /// The decided requests, with the addresses of their requesters.
    decided: Vec<(ChangeRequest, String)>,
    new: Vec<NewRequests>,
}

/// The new requests of one operator.
struct NewRequests {
    /// The name of the requester; `None` without a verified address, because then anyone can have chosen the name.
    requester: Option<String>,
    requests: Vec<ChangeRequest>,
    /// The addresses of the operators with the right of one of the requests.
    receivers: Vec<(OperatorRole, String)>,
}

/// The operators who can decide about one of the requests, owners first.
async fn list_receivers(
    tx: &mut Tx<'_>,
    requester: UserId,
    requests: &[ChangeRequest],
) -> Result<Vec<(OperatorRole, String)>, StoreError> {
    let mut receivers = Vec::new();
    let limit = i64::try_from(MAX_RECEIVERS).unwrap_or(i64::MAX);
    for role in OperatorRole::ALL {
        if requests.iter().any(|request| request.action.right().is_granted_to(role)) {
            let found = store::operators::list_mail_addresses(tx, role, requester, limit).await?;
            receivers.extend(found.into_iter().map(|to| (role, to)));
        }
    }
    receivers.truncate(MAX_RECEIVERS);
    Ok(receivers)
}

/// Records the mails that are due at `now`, and reads their receivers.
async fn record_due(tx: &mut Tx<'_>, now: Timestamp) -> Result<Due, StoreError> {
    let mut due = Due::default();
    let mut new: BTreeMap<UserId, Vec<ChangeRequest>> = BTreeMap::new();
    let since = now.plus_seconds(-PAUSE_S);
    for request in store::change_requests::list_mail_due(tx, since, now).await? {
        store::change_requests::mark_mailed(tx, request.id, now).await?;
        if request.state == ChangeState::Pending {
            new.entry(request.requested_by).or_default().push(request);
        } else if let Some(to) = store::operators::find_mail_address(tx, request.requested_by).await? {
            due.decided.push((request, to));
        }
    }
    for (requester, requests) in new {
        let verified = store::people::find_verified_at(tx, requester).await?.is_some();
        let name = requests.first().map(|request| request.requested_by_name.clone());
        let receivers = list_receivers(tx, requester, &requests).await?;
        due.new.push(NewRequests { requester: name.filter(|_| verified), requests, receivers });
    }
    Ok(due)
}

/// The act of a request with its object and amount, on one line.
fn act_text(request: &ChangeRequest, currency: &str) -> String {
    let amount = request.amount_micros.map(|micros| format!(", {}", money_text(micros, currency)));
    format!("{}: {}{}", request.action.title(), request.target, amount.unwrap_or_default())
}

/// The address of the page of the change requests.
fn page(context: &Context) -> String {
    format!("{}/operator/changes", context.settings.public_url.trim_end_matches('/'))
}

/// The mail about the new requests that a receiver with a role can decide.
fn new_mail(context: &Context, new: &NewRequests, (role, to): &(OperatorRole, String)) -> Mail {
    let decided_by = |request: &&ChangeRequest| request.action.right().is_granted_to(*role);
    let line = |request: &ChangeRequest| {
        let until = request.expires_at.minute();
        format!("- {}\n  expires at {until}\n", act_text(request, &context.settings.currency))
    };
    let lines: Vec<String> = new.requests.iter().filter(decided_by).map(line).collect();
    let text = format!(
        "{requester} requested changes on Berth that\n\
         need a second operator:\n\n\
         {lines}\n\
         Nothing was changed yet. Approve or reject them on this page:\n\n\
         {page}\n\n\
         Berth\n",
        requester = new.requester.as_deref().unwrap_or("An operator"),
        lines = lines.concat(),
        page = page(context),
    );
    Mail { to: to.clone(), subject: "Changes wait for a second operator", text }
}

/// The mail about a decision for the requester.
fn decision_mail(context: &Context, request: &ChangeRequest, to: &str) -> Mail {
    let (subject, decision) = if request.state == ChangeState::Approved {
        ("Your change request was approved", "approved your change request. It took effect.")
    } else {
        ("Your change request was rejected", "rejected your change request. Nothing was changed.")
    };
    let text = format!(
        "Another operator of Berth\n\
         {decision}\n\n\
         - {act}\n\n\
         This page has the decision with its reason:\n\n\
         {page}\n\n\
         Berth\n",
        act = act_text(request, &context.settings.currency),
        page = page(context),
    );
    Mail { to: to.to_owned(), subject, text }
}

impl Operators {
    /// Sends the mails about change requests that are due: about new ones to at most 20 operators with the right of the
    /// act, once a minute for each requester, and about decided ones to their requesters.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn mail_changes(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let mut conn = self.context.db.read().await?;
        let since = now.plus_seconds(-PAUSE_S);
        let is_none = store::change_requests::list_mail_due(&mut conn.tx(), since, now).await?.is_empty();
        drop(conn);
        if is_none {
            return Ok(());
        }
        let due = self.context.db.write(move |tx| async move { record_due(tx, now).await }.boxed()).await?;
        let decided = due.decided.iter().map(|(request, to)| decision_mail(&self.context, request, to));
        let mut mails: Vec<Mail> = decided.collect();
        for new in &due.new {
            mails.extend(new.receivers.iter().map(|receiver| new_mail(&self.context, new, receiver)));
        }
        self.mails.send_all(mails).await;
        Ok(())
    }
}
