//! Webhooks, and notices with their deliveries.

use berth_types::ids::{DeliveryId, NoticeId, OrgId, UserId, WebhookId};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;
use berth_types::webhooks::DeliveryState;

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// The way of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    Webhook,
    Mail,
}

impl Channel {
    pub const ALL: [Self; 2] = [Self::Webhook, Self::Mail];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Mail => "mail",
        }
    }
}

impl TryFrom<String> for Channel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let channel = Self::ALL.into_iter().find(|channel| channel.name() == text);
        channel.ok_or_else(|| format!("{text:?} is no channel of a delivery"))
    }
}

/// A part of the deliveries. Each part is sent beside the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryPart {
    Mails,
    /// To webhooks without a failed try of a pending delivery.
    Webhooks,
    /// To the other webhooks.
    FailingWebhooks,
}

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredWebhook {
    pub id: WebhookId,
    pub org_id: OrgId,
    pub url: String,
    /// Sealed. A secret from before the sealing of secrets stays plain until the next start of the portal.
    pub secret: String,
    /// Kinds of notices, such as `job.succeeded`, `job.*` or `*`.
    pub kinds: JsonColumn<Vec<String>>,
    pub created_by: String,
    /// The user of `created_by`; absent for an unknown user of an earlier version.
    pub created_by_id: Option<UserId>,
    pub created_at: Timestamp,
}

/// A delivery with the notice that it carries.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredDelivery {
    pub id: DeliveryId,
    pub notice_id: NoticeId,
    pub org_id: OrgId,
    #[sqlx(try_from = "String")]
    pub channel: Channel,
    /// The id of a webhook, or an e-mail address.
    pub target: String,
    pub state: DeliveryState,
    pub tries: i64,
    pub next_at: Timestamp,
    pub last_status: Option<i64>,
    pub last_error: String,
    pub created_at: Timestamp,
    pub done_at: Option<Timestamp>,
    pub kind: String,
    pub subject: String,
    pub detail: String,
    pub data: String,
    pub at: Timestamp,
}

macro_rules! select_webhooks {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, url, secret, kinds, created_by, created_by_id, created_at FROM webhooks ",
            $rest
        )
    };
}

macro_rules! select_deliveries {
    ($rest:literal) => {
        concat!(
            "SELECT d.id, d.notice_id, d.org_id, d.channel, d.target, d.state, d.tries, d.next_at, d.last_status, \
             d.last_error, d.created_at, d.done_at, n.kind, n.subject, n.detail, n.data, n.at \
             FROM deliveries d JOIN notices n ON n.id = d.notice_id ",
            $rest
        )
    };
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredWebhook) -> Result<(), StoreError> {
    let sql = "INSERT INTO webhooks (id, org_id, url, secret, kinds, created_by, created_by_id, created_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    exec!(
        tx,
        sql,
        row.id,
        row.org_id,
        &row.url,
        &row.secret,
        &row.kinds,
        &row.created_by,
        row.created_by_id,
        row.created_at
    )
    .map(|_| ())
}

/// Lists the webhooks of an organization (`None`: of all).
pub async fn list(tx: &mut Tx<'_>, org: Option<OrgId>) -> Result<Vec<StoredWebhook>, StoreError> {
    match org {
        Some(org) => {
            list_readable!(tx, StoredWebhook, select_webhooks!("WHERE org_id = $1 ORDER BY id"), org)
        }
        None => list_readable!(tx, StoredWebhook, select_webhooks!("ORDER BY org_id, id")),
    }
}

/// True for a webhook whose creator is a member with an enabled account.
macro_rules! has_enabled_creator {
    () => {
        "EXISTS (SELECT 1 FROM members m JOIN users u ON u.id = m.user_id WHERE m.org_id = webhooks.org_id \
         AND m.user_id = webhooks.created_by_id AND u.disabled_at IS NULL)"
    };
}

