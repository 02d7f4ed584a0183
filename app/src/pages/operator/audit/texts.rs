//! Texts of audit events: their actions, and their recorded details.

use berth_types::invoices::{BillingDetails, BillingSettings};
use berth_types::quotas::{AuditEvent, Limits};
use berth_types::reservations::ReservationPolicy;

use super::super::super::invoices::text::rate_text;
use super::super::super::limits::kinds::limits_text;
use super::super::super::text::{counted, size_text};
use super::super::reservations::terms::policy_text;

/// Returns the text of an action, or the recorded action without one.
pub(in crate::pages) fn action_text(action: &str) -> &str {
    match action {
        "account.deleted" => "Account deleted",
        "account.disabled" => "Account disabled",
        "account.enabled" => "Account enabled",
        "account.renamed" => "Account renamed",
        "operator.added" => "Operator added",
        "operator.removed" => "Operator removed",
        "operator.role_changed" => "Operator role changed",
        "email.verification_asked" => "Verification link requested",
        "email.verified" => "E-mail address verified",
        "password.changed" => "Password changed",
        "password.reset" => "Password set by a link",
        "password.reset_asked" => "Password link requested",
        "session.ended" => "Session ended",
        "sessions.ended" => "All sessions ended",
        "join_token.created" => "Join token created",
        "quota.set" => "Limits set",
        "quota.cleared" => "Default limits restored",
        "quota.requested" => "Limits or credit requested",
        "quota.granted" => "Request granted",
        "quota.declined" => "Request declined",
        "reservation.extended" => "Reservation extended",
        "reservation.cancelled" => "Reservation cancelled or returned",
        "reservation.approved" => "Reservation approved",
        "reservation.declined" => "Reservation declined",
        "reservation_policy.set" => "Reservation terms set",
        "retention.removed" => "Old jobs removed",
        "retention.set" => "Retention of ended jobs set",
        "maintenance.planned" => "Maintenance planned",
        "node.approved" => "Node approved",
        "node.removed" => "Node removed",
        "node.labels_set" => "Labels of a node set",
        "node.released" => "Node released for jobs on several nodes",
        "node.dedicated" => "Dedication of a node set",
        "node.pool_set" => "Pool of a node set",
        "inference_pool.set" => "Reserve for bursts set",
        "network.removed" => "Named network removed",
        "network.set" => "Named network set",
        "org.egress_set" => "Egress policy of an organization set",
        "org.own_nodes_set" => "Use of own nodes only set",
        "org.rdma_set" => "Grant of RDMA set",
        "attempt.start_refused" => "Start refused on a dedicated node",
        "node.drain_set" => "Drain started",
        "node.drain_called_off" => "Drain cancelled",
        "node.drained" => "Drain completed",
        "node.shutdown" => "Host shutdown reported",
        "node.lost" => "Node counted as lost",
        "node.declared_lost" => "Node declared lost",
        "node.returned" => "Lost node reconnected",
        "node.cloned" => "Copied node detected",
        "node.revoked" => "Node certificate revoked",
        "node.boards_left_out" => "Boards of another node excluded",
        "gpu.approved" => "Board approved",
        "gpu.quarantined" => "Board put out of service",
        "gpu.cleared" => "Board put back into service",
        "gpu.released" => "Board released",
        "gpu.check_asked" => "Board check requested",
        "gpu.mode_asked" => "MIG mode requested",
        "gpu.reset_asked" => "Board reset requested",
        "attempt.late" => "Attempt reported after its loss",
        "jobs.stopped" => "Jobs stopped",
        "terminal.opened" => "Terminal opened",
        "terminal.closed" => "Terminal closed",
        "port.opened" => "Port opened",
        "file.removed" => "File deleted",
        "rack.budget_set" => "Rack power budget set",
        "rack.budget_removed" => "Rack power budget removed",
        "storage_class.declared" => "Storage class declared",
        "storage_class.deleted" => "Storage class deleted",
        "storage_class.granted" => "Storage class granted",
        "storage_class.revoked" => "Storage class revoked",
        "price.set" => "Price set",
        "price.withdrawn" => "Planned price withdrawn",
        "credit.granted" => "Credit granted",
        "credit.taken_back" => "Account debited",
        "credit_limit.set" => "Credit limit set",
        "change_policy.set" => "Rule for a second operator set",
        "change_request.created" => "Change request created",
        "change_request.approved" => "Change request approved",
        "change_request.rejected" => "Change request rejected",
        "change_request.withdrawn" => "Change request withdrawn",
        "budget.created" => "Budget created",
        "budget.deleted" => "Budget deleted",
        "secret.created" => "Secret created",
        "secret.replaced" => "Secret value replaced",
        "secret.deleted" => "Secret deleted",
        "volume.created" => "Volume created",
        "volume.deleted" => "Volume deleted",
        "volume.file_put" => "File uploaded to a volume",
        "volume.file_removed" => "File deleted from a volume",
        "gateway.added" => "Gateway added",
        "gateway.removed" => "Gateway removed",
        "gateway.token_replaced" => "Token of a gateway replaced",
        "inference_key.created" => "Inference key created",
        "inference_key.revoked" => "Inference key revoked",
        "revision.created" => "Revision of a service created",
        "service.changed" => "Service changed",
        "service.created" => "Service created",
        "service.deleted" => "Service deleted",
        "promise.changed" => "Promise changed",
        "promise.created" => "Promise created",
        "promise.retired" => "Promise retired",
        "service.promise_set" => "Promise of a service set",
        "service.rolled_back" => "Service rolled back",
        "service.traffic_set" => "Traffic of a service set",
        "service_host.confirmed" => "Host name of a service confirmed",
        "service_host.missing" => "DNS record of a host name missing",
        "service_host.refused" => "Confirmation of a host name ended by an operator",
        "service_host.unconfirmed" => "Host name no longer confirmed: DNS record missing",
        "token_price.set" => "Price of tokens set",
        "webhook.created" => "Webhook created",
        "webhook.deleted" => "Webhook deleted",
        "webhook.passed_on" => "Webhook passed to an owner",
        "webhook.stopped" => "Webhook stopped",
        "member.role_changed" => "Role of a member changed",
        "member.removed" => "Member removed",
        "member.left" => "Member left",
        "attempt.meter_refused" => "Meter refused",
        "metrics_token.created" => "Token for metrics created",
        "metrics_token.revoked" => "Token for metrics revoked",
        "token.created" => "Token created",
        "token.revoked" => "Token revoked",
        "token.refused" => "Token refused",
        "service_account.created" => "Service account created",
        "service_account.disabled" => "Service account disabled",
        "service_account.enabled" => "Service account enabled",
        "service_account.deleted" => "Service account deleted",
        "member.joined" => "Member joined",
        "factor.added" => "Authenticator app added",
        "factor.removed" => "Second factor removed",
        "factor.codes_replaced" => "Recovery codes replaced",
        "passkey.added" => "Passkey added",
        "passkey.removed" => "Passkey removed",
        "passkey.renamed" => "Passkey renamed",
        "sign_in_policy.set" => "Sign-in policy set",
        "invitation.created" => "Invitation created",
        "invitation.resent" => "Invitation resent",
        "invitation.withdrawn" => "Invitation withdrawn",
        "invoice.paid" => "Invoice marked as paid",
        "invoice.voided" => "Invoice voided",
        "billing_details.set" => "Billing details set",
        "billing_settings.set" => "Invoice settings set",
        "portal_settings.set" => "Portal settings set",
        "portal_logo.set" => "Portal logo set",
        "portal_logo.removed" => "Portal logo removed",
        "access.denied" => "Access denied",
        "request.refused" => "Cross-site request refused",
        "request.throttled" => "Requests slowed down",
        "auto_recharge.set" => "Automatic recharge set",
        "job.access_opened" => "Access of an operator opened",
        "job.cancelled" => "Job cancelled",
        "node.cordoned" => "Node cordoned",
        "node.uncordoned" => "Node uncordoned",
        "portal.set_up" => "Portal set up",
        "scim.group_changed" => "Group changed by SCIM",
        "scim.group_created" => "Group created by SCIM",
        "scim.group_deleted" => "Group deleted by SCIM",
        "scim.user_changed" => "Person changed by SCIM",
        "scim.user_created" => "Person created by SCIM",
        "scim.user_deleted" => "Person deleted by SCIM",
        "session.started" => "Signed in",
        "session.proved" => "Identity confirmed",
        "session.refused" => "Sign-in refused",
        "sso.domain_confirmed" => "Domain confirmed",
        "sso.domain_missing" => "DNS record of a domain missing",
        "sso.domain_unconfirmed" => "Domain without its DNS record",
        "sso.domain_refused" => "Domain no longer confirmed",
        "sso.ended" => "Access ended by single sign-on",
        "sso.linked" => "Single sign-on linked",
        "sso.provider_removed" => "Single sign-on removed",
        "sso.provider_set" => "Single sign-on set",
        "sso.refused" => "Single sign-on refused",
        "user.signed_up" => "Signed up",
        other => other,
    }
}

