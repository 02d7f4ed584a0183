//! A request from its head to the head of its answer.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use berth_autoscaling::credit::{KeyId, Payer, Price, Usage as PricedUsage};
use berth_serving::balancer::Session;
use berth_serving::refusals::{Lack, Refusal};
use berth_serving::routes::{Endpoint, Target, check_body, check_model};
use berth_serving::snapshot::{Allowed, Key, Protocol, Service};
use berth_serving::usage::Tokens;
use berth_serving::usage::request::InferenceRequest;
use http::header::HeaderMap;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Bytes, Incoming};
use rand::Rng;
use serde_json::{Value, json};

use crate::answers::{self, AnswerBody, Form};
use crate::bodies::{RequestBody, WholeBody, read_whole};
use crate::caller::Caller;
use crate::clock::{now_ms, wall};
use crate::delivery::{Delivery, deliver};
use crate::exchange::{Admission, Metered};
use crate::grpc::Terms;
use crate::headers::{self, Secret, Sender};
use crate::metrics;
use crate::service::{Demand, ServiceState};
use crate::shared::Shared;
use crate::shares::Owner;
use crate::view::View;

/// The Retry-After of a gateway without a snapshot or without room, in seconds.
const RETRY_AFTER_S: u64 = 2;
/// Bytes of a body whose reading is no long work.
const SHORT_BYTES: usize = 256 << 10;
/// Bytes of the begin of a prompt that choose a replica. A shorter body has no begin that is worth keeping.
const PREFIX_BYTES: usize = 1_024;

/// Answers a request.
pub async fn handle(
    shared: &Arc<Shared>,
    caller: &Caller,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    shared.counters.requests.fetch_add(1, Ordering::Relaxed);
    // Programs of replicas accept only a UUID in this header, such as those with starlette-context.
    let id = uuid::Builder::from_random_bytes(rand::rng().random()).into_uuid().to_string();
    let origin = &shared.settings.portal.origin;
    let is_page = headers::is_from(request.headers(), origin);
    let mut answer = if is_page && headers::is_preflight(request.method(), request.headers()) {
        let mut answer = Response::new(AnswerBody::Whole(Bytes::new()));
        *answer.status_mut() = StatusCode::NO_CONTENT;
        headers::allow_requests(answer.headers_mut());
        answer
    } else {
        answer(shared, caller, request, &id).await
    };
    if is_page {
        headers::allow_origin(answer.headers_mut(), origin);
    }
    headers::name_request(answer.headers_mut(), &id);
    answer
}

async fn answer(
    shared: &Arc<Shared>,
    caller: &Caller,
    request: Request<Incoming>,
    id: &str,
) -> Response<AnswerBody> {
    let path = request.uri().path();
    let terms = Terms::new(&request);
    let mut form = if terms.is_grpc { Form::Grpc } else { Form::Problem };
    form.choose(path.starts_with("/v1/"));
    let Some(view) = shared.view() else {
        let starting = Refusal::Gateway { lack: Lack::Snapshot, retry_after_s: RETRY_AFTER_S };
        return refused(shared, &starting, id, form);
    };
    if matches!(path, "/healthz" | "/metrics")
        && !view.routes.has_host(headers::host(request.uri(), request.headers()))
    {
        return own(shared, path);
    }
    match route(shared, &view, (caller, terms), request, (id, &mut form)).await {
        Ok(answer) => answer,
        Err(refusal) => refused(shared, &refusal, id, form),
    }
}

/// The addresses of the gateway itself.
fn own(shared: &Shared, path: &str) -> Response<AnswerBody> {
    if path == "/metrics" {
        return answers::whole(
            StatusCode::OK,
            berth_contract::exposition::CONTENT_TYPE,
            metrics::text(shared),
        );
    }
    answers::whole(StatusCode::OK, "text/plain; charset=utf-8", "ready\n")
}

fn refused(shared: &Shared, refusal: &Refusal, id: &str, form: Form) -> Response<AnswerBody> {
    shared.counters.refused.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(request = id, ?refusal, "a request is refused");
    answers::refused(refusal, id, form)
}

/// A caller with the key.
struct Asked<'a> {
    shared: &'a Arc<Shared>,
    view: &'a View,
    caller: &'a Caller,
    terms: Terms,
    key: Option<&'a Key>,
    owner: Owner,
    id: &'a str,
}

/// The address of the sender, before all trusted proxies.
fn sender(shared: &Shared, caller: &Caller, headers: &HeaderMap) -> IpAddr {
    let limits = &shared.settings.limits;
    let named = || headers::senders(headers).find(|one| !limits.is_proxy(*one));
    limits.is_proxy(caller.address).then(named).flatten().unwrap_or(caller.address)
}

