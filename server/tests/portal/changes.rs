//! Tests of the listeners of committed changes.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use berth_foundation::live::JobUpdate;
use berth_foundation::{Change, SessionKey};
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, NodeId, OrgId, ServiceId, TokenId, UserId};
use berth_types::jobs::JobState;
use berth_types::time::Timestamp;
use futures::FutureExt;
use uuid::Uuid;

use crate::common::TestPortal;

/// Returns the expected listeners of a change. A new kind of change does not compile without an entry here.
/// The unit tests of tunnels, passes, the watch for idle devices and the loop of services cover these listeners.
fn listeners(change: &Change) -> &'static [&'static str] {
    match change {
        Change::Job { event: Some(event), .. } if event.state == JobState::Starting => {
            &["stream of the job", "stream of the organization"]
        }
        Change::Job { .. } => &["scheduler", "stream of the job", "stream of the organization"],
        Change::JobDevices(_) | Change::Boards | Change::Orgs | Change::Reservations => &["scheduler"],
        Change::Assignments(_) => &["session of the node"],
        Change::NodeRevoked(_) => &["session of the node", "end of the session"],
        Change::Charged(_) => &["budgets"],
        Change::Member { .. } => &["streams of the member", "streams of the session", "streams of the token"],
        Change::Operator(_) => &["streams of the member", "streams of the session", "streams of the token"],
        Change::TokenRevoked(_) => &["streams of the token"],
        Change::SignedOut(_) => &["streams of the session"],
        Change::Service(_) | Change::InferenceKeys(_) => &[],
        Change::Webhooks(_) => &["notices of the organization"],
    }
}

struct Ids {
    org: OrgId,
    job: JobId,
    node: NodeId,
    user: UserId,
    token: TokenId,
}

fn changes(ids: &Ids) -> Vec<Change> {
    let Ids { org, job, node, user, token } = *ids;
    let event = |state| JobEvent {
        job,
        seq: 2,
        at: Timestamp::from_micros(0),
        state,
        attempt: 1,
        detail: String::new(),
    };
    let mut all: Vec<Change> =
        JobState::ALL.into_iter().map(|state| Change::Job { org, job, event: Some(event(state)) }).collect();
    all.extend([
        Change::Job { org, job, event: None },
        Change::JobDevices(job),
        Change::Boards,
        Change::Orgs,
        Change::Reservations,
        Change::Service(ServiceId::from_uuid(Uuid::from_u128(6))),
        Change::InferenceKeys(org),
        Change::Assignments(node),
        Change::NodeRevoked(node),
        Change::Charged(org),
        Change::Member { org, user },
        Change::Operator(user),
        Change::TokenRevoked(token),
        Change::SignedOut(SessionKey::from_cookie("laptop")),
        Change::Webhooks(HashSet::from([org])),
    ]);
    all
}

#[tokio::test]
async fn each_change_reaches_its_listeners_and_no_other() {
    let t = TestPortal::sqlite().await;
    let (context, planner) = (&t.portal.context, &t.portal.planner);
    let id = |n: u128| Uuid::from_u128(n);
    let ids = Ids {
        org: OrgId::from_uuid(id(1)),
        job: JobId::from_uuid(id(2)),
        node: NodeId::from_uuid(id(3)),
        user: UserId::from_uuid(id(4)),
        token: TokenId::from_uuid(id(5)),
    };
    // The portal has published changes of its own, so the pending wake-up is consumed first.
    let _ = planner.changed().now_or_never();
    for change in changes(&ids) {
        let live = &context.live;
        context.publish(Change::Webhooks(HashSet::new()));
        let (mut of_job, mut of_org) = (live.listen_job(ids.job), live.listen_org(ids.org));
        let session = live.open_session(ids.node);
        let mut member = Box::pin(live.streams_end(ids.org, ids.user, None, None));
        let mut token = Box::pin(live.streams_end(ids.org, ids.user, Some(ids.token), None));
        let laptop = Some(SessionKey::from_cookie("laptop"));
        let mut person = Box::pin(live.streams_end(ids.org, ids.user, None, laptop));
        context.publish(change.clone());
        let reached = [
            ("scheduler", planner.changed().now_or_never().is_some()),
            ("stream of the job", matches!(of_job.try_recv(), Ok(JobUpdate::Change(_)))),
            ("stream of the organization", matches!(of_org.try_recv(), Ok(JobUpdate::Change(_)))),
            ("session of the node", session.wake.notified().now_or_never().is_some()),
            ("end of the session", !session.is_current()),
            ("budgets", live.charged.notified().now_or_never().is_some()),
            ("streams of the member", (&mut member).now_or_never().is_some()),
            ("streams of the session", (&mut person).now_or_never().is_some()),
            ("streams of the token", (&mut token).now_or_never().is_some()),
            ("notices of the organization", live.has_webhook(ids.org)),
        ];
        let reached: BTreeSet<&str> =
            reached.into_iter().filter(|(_, reached)| *reached).map(|(name, _)| name).collect();
        assert_eq!(reached, listeners(&change).iter().copied().collect(), "{change:?}");
    }
}

#[tokio::test]
async fn two_streams_share_the_text_of_a_change() {
    let t = TestPortal::sqlite().await;
    let (org, job) = (OrgId::from_uuid(Uuid::from_u128(1)), JobId::from_uuid(Uuid::from_u128(2)));
    let live = &t.portal.context.live;
    let (mut of_job, mut of_org) = (live.listen_job(job), live.listen_org(org));
    t.portal.context.publish(Change::Job { org, job, event: None });
    let (Ok(JobUpdate::Change(one)), Ok(JobUpdate::Change(other))) = (of_job.try_recv(), of_org.try_recv())
    else {
        panic!("both streams hear it");
    };
    assert!(Arc::ptr_eq(&one.text, &other.text), "the text is made once");
    assert!(t.portal.jobs.change_text(&one).await.is_err(), "there is no such job");
}
