//! The texts of the document: the general description, the tags, and the operations with more than a summary.

use serde_json::{Value, json};

/// The general facts of the document.
pub(super) fn info() -> Value {
    json!({
        "title": "Berth",
        "version": "v1",
        "description": "Times are RFC 3339 in UTC. Money is in micro-units of the currency, rates in nano-units a second. \
                        Names of integers carry their unit. A body has at most 12 MiB. Every list takes `limit` (1 to 200, \
                        50 when absent), the `next_cursor` of the page before as `cursor`, and `sort` (`asc` or `desc`). \
                        Objects with ids are listed by their creation, newest first when `sort` is absent. All other \
                        objects are listed by name, or as the list says, ascending when `sort` is absent. The last page \
                        has no `next_cursor`. A cursor is valid for its own list only, with the same `sort` and filters; any other is refused. \
                        CSV has all rows. The list of a job's events continues after an event number (`after`). Errors are \
                        problems (RFC 9457) with a stable `code`. A token sends the requests of its scopes only: the \
                        scope of a route is its `x-scope`, and a scope for writing includes the one for reading. Routes of operators also \
                        need a role of operators; 403 `auth.forbidden` names the roles with the right. Every answer has the header `X-Request-Id`.",
    })
}

/// The tags with their descriptions.
const TAGS: &[(&str, &str)] = &[
    ("audit-destinations", "Destinations of the audit log outside of the portal."),
    ("audit-events", "Records of deliberate acts."),
    ("auto-recharge", "The rule for automatic charges of the saved card."),
    ("balance", "The balance of an organization's account."),
    ("billing-details", "The details of the customer on invoices."),
    ("billing-portal", "Stripe's page for cards and receipts."),
    ("billing-settings", "The seller, the taxes and the due date of invoices."),
    ("boards", "Boards with their state and their free devices."),
    ("budgets", "Monthly limits on charges."),
    ("calendar", "The spans of reservations, maintenance and jobs on each board."),
    ("capacity", "The free boards of each model over time."),
    ("change-policy", "The rule for a second operator."),
    ("change-requests", "Acts of operators that wait for a second operator."),
    ("cluster", "All boards in a short form."),
    ("credits", "Credit for several organizations at once."),
    ("deliveries", "Deliveries of notices to webhooks."),
    ("drains", "Nodes in a drain."),
    ("egress-policy", "The addresses that the jobs of an organization may reach."),
    ("email-verifications", "Verifications of e-mail addresses by links."),
    ("events", "The stream of changes of an organization."),
    ("gateways", "The gateways of services, for operators."),
    ("gpus", "Checks, releases and the MIG mode of boards."),
    ("inference-keys", "Secrets for requests to services."),
    ("inference-pool", "The reserve for bursts on nodes for inference."),
    ("info", "Public facts about the portal."),
    ("inventory", "Hosts with their versions and differences."),
    ("invitations", "Invitations to organizations."),
    ("invoices", "Final bills and credit notes."),
    ("job-counts", "The numbers of an organization's jobs."),
    ("jobs", "Jobs with their logs, readings, files, terminals and ports."),
    ("join-tokens", "Single-use secrets for new nodes."),
    ("loops", "Repeated tasks of the portal."),
    ("me", "The caller of the request."),
    ("members", "Users with a role in an organization."),
    ("metrics-tokens", "Tokens for the metrics of the portal."),
    ("networks", "Named networks for egress policies."),
    ("nodes", "Hosts with a worker."),
    ("offer", "The public prices and free boards."),
    ("offerings", "Board models and MIG profiles on sale."),
    ("orgs", "Organizations with their credit and limits, for operators."),
    ("operators", "Operators with their roles, for operators."),
    ("overview", "The state of the whole portal, for operators."),
    ("password-resets", "New passwords by links."),
    ("payment-settings", "The means of payment of an organization."),
    ("portal", "The name and the look of the portal."),
    ("portal-settings", "The settings of the name, the look and the public offer."),
    ("prices", "Dated prices of offerings."),
    ("promises", "Promises for services."),
    ("quota", "Limits with their use."),
    ("quota-requests", "Requests for other limits and for credit."),
    ("quotes", "Prices for windows, fixed until their expiry."),
    ("racks", "Power budgets of racks."),
    ("rdma", "The grant of RDMA to an organization."),
    ("reconciliation", "Checks of the ledger against its sums."),
    ("reservation-policy", "The terms of reservations."),
    ("reservations", "Reservations and maintenance windows."),
    ("retention", "The retention of ended jobs."),
    (
        "scim",
        "People and groups that an identity provider keeps in an organization (SCIM 2.0). Errors have the form of RFC 7644.",
    ),
    ("secrets", "Sealed values for jobs."),
    ("service-accounts", "Accounts of an organization for programs."),
    ("service-gateways", "The addresses of the gateways that answer at present."),
    ("service-hosts", "The proofs of host names of services."),
    ("services", "Models and other servers behind one address."),
    ("sessions", "Sign-in and sign-out of the browser."),
    ("setup", "The first operator of a new portal."),
    ("sign-in-policy", "The rule of an organization for the sign-in of its members."),
    ("sign-up", "New users with a new organization."),
    ("sso", "Sign-ins and sign-outs by providers of single sign-on."),
    ("sso-domains", "Domains of single sign-on."),
    ("sso-provider", "The single sign-on of an organization."),
    ("statement", "The charges, credits and payments of a month."),
    ("storage", "Stored bytes with their limit."),
    ("storage-classes", "File systems of the nodes for volumes."),
    ("stripe", "Events of Stripe."),
    ("stuck", "Jobs without progress."),
    ("templates", "First inputs for submissions of jobs."),
    ("tokens", "API tokens."),
    ("top-ups", "Payments by card."),
    ("transfers", "The ledger of an organization."),
    ("usage", "Charged device time and its cost."),
    ("users", "The accounts of people, for operators."),
    ("volumes", "Named, versioned sets of files."),
    ("webhooks", "Addresses for signed notices."),
];