/// Returns the details of an event; a recorded JSON document becomes text.
pub(in crate::pages) fn detail_text(event: &AuditEvent, currency: &str) -> String {
    let text = match event.action.as_str() {
        "quota.set" => serde_json::from_str::<Limits>(&event.detail).ok().map(|limits| {
            let lines = limits_text(&limits, currency);
            if lines.is_empty() { "no limits".to_owned() } else { lines.join(", ") }
        }),
        "reservation_policy.set" => {
            serde_json::from_str::<ReservationPolicy>(&event.detail).ok().map(|policy| policy_text(&policy))
        }
        "billing_details.set" => {
            serde_json::from_str::<BillingDetails>(&event.detail).ok().map(|details| details_text(&details))
        }
        "billing_settings.set" => {
            serde_json::from_str::<BillingSettings>(&event.detail).ok().map(|set| settings_text(&set))
        }
        "volume.created" | "volume.deleted" | "retention.removed" => Some(sized(&event.detail)),
        _ => None,
    };
    text.unwrap_or_else(|| event.detail.clone())
}

/// Writes a size at the end, such as `1073741824 bytes`, in binary units.
fn sized(detail: &str) -> String {
    let Some(rest) = detail.strip_suffix(" bytes") else { return detail.to_owned() };
    let (lead, number) = match rest.rsplit_once(' ') {
        Some((lead, number)) => (format!("{lead} "), number),
        None => (String::new(), rest),
    };
    number.parse::<u64>().map_or_else(|_| detail.to_owned(), |bytes| format!("{lead}{}", size_text(bytes)))
}

