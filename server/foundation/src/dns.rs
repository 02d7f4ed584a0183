//! Lookups of TXT records in DNS.

use std::net::SocketAddr;
use std::time::Duration;

use berth_core::domains::{Answer, record_name, record_value};
use futures::FutureExt;
use futures::future::BoxFuture;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use tokio::sync::Semaphore;

/// The longest lookup, with its wait for a place.
const LOOKUP: Duration = Duration::from_secs(5);
/// The wait for one answer of a server.
const ANSWER: Duration = Duration::from_secs(2);
/// Lookups at once.
const LOOKUPS: usize = 32;
/// The first records of a name count.
const MAX_RECORDS: usize = 20;
/// Longer records do not count.
const MAX_RECORD_BYTES: usize = 512;

/// The TXT records of names.
pub trait TxtRecords: Send + Sync {
    /// The texts of the TXT records of a name without a dot at its end: those of at most 512 bytes among the first 20
    /// records. The list is empty if the name does not exist.
    ///
    /// # Errors
    /// No server answered within five seconds, or the name is too long.
    fn list<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<String>, String>>;
}

/// The records that a DNS server gives.
pub struct DnsServer {
    /// Without an address the servers are those of the system.
    address: Option<SocketAddr>,
    places: Semaphore,
}

impl DnsServer {
    pub const fn new(address: Option<SocketAddr>) -> Self {
        Self { address, places: Semaphore::const_new(LOOKUPS) }
    }

    /// A resolver with an empty cache, so that a check sees the present record, and with the present servers of the
    /// system.
    fn open(&self) -> Result<TokioResolver, NetError> {
        let mut builder = match self.address {
            None => TokioResolver::builder_tokio()?,
            Some(address) => {
                let mut server = NameServerConfig::udp_and_tcp(address.ip());
                for connection in &mut server.connections {
                    connection.port = address.port();
                }
                let config = ResolverConfig::from_name_servers(vec![server]);
                TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
        };
        let options = builder.options_mut();
        options.timeout = ANSWER;
        options.attempts = 1;
        options.use_hosts_file = ResolveHosts::Never;
        builder.build()
    }

    async fn read(&self, name: &str) -> Result<Vec<String>, String> {
        let _place = self.places.acquire().await.map_err(|error| error.to_string())?;
        // The dot at the end keeps the search domains of the system away.
        let name = Name::from_ascii(format!("{name}.")).map_err(|error| error.to_string())?;
        let resolver = self.open().map_err(|error| error.to_string())?;
        let found = match resolver.lookup(name, RecordType::TXT).await {
            Ok(found) => found,
            Err(error) if error.is_no_records_found() => return Ok(Vec::new()),
            Err(error) => return Err(error.to_string()),
        };
        let records = found.answers().iter().filter_map(|record| match &record.data {
            RData::TXT(record) => Some(&record.txt_data),
            _ => None,
        });
        let texts = records.take(MAX_RECORDS).filter_map(|parts| {
            let bytes: usize = parts.iter().map(|part| part.len()).sum();
            if bytes > MAX_RECORD_BYTES {
                return None;
            }
            String::from_utf8(parts.iter().flat_map(|part| part.iter().copied()).collect()).ok()
        });
        Ok(texts.collect())
    }
}

impl TxtRecords for DnsServer {
    fn list<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<String>, String>> {
        async move {
            let answer = tokio::time::timeout(LOOKUP, self.read(name)).await;
            answer.unwrap_or_else(|_| Err("no answer within five seconds".to_owned()))
        }
        .boxed()
    }
}

/// Asks DNS for the record that proves a domain.
pub async fn find_record(dns: &dyn TxtRecords, domain: &str, proof: &str) -> Answer {
    let value = record_value(proof);
    match dns.list(&record_name(domain)).await {
        Ok(texts) if texts.iter().any(|text| text.trim() == value) => Answer::Found,
        Ok(_) => Answer::Missing,
        Err(error) => {
            tracing::info!(domain, error, "the record of a domain cannot be read");
            Answer::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with one answer.
    struct Fixed(Result<Vec<String>, String>);

    impl TxtRecords for Fixed {
        fn list<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<String>, String>> {
            assert_eq!(name, "_berth.corp.example");
            std::future::ready(self.0.clone()).boxed()
        }
    }

    async fn answer(records: Result<&[&str], &str>) -> Answer {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
        let server = Fixed(records.map(owned).map_err(|error| error.to_owned()));
        find_record(&server, "corp.example", "0a").await
    }

    #[tokio::test]
    async fn a_domain_is_proved_by_one_record_with_the_whole_value() {
        assert_eq!(answer(Ok(&["v=spf1 -all", "berth-verification=0a"])).await, Answer::Found);
        for other in ["berth-verification=0A", "berth-verification=0ab", "0a", ""] {
            assert_eq!(answer(Ok(&[other])).await, Answer::Missing, "{other}");
        }
        assert_eq!(answer(Ok(&[])).await, Answer::Missing);
        assert_eq!(answer(Err("SERVFAIL")).await, Answer::Unknown);
    }
}
