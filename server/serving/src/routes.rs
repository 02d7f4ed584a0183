//! Routes: the service of a request, or the reason of its refusal.
//!
//! A caller cannot distinguish another organization's service from one that does not exist: without a key
//! both need one, and with a key both are not found.

use std::collections::{BTreeSet, HashMap};

use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

use crate::refusals::Refusal;
use crate::snapshot::{
    Access, Address, Key, KeyHash, MAX_NAME_BYTES, Protocol, Service, Snapshot, SnapshotFault,
};

/// Bytes of a secret; longer ones are refused without a hash.
const MAX_SECRET_BYTES: usize = 256;
/// Bytes of a host name.
const MAX_HOST_BYTES: usize = 253;

/// A path of the OpenAI interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    Models,
    ChatCompletions,
    Completions,
    Embeddings,
}

impl Endpoint {
    /// The endpoint of a path without its query.
    pub fn from_path(path: &str) -> Option<Self> {
        match path {
            "/v1/models" => Some(Self::Models),
            "/v1/chat/completions" => Some(Self::ChatCompletions),
            "/v1/completions" => Some(Self::Completions),
            "/v1/embeddings" => Some(Self::Embeddings),
            _ => None,
        }
    }
}

/// The destination of a request, by its address alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'r, 'p> {
    /// This service gets `path`. With an endpoint, [`check_model`] checks the model of the body.
    Service { service: &'r Service, path: &'p str, endpoint: Option<Endpoint> },
    /// The gateway's own host: [`Routes::by_model`] finds the service of the model of the body.
    Model(Endpoint),
}

/// A validated snapshot with its indexes.
#[derive(Debug)]
pub struct Routes {
    snapshot: Snapshot,
    hosts: HashMap<String, usize>,
    prefixes: HashMap<String, usize>,
    models: HashMap<OrgId, HashMap<String, usize>>,
    public_models: HashMap<String, usize>,
    /// The most bytes of a body for the models of each organization, and for public ones.
    body_limits: HashMap<OrgId, u64>,
    public_body_limit: Option<u64>,
    /// Keys by the first bytes of their hash, which a caller cannot choose.
    keys: HashMap<[u8; 8], Vec<usize>>,
}

impl Routes {
    /// # Errors
    /// The first fault of the snapshot.
    pub fn new(snapshot: Snapshot) -> Result<Self, SnapshotFault> {
        snapshot.validate()?;
        let mut routes = Self {
            hosts: HashMap::new(),
            prefixes: HashMap::new(),
            models: HashMap::new(),
            public_models: HashMap::new(),
            body_limits: HashMap::new(),
            public_body_limit: None,
            keys: HashMap::new(),
            snapshot,
        };
        for (index, service) in routes.snapshot.services.iter().enumerate() {
            for address in &service.addresses {
                match address {
                    Address::Host(host) => routes.hosts.insert(host.to_string(), index),
                    Address::Prefix(prefix) => routes.prefixes.insert(prefix.to_string(), index),
                };
            }
            for model in &service.models {
                routes.models.entry(service.org).or_default().insert(model.name.to_string(), index);
                if service.access == Access::Public {
                    routes.public_models.insert(model.name.to_string(), index);
                }
            }
            if !service.models.is_empty() {
                let limit = routes.body_limits.entry(service.org).or_default();
                *limit = service.max_body_bytes.max(*limit);
                if service.access == Access::Public {
                    routes.public_body_limit = routes.public_body_limit.max(Some(service.max_body_bytes));
                }
            }
        }
        for (index, key) in routes.snapshot.keys.iter().enumerate() {
            routes.keys.entry(first_bytes(&key.hash)).or_default().push(index);
        }
        Ok(routes)
    }

    pub const fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The key with a secret.
    ///
    /// # Errors
    /// The key is unknown, revoked or expired.
    pub fn key(&self, secret: &str, now: Timestamp) -> Result<&Key, Refusal> {
        if secret.is_empty() || secret.len() > MAX_SECRET_BYTES {
            return Err(Refusal::KeyRefused);
        }
        let hash = KeyHash::new(secret);
        let indexes = self.keys.get(&first_bytes(&hash)).into_iter().flatten();
        let mut candidates = indexes.filter_map(|index| self.snapshot.keys.get(*index));
        let key = candidates.find(|key| key.hash == hash).ok_or(Refusal::KeyRefused)?;
        match key.expires_at {
            Some(end) if end <= now => Err(Refusal::KeyExpired),
            _ => Ok(key),
        }
    }