/// Lists the webhooks of an organization that have not stopped.
pub async fn list_active(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<StoredWebhook>, StoreError> {
    const SQL: &str =
        concat!(select_webhooks!("WHERE org_id = $1 AND "), has_enabled_creator!(), " ORDER BY id");
    list_readable!(tx, StoredWebhook, SQL, org)
}

/// Lists the webhooks of an organization whose creator is no member with an enabled account.
pub async fn list_stopped(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<StoredWebhook>, StoreError> {
    const SQL: &str =
        concat!(select_webhooks!("WHERE org_id = $1 AND NOT "), has_enabled_creator!(), " ORDER BY id");
    list_readable!(tx, StoredWebhook, SQL, org)
}

/// Gives a webhook to another user of this name. Its secret stays.
pub async fn set_creator(
    tx: &mut Tx<'_>,
    id: WebhookId,
    (user, name): (UserId, &str),
) -> Result<(), StoreError> {
    let sql = "UPDATE webhooks SET created_by = $3, created_by_id = $2 WHERE id = $1";
    exec!(tx, sql, id, user, name).map(|_| ())
}

/// Lists a page of the webhooks of an organization by id.
pub async fn list_page(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<WebhookId>,
) -> Result<Vec<StoredWebhook>, StoreError> {
    let sql = page_sql!(options.sort, [select_webhooks!("WHERE org_id = $1")], "id", "$2", "$3");
    list!(tx, StoredWebhook, sql, org, options.cursor_text(), options.rows())
}

/// Replaces the sealed value of the secret. Returns true if the stored value was still that of `row`.
pub async fn reseal(tx: &mut Tx<'_>, row: &StoredWebhook, sealed: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE webhooks SET secret = $2 WHERE id = $1 AND secret = $3";
    Ok(exec!(tx, sql, row.id, sealed, &row.secret)? == 1)
}

/// Deletes a webhook of this organization and fails its pending deliveries. Returns true if it existed.
pub async fn delete(tx: &mut Tx<'_>, org: OrgId, id: WebhookId) -> Result<bool, StoreError> {
    let sql = "DELETE FROM webhooks WHERE org_id = $1 AND id = $2";
    let existed = exec!(tx, sql, org, id)? == 1;
    if existed {
        let sql = "UPDATE deliveries SET state = 'failed', last_error = 'The webhook was deleted.' \
                   WHERE target = $1 AND state = 'pending'";
        exec!(tx, sql, id)?;
    }
    Ok(existed)
}

/// Deletes all webhooks of an organization and fails their pending deliveries.
pub async fn delete_all(tx: &mut Tx<'_>, org: OrgId) -> Result<(), StoreError> {
    let sql = "UPDATE deliveries SET state = 'failed', last_error = 'The webhook was deleted.' \
               WHERE target IN (SELECT id FROM webhooks WHERE org_id = $1) AND state = 'pending'";
    exec!(tx, sql, org)?;
    exec!(tx, "DELETE FROM webhooks WHERE org_id = $1", org).map(|_| ())
}

/// Lists the notices without deliveries, oldest first: (id, organization, kind).
pub async fn list_new_notices(
    tx: &mut Tx<'_>,
    limit: i64,
) -> Result<Vec<(NoticeId, OrgId, String)>, StoreError> {
    let sql = "SELECT id, org_id, kind FROM notices WHERE dispatched = $1 ORDER BY id LIMIT $2";
    list!(tx, (NoticeId, OrgId, String), sql, false, limit)
}

/// Records that the deliveries of a notice exist. Returns true if this was not recorded before.
pub async fn mark_dispatched(tx: &mut Tx<'_>, notice: NoticeId) -> Result<bool, StoreError> {
    let sql = "UPDATE notices SET dispatched = $2 WHERE id = $1 AND dispatched = $3";
    Ok(exec!(tx, sql, notice, true, false)? == 1)
}

pub async fn insert_delivery(
    tx: &mut Tx<'_>,
    id: DeliveryId,
    (notice, org): (NoticeId, OrgId),
    (channel, target): (Channel, &str),
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO deliveries (id, notice_id, org_id, channel, target, state, tries, next_at, last_error, created_at) \
               VALUES ($1, $2, $3, $4, $5, 'pending', 0, $6, '', $6)";
    exec!(tx, sql, id, notice, org, channel.name(), target, now).map(|_| ())
}

/// Lists due deliveries of a part: the first one of each organization, then the second one of each, and so on. An
/// organization begins with one delivery to each target. So neither a long queue of an organization nor that of a target
/// delays another one by more than a delivery.
pub async fn list_due_deliveries(
    tx: &mut Tx<'_>,
    part: DeliveryPart,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<StoredDelivery>, StoreError> {
    let sql = select_deliveries!(
        "JOIN (SELECT id, ROW_NUMBER() OVER (PARTITION BY org_id ORDER BY nth, tries, next_at, id) AS turn FROM \
         (SELECT id, org_id, tries, next_at, \
         ROW_NUMBER() OVER (PARTITION BY org_id, target ORDER BY tries DESC, next_at, id) AS nth FROM deliveries \
         WHERE state = 'pending' AND next_at <= $1 AND channel = $2 AND ($2 = 'mail' OR (target IN \
         (SELECT DISTINCT target FROM deliveries WHERE state = 'pending' AND tries > 0)) = $3)) AS t) AS q ON q.id = d.id \
         ORDER BY q.turn, d.next_at, d.id LIMIT $4"
    );
    let channel = match part {
        DeliveryPart::Mails => Channel::Mail,
        DeliveryPart::Webhooks | DeliveryPart::FailingWebhooks => Channel::Webhook,
    };
    let failing = part == DeliveryPart::FailingWebhooks;
    list!(tx, StoredDelivery, sql, now, channel.name(), failing, limit)
}

/// Lists a page of the deliveries of a webhook by id, in `state` (`None`: in any).
pub async fn list_deliveries(
    tx: &mut Tx<'_>,
    org: OrgId,
    hook: WebhookId,
    state: Option<DeliveryState>,
    options: &ListOptions<DeliveryId>,
) -> Result<Vec<StoredDelivery>, StoreError> {
    let sql = page_sql!(
        options.sort,
        [select_deliveries!("WHERE d.org_id = $1 AND d.target = $2 AND ($3 = '' OR d.state = $3)")],
        "d.id",
        "$4",
        "$5"
    );
    let state = state.map_or("", DeliveryState::name);
    list!(tx, StoredDelivery, sql, org, hook, state, options.cursor_text(), options.rows())
}

/// Records the result of a try.
pub async fn update_delivery(tx: &mut Tx<'_>, row: &StoredDelivery) -> Result<(), StoreError> {
    let sql = "UPDATE deliveries SET state = $2, tries = $3, next_at = $4, last_status = $5, last_error = $6, done_at = $7 \
               WHERE id = $1 AND state = 'pending'";
    exec!(tx, sql, row.id, row.state, row.tries, row.next_at, row.last_status, &row.last_error, row.done_at)
        .map(|_| ())
}

/// Makes a delivery of this organization pending again, without tries. Returns true if it exists.
pub async fn retry_delivery(
    tx: &mut Tx<'_>,
    org: OrgId,
    id: DeliveryId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE deliveries SET state = 'pending', tries = 0, next_at = $3, done_at = NULL WHERE org_id = $1 AND id = $2";
    Ok(exec!(tx, sql, org, id, now)? == 1)
}

/// Lists the verified e-mail addresses of an organization's owners and billing members with enabled accounts.
pub async fn billing_addresses(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT u.email FROM members m JOIN users u ON u.id = m.user_id \
               WHERE m.org_id = $1 AND m.role IN ('owner', 'billing') AND u.email_verified_at IS NOT NULL \
               AND u.disabled_at IS NULL ORDER BY u.email";
    Ok(list!(tx, (String,), sql, org)?.into_iter().map(|(email,)| email).collect())
}

/// Lists the verified e-mail addresses of an organization's owners with enabled accounts.
pub async fn owner_addresses(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT u.email FROM members m JOIN users u ON u.id = m.user_id \
               WHERE m.org_id = $1 AND m.role = 'owner' AND u.email_verified_at IS NOT NULL \
               AND u.disabled_at IS NULL ORDER BY u.email";
    Ok(list!(tx, (String,), sql, org)?.into_iter().map(|(email,)| email).collect())
}
