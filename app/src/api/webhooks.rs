//! Where an organization hears of what happens.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::{DeliveryId, OrgId, WebhookId};
use berth_types::webhooks::{Delivery, NewWebhook, Webhook};

use super::{Answer, get, list_all, send};

/// The webhooks of an organization, oldest first, without their secrets.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Webhook>>> + Send + 'static {
    list_all(format!("/orgs/{org}/webhooks?sort=asc"))
}

/// Makes a webhook; the answer holds its secret, this one time. The same key makes one.
pub fn create(
    org: OrgId,
    input: &NewWebhook,
    key: Option<String>,
) -> impl Future<Output = Answer<Webhook>> + Send + 'static {
    send("POST", format!("/orgs/{org}/webhooks"), input, key)
}

/// Takes a webhook away; what waits to be sent to it is given up.
pub fn delete(org: OrgId, id: WebhookId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/webhooks/{id}"), &(), None)
}

/// What was sent to a webhook, newest first.
pub fn deliveries(
    org: OrgId,
    id: WebhookId,
) -> impl Future<Output = Answer<Page<Delivery>>> + Send + 'static {
    get(format!("/orgs/{org}/webhooks/{id}/deliveries?limit=50"))
}

/// Sends a delivery again, from its first try on.
pub fn redeliver(org: OrgId, id: DeliveryId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("POST", format!("/orgs/{org}/deliveries/{id}/redeliver"), &(), None)
}
