//! Examples for the schemas: at least one accepted body for each type of a request.
//!
//! No object has the ids. The times are fixed, because this crate reads no clock.

mod accounts;
mod services;

use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use self::accounts::*;
use berth_types::budgets::{AtLimit, NewBudget};
use berth_types::egress::{PutEgressPolicy, PutNetwork};
use berth_types::factors::SignInPolicy;
use berth_types::health::PatchGpuMode;
use berth_types::ids::{NodeId, OrgId, QuoteId};
use berth_types::invoices::{BillingDetails, BillingSettings, TaxRate};
use berth_types::jobs::{Checkpoint, ExtendJob, NewJob, Retry, RetryOn, Topology};
use berth_types::ledger::{CreditLimit, NewCredit, NewCredits, NewDebit, NewGrant};
use berth_types::node_pools::InferencePool;
use berth_types::nodes::{
    ApproveNode, Dedication, ExpectedBoards, NewJoinToken, PatchNode, PutOrgNodes, SeenBoard,
};
use berth_types::offerings::NewPrice;
use berth_types::operations::{JobFilter, NewDrain, PutRack, StopJobs};
use berth_types::payments::{AutoRecharge, NewTopUp};
use berth_types::portal::{Accent, PortalSettings, PutLogo};
use berth_types::ports::NewPortTicket;
use berth_types::quotas::{DecideQuotaRequest, Limits, NewQuotaRequest};
use berth_types::rdma::RdmaGrant;
use berth_types::reservations::{
    Every, ExtendReservation, NewMaintenance, NewQuote, NewReservation, Repeat, ReservationPolicy,
};
use berth_types::secrets::PutSecret;
use berth_types::service_accounts::PatchServiceAccount;
use berth_types::terminals::NewTerminal;
use berth_types::time::Timestamp;
use berth_types::volumes::{NewUpload, NewVolume};
use berth_types::webhooks::NewWebhook;

fn value<T: Serialize>(example: T) -> Value {
    serde_json::to_value(example).unwrap_or_default()
}

/// The examples of each type of a request, by the name of its schema.
pub fn by_schema() -> Vec<(&'static str, Vec<Value>)> {
    [without_services(), services::by_schema(), of_pools(), of_names()].concat()
}

fn of_names() -> Vec<(&'static str, Vec<Value>)> {
    vec![("PatchMe", vec![value(patch_me())])]
}

fn of_pools() -> Vec<(&'static str, Vec<Value>)> {
    vec![("InferencePool", vec![value(InferencePool { reserve_boards: 4 })])]
}

