//! Enrolment of nodes: join tokens, certificates with their renewal and revocation, and detection of clones.
//!
//! A node is identified by its certificate. The certificate counts only with a good record in this portal.

pub mod routes;

use crate::clone_detection::{DaemonIdentity, Verdict, judge};
use berth_core::admission::check_name;
use berth_mig::board_by_name;
use berth_types::ids::{AuditEventId, JoinTokenId, NodeId};
use berth_types::nodes::{ExpectedBoards, JoinTerms, JoinToken, NewJoinToken, Node};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::{AuditContext, AuditEvent};
use berth_types::time::Timestamp;
use futures::FutureExt;
use rand::Rng;

use crate::authority::{Authority, IssuedCertificate, read_certificate};
use crate::cluster::Cluster;
use crate::nodes::approval::check_labels;
use berth_foundation::credentials::{fingerprint, new_opaque};
use berth_foundation::{Caller, idempotency};
use berth_foundation::{Change, Context};
use berth_store::certificates::{StoredCertificate, StoredInstance};
use berth_store::{self as store, StoreError};
use std::sync::{Arc, Mutex, PoisonError};

const HOUR_S: u64 = 3_600;
const WEEK_S: u64 = 7 * 24 * HOUR_S;
/// The most boards that a join token expects on a node.
const MAX_EXPECTED_BOARDS: u32 = 64;
/// Seconds for which expired certificates are kept.
const KEEP_EXPIRED_S: i64 = 90 * 86_400;

const SPENT: &str = "The join token is used, expired or unknown. Create a new one on the page Nodes.";
const UNKNOWN: &str = "The portal has no record of this certificate: it is of another portal, or the node was removed. Start the worker with a new join token.";
const REVOKED: &str =
    "The certificate of this node was revoked. The operator can create a join token for this node.";
const EXPIRED: &str =
    "The certificate of this node has expired. The operator can create a join token for this node.";
/// The refusal of a second daemon with the same certificate.
pub const CLONED: &str = "Two daemons use the certificate of this node. The operator must revoke it and create a join token for the right host.";

/// The proved identity of a worker: it holds the key of this certificate.
#[derive(Debug, Clone)]
pub struct Credential {
    pub node: NodeId,
    pub serial: String,
    pub expires_at: Timestamp,
}

/// The reason why there is no credential.
#[derive(Debug)]
pub enum CredentialError {
    /// The certificate does not count; the text is for the worker.
    Refused(&'static str),
    /// The database cannot be read.
    Store(StoreError),
}

impl From<StoreError> for CredentialError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// A new certificate of a node, for the answer to its worker.
pub struct NodeCertificate {
    pub node: NodeId,
    /// The certificates in DER, the node's own first.
    pub chain: Vec<Vec<u8>>,
    pub lifetime_s: i64,
}

fn refused(detail: &str) -> Problem {
    Problem::new(403, "join_token.refused", "Join token refused", detail)
}

/// The terms of a new join token, with the model of its expected boards as reports have it.
///
/// # Errors
/// A field of the request is invalid.
fn join_terms(input: NewJoinToken) -> Result<JoinTerms, Problem> {
    let NewJoinToken { valid_s: _, approve, expected, labels, adopt_labels } = input;
    check_labels("/labels", &labels)?;
    if adopt_labels && !labels.is_empty() {
        let detail = "Give labels, or adopt those of the worker, not both.";
        return Err(Problem::invalid_field("/adopt_labels", detail));
    }
    let Some(ExpectedBoards { model, boards }) = expected else {
        return Ok(JoinTerms { approve, expected: None, labels, adopt_labels });
    };
    if !(1..=MAX_EXPECTED_BOARDS).contains(&boards) {
        return Err(Problem::invalid_field("/expected/boards", "Enter 1 to 64 boards."));
    }
    let Some(board) = board_by_name(model.trim()) else {
        let detail = "Enter the model of a supported board, such as H100-80GB.";
        return Err(Problem::invalid_field("/expected/model", detail));
    };
    let expected = Some(ExpectedBoards { model: board.model.clone(), boards });
    Ok(JoinTerms { approve, expected, labels, adopt_labels })
}

fn certificate_row(
    issued: &IssuedCertificate,
    node: NodeId,
    now: Timestamp,
    until: Timestamp,
) -> StoredCertificate {
    StoredCertificate {
        serial: issued.serial.clone(),
        node_id: node,
        issued_at: now,
        expires_at: until,
        revoked_at: None,
    }
}

fn last_daemon(row: &StoredInstance) -> Option<DaemonIdentity> {
    (!row.instance.is_empty()).then(|| DaemonIdentity {
        instance: row.instance.clone(),
        epoch: row.epoch,
        connection: row.connections,
    })
}

/// Join tokens, certificates and identities of nodes.
#[derive(Clone)]
pub struct Enrolment {
    context: Context,
    cluster: Cluster,
    /// The certificate authority, opened on first use.
    authority: Arc<Mutex<Option<Arc<Authority>>>>,
}

impl Enrolment {
    pub fn new(context: Context, cluster: Cluster) -> Self {
        Self { context, cluster, authority: Arc::default() }
    }

