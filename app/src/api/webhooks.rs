//! Webhooks and their deliveries.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::{DeliveryId, OrgId, WebhookId};
use berth_types::webhooks::{Delivery, NewWebhook, Webhook};

use super::{Answer, get, list_all, send};

/// Lists the webhooks of an organization, oldest first, without secrets.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Webhook>>> + Send + 'static {
    list_all(format!("/orgs/{org}/webhooks?sort=asc"))
}

/// Creates a webhook; only this answer has its secret. Repeated requests with the same key create one webhook.
pub fn create(
    org: OrgId,
    input: &NewWebhook,
    key: Option<String>,
) -> impl Future<Output = Answer<Webhook>> + Send + 'static {
    send("POST", format!("/orgs/{org}/webhooks"), input, key)
}

/// Deletes a webhook and discards its pending deliveries.
pub fn delete(org: OrgId, id: WebhookId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/webhooks/{id}"), &(), None)
}

/// Lists a page of the deliveries of a webhook, newest first.
pub fn deliveries(
    org: OrgId,
    id: WebhookId,
    cursor: Option<String>,
    limit: u32,
) -> impl Future<Output = Answer<Page<Delivery>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/orgs/{org}/webhooks/{id}/deliveries?limit={limit}{cursor}"))
}

/// Sends a delivery again, with all attempts.
pub fn redeliver(org: OrgId, id: DeliveryId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("POST", format!("/orgs/{org}/deliveries/{id}/redeliver"), &(), None)
}