/// Finds the service of a request, and passes the request to it.
async fn route(
    shared: &Arc<Shared>,
    view: &View,
    (caller, terms): (&Caller, Terms),
    request: Request<Incoming>,
    (id, form): (&str, &mut Form),
) -> Result<Response<AnswerBody>, Refusal> {
    let secret = headers::secret(request.headers());
    let is_foreign = secret == Secret::Foreign;
    let key = match secret {
        Secret::Key(secret) => Some(view.routes.key(secret, wall())?),
        Secret::Absent | Secret::Foreign => None,
    };
    let owner = Owner::new(key.map(|key| key.org), sender(shared, caller, request.headers()));
    let Some(_room) = shared.requests.find(owner, 1) else {
        return Err(Refusal::Gateway { lack: Lack::Room, retry_after_s: RETRY_AFTER_S });
    };
    let path = request.uri().path().to_owned();
    let target = view.routes.target(headers::host(request.uri(), request.headers()), &path, key);
    let asked = Asked { shared, view, caller, terms, key, owner, id };
    let answered = match target {
        Err(refusal) => Err(refusal),
        Ok(Target::Model(endpoint)) => asked.infer(request, endpoint, None).await,
        Ok(Target::Service { service, path, endpoint: None }) => {
            form.choose(service.protocol == Protocol::OpenAi);
            asked.pass(request, service, path).await
        }
        Ok(Target::Service { service, path, endpoint: Some(endpoint) }) => {
            form.choose(true);
            asked.infer(request, endpoint, Some((service, path))).await
        }
    };
    // A public service needs no key, so it ignores one that is none of ours.
    answered.map_err(|refusal| match refusal {
        Refusal::KeyRequired if is_foreign => Refusal::KeyRefused,
        other => other,
    })
}