    /// Returns the destination of a request, by its header `Host` and its path without the query.
    ///
    /// # Errors
    /// The address leads to nothing that the key, or its absence, may use.
    pub fn target<'p>(
        &self,
        host: &str,
        path: &'p str,
        key: Option<&Key>,
    ) -> Result<Target<'_, 'p>, Refusal> {
        if let Some(service) = self.by_host(host) {
            return permitted(service, path, key);
        }
        if path == "/v1" || path.starts_with("/v1/") {
            return Endpoint::from_path(path).map(Target::Model).ok_or_else(|| unknown(key));
        }
        let (service, rest) = self.by_prefix(path).ok_or_else(|| unknown(key))?;
        permitted(service, rest, key)
    }

    fn by_host(&self, host: &str) -> Option<&Service> {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.len() > MAX_HOST_BYTES {
            return None;
        }
        self.snapshot.services.get(*self.hosts.get(&name.to_ascii_lowercase())?)
    }

    /// The service with the longest prefix of whole segments, and the rest of the path.
    fn by_prefix<'p>(&self, path: &'p str) -> Option<(&Service, &'p str)> {
        let ends = path.bytes().enumerate().take(MAX_NAME_BYTES + 1).skip(1);
        let slashes = ends.filter_map(|(at, byte)| (byte == b'/').then_some(at));
        let whole = (path.len() <= MAX_NAME_BYTES).then_some(path.len());
        slashes.chain(whole).collect::<Vec<usize>>().into_iter().rev().find_map(|end| {
            let (prefix, rest) = path.split_at_checked(end)?;
            let service = self.snapshot.services.get(*self.prefixes.get(prefix)?)?;
            Some((service, if rest.is_empty() { "/" } else { rest }))
        })
    }

    /// The service of a model on the gateway's own host. A key reaches the services of its organization only:
    /// otherwise its prompts would go to another organization after the end of its own service. Public services of
    /// others have their own addresses.
    ///
    /// # Errors
    /// No service that the key, or its absence, may use has the model.
    pub fn by_model(&self, model: &str, key: Option<&Key>) -> Result<&Service, Refusal> {
        let own = key.and_then(|key| self.models.get(&key.org)?.get(model));
        let index = if key.is_some() { own } else { self.public_models.get(model) };
        let service = index.and_then(|index| self.snapshot.services.get(*index));
        let service = service.ok_or_else(|| unknown_model(key))?;
        check_model(service, model, key)?;
        Ok(service)
    }

    /// The most bytes of a body before its model is known.
    ///
    /// # Errors
    /// The key, or its absence, may use no model.
    pub fn body_limit(&self, key: Option<&Key>) -> Result<u64, Refusal> {
        let own = key.and_then(|key| self.body_limits.get(&key.org)).copied();
        own.max(self.public_body_limit).ok_or_else(|| unknown_model(key))
    }

    /// True for a host name of a service, which has all paths of that host.
    pub fn has_host(&self, host: &str) -> bool {
        self.by_host(host).is_some()
    }

    /// The names of the models that a key, or its absence, may use, in order.
    pub fn models(&self, key: Option<&Key>) -> BTreeSet<&str> {
        let own = key.and_then(|key| self.models.get(&key.org)).into_iter().flat_map(HashMap::keys);
        let public = key.is_none().then(|| self.public_models.keys()).into_iter().flatten();
        let all = own.chain(public).map(String::as_str);
        all.filter(|name| allows(key, name)).collect()
    }
}

/// Checks that a service has a model and that the key may use it.
///
/// # Errors
/// The model is unknown there, or not allowed.
pub fn check_model(service: &Service, model: &str, key: Option<&Key>) -> Result<(), Refusal> {
    if !is_for(service, key) || !service.models.iter().any(|known| known.name.as_str() == model) {
        return Err(unknown_model(key));
    }
    if allows(key, model) { Ok(()) } else { Err(Refusal::NotAllowed) }
}

/// Checks the size of a body: the length that its header states, and the bytes that came so far.
///
/// # Errors
/// The body is too large for the service.
pub const fn check_body(service: &Service, bytes: u64) -> Result<(), Refusal> {
    if bytes > service.max_body_bytes {
        return Err(Refusal::BodyTooLarge { max_bytes: service.max_body_bytes });
    }
    Ok(())
}

fn permitted<'r, 'p>(
    service: &'r Service,
    path: &'p str,
    key: Option<&Key>,
) -> Result<Target<'r, 'p>, Refusal> {
    if !is_for(service, key) {
        return Err(unknown(key));
    }
    let endpoint = match service.protocol {
        Protocol::OpenAi => Endpoint::from_path(path),
        Protocol::Http if !allows(key, service.name.as_str()) => return Err(Refusal::NotAllowed),
        Protocol::Http => None,
    };
    Ok(Target::Service { service, path, endpoint })
}

fn is_for(service: &Service, key: Option<&Key>) -> bool {
    service.access == Access::Public || key.is_some_and(|key| key.org == service.org)
}

fn allows(key: Option<&Key>, name: &str) -> bool {
    key.is_none_or(|key| key.allowed.includes(name))
}

const fn unknown(key: Option<&Key>) -> Refusal {
    if key.is_some() { Refusal::UnknownAddress } else { Refusal::KeyRequired }
}

const fn unknown_model(key: Option<&Key>) -> Refusal {
    if key.is_some() { Refusal::UnknownModel } else { Refusal::KeyRequired }
}

fn first_bytes(hash: &KeyHash) -> [u8; 8] {
    hash.bytes().first_chunk::<8>().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;
