//! Services: models and other servers of an organization behind one address.

use std::future::Future;

use berth_service_types::gateways::GatewayAddress;
use berth_service_types::hosts::{CheckHost, ClaimedHost, ConfirmHost, ServiceHost};
use berth_service_types::promises::{
    JudgedWindow, NewPromise, PatchPromise, Promise, PutServicePromise, ServicePromise,
};
use berth_service_types::revisions::{NewRevision, PutTraffic, Revision};
use berth_service_types::services::{NewService, PatchService, Service, ServiceHour, TokenPrice};
use berth_types::Page;
use berth_types::change_requests::Outcome;
use berth_types::ids::{OrgId, PromiseId, ServiceId};
use serde::de::IgnoredAny;

use super::escape::escaped;
use super::transport::Sender;
use super::{Answer, get, list_all, send};

fn base(org: OrgId, service: ServiceId) -> String {
    format!("/orgs/{org}/services/{service}")
}

/// Returns the query for a page of a list after a cursor.
fn page_query(cursor: Option<String>, limit: u32) -> String {
    let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={}", escaped(&cursor)));
    format!("limit={limit}{cursor}")
}

/// Lists the services of an organization.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Service>>> + Send + 'static {
    list_all(format!("/orgs/{org}/services"))
}

/// Creates a service with its first revision. Repeated requests with the same key create one service.
pub fn create(
    org: OrgId,
    input: &NewService,
    key: Option<String>,
) -> impl Future<Output = Answer<Service>> + Send + 'static {
    send("POST", format!("/orgs/{org}/services"), input, key)
}

/// Gets a service.
pub fn get_one(org: OrgId, service: ServiceId) -> impl Future<Output = Answer<Service>> + Send + 'static {
    get(base(org, service))
}

/// Changes a service.
pub fn patch(
    org: OrgId,
    service: ServiceId,
    input: &PatchService,
) -> impl Future<Output = Answer<IgnoredAny>> + Send + 'static {
    send("PATCH", base(org, service), input, None)
}

/// Deletes a service and stops its replicas.
pub fn delete(org: OrgId, service: ServiceId) -> impl Future<Output = Answer<IgnoredAny>> + Send + 'static {
    send("DELETE", base(org, service), &(), None)
}

/// Lists a page of the revisions of a service, newest first.
pub fn revisions(
    org: OrgId,
    service: ServiceId,
    cursor: Option<String>,
    limit: u32,
) -> impl Future<Output = Answer<Page<Revision>>> + Send + 'static {
    get(format!("{}/revisions?{}", base(org, service), page_query(cursor, limit)))
}

/// A service with the specification of its newest revision. The last value is true if that has all its texts.
pub type Newest = (Service, Option<NewRevision>, bool);

/// Gets the newest revision of a service. Those who may run no jobs get it without its texts.
pub fn newest_revision(
    org: OrgId,
    service: ServiceId,
) -> impl Future<Output = Answer<Newest>> + Send + 'static {
    let sender = Sender::capture();
    async move {
        let path = base(org, service);
        let known: Service = sender.clone().get(&path).await?;
        let revisions: Page<Revision> = sender.clone().get(&format!("{path}/revisions?limit=1")).await?;
        let Some(newest) = revisions.items.into_iter().next() else { return Ok((known, None, false)) };
        let whole: Answer<NewRevision> =
            sender.get(&format!("{path}/revisions/{}/specification", newest.id)).await;
        match whole {
            Ok(whole) => Ok((known, Some(whole), true)),
            Err(problem) if problem.status == 403 => Ok((known, Some(newest.spec), false)),
            // A form without the texts would make a revision without them.
            Err(problem) => Err(problem),
        }
    }
}

/// Lists the services of all organizations, for operators.
pub fn list_of_all() -> impl Future<Output = Answer<Page<Service>>> + Send + 'static {
    list_all("/operator/services".to_owned())
}

/// Sets the price of the tokens of a service, for operators.
pub fn put_token_price(
    service: ServiceId,
    price: &TokenPrice,
) -> impl Future<Output = Answer<Service>> + Send + 'static {
    send("PUT", format!("/operator/services/{service}/token-price"), price, None)
}

