//! The begin of a connection: the token of the gateway, and one byte as the answer.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The protocol of the connections, in the negotiation of TLS.
pub const ALPN: &[u8] = b"berth-replica/1";

/// The answer to a token. After `Connected` the bytes of the replica follow, after the others nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeAnswer {
    Connected,
    /// No replica of this host has the token.
    UnknownToken,
    /// The port of the replica does not answer.
    NoAnswer,
    TooManyConnections,
}

impl HandshakeAnswer {
    pub const fn byte(self) -> u8 {
        match self {
            Self::Connected => 0,
            Self::UnknownToken => 1,
            Self::NoAnswer => 2,
            Self::TooManyConnections => 3,
        }
    }
}

/// Reads a token: a byte with its length, then its text. Bytes after it stay in the stream.
pub(crate) async fn read_token(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = stream.read_u8().await?;
    let mut token = vec![0; usize::from(length)];
    stream.read_exact(&mut token).await?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_has_its_length_before_it() {
        for length in 0..=u8::MAX {
            let mut bytes = vec![length];
            bytes.extend(std::iter::repeat_n(b't', usize::from(length)));
            bytes.extend(b"GET");
            let mut stream = bytes.as_slice();
            assert_eq!(read_token(&mut stream).await.unwrap().len(), usize::from(length));
            assert_eq!(stream, b"GET", "what follows is the replica's");
            // A stream that ends on the way has no token.
            for cut in 0..=usize::from(length) {
                assert!(read_token(&mut &bytes[..cut]).await.is_err(), "{cut} of {length}");
            }
        }
    }
}