fn without_services() -> Vec<(&'static str, Vec<Value>)> {
    vec![
        ("Setup", vec![value(setup())]),
        ("SignUp", vec![value(sign_up())]),
        ("SignIn", vec![value(sign_in())]),
        ("ChangePassword", vec![value(change_password())]),
        ("NewPasswordReset", vec![value(new_password_reset())]),
        ("CompletePasswordReset", vec![value(complete_password_reset())]),
        ("CompleteVerification", vec![value(complete_verification())]),
        ("DeleteAccount", vec![value(delete_account())]),
        ("DisableUser", vec![value(disable_user())]),
        ("NewOperator", vec![value(new_operator())]),
        ("ChangeOperator", vec![value(change_operator())]),
        ("RemoveOperator", vec![value(remove_operator())]),
        ("SecondFactorSignIn", vec![value(second_factor_sign_in())]),
        ("ConfirmTotp", vec![value(confirm_totp())]),
        ("NewProof", vec![value(new_proof())]),
        ("NewPasskey", vec![value(new_passkey())]),
        ("RenamePasskey", vec![value(rename_passkey())]),
        ("PasskeySignIn", vec![value(passkey_sign_in())]),
        ("PasskeyProof", vec![value(passkey_proof())]),
        ("SetRetention", vec![value(berth_types::storage::SetRetention { keep_ended_jobs_days: Some(30) })]),
        ("SignInPolicy", vec![value(SignInPolicy { require_second_factor: true })]),
        ("NewToken", vec![value(new_token())]),
        ("NewOperatorToken", vec![value(new_operator_token())]),
        ("NewMetricsToken", vec![value(new_metrics_token())]),
        ("NewServiceAccount", vec![value(new_service_account())]),
        ("PatchServiceAccount", vec![value(PatchServiceAccount { disabled: true })]),
        ("NewBudget", vec![value(new_budget())]),
        ("PatchGpuMode", vec![value(patch_gpu_mode())]),
        ("BillingDetails", vec![value(billing_details())]),
        ("BillingSettings", vec![value(billing_settings())]),
        ("NewJob", vec![value(new_job()), value(new_training_job())]),
        ("ExtendJob", vec![value(extend_job())]),
        ("NewCredit", vec![value(new_credit())]),
        ("NewCredits", vec![value(new_credits())]),
        ("NewDebit", vec![value(new_debit())]),
        ("CreditLimit", vec![value(credit_limit())]),
        ("ChangePolicy", vec![json!({ "second_operator": false })]),
        ("RejectChange", vec![json!({ "reason": "The invoice is not paid." })]),
        ("ChangeMember", vec![value(change_member())]),
        ("NewInvitation", vec![value(new_invitation())]),
        ("LookAtInvitation", vec![value(look_at_invitation())]),
        ("AcceptInvitation", vec![value(accept_invitation())]),
        ("PatchNode", vec![value(patch_node())]),
        ("ApproveNode", vec![value(approve_node())]),
        ("Dedication", vec![value(dedication())]),
        ("PutOrgNodes", vec![value(PutOrgNodes { own_nodes_only: true })]),
        ("RdmaGrant", vec![value(RdmaGrant { granted: true })]),
        ("NewJoinToken", vec![value(new_join_token())]),
        ("NewPrice", vec![value(new_price())]),
        ("NewDrain", vec![value(new_drain())]),
        ("StopJobs", vec![value(stop_jobs())]),
        ("StopOrgJobs", vec![json!({ "filter": { "label": "purpose=example" }, "expected": 0 })]),
        ("PutRack", vec![value(put_rack())]),
        ("PutNetwork", vec![value(put_network())]),
        ("PutEgressPolicy", vec![value(put_egress_policy())]),
        ("NewTopUp", vec![value(new_top_up())]),
        ("AutoRecharge", vec![value(auto_recharge())]),
        ("PortalSettings", vec![value(portal_settings())]),
        ("PutLogo", vec![value(put_logo())]),
        ("NewPortTicket", vec![value(new_port_ticket())]),
        ("Limits", vec![value(limits())]),
        ("NewQuotaRequest", vec![value(new_quota_request()), value(new_credit_request())]),
        ("DecideQuotaRequest", vec![value(decide_quota_request())]),
        ("NewQuote", vec![value(new_quote())]),
        ("ReservationPolicy", vec![value(reservation_policy())]),
        ("NewReservation", vec![value(new_reservation())]),
        ("ExtendReservation", vec![value(extend_reservation())]),
        ("NewMaintenance", vec![value(new_maintenance())]),
        ("PutSecret", vec![value(put_secret())]),
        ("NewTerminal", vec![value(new_terminal())]),
        ("NewVolume", vec![value(new_volume())]),
        ("NewUpload", vec![value(new_upload())]),
        ("NewWebhook", vec![value(new_webhook())]),
        ("PutSsoProvider", vec![put_sso_provider()]),
        ("CheckDomain", vec![json!({ "domain": "example.org" })]),
        ("ConfirmDomain", vec![json!({ "domain": "example.org", "confirmed": true })]),
    ]
}

/// The number of the ids, `01h455vb4pex5vsknk084sn02q` in their text.
const UUID: Uuid = Uuid::from_u128(0x0189_0a5d_ac96_774b_bcce_b302_099a_8057);
/// 2027-09-01T08:00:00Z.
const START: Timestamp = Timestamp::from_micros(1_819_785_600_000_000);
/// 2030-01-01T00:00:00Z.
const EXPIRY: Timestamp = Timestamp::from_micros(1_893_456_000_000_000);
/// 2027-06-01T00:00:00Z.
const TOKEN_EXPIRY: Timestamp = Timestamp::from_micros(1_811_808_000_000_000);
const OFFERING: &str = "h100-80gb";
const PASSWORD: &str = "seven quiet otters carry lanterns";

fn new_job() -> NewJob {
    NewJob {
        name: "train".to_owned(),
        offering: OFFERING.to_owned(),
        count: 1,
        nodes: 1,
        command: Some(vec!["nvidia-smi".to_owned()]),
        max_duration_s: 600,
        ..NewJob::default()
    }
}