impl Asked<'_> {
    /// Answers a request of the OpenAI interface: on the gateway's own host, or on an address of one service.
    async fn infer(
        &self,
        request: Request<Incoming>,
        endpoint: Endpoint,
        own: Option<(&Service, &str)>,
    ) -> Result<Response<AnswerBody>, Refusal> {
        if endpoint == Endpoint::Models {
            return self.list_models(request.method(), own.map(|(service, _)| service));
        }
        if request.method() != Method::POST {
            return Err(Refusal::Method { allowed: "POST" });
        }
        let (head, body) = request.into_parts();
        let max_bytes = match own {
            Some((service, _)) => service.max_body_bytes,
            None => self.view.routes.body_limit(self.key)?,
        };
        let limits = &self.shared.settings.limits;
        let memory = (&self.shared.memory, self.owner);
        let WholeBody { bytes, room } = read_whole(body, max_bytes, memory, limits.body).await?;
        let (asked, sent) = read_request(endpoint, &bytes).await?;
        let (service, path) = match own {
            Some((service, path)) => {
                check_model(service, &asked.model, self.key)?;
                (service, path)
            }
            None => (self.view.routes.by_model(&asked.model, self.key)?, head.uri.path()),
        };
        check_body(service, bytes.len() as u64)?;
        let context = service.models.iter().find(|model| model.name.as_str() == asked.model);
        let worst = asked.worst(context.map_or(0, |model| model.context_tokens));
        let metered = Metered {
            worst,
            body_bytes: asked.body_bytes,
            hides_usage: asked.is_stream && !asked.asks_for_usage,
        };
        let mut request = self.request(&head, path, RequestBody::Whole(sent), false)?;
        headers::ask_for_plain_text(request.headers_mut());
        let prefix = bytes.get(..PREFIX_BYTES).map(Session::new);
        let demand = self.demand(&head.headers, prefix, bytes.len() as u64);
        drop(bytes);
        let answer = deliver(Delivery {
            shared: self.shared,
            service: self.state(service)?,
            demand,
            request,
            admission: self.admit(service, worst).await?,
            metered: Some(metered),
            fault: None,
            upgrade: None,
            caller: self.caller,
            terms: self.terms,
        });
        let answer = answer.await;
        drop(room);
        answer
    }

    /// Passes a request as it is.
    async fn pass(
        &self,
        mut request: Request<Incoming>,
        service: &Service,
        path: &str,
    ) -> Result<Response<AnswerBody>, Refusal> {
        if service.protocol == Protocol::OpenAi && !self.may_pass_unmetered(service) {
            return Err(Refusal::UnknownAddress);
        }
        let is_upgrade = request.version() == Version::HTTP_11 && headers::is_upgrade(request.headers());
        let upgrade = is_upgrade.then(|| hyper::upgrade::on(&mut request));
        let (head, body) = request.into_parts();
        let limits = &self.shared.settings.limits;
        // Both sides of a call of gRPC may be silent for a while.
        let idle = if self.terms.is_grpc { limits.idle } else { limits.body };
        let (body, fault) = RequestBody::passed(body, service.max_body_bytes, idle)?;
        let request = self.request(&head, path, body, is_upgrade)?;
        let delivery = Delivery {
            shared: self.shared,
            service: self.state(service)?,
            demand: self.demand(&head.headers, None, 0),
            request,
            admission: self.admit(service, Tokens::default()).await?,
            metered: None,
            fault: Some((fault, service.max_body_bytes)),
            upgrade,
            caller: self.caller,
            terms: self.terms,
        };
        deliver(delivery).await
    }

    /// True if a path without a known endpoint evades no price, no rate of tokens and no list of models.
    fn may_pass_unmetered(&self, service: &Service) -> bool {
        let is_free = service.nano_per_prompt_token == 0 && service.nano_per_completion_token == 0;
        let is_free_of_rates = |key: &Key| key.limits.tokens_per_minute.is_none();
        is_free && self.key.is_none_or(|key| key.allowed == Allowed::All && is_free_of_rates(key))
    }

    /// The list of models for the key, of one service or of all.
    fn list_models(&self, method: &Method, own: Option<&Service>) -> Result<Response<AnswerBody>, Refusal> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(Refusal::Method { allowed: "GET" });
        }
        let names: Vec<&str> = match own {
            None => self.view.routes.models(self.key).into_iter().collect(),
            // Its address has the models of a public service for the keys of others too.
            Some(service) => {
                let names = service.models.iter().map(|model| model.name.as_str());
                names.filter(|name| check_model(service, name, self.key).is_ok()).collect()
            }
        };
        if names.is_empty() && self.key.is_none() {
            return Err(Refusal::KeyRequired);
        }
        let list: Vec<Value> = names
            .into_iter()
            .map(|name| json!({"id": name, "object": "model", "created": 0, "owned_by": "berth"}))
            .collect();
        Ok(answers::json(&json!({"object": "list", "data": list})))
    }

    /// The request for a replica.
    fn request(
        &self,
        head: &http::request::Parts,
        path: &str,
        body: RequestBody,
        is_upgrade: bool,
    ) -> Result<Request<RequestBody>, Refusal> {
        let malformed = Refusal::Malformed { line: 1, column: 1 };
        let query = head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let target = PathAndQuery::try_from(format!("{path}{query}")).map_err(|_| malformed)?;
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = Uri::from(target);
        *request.headers_mut() = head.headers.clone();
        let sender = Sender {
            peer: self.caller.address,
            is_proxy: self.shared.settings.limits.is_proxy(self.caller.address),
            request_id: self.id,
        };
        let host = headers::host(&head.uri, &head.headers);
        headers::prepare_request(request.headers_mut(), host, &sender, is_upgrade);
        Ok(request)
    }

    fn demand(&self, headers: &HeaderMap, prefix: Option<Session>, bytes: u64) -> Demand {
        let wait = self.shared.settings.limits.wait;
        Demand {
            key: self.key.map(|key| key.id),
            session: headers::session(headers).map(Session::new),
            prefix,
            bytes,
            deadline_ms: now_ms().saturating_add(millis(wait)),
            except: Vec::new(),
        }
    }

    fn state(&self, service: &Service) -> Result<Arc<ServiceState>, Refusal> {
        self.view.services.get(&service.id).cloned().ok_or(Refusal::UnknownAddress)
    }

    /// Counts the worst case of a request in the rates of its key, and holds its price.
    async fn admit(&self, service: &Service, worst: Tokens) -> Result<Admission, Refusal> {
        let price = Price {
            nano_per_second: 0,
            nano_per_prompt_token: service.nano_per_prompt_token,
            nano_per_completion_token: service.nano_per_completion_token,
        };
        let (ledger, rates) = (self.shared.ledger.clone(), self.shared.rates.clone());
        let key = self.key.map(|key| key.id);
        let mut admission = Admission { ledger, rates, key, price, admitted_tokens: 0, hold: None };
        let Some(key) = self.key else { return Ok(admission) };
        let tokens = worst.total();
        let rates = admission.rates.clone();
        rates.lock().unwrap_or_else(PoisonError::into_inner).admit(key.id, key.limits, tokens, now_ms())?;
        admission.admitted_tokens = tokens;
        let usage =
            PricedUsage { replica_ms: 0, prompt_tokens: worst.prompt, completion_tokens: worst.completion };
        let nanos = price.charge_nanos(&usage).ok_or(Refusal::OverBudget)?;
        if nanos > 0 {
            let payer = Payer { org: key.org, key: KeyId(key.number) };
            admission.hold = Some(admission.ledger.hold(payer, nanos).await?);
        }
        Ok(admission)
    }
}

/// Reads a request of the OpenAI interface. Returns it with its body for the replica. A long one is read beside the other
/// requests.
async fn read_request(endpoint: Endpoint, bytes: &Bytes) -> Result<(InferenceRequest, Bytes), Refusal> {
    let read = move |bytes: &Bytes| -> Result<(InferenceRequest, Bytes), Refusal> {
        let asked = InferenceRequest::read(endpoint, bytes)?;
        let sent = match asked.with_usage(bytes) {
            Cow::Borrowed(_) => bytes.clone(),
            Cow::Owned(changed) => Bytes::from(changed),
        };
        Ok((asked, sent))
    };
    if bytes.len() <= SHORT_BYTES {
        return read(bytes);
    }
    let bytes = bytes.clone();
    tokio::task::spawn_blocking(move || read(&bytes)).await.unwrap_or(Err(Refusal::BodyBroken))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
