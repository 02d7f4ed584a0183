//! Passkeys of users. A passkey is a second factor too.

use berth_types::ids::{PasskeyId, UserId};
use berth_types::passkeys::Passkey;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// A passkey with its public key.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredPasskey {
    pub id: PasskeyId,
    pub user_id: UserId,
    pub name: String,
    /// The id that the authenticator chose.
    pub credential_id: String,
    pub public_key: String,
    /// The facts that change with each use.
    pub credential_state: String,
    /// The bits of the transports.
    pub transports: i64,
    pub created_at: Timestamp,
    pub last_used_at: Option<Timestamp>,
}

impl From<StoredPasskey> for Passkey {
    fn from(row: StoredPasskey) -> Self {
        Self { id: row.id, name: row.name, created_at: row.created_at, last_used_at: row.last_used_at }
    }
}

macro_rules! select_passkeys {
    ($rest:literal) => {
        concat!(
            "SELECT id, user_id, name, credential_id, public_key, credential_state, transports, created_at, \
             last_used_at FROM passkeys ",
            $rest
        )
    };
}

/// Lists the passkeys of a user, oldest first.
pub async fn list(tx: &mut Tx<'_>, user: UserId) -> Result<Vec<StoredPasskey>, StoreError> {
    list!(tx, StoredPasskey, select_passkeys!("WHERE user_id = $1 ORDER BY id"), user)
}

/// Finds a passkey of a user.
pub async fn find(tx: &mut Tx<'_>, user: UserId, id: PasskeyId) -> Result<Option<StoredPasskey>, StoreError> {
    find!(tx, StoredPasskey, select_passkeys!("WHERE user_id = $1 AND id = $2"), user, id)
}

/// Finds a passkey of any user by the id that the authenticator chose.
pub async fn find_credential(
    tx: &mut Tx<'_>,
    credential_id: &str,
) -> Result<Option<StoredPasskey>, StoreError> {
    find!(tx, StoredPasskey, select_passkeys!("WHERE credential_id = $1"), credential_id)
}

/// Counts the passkeys of a user.
pub async fn count(tx: &mut Tx<'_>, user: UserId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM passkeys WHERE user_id = $1";
    Ok(find!(tx, (i64,), sql, user)?.map_or(0, |(count,)| count))
}

/// Adds a passkey.
///
/// # Errors
/// [`StoreError::Duplicate`] if the portal has the credential already.
pub async fn insert(tx: &mut Tx<'_>, new: &StoredPasskey) -> Result<(), StoreError> {
    let sql = "INSERT INTO passkeys (id, user_id, name, credential_id, public_key, credential_state, transports, \
               created_at, last_used_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    exec!(
        tx,
        sql,
        new.id,
        new.user_id,
        &new.name,
        &new.credential_id,
        &new.public_key,
        &new.credential_state,
        new.transports,
        new.created_at,
        new.last_used_at
    )
    .map(|_| ())
}

/// Records a use. Returns false if the passkey was removed, or used meanwhile with another state.
pub async fn record_use(
    tx: &mut Tx<'_>,
    used: &StoredPasskey,
    next_state: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE passkeys SET credential_state = $3, last_used_at = $4 \
               WHERE id = $1 AND credential_state = $2";
    Ok(exec!(tx, sql, used.id, &used.credential_state, next_state, now)? == 1)
}

/// Renames a passkey of a user. Returns false if it does not exist.
pub async fn rename(tx: &mut Tx<'_>, user: UserId, id: PasskeyId, name: &str) -> Result<bool, StoreError> {
    Ok(exec!(tx, "UPDATE passkeys SET name = $3 WHERE user_id = $1 AND id = $2", user, id, name)? == 1)
}

/// Deletes a passkey of a user. Returns false if it does not exist.
pub async fn delete(tx: &mut Tx<'_>, user: UserId, id: PasskeyId) -> Result<bool, StoreError> {
    Ok(exec!(tx, "DELETE FROM passkeys WHERE user_id = $1 AND id = $2", user, id)? == 1)
}

/// Deletes all passkeys of a user. Returns their number.
pub async fn delete_all(tx: &mut Tx<'_>, user: UserId) -> Result<u64, StoreError> {
    exec!(tx, "DELETE FROM passkeys WHERE user_id = $1", user)
}
