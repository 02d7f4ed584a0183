//! The part of the specification of an attempt that makes it a replica.

use berth_proto::ReplicaSpec;
use serde::{Deserialize, Serialize};

/// The most bytes of a readiness path.
const MOST_PATH: usize = 200;
/// The begin of a readiness path that is no path.
pub(crate) const GRPC: &str = "grpc:";
/// The most bytes of a name in the check of a gRPC server.
const MOST_NAME: usize = 100;

/// The settings of a replica, as the record of its attempt keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaSettings {
    /// The TCP port of the program.
    pub port: u16,
    /// The path whose answer 200 to a GET says that the replica is ready, or `grpc:` with the name of a service for a
    /// check of the health of a gRPC server.
    pub readiness_path: String,
    /// The program speaks HTTP/2 without TLS and without negotiation.
    #[serde(default)]
    pub http2: bool,
    /// The hash of the token. The token itself is on no disk of the worker.
    pub token_sha256: [u8; 32],
    /// The most connections of gateways at the same time.
    pub max_connections: u32,
}

/// True for a path that fits into the first line of a request, or for the check of a gRPC server.
fn is_path(text: &str, http2: bool) -> bool {
    let name = text.strip_prefix(GRPC).filter(|_| http2);
    let fits = name.map_or(text.starts_with('/'), |name| name.len() <= MOST_NAME);
    text.len() <= MOST_PATH && fits && text.bytes().all(|byte| (b'!'..=b'~').contains(&byte))
}

impl ReplicaSettings {
    /// # Errors
    /// The field that is wrong.
    pub fn from_spec(spec: &ReplicaSpec) -> Result<Self, &'static str> {
        let port = u16::try_from(spec.port).ok().filter(|port| *port > 0).ok_or("port")?;
        let path =
            Some(&spec.readiness_path).filter(|path| is_path(path, spec.http2)).ok_or("readiness_path")?;
        let token_sha256: [u8; 32] = spec.token_sha256.as_slice().try_into().map_err(|_| "token_sha256")?;
        let max_connections = Some(spec.max_connections).filter(|most| *most > 0).ok_or("max_connections")?;
        let (readiness_path, http2) = (path.clone(), spec.http2);
        Ok(Self { port, readiness_path, http2, token_sha256, max_connections })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ReplicaSpec {
        ReplicaSpec {
            port: 8_000,
            readiness_path: "/health?full=1".to_owned(),
            token_sha256: vec![7; 32],
            max_connections: 8,
            http2: false,
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        let good = ReplicaSettings::from_spec(&spec()).unwrap();
        assert_eq!((good.port, good.max_connections, good.token_sha256), (8_000, 8, [7; 32]));
        assert_eq!(good.readiness_path, "/health?full=1");
        for (port, known) in [(0, false), (1, true), (65_535, true), (65_536, false), (u32::MAX, false)] {
            let result = ReplicaSettings::from_spec(&ReplicaSpec { port, ..spec() });
            assert_eq!(result.err(), (!known).then_some("port"), "{port}");
        }
        let long = format!("/{}", "a".repeat(MOST_PATH));
        let paths = [("/", true), ("", false), ("health", false), ("/a b", false), ("/a\r\nX: y", false)];
        for (path, known) in
            paths.into_iter().chain([("/\u{e9}", false), (&long[..MOST_PATH], true), (long.as_str(), false)])
        {
            let spec = ReplicaSpec { readiness_path: path.to_owned(), ..spec() };
            assert_eq!(
                ReplicaSettings::from_spec(&spec).err(),
                (!known).then_some("readiness_path"),
                "{path:?}"
            );
        }
        let long = format!("grpc:{}", "a".repeat(MOST_NAME + 1));
        for (path, known) in
            [("/", true), ("grpc:", true), ("grpc:a.B", true), (long.as_str(), false), ("grpc:a b", false)]
        {
            let http2 = ReplicaSpec { readiness_path: path.to_owned(), http2: true, ..spec() };
            assert_eq!(ReplicaSettings::from_spec(&http2).is_ok(), known, "{path}");
            let http1 = ReplicaSpec { http2: false, ..http2 };
            assert_eq!(ReplicaSettings::from_spec(&http1).is_ok(), path == "/", "{path}");
        }
        for length in [0, 31, 33] {
            let spec = ReplicaSpec { token_sha256: vec![7; length], ..spec() };
            assert_eq!(ReplicaSettings::from_spec(&spec).err(), Some("token_sha256"), "{length}");
        }
        let spec = ReplicaSpec { max_connections: 0, ..spec() };
        assert_eq!(ReplicaSettings::from_spec(&spec).err(), Some("max_connections"));
    }
}