/// Returns the invoice settings in one line.
fn settings_text(settings: &BillingSettings) -> String {
    let taxes: Vec<String> =
        settings.taxes.iter().map(|tax| format!("{} {}", tax.name, rate_text(tax.basis_points))).collect();
    let taxes = if taxes.is_empty() { "no taxes".to_owned() } else { taxes.join(", ") };
    let due = counted(usize::try_from(settings.due_days).unwrap_or(0), "day", "days");
    format!("{taxes}; due after {due}; billed by {}", settings.seller.replace('\n', ", "))
}

/// Returns the billing details of an organization in one line.
fn details_text(details: &BillingDetails) -> String {
    let tax_id = if details.tax_id.is_empty() { String::new() } else { format!("tax ID {}", details.tax_id) };
    let parts = [details.name.clone(), details.address.replace('\n', ", "), tax_id];
    let set: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    if set.is_empty() { "no details".to_owned() } else { set.join("; ") }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use berth_types::quotas::{AUDIT_ACTIONS, AuditContext};

    pub fn event(number: u32, action: &str, detail: &str) -> AuditEvent {
        AuditEvent {
            id: format!("aud_{number:0>26}").parse().unwrap(),
            at: berth_types::time::Timestamp::from_micros(0),
            actor: "Operator".to_owned(),
            action: action.to_owned(),
            subject: "default".to_owned(),
            detail: detail.to_owned(),
            context: AuditContext::default(),
        }
    }

    #[test]
    fn recorded_details_become_text() {
        let text = |action: &str, detail: &str| detail_text(&event(1, action, detail), "USD");
        assert_eq!(text("quota.set", r#"{"boards_milli":125}"#), "Boards at once: 0.125");
        assert_eq!(text("quota.set", "{}"), "no limits");
        assert_eq!(text("quota.granted", "until May"), "until May");
        // An unknown document stays unchanged.
        assert_eq!(text("quota.set", r#"{"unknown":1}"#), r#"{"unknown":1}"#);
        let terms = serde_json::to_string(&ReservationPolicy::default()).unwrap();
        assert!(text("reservation_policy.set", &terms).starts_with("Free cancellation until 1 d before"));
        let invoices =
            r#"{"seller":"Harbour\nKade 4","taxes":[{"name":"VAT","basis_points":1900}],"due_days":14}"#;
        assert_eq!(
            text("billing_settings.set", invoices),
            "VAT 19 %; due after 14 days; billed by Harbour, Kade 4"
        );
        let details = r#"{"name":"Lab GmbH","address":"Kade 4\nKiel","tax_id":"DE1"}"#;
        assert_eq!(text("billing_details.set", details), "Lab GmbH; Kade 4, Kiel; tax ID DE1");
        assert_eq!(text("billing_details.set", "{}"), "no details");
        assert_eq!(text("volume.created", "1073741824 bytes"), "1.0 GiB");
        assert_eq!(text("volume.deleted", "3 files, 1536 bytes"), "3 files, 1.5 KiB");
        assert_eq!(text("volume.deleted", "some bytes"), "some bytes");
        // Only a recorded size is a number of bytes.
        assert_eq!(text("quota.granted", "1024 bytes"), "1024 bytes");
    }

    #[test]
    fn each_action_of_the_portal_has_a_text() {
        let raw: Vec<&&str> = AUDIT_ACTIONS.iter().filter(|action| action_text(action) == **action).collect();
        assert_eq!(raw, Vec::<&&str>::new());
        assert_eq!(action_text("terminal.opened"), "Terminal opened");
        assert_eq!(action_text("moon.landed"), "moon.landed");
    }
}
