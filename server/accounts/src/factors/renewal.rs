//! Another cookie of a session after a proof of identity: a copy of the former one does not get the proof.

use berth_foundation::credentials::{fingerprint, new_opaque};
use berth_foundation::{Caller, SessionKey};
use berth_store as store;
use berth_types::problems::Problem;
use futures::FutureExt;

use super::SecondFactors;

/// Seconds for which requests on their way may have the former cookie. They have no proof.
const FORMER_S: i64 = 30;

/// The cookie of a session after a proof.
pub struct RenewedCookie {
    pub value: String,
    /// The time to the end of the session.
    pub max_age_s: i64,
}

impl SecondFactors {
    /// Records a proof of the caller, gives the session another cookie, and returns it. `factor` names the factor for
    /// the audit log.
    pub(super) async fn renew_cookie(
        &self,
        caller: &Caller,
        session: &SessionKey,
        factor: &str,
    ) -> Result<RenewedCookie, Problem> {
        let (now, value) = (self.context.now(), self.context.random(new_opaque));
        let subject = caller.user.id.to_string();
        let event = self.context.audit_event(caller, "session.proved", subject, factor.to_owned());
        let (key, cookie) = (session.hash().to_owned(), fingerprint(&value));
        let renewed = self.context.db.write(move |tx| {
            let (key, cookie, event) = (key.clone(), cookie.clone(), event.clone());
            async move {
                let former_until = now.plus_seconds(FORMER_S);
                store::factors::prove_session(tx, &key, &cookie, now, former_until).await?;
                store::quotas::insert_audit(tx, None, &event).await
            }
            .boxed()
        });
        renewed.await?;
        let left_ms = caller.expires_at.map_or(0, |expires_at| expires_at.millis_since(now));
        Ok(RenewedCookie { value, max_age_s: left_ms.max(0) / 1_000 })
    }
}