/// Creates a revision. Repeated requests with the same key create one revision.
pub fn add_revision(
    org: OrgId,
    service: ServiceId,
    input: &NewRevision,
    key: Option<String>,
) -> impl Future<Output = Answer<IgnoredAny>> + Send + 'static {
    send("POST", format!("{}/revisions", base(org, service)), input, key)
}

/// Changes the parts of the requests that revisions get.
pub fn put_traffic(
    org: OrgId,
    service: ServiceId,
    input: &PutTraffic,
) -> impl Future<Output = Answer<IgnoredAny>> + Send + 'static {
    send("PUT", format!("{}/traffic", base(org, service)), input, None)
}

/// Rolls back the newest revision. Repeated requests with the same key roll back once.
pub fn roll_back(
    org: OrgId,
    service: ServiceId,
    key: Option<String>,
) -> impl Future<Output = Answer<IgnoredAny>> + Send + 'static {
    send("POST", format!("{}/rollback", base(org, service)), &(), key)
}

/// Lists the use of a service in each of the last hours.
pub fn hours(
    org: OrgId,
    service: ServiceId,
    hours: u32,
) -> impl Future<Output = Answer<Page<ServiceHour>>> + Send + 'static {
    get(format!("{}/use?hours={hours}", base(org, service)))
}

/// Gets the promise of a service with its present window.
pub fn promise(
    org: OrgId,
    service: ServiceId,
) -> impl Future<Output = Answer<ServicePromise>> + Send + 'static {
    get(format!("{}/promise", base(org, service)))
}

/// Sets or ends the promise of a service.
pub fn put_promise(
    org: OrgId,
    service: ServiceId,
    input: &PutServicePromise,
) -> impl Future<Output = Answer<ServicePromise>> + Send + 'static {
    send("PUT", format!("{}/promise", base(org, service)), input, None)
}

/// Lists a page of the judged windows of a service, newest first.
pub fn promise_windows(
    org: OrgId,
    service: ServiceId,
    cursor: Option<String>,
    limit: u32,
) -> impl Future<Output = Answer<Page<JudgedWindow>>> + Send + 'static {
    get(format!("{}/promise/windows?{}", base(org, service), page_query(cursor, limit)))
}

/// Lists the promises that services can choose.
pub fn offered_promises(org: OrgId) -> impl Future<Output = Answer<Page<Promise>>> + Send + 'static {
    list_all(format!("/orgs/{org}/promises"))
}

/// Lists the offered promises with the numbers of their services, for operators.
pub fn promises() -> impl Future<Output = Answer<Page<Promise>>> + Send + 'static {
    list_all("/operator/promises".to_owned())
}

/// Offers a promise. Repeated requests with the same key offer it once.
pub fn create_promise(
    input: &NewPromise,
    key: Option<String>,
) -> impl Future<Output = Answer<Outcome<Promise>>> + Send + 'static {
    send("POST", "/operator/promises", input, key)
}

/// Changes a promise for new choices.
pub fn change_promise(
    id: PromiseId,
    input: &PatchPromise,
) -> impl Future<Output = Answer<Outcome<Promise>>> + Send + 'static {
    send("PATCH", format!("/operator/promises/{id}"), input, None)
}

/// Ends the offer of a promise and its choices.
pub fn retire_promise(id: PromiseId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/operator/promises/{id}"), &(), None)
}

/// Checks the record in DNS of a host name of a service now.
pub fn check_host(
    org: OrgId,
    input: &CheckHost,
) -> impl Future<Output = Answer<ServiceHost>> + Send + 'static {
    send("POST", format!("/orgs/{org}/service-hosts/check"), input, None)
}

/// Lists a page of the host names of services of all organizations by name, for operators.
pub fn claimed_hosts(
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<ClaimedHost>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
    get(format!("/operator/service-hosts?limit=200{cursor}"))
}

/// Confirms a host name for an organization, or takes the confirmation back.
pub fn confirm_host(
    org: OrgId,
    input: &ConfirmHost,
) -> impl Future<Output = Answer<ServiceHost>> + Send + 'static {
    send("PUT", format!("/operator/orgs/{org}/service-hosts"), input, None)
}

/// Lists the gateways that answer at present.
pub fn gateways(org: OrgId) -> impl Future<Output = Answer<Page<GatewayAddress>>> + Send + 'static {
    get(format!("/orgs/{org}/service-gateways"))
}
