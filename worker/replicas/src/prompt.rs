//! The connection to a replica, which acknowledges small parts at once.
//!
//! Many servers write the head and the body of an answer one after the other and leave the delay of small writes on
//! (Nagle's algorithm). The kernel then holds the body until the head is acknowledged, and acknowledges it 40 ms late.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Reads after a write that are acknowledged at once. An acknowledgement of each part costs more than the part. Most
/// programs with long streams send without that delay; the parts of others come up to 40 ms late.
const PROMPT_READS: u8 = 16;

pub(crate) struct PromptStream {
    stream: TcpStream,
    reads_since_write: u8,
}

impl PromptStream {
    /// Sends small writes at once too.
    pub(crate) fn new(stream: TcpStream) -> Self {
        // A connection without it is slower, not wrong.
        let _ = stream.set_nodelay(true);
        Self { stream, reads_since_write: 0 }
    }
}

impl AsyncRead for PromptStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        // A full buffer is in the middle of a larger part, which the kernel acknowledges by itself.
        let is_part = read.is_ready() && buf.filled().len() > before && buf.remaining() > 0;
        if is_part && self.reads_since_write < PROMPT_READS {
            self.reads_since_write += 1;
            // The kernel forgets it with the next write.
            let _ = sockopt::set_tcp_quickack(&self.stream, true);
        }
        read
    }
}

impl AsyncWrite for PromptStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.reads_since_write = 0;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.reads_since_write = 0;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn small_parts_wait_for_no_acknowledgement() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut replica, _) = listener.accept().await.unwrap();
        assert!(!replica.nodelay().unwrap(), "the server leaves the delay on");
        let mut stream = PromptStream::new(stream);
        assert!(stream.stream.nodelay().unwrap());
        let mut word = [0; 8];
        for _ in 0..20 {
            stream.write_all(b"ask").await.unwrap();
            replica.read_exact(&mut word[..3]).await.unwrap();
            replica.write_all(b"head").await.unwrap();
            assert!(stream.read(&mut word).await.unwrap() > 0);
            assert!(sockopt::tcp_quickack(&stream.stream).unwrap(), "the head is acknowledged");
            replica.write_all(b"body").await.unwrap();
            assert!(stream.read(&mut word).await.unwrap() > 0);
        }
        for _ in 0..=PROMPT_READS {
            replica.write_all(b"part").await.unwrap();
            assert!(stream.read(&mut word).await.unwrap() > 0);
        }
        assert_eq!(stream.reads_since_write, PROMPT_READS, "the kernel alone acknowledges a long answer");
        stream.write_all(b"ask").await.unwrap();
        assert_eq!(stream.reads_since_write, 0);
    }
}
