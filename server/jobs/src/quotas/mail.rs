//! The mail about the decision on a request.

use berth_core::decision_mail::{decision_subject, decision_text};
use berth_foundation::Context;
use berth_store::webhooks::Channel;
use berth_store::{self as store, StoreError, Tx};
use berth_types::quotas::QuotaRequest;
use serde_json::json;

/// The kind of the notice. No webhook gets it.
const KIND: &str = "quota_request.decided";

/// Records the mail about a decision in its transaction, for the person who made the request. A person without a
/// membership or a verified address gets none.
pub(super) async fn record(
    tx: &mut Tx<'_>,
    context: &Context,
    decided: &QuotaRequest,
) -> Result<(), StoreError> {
    let Some(to) = store::quotas::find_requester_address(tx, decided.id).await? else { return Ok(()) };
    let Some(org) = store::accounts::find_org(tx, decided.org).await? else { return Ok(()) };
    let settings = &context.settings;
    let page = format!("{}/orgs/{}/limits", settings.public_url.trim_end_matches('/'), org.slug);
    let subject = decision_subject(decided).to_owned();
    let text = decision_text(decided, &settings.currency, &page);
    let notice = context.notice(org.id, KIND, subject, text, &json!({ "request": decided.id }));
    store::budgets::insert_notice(tx, &notice).await?;
    // The portal makes no further deliveries, to webhooks or to other members.
    store::webhooks::mark_dispatched(tx, notice.id).await?;
    let target = (Channel::Mail, to.as_str());
    store::webhooks::insert_delivery(tx, context.new_id(notice.at), (notice.id, org.id), target, notice.at)
        .await
}