/// The descriptions of operations by their ids.
const OPERATIONS: &[(&str, &str)] = &[
    (
        "get_orgs_org_jobs_job_files_file",
        "The `ETag` is the SHA-256 of all bytes. Several ranges mean the whole file.",
    ),
    (
        "get_orgs_org_jobs_job_submission",
        "The answer is a valid body of `POST /orgs/{org}/jobs`, with the present time limit. It has the values of the \
         job's environment variables and the texts of its files, and secrets by name only. It requires the right to run \
         jobs.",
    ),
    (
        "get_orgs_org_volumes_volume_files_path",
        "The `ETag` is the SHA-256 of all bytes. Several ranges mean the whole file.",
    ),
    (
        "patch_orgs_org_volumes_volume_uploads_path",
        "The part must begin at the end of the received bytes. The header `Upload-Offset` of the answer has the \
         offset of the next part.",
    ),
    (
        "delete_me_sessions",
        "The present session ends too. Open streams, terminals and ports of the sessions end at once. API tokens stay \
         valid. A token has no access to the account of its person.",
    ),
    (
        "delete_operator_users_user_factors",
        "For a person who lost the app or the passkeys, and the recovery codes. The sessions of the person end, the password alone signs \
         in afterwards, and the person gets a mail. API tokens stay valid.",
    ),
    (
        "post_operator_operators",
        "The account needs a verified address and a password. Its sessions end. A repetition with the same role changes nothing; an operator with another role is refused (`operators.account`). With the rule for a second operator the new operator waits for the approval of another owner.",
    ),
    (
        "patch_operator_operators_user",
        "With the rule for a second operator a role with further rights waits for the approval of another owner. A lower \
         role counts at once. The last active owner is refused, and one of two with the rule for a second operator \
         (`operators.last_owner`).",
    ),
    (
        "delete_operator_users_user_disabled",
        "The person signs in again, and API tokens are valid again. With the rule for a second operator the account of an \
         operator waits for the approval of another owner.",
    ),
    (
        "get_operator_change_requests",
        "An operator reads the own change requests and those that the role decides. A role that reads the \
         audit log reads all.",
    ),
    (
        "post_operator_operators_user_remove",
        "The operator's tokens of the person end; the account and its memberships stay. The last active owner is refused, and one of two with the rule for a second operator (`operators.last_owner`).",
    ),
    (
        "post_email_verifications_complete",
        "No `Idempotency-Key`: a link is valid once, and a repetition answers `link.not_valid`.",
    ),
    (
        "post_invitations_accept",
        "No `Idempotency-Key`: an invitation is valid once. A repetition by the same signed-in user has the same answer, \
         and any other answers `invitation.not_valid`.",
    ),
    ("post_invitations_look", "No `Idempotency-Key`: the request changes nothing."),
    (
        "post_me_deletion",
        "No `Idempotency-Key`: the account exists once, and a repetition answers `auth.required`. The deletion removes \
         the name, the address, the password, the second factor, the sessions, the memberships and the API tokens of the \
         person. The ledger, invoices, jobs and audit events stay. The only owner of an organization with open jobs, open \
         reservations, a balance or other members is refused (`account.in_use`). An organization that loses its last \
         member loses its saved card, its automatic recharge and its webhooks.",
    ),
    (
        "post_me_email_verification",
        "No `Idempotency-Key`: a repetition mails another link, and earlier links stay valid for seven days. An address \
         that is verified gets no mail.",
    ),
    (
        "post_password_resets",
        "No `Idempotency-Key`: a repetition mails another link, and earlier links stay valid for 10 minutes. The answer \
         is the same, after the same time, for an address without an account. An address gets three links, then one an \
         hour.",
    ),
    (
        "put_operator_change_policy",
        "With the rule on, an act that moves money, opens a job of an organization or gives a right of operators answers \
         202 with its change request, and takes effect at the approval by another operator within 24 hours. The end of the rule waits for \
         another operator too. The rule needs two operators. Only a session with a proof of identity within the last 15 \
         minutes may set it.",
    ),
    (
        "post_operator_change_requests_change_approve",
        "The act takes effect in the same write, with all checks of the present time. The operator is another person \
         than the requester, has no token, and has a proof of identity within the last 15 minutes. A request counts for the \
         state of its object at the time of the request (`change_request.changed`). A repetition by the same operator has \
         the same answer.",
    ),
    (
        "post_operator_change_requests_change_reject",
        "The operator is another person than the requester, has no token, and has a proof of identity within the last 15 \
         minutes. A repetition by the same operator has the same answer.",
    ),
    (
        "post_orgs_org_jobs_stop",
        "One request stops at most 500 jobs, the oldest first; `left` is the number of remaining jobs. Ended jobs and jobs \
         that stop for good do not match. It requires the right to run jobs. The audit event has the number and the \
         filter.",
    ),
    (
        "post_orgs_org_services",
        "The loop of services starts the replicas as jobs of the organization, with the label `berth-service`. The `name` of \
         the job is replaced. The job is checked like a submission; limits and credit count at the submission of each replica.",
    ),
    (
        "post_orgs_org_services_service_revisions",
        "A service has one revision on its way at a time (`revision.underway`). It keeps the last 100 revisions, and older \
         ones with a replica.",
    ),
    (
        "post_orgs_org_services_service_rollback",
        "A revision on its way is withdrawn. Without one, the revision before the live one starts its replicas and then gets \
         all requests.",
    ),
    (
        "put_orgs_org_services_service_traffic",
        "No evidence raises the percentage after this. With 100 the revision becomes live. The first revision of a service \
         gets all requests or none, so a percentage of it changes nothing. `canary_keys` count while the revision is a canary, \
         at any percentage, also 0. They end with the next request without them, and as soon as the revision becomes live or \
         is rolled back. A revoked or expired key drops out.",
    ),
    (
        "delete_orgs_org_services_service",
        "Names, hosts and models are free at once. Requests in progress end first. The texts of scripts, variables and files of \
         all revisions are removed.",
    ),
    ("get_orgs_org_services_service_use", "Hours are those of UTC, and hours without a request are absent."),
    (
        "post_password_resets_complete",
        "No `Idempotency-Key`: a link is valid once, and a repetition answers `link.not_valid`. All sessions of the \
         person end; API tokens stay valid. If the link is the first proof of the address, the second factor and the API \
         tokens of the account are removed.",
    ),
    (
        "post_sessions",
        "No `Idempotency-Key`: the answer sets a cookie, which the portal does not store. A repetition opens another \
         session. 202: the account has a second factor, and `POST /sessions/second-factor` or `POST /sessions/passkey` \
         completes the sign-in.",
    ),
    (
        "post_me_passkeys",
        "No `Idempotency-Key`: the answer to the options of `POST /me/passkeys/options` works once, and a repetition is \
         refused. Without the answer, list the passkeys and replace the recovery codes. The request needs a proof of \
         identity within the last 15 minutes. If the account had no second factor before, all other sessions of the \
         person end.",
    ),
    (
        "post_me_passkeys_options",
        "No `Idempotency-Key`: a repetition begins another ceremony in place of the first. The request needs a proof of \
         identity within the last 15 minutes. The answer of the browser goes to `POST /me/passkeys` within five minutes.",
    ),
    (
        "post_me_proof_passkey",
        "No `Idempotency-Key`: the answer to the options of `POST /sessions/passkey/options` works once.",
    ),
    (
        "post_me_proof",
        "No `Idempotency-Key`: a repetition proves the identity again. A code works once. The password of a person with a \
         second factor is refused.",
    ),
    (
        "post_me_recovery_codes",
        "No `Idempotency-Key`: a repetition replaces the codes again. The request needs a proof of identity within the \
         last 15 minutes.",
    ),
    (
        "post_me_totp",
        "No `Idempotency-Key`: a repetition makes another secret in place of the first, which has no effect before its \
         confirmation. The request needs a proof of identity within the last 15 minutes.",
    ),
    (
        "post_me_totp_confirm",
        "No `Idempotency-Key`: an app is confirmed once, and a repetition answers `factor.exists`. Without the answer, \
         replace the recovery codes. All other sessions of the person end; API tokens stay valid.",
    ),
    (
        "post_sessions_passkey",
        "No `Idempotency-Key`: the answer to the options of `POST /sessions/passkey/options` works once. The passkey of a \
         verified user needs neither a password nor a code.",
    ),
    (
        "post_sessions_passkey_options",
        "No `Idempotency-Key`: a repetition begins another ceremony. The answer of the browser goes to \
         `POST /sessions/passkey` or `POST /me/proof/passkey` within five minutes.",
    ),
    (
        "post_sessions_second_factor",
        "No `Idempotency-Key`: a code and a challenge work once. A challenge has five tries and ends after five minutes.",
    ),
    ("post_setup", "No `Idempotency-Key`: only one set-up succeeds, and a repetition answers `setup.done`."),
    (
        "post_sign_up",
        "No `Idempotency-Key`: an address has one account, and a repetition answers `account.exists`.",
    ),
    (
        "get_sso_start",
        "The answer leads the browser to the provider, or after a failure to the sign-in page, whose parameter `sso` has \
         the cause. It sets a cookie for the return within ten minutes.",
    ),
    (
        "get_sso_org_callback",
        "The redirect URI for the registration at the provider. The answer sets the session cookie, or leads to the \
         sign-in page with the cause of a failure. Each state works once, in the browser of its first step.",
    ),
    (
        "get_scim_org_v2_Users",
        "Lists are by the creation of the accounts. The only filters are `userName eq` and `externalId eq` with a text in quotation marks. \
         Resources of lists have no `groups`.",
    ),
    (
        "post_scim_org_v2_Users",
        "No `Idempotency-Key`: a repetition is refused (`scim.exists`). The token is of a service account and names the \
         scope `scim`. The domain of the address must be confirmed for the organization. An account with the address is \
         taken over if it is a member, or has no password and no second factor. An organization has at most 10,000 people \
         of its provider.",
    ),
    (
        "patch_scim_org_v2_Users_user",
        "A person that is not active has no membership: it ends with the API tokens that the person made in the \
         organization, the sessions by its provider, and open streams, terminals and ports. Attributes that Berth does \
         not keep have no effect. The last owner is refused (`members.last_owner`).",
    ),
    ("delete_scim_org_v2_Users_user", "The membership ends as after a deactivation. The account stays."),
    (
        "post_scim_org_v2_Groups",
        "No `Idempotency-Key`: a repetition is refused (`scim.exists`). The name or the external id is the group in the \
         roles of single sign-on, and the members get the role at once. An organization has at most 1,000 groups, each \
         with at most 1,000 members.",
    ),
    (
        "delete_scim_org_v2_Groups_group",
        "With a group of the roles of single sign-on the members get the role of their other groups, or the role of a \
         person without a group. Without a role the membership ends; the last owner stays.",
    ),
    (
        "post_sso_org_logout",
        "No `Idempotency-Key`: a logout token (OpenID Connect Back-Channel Logout 1.0) is valid once, for five minutes.",
    ),
    (
        "post_sso_operators_logout",
        "No `Idempotency-Key`: a logout token (OpenID Connect Back-Channel Logout 1.0) is valid once, for five minutes.",
    ),
    (
        "post_orgs_org_sso_domains_check",
        "No `Idempotency-Key`: a repetition checks the record again. The record is a TXT record at `_berth.` and the \
         domain, with the value `record` of the domain. A check takes at most five seconds, and an organization has at \
         most ten checks an hour.",
    ),
    (
        "put_orgs_org_sso_provider",
        "Only the session of an owner with a proof of identity within the last 15 minutes may set the provider. Another \
         issuer or client ends the sessions by the former one.",
    ),
    (
        "put_me_password",
        "All other sessions of the person end, with their streams, terminals and ports; API tokens stay valid. The \
         request counts like a sign-in. A token has no access to the account of its person.",
    ),
    (
        "put_operator_users_user_disabled",
        "Sessions, streams, terminals and ports of the person end at once. The password and the API tokens are refused \
         until `DELETE`. Jobs continue and are charged. A repetition changes the reason.",
    ),
    ("post_stripe_events", "No `Idempotency-Key`: an event has its own id, and a repetition has no effect."),
];

/// The tags of the document.
pub(super) fn tags() -> Value {
    TAGS.iter().map(|(name, description)| json!({ "name": name, "description": description })).collect()
}

/// The description of an operation, if its summary is not enough.
pub(super) fn find_description(id: &str) -> Option<&'static str> {
    OPERATIONS.iter().find(|(known, _)| *known == id).map(|(_, description)| *description)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_tables_have_the_tags_and_operations_of_the_document_only() {
        let document = super::super::document();
        let paths = document["paths"].as_object().unwrap().values();
        let operations: Vec<&Value> = paths.flat_map(|item| item.as_object().unwrap().values()).collect();
        let used: BTreeSet<&str> = operations.iter().map(|o| o["tags"][0].as_str().unwrap()).collect();
        let described: BTreeSet<&str> = TAGS.iter().map(|(name, _)| *name).collect();
        assert_eq!(used, described);
        let ids: BTreeSet<&str> = operations.iter().map(|o| o["operationId"].as_str().unwrap()).collect();
        for (id, _) in OPERATIONS {
            assert!(ids.contains(id), "{id}");
        }
    }
}