    /// The portal's certificate authority, from the data directory.
    pub fn authority(&self) -> Result<Arc<Authority>, String> {
        let mut opened = self.authority.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(authority) = opened.as_ref() {
            return Ok(authority.clone());
        }
        let authority = Arc::new(Authority::open(&self.context.settings.data, self.context.now())?);
        *opened = Some(authority.clone());
        Ok(authority)
    }

    /// Deletes spent and expired join tokens.
    pub async fn forget_old(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        self.context
            .db
            .write(move |tx| async move { store::nodes::forget_join_tokens(tx, now).await }.boxed())
            .await
    }

    /// Creates a single-use join token: for a new node, or for `node` to join again.
    ///
    /// # Errors
    /// There is no such node, or a field is invalid. A repeated request cannot return the secret again.
    pub async fn create_join_token(
        &self,
        caller: &Caller,
        node: Option<NodeId>,
        input: NewJoinToken,
    ) -> Result<JoinToken, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        let valid_s = input.valid_s.unwrap_or(HOUR_S);
        if !(60..=WEEK_S).contains(&valid_s) {
            return Err(Problem::invalid_field("/valid_s", "Enter 60 to 604800 seconds (a week)."));
        }
        let terms = join_terms(input)?;
        if caller.already_created().is_some() {
            return Err(idempotency::shown_once());
        }
        let key = caller.idempotency_key.clone();
        let authority = self.authority().map_err(|error| {
            tracing::error!(error, "no certificates can be issued");
            Problem::internal()
        })?;
        let now = self.context.now();
        let (id, secret): (JoinTokenId, String) = (self.context.new_id(now), self.context.random(new_opaque));
        let expires_at = now.plus_seconds(i64::try_from(valid_s).unwrap_or(0));
        let (hash, created_by) = (fingerprint(&secret), caller.user.email.clone());
        let subject = node.map_or_else(|| id.to_string(), |node| node.to_string());
        let event = self.context.audit_event(caller, "join_token.created", subject, String::new());
        let found = self
            .context
            .db
            .write(move |tx| {
                let (hash, created_by, event, key, terms) =
                    (hash.clone(), created_by.clone(), event.clone(), key.clone(), terms.clone());
                async move {
                    if let Some(node) = node
                        && store::certificates::find_instance(tx, node).await?.is_none()
                    {
                        return Ok(false);
                    }
                    idempotency::claim(tx, key.as_ref(), "", now).await?;
                    store::nodes::insert_join_token(tx, id, &hash, &created_by, now, expires_at).await?;
                    store::approvals::set_token_terms(tx, id, &terms).await?;
                    if let Some(node) = node {
                        store::certificates::set_token_node(tx, id, node).await?;
                    }
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        if !found {
            return Err(Problem::not_found());
        }
        // The worker identifies the portal by this fingerprint at its first contact.
        let secret = format!("{secret}.{}", authority.fingerprint());
        let command = self.join_command(&secret);
        Ok(JoinToken { id, secret, expires_at, command })
    }

    /// The shell command for the host. The token is in the environment, because all users can read arguments.
    fn join_command(&self, secret: &str) -> String {
        let settings = &self.context.settings;
        if settings.worker_program.is_some() {
            format!(
                "curl -fsSL {}/install/worker.sh | BERTH_JOIN_TOKEN='{secret}' sudo --preserve-env=BERTH_JOIN_TOKEN sh",
                settings.public_url.trim_end_matches('/')
            )
        } else {
            format!(
                "BERTH_JOIN_TOKEN='{secret}' berth-worker run --portal {} --data /var/lib/berth-worker",
                settings.worker_url
            )
        }
    }

    fn certify(&self, request: &[u8], node: NodeId, until: Timestamp) -> Result<IssuedCertificate, Problem> {
        let authority = self.authority().map_err(|error| {
            tracing::error!(error, "no certificates can be issued");
            Problem::internal()
        })?;
        let serial = self.context.random(|rng| rng.random::<[u8; 16]>());
        authority.certify(request, node, serial, until).map_err(|error| {
            tracing::info!(%node, error, "a certificate request was refused");
            Problem::invalid_field("/csr", "The certificate request is invalid.")
        })
    }

    fn certified(&self, node: NodeId, issued: IssuedCertificate) -> NodeCertificate {
        let chain = issued.chain.iter().map(|certificate| certificate.to_vec()).collect();
        NodeCertificate { node, chain, lifetime_s: self.context.settings.node_certificate_s }
    }

    /// Spends a join token and issues a certificate for its node. `former` is the node of the host's data
    /// directory, if it has one.
    ///
    /// # Errors
    /// The token is spent, expired, unknown or for another node. The texts are for the operator of the host.
    pub async fn join(
        &self,
        token: &str,
        name: &str,
        request: &[u8],
        former: Option<&str>,
    ) -> Result<NodeCertificate, Problem> {
        let mut errors = Vec::new();
        check_name("/name", name, &mut errors);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let until = now.plus_seconds(self.context.settings.node_certificate_s);
        let token_hash = fingerprint(token.split('.').next().unwrap_or_default());
        let mut conn = self.context.db.read().await?;
        let token_node = store::certificates::find_token_node(&mut conn.tx(), &token_hash).await?;
        let Some(known) = token_node else { return Err(refused(SPENT)) };
        let was_removed = store::approvals::was_removed(&mut conn.tx(), former.unwrap_or_default()).await?;
        drop(conn);
        // The host of a removed node is a new host.
        let former = former.filter(|_| !was_removed);
        // These refusals do not spend the token, so the right host can still use it.
        match (known, former) {
            (None, Some(former)) => {
                return Err(refused(&format!(
                    "This host is already the node {former}, and the token is for a new node. Create a token for {former} on the page Nodes, or start with an empty data directory."
                )));
            }
            (Some(node), Some(former)) if node.to_string() != former => {
                return Err(refused(&format!(
                    "The join token is for the node {node}, and this host is the node {former}."
                )));
            }
            _ => {}
        }
        let node = known.unwrap_or_else(|| self.context.new_id(now));
        let issued = self.certify(request, node, until)?;
        let (certificate, name) = (certificate_row(&issued, node, now, until), name.trim().to_owned());
        let joined = self
            .context
            .db
            .write(move |tx| {
                let (token_hash, certificate, name) = (token_hash.clone(), certificate.clone(), name.clone());
                async move {
                    if !store::nodes::use_join_token(tx, &token_hash, now).await? {
                        return Ok(false);
                    }
                    if known.is_none() {
                        store::nodes::insert(tx, node, &name, now).await?;
                    }
                    // An approved node keeps its labels, and gets no boards by a token.
                    if store::approvals::find(tx, node).await?.is_some_and(|row| row.approved_at.is_none()) {
                        let terms = store::approvals::find_token_terms(tx, &token_hash).await?;
                        store::approvals::set_terms(tx, node, &terms.unwrap_or_default()).await?;
                    }
                    if known.is_some() {
                        // Earlier certificates end: those of the host and those of its clones.
                        store::certificates::revoke_all(tx, node, now).await?;
                        store::certificates::forget_instance(tx, node).await?;
                    }
                    store::certificates::insert(tx, &certificate).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        if !joined {
            return Err(refused(SPENT));
        }
        if known.is_some() {
            self.context.publish(Change::NodeRevoked(node));
        }
        Ok(self.certified(node, issued))
    }

    /// Issues a further certificate for a node with a good one.
    ///
    /// # Errors
    /// The present certificate is revoked.
    pub async fn renew(&self, credential: &Credential, request: &[u8]) -> Result<NodeCertificate, Problem> {
        let now = self.context.now();
        let (node, until) = (credential.node, now.plus_seconds(self.context.settings.node_certificate_s));
        let issued = self.certify(request, node, until)?;
        let (certificate, old) = (certificate_row(&issued, node, now, until), credential.serial.clone());
        let renewed = self
            .context
            .db
            .write(move |tx| {
                let (certificate, old) = (certificate.clone(), old.clone());
                async move {
                    // The certificate may have been revoked since the check of the connection.
                    let good = store::certificates::find(tx, &old).await?;
                    if good.is_none_or(|row| row.revoked_at.is_some()) {
                        return Ok(false);
                    }
                    store::certificates::insert(tx, &certificate).await?;
                    store::certificates::forget(tx, node, now.plus_seconds(-KEEP_EXPIRED_S)).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        if renewed { Ok(self.certified(node, issued)) } else { Err(refused(REVOKED)) }
    }

    /// Finds the credential of a certificate.
    ///
    /// # Errors
    /// The certificate does not count now, or the database cannot be read.
    pub async fn identify(&self, certificate: &[u8]) -> Result<Credential, CredentialError> {
        let Some((node, serial)) = read_certificate(certificate) else {
            return Err(CredentialError::Refused(UNKNOWN));
        };
        self.credential(node, &serial).await
    }

    /// Finds the credential of a serial number.
    ///
    /// # Errors
    /// The certificate does not count now, or the database cannot be read.
    pub async fn credential(&self, node: NodeId, serial: &str) -> Result<Credential, CredentialError> {
        let mut conn = self.context.db.read().await?;
        let row = store::certificates::find(&mut conn.tx(), serial).await?;
        let row = row.filter(|row| row.node_id == node).ok_or(CredentialError::Refused(UNKNOWN))?;
        if row.revoked_at.is_some() {
            Err(CredentialError::Refused(REVOKED))
        } else if row.expires_at <= self.context.now() {
            Err(CredentialError::Refused(EXPIRED))
        } else {
            Ok(Credential { node, serial: serial.to_owned(), expires_at: row.expires_at })
        }
    }

    /// Revokes every certificate of a node and ends its session. Its jobs continue like those of a silent
    /// node.
    pub async fn revoke_node(&self, caller: &Caller, node: NodeId) -> Result<Node, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        let now = self.context.now();
        let event = self.context.audit_event(caller, "node.revoked", node.to_string(), String::new());
        let found = self
            .context
            .db
            .write(move |tx| {
                let event = event.clone();
                async move {
                    if store::certificates::find_instance(tx, node).await?.is_none() {
                        return Ok(false);
                    }
                    store::certificates::revoke_all(tx, node, now).await?;
                    store::certificates::void_tokens(tx, node, now).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        self.context.publish(Change::NodeRevoked(node));
        self.context.publish(Change::Boards);
        let known =
            if found { self.cluster.nodes(None).await?.into_iter().find(|n| n.id == node) } else { None };
        known.ok_or_else(Problem::not_found)
    }

    /// Compares a daemon with the last admitted daemon of its node.
    pub async fn judge(&self, node: NodeId, daemon: &DaemonIdentity) -> Result<Verdict, StoreError> {
        let mut conn = self.context.db.read().await?;
        let row = store::certificates::find_instance(&mut conn.tx(), node).await?;
        let suspect = row.as_ref().is_some_and(|row| row.suspect.is_some());
        Ok(judge(row.as_ref().and_then(last_daemon).as_ref(), daemon, suspect))
    }

    /// Admits a daemon. Returns false if another one was admitted meanwhile.
    pub async fn admit(&self, node: NodeId, daemon: &DaemonIdentity) -> Result<bool, StoreError> {
        let daemon = daemon.clone();
        self.context
            .db
            .write(move |tx| {
                let daemon = daemon.clone();
                async move {
                    let Some(row) = store::certificates::find_instance(tx, node).await? else {
                        return Ok(false);
                    };
                    match judge(last_daemon(&row).as_ref(), &daemon, row.suspect.is_some()) {
                        Verdict::Behind | Verdict::Refused => return Ok(false),
                        Verdict::Accepted | Verdict::Restart => {}
                    }
                    store::certificates::set_instance(
                        tx,
                        node,
                        &daemon.instance,
                        daemon.epoch,
                        daemon.connection,
                    )
                    .await?;
                    Ok(true)
                }
                .boxed()
            })
            .await
    }

    /// Records that two daemons hold a node's certificate.
    pub async fn mark_cloned(&self, node: NodeId) -> Result<(), StoreError> {
        let at = self.context.now();
        let reason = "A second daemon used the certificate of this node. Its data directory is a copy or was restored from a backup.";
        let event = AuditEvent {
            id: self.context.new_id::<AuditEventId>(at),
            at,
            actor: "The portal".to_owned(),
            action: "node.cloned".to_owned(),
            subject: node.to_string(),
            detail: reason.to_owned(),
            context: AuditContext::default(),
        };
        let marked = self
            .context
            .db
            .write(move |tx| {
                let event = event.clone();
                async move {
                    let marked = store::certificates::mark_suspect(tx, node, reason).await?;
                    if marked {
                        store::quotas::insert_audit(tx, None, &event).await?;
                    }
                    Ok(marked)
                }
                .boxed()
            })
            .await?;
        if marked {
            tracing::warn!(%node, "a second daemon uses the certificate of this node");
        }
        Ok(())
    }
}
