//! Joining, reporting and cordoning of nodes.

use berth_core::admission::check_name;
use berth_mig::board_by_name;
use berth_types::ids::{JoinTokenId, NodeId};
use berth_types::nodes::{JoinToken, NewJoinToken, Node, PatchNode};
use berth_types::problems::Problem;
use futures::FutureExt;

use super::{Caller, keys};
use crate::portal::Portal;
use crate::secrets::{fingerprint, new_opaque};
use crate::store::nodes::NodeReport;
use crate::store::{self, StoreError};

const HOUR_S: u64 = 3_600;
const WEEK_S: u64 = 7 * 24 * HOUR_S;

impl Portal {
    /// A one-time ticket for a worker.
    pub async fn create_join_token(
        &self,
        caller: &Caller,
        input: NewJoinToken,
    ) -> Result<JoinToken, Problem> {
        self.authorise_operator(caller)?;
        let valid_s = input.valid_s.unwrap_or(HOUR_S);
        if !(60..=WEEK_S).contains(&valid_s) {
            return Err(Problem::invalid_field(
                "/valid_s",
                "Choose between a minute and a week, in seconds.",
            ));
        }
        if caller.done_before().is_some() {
            return Err(keys::shown_once());
        }
        let now = self.now();
        let (id, secret): (JoinTokenId, String) = (self.new_id(now), self.random(new_opaque));
        let expires_at = now.plus_seconds(i64::try_from(valid_s).unwrap_or(0));
        let (hash, created_by) = (fingerprint(&secret), caller.user.email.clone());
        let once = caller.once.clone();
        self.db
            .write(move |tx| {
                let (hash, created_by, once) = (hash.clone(), created_by.clone(), once.clone());
                async move {
                    keys::claim(tx, once.as_ref(), "", now).await?;
                    store::nodes::insert_join_token(tx, id, &hash, &created_by, now, expires_at).await
                }
                .boxed()
            })
            .await?;
        let command = format!(
            "berth-worker run --portal {} --join-token {secret} --data /var/lib/berth-worker",
            self.settings.worker_url
        );
        Ok(JoinToken { id, secret, expires_at, command })
    }

    /// Spends a join token: the new node and its secret, or why not, in words for the host's operator.
    pub async fn join(&self, token: &str, name: &str) -> Result<(NodeId, String), Problem> {
        let mut errors = Vec::new();
        check_name("/name", name, &mut errors);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.now();
        let (node, secret): (NodeId, String) = (self.new_id(now), self.random(new_opaque));
        let (ticket, hash, name) = (fingerprint(token), fingerprint(&secret), name.trim().to_owned());
        let joined = self
            .db
            .write(move |tx| {
                let (ticket, hash, name) = (ticket.clone(), hash.clone(), name.clone());
                async move {
                    if !store::nodes::use_join_token(tx, &ticket, now).await? {
                        return Ok(false);
                    }
                    store::nodes::insert(tx, node, &name, &hash, now).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        if joined {
            Ok((node, secret))
        } else {
            let detail =
                "It was used already, has expired or never existed. Make a new one on the Nodes page.";
            Err(Problem::new(403, "join_token.refused", "The join token is refused", detail))
        }
    }

    /// Whether a worker is the node that it says it is.
    pub async fn authenticate_node(&self, node: NodeId, secret: &str) -> Result<bool, StoreError> {
        let mut conn = self.db.read().await?;
        store::nodes::authenticate(&mut conn.tx(), node, &fingerprint(secret)).await
    }

    /// Records a host as its worker sees it, and puts its boards on offer.
    pub async fn report_node(&self, node: NodeId, report: NodeReport) -> Result<(), StoreError> {
        let mut models: Vec<&str> = report.boards.iter().map(|b| b.model.as_str()).collect();
        models.sort_unstable();
        models.dedup();
        for board in models.into_iter().filter_map(board_by_name) {
            self.offer_board(board, report.simulated).await?;
        }
        let now = self.now();
        self.db
            .write(move |tx| {
                let report = report.clone();
                async move { store::nodes::report(tx, node, &report, now).await }.boxed()
            })
            .await
    }

    pub async fn touch_node(&self, node: NodeId) -> Result<(), StoreError> {
        let now = self.now();
        self.db.write(move |tx| async move { store::nodes::touch(tx, node, now).await }.boxed()).await
    }

    /// A cordoned node keeps what it runs and takes nothing new.
    pub async fn patch_node(&self, caller: &Caller, node: NodeId, patch: PatchNode) -> Result<Node, Problem> {
        self.authorise_operator(caller)?;
        let cordoned = patch.cordoned;
        let found = self
            .db
            .write(move |tx| async move { store::nodes::set_cordoned(tx, node, cordoned).await }.boxed())
            .await?;
        self.touch_boards();
        let known = if found { self.nodes(None).await?.into_iter().find(|n| n.id == node) } else { None };
        known.ok_or_else(Problem::not_found)
    }
}