fn new_training_job() -> NewJob {
    NewJob {
        name: "train with checkpoints".to_owned(),
        script: Some("#!/bin/sh\nset -e\npython3 train.py\n".to_owned()),
        command: None,
        env: [("EPOCHS".to_owned(), "10".to_owned())].into(),
        files: [("train.py".to_owned(), "print(\"epoch 1\")\n".to_owned())].into(),
        preemptible: true,
        retry: Some(Retry { max: 3, on: vec![RetryOn::NodeLost, RetryOn::Preempted] }),
        checkpoint: Some(Checkpoint {
            grace_s: 60,
            dir: Some("checkpoints".to_owned()),
            every_s: Some(300),
            keep: Some(3),
            ..Checkpoint::default()
        }),
        artifacts: vec!["out/**".to_owned()],
        labels: [("team".to_owned(), "vision".to_owned())].into(),
        ..new_job()
    }
}

fn extend_job() -> ExtendJob {
    ExtendJob { max_duration_s: 7_200 }
}

fn new_credit() -> NewCredit {
    NewCredit { amount_micros: 25_000_000, memo: "Research grant 2027".to_owned(), expires_at: Some(EXPIRY) }
}

fn new_credits() -> NewCredits {
    let memo = "Credit for September".to_owned();
    let organization = OrgId::from_uuid(UUID);
    NewCredits { grants: vec![NewGrant { organization, amount_micros: 25_000_000, memo }] }
}

fn new_debit() -> NewDebit {
    NewDebit { amount_micros: 1_000_000, memo: "Refund to the card".to_owned() }
}

fn credit_limit() -> CreditLimit {
    CreditLimit { credit_limit_micros: 100_000_000 }
}

fn new_budget() -> NewBudget {
    NewBudget {
        name: "Vision team".to_owned(),
        label: "team".to_owned(),
        value: "vision".to_owned(),
        limit_micros: 500_000_000,
        at_limit: AtLimit::Notify,
    }
}

fn billing_details() -> BillingDetails {
    BillingDetails {
        name: "Example Lab GmbH".to_owned(),
        address: "2 Example Street\n20095 Hamburg".to_owned(),
        tax_id: "DE123456789".to_owned(),
    }
}

fn billing_settings() -> BillingSettings {
    BillingSettings {
        seller: "Example Cloud\n1 Example Street\n10115 Berlin".to_owned(),
        seller_tax_id: "DE987654321".to_owned(),
        taxes: vec![TaxRate { name: "VAT".to_owned(), basis_points: 1_900 }],
        due_days: 14,
    }
}

fn new_top_up() -> NewTopUp {
    NewTopUp { amount_micros: 25_000_000, save_card: false }
}

fn auto_recharge() -> AutoRecharge {
    AutoRecharge { below_micros: 10_000_000, amount_micros: 50_000_000, most_a_day: 2 }
}

fn new_price() -> NewPrice {
    NewPrice {
        offering: OFFERING.to_owned(),
        per_hour_micros: 2_500_000,
        reserved_per_hour_micros: Some(2_000_000),
        preemptible_per_hour_micros: Some(1_500_000),
        effective_from: None,
    }
}

fn limits() -> Limits {
    Limits { guaranteed_boards_milli: Some(4_000), weight_milli: Some(1_000), ..requested_limits() }
}

fn requested_limits() -> Limits {
    Limits {
        boards_milli: Some(16_000),
        devices: [(OFFERING.to_owned(), 8)].into(),
        running_jobs: Some(100),
        queued_jobs: Some(500),
        spend_per_hour_micros: Some(50_000_000),
        board_hours_per_month: Some(2_000),
        reserved_boards_milli: Some(8_000),
        ..Limits::default()
    }
}

fn new_quota_request() -> NewQuotaRequest {
    NewQuotaRequest {
        limits: requested_limits(),
        credit_micros: None,
        reason: "A larger model in September.".to_owned(),
    }
}

fn new_credit_request() -> NewQuotaRequest {
    NewQuotaRequest {
        limits: Limits::default(),
        credit_micros: Some(25_000_000),
        reason: "Runs for a deadline in September.".to_owned(),
    }
}

fn decide_quota_request() -> DecideQuotaRequest {
    DecideQuotaRequest {
        grant: true,
        limits: None,
        credit_micros: None,
        note: "Until the end of the year.".to_owned(),
    }
}

fn new_quote() -> NewQuote {
    NewQuote {
        offering: OFFERING.to_owned(),
        nodes: 1,
        gpus_per_node: 1,
        starts_at: START,
        ends_at: START.plus_seconds(8 * 3_600),
        topology: Topology::Any,
        repeat: Some(Repeat { every: Every::Day, count: 5 }),
    }
}

fn new_reservation() -> NewReservation {
    NewReservation { quote: QuoteId::from_uuid(UUID), name: "Course in September".to_owned() }
}

