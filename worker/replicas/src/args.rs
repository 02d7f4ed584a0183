//! The operator's choices for replicas.

use std::net::SocketAddr;
use std::str::FromStr;

const NONE: &str = "none";

/// The address for connections of gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InferenceListen {
    /// The worker has no listener, and its replicas are never ready for a gateway.
    None,
    /// Port 0 stands for a free port, which stays the same if it can.
    At(SocketAddr),
}

impl FromStr for InferenceListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == NONE {
            return Ok(Self::None);
        }
        let wrong =
            |_| format!("{text:?} is neither an address with a port, such as 0.0.0.0:8300, nor {NONE}");
        text.parse().map(Self::At).map_err(wrong)
    }
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub struct ReplicaArgs {
    /// The address and TCP port for connections of gateways to replicas of services, or `none`. With port 0 the worker
    /// chooses a free port and keeps it over restarts. Gateways connect to this port at the address of the host.
    #[arg(long, env = "BERTH_INFERENCE_LISTEN", value_name = "ADDRESS:PORT", default_value = "0.0.0.0:0")]
    pub inference_listen: InferenceListen,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port() {
        let parse = |text: &str| text.parse::<InferenceListen>();
        assert_eq!(parse("none"), Ok(InferenceListen::None));
        for good in ["0.0.0.0:0", "10.0.0.1:8300", "[::]:0"] {
            assert_eq!(parse(good), Ok(InferenceListen::At(good.parse().unwrap())), "{good}");
        }
        for bad in ["", "None", "0.0.0.0", ":8300", "8300", "host:8300", "0.0.0.0:65536"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