fn extend_reservation() -> ExtendReservation {
    ExtendReservation { ends_at: START.plus_seconds(12 * 3_600) }
}

fn new_maintenance() -> NewMaintenance {
    NewMaintenance {
        node: NodeId::from_uuid(UUID),
        gpus: Vec::new(),
        starts_at: START,
        ends_at: START.plus_seconds(2 * 3_600),
        reason: "New driver".to_owned(),
    }
}

fn reservation_policy() -> ReservationPolicy {
    ReservationPolicy {
        no_show_after_s: Some(3_600),
        approval_above_boards_milli: Some(32_000),
        ..ReservationPolicy::default()
    }
}

fn patch_node() -> PatchNode {
    PatchNode { cordoned: Some(true), ..PatchNode::default() }
}

fn dedication() -> Dedication {
    Dedication { org: Some(OrgId::from_uuid(UUID)) }
}

fn approve_node() -> ApproveNode {
    let board = |uuid: &str| SeenBoard { uuid: uuid.to_owned(), model: "A30-24GB".to_owned() };
    ApproveNode {
        boards: Some(vec![
            board("GPU-6f1c2d0e-58a4-4b7f-9d35-0c8e7a2b1f60"),
            board("GPU-b83e9a71-2d4c-4f0a-8e16-7d5f3c9a0b24"),
        ]),
    }
}

fn new_join_token() -> NewJoinToken {
    NewJoinToken {
        valid_s: Some(3_600),
        approve: true,
        expected: Some(ExpectedBoards { model: "H100-80GB".to_owned(), boards: 8 }),
        labels: [("rack".to_owned(), "r12".to_owned())].into(),
        adopt_labels: false,
    }
}

fn patch_gpu_mode() -> PatchGpuMode {
    PatchGpuMode { mig: true }
}

fn new_drain() -> NewDrain {
    NewDrain { deadline_at: Some(START), grace_s: Some(120), reason: "Replacement of a fan".to_owned() }
}

fn stop_jobs() -> StopJobs {
    StopJobs {
        filter: JobFilter { label: Some("purpose=example".to_owned()), ..JobFilter::default() },
        reason: "Security update of the hosts".to_owned(),
        expected: Some(0),
    }
}

fn put_sso_provider() -> Value {
    json!({
        "issuer": "https://login.example.org/realms/lab",
        "client_id": "berth",
        "client_secret": "3f1c9a7e5b2d4806",
        "group_claim": "groups",
        "roles": [{ "group": "gpu-users", "role": "member" }],
        "create_members": true,
        "domains": ["example.org"],
    })
}

fn put_network() -> PutNetwork {
    PutNetwork { ranges: vec!["10.8.0.0/16".to_owned(), "fd00:8::/32".to_owned()] }
}

fn put_egress_policy() -> PutEgressPolicy {
    PutEgressPolicy { internet: true, networks: Vec::new(), host_network: false }
}

fn put_rack() -> PutRack {
    PutRack { budget_watts: 40_000 }
}

fn new_terminal() -> NewTerminal {
    NewTerminal { rank: 0, reason: Some("Help with a support request".to_owned()) }
}

fn portal_settings() -> PortalSettings {
    PortalSettings {
        name: "Harbour Compute".to_owned(),
        support_email: Some("support@example.org".to_owned()),
        terms_url: Some("https://example.org/terms".to_owned()),
        accent: Accent::Teal,
        offer_public: true,
        max_token_days: 366,
        token_expiry_required: true,
    }
}

fn put_logo() -> PutLogo {
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg==";
    PutLogo { png: png.to_owned() }
}

fn new_port_ticket() -> NewPortTicket {
    NewPortTicket { rank: 0, reason: Some("Help with a support request".to_owned()) }
}

fn new_webhook() -> NewWebhook {
    NewWebhook {
        url: "https://hooks.example.org/berth".to_owned(),
        kinds: vec!["job.*".to_owned(), "budget.passed".to_owned()],
    }
}

fn new_volume() -> NewVolume {
    NewVolume { name: "datasets".to_owned(), max_bytes: Some(107_374_182_400), class: None }
}

fn new_upload() -> NewUpload {
    NewUpload {
        bytes: 5,
        // The hash of `hello`.
        sha256: Some("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824".to_owned()),
        tag: Some("2027-09-01T08:00:00Z".to_owned()),
    }
}

fn put_secret() -> PutSecret {
    PutSecret { value: "value-of-an-example".to_owned() }
}
