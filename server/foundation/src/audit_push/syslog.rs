//! Audit events as syslog messages (RFC 5424) with octet counting over TLS (RFC 5425), or over TCP in clear.
//!
//! The protocol has no answers. Each batch has a connection of its own: the portal ends its direction, and the batch
//! counts as delivered when the server has read up to that end and closes too. A host resets a connection that its
//! program closed before it had read everything. With TLS only the server can close: it answers the end (RFC 5425
//! §4.4). Everybody on the way can end or acknowledge a TCP connection, so such an end proves nothing.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_types::time::Timestamp;
use nix::libc;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::batch::BatchEvent;
use crate::audit_targets::SyslogTarget;

/// The facility "log audit" (13) with the severity "notice" (5).
const PRIORITY: u32 = 13 * 8 + 5;
/// The name of the structured data. Berth has no enterprise number; 32473 is the one for examples (RFC 5612).
const DATA_NAME: &str = "berth@32473";
/// The longest batch, from the connection to the end that the server has confirmed.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest wait for a connection and for the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait for the last acknowledgement after the server has closed, and the pause between two looks.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
const CONFIRM_PAUSE: Duration = Duration::from_millis(10);
/// Bytes of answers that are read and ignored.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// A field of the header: printable ASCII characters without spaces, or the sign for no value.
fn header_field(text: &str, max_chars: usize) -> String {
    let kept: String = text.chars().filter(char::is_ascii_graphic).take(max_chars).collect();
    if kept.is_empty() { "-".to_owned() } else { kept }
}

/// Appends a parameter of the structured data with the escapes of RFC 5424 §6.3.3.
fn push_parameter(out: &mut String, name: &str, value: &str) {
    out.push(' ');
    out.push_str(name);
    out.push_str("=\"");
    for c in value.chars() {
        match c {
            '"' | '\\' | ']' => {
                out.push('\\');
                out.push(c);
            }
            // RFC 5424 advises against control characters.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// JSON with ASCII characters alone. Other characters are only in its texts, where they can be escaped. So the message
/// needs no byte order mark, which most parsers of JSON refuse.
fn ascii_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut units = [0u16; 2];
    for c in json.chars() {
        if c.is_ascii() && !c.is_ascii_control() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut units) {
                // A write into a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// The time of RFC 5424, or the sign for no value.
fn time_field(at: Timestamp) -> String {
    let text = at.to_string();
    if text.ends_with('Z') { text } else { "-".to_owned() }
}

/// An event as a message of RFC 5424 from this host.
pub fn message(event: &BatchEvent, hostname: &str) -> String {
    let row = &event.row;
    let mut out = format!(
        "<{PRIORITY}>1 {} {} berth - {} [{DATA_NAME}",
        time_field(Timestamp::from_micros(row.at)),
        header_field(hostname, 255),
        header_field(&row.action, 32)
    );
    push_parameter(&mut out, "seq", &event.seq.to_string());
    push_parameter(&mut out, "id", &row.id);
    push_parameter(&mut out, "action", &row.action);
    push_parameter(&mut out, "actor", &row.actor);
    push_parameter(&mut out, "subject", &row.subject);
    if !row.org_id.is_empty() {
        push_parameter(&mut out, "org", &row.org_id);
    }
    if let Some(hash) = &row.hash {
        push_parameter(&mut out, "hash", hash);
    }
    out.push_str("] ");
    out.push_str(&ascii_json(&event.json));
    out
}

/// The messages of a batch, each after its length in bytes and a space (RFC 5425 §4.3).
pub fn frames(batch: &[BatchEvent], hostname: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for event in batch {
        let message = message(event, hostname);
        out.extend_from_slice(format!("{} ", message.len()).as_bytes());
        out.extend_from_slice(message.as_bytes());
    }
    out
}

/// The authorities of a PEM file, or of this system.
fn authorities(file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) => {
            let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
            for certificate in CertificateDer::pem_file_iter(file).map_err(|e| failed(&e))? {
                roots.add(certificate.map_err(|e| failed(&e))?).map_err(|e| failed(&e))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
    }
    if roots.is_empty() {
        return Err("no certificate of an authority was found: name a PEM file with --audit-syslog-ca-file"
            .to_owned());
    }
    Ok(roots)
}

/// The sender of messages to one server.
pub struct SyslogSender {
    target: SyslogTarget,
    hostname: String,
    /// Made at the first use.
    config: Mutex<Option<Arc<ClientConfig>>>,
}

impl SyslogSender {
    /// `hostname` is the name of the portal in messages.
    pub fn new(target: SyslogTarget, hostname: String) -> Self {
        Self { target, hostname, config: Mutex::default() }
    }

    /// The TLS settings.
    ///
    /// # Errors
    /// The authorities cannot be read.
    pub fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let mut made = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = made.as_ref() {
            return Ok(config.clone());
        }
        let roots = authorities(self.target.authorities.as_deref())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let config = Arc::new(config);
        *made = Some(config.clone());
        Ok(config)
    }

    /// Checks the settings without a connection.
    ///
    /// # Errors
    /// The authorities cannot be read, or the host is no name of a certificate.
    pub fn check(&self) -> Result<(), String> {
        if self.target.tls {
            self.config()?;
            self.server_name()?;
        }
        Ok(())
    }

    fn server_name(&self) -> Result<ServerName<'static>, String> {
        let name = ServerName::try_from(self.target.host.clone());
        name.map_err(|_| format!("{} is no host name", self.target.host))
    }

    /// Sends a batch and waits until the server has read it.
    ///
    /// # Errors
    /// The reason, without the contents.
    pub async fn send(&self, batch: &[BatchEvent]) -> Result<(), String> {
        let late = |_| format!("the server did not read the batch and close within {} s", TIMEOUT.as_secs());
        tokio::time::timeout(TIMEOUT, self.send_frames(&frames(batch, &self.hostname))).await.map_err(late)?
    }

    async fn send_frames(&self, frames: &[u8]) -> Result<(), String> {
        let late = |_| format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
        let connecting = TcpStream::connect((self.target.host.as_str(), self.target.port));
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?;
        let stream = stream.map_err(|e| format!("connection: {e}"))?;
        let unread = |e: io::Error| format!("the server did not read the whole batch: {e}");
        if !self.target.tls {
            let mut stream = stream;
            write_and_close(&mut stream, frames).await.map_err(unread)?;
            return confirm(&stream).await.map_err(unread);
        }
        let connector = TlsConnector::from(self.config()?);
        let handshake = connector.connect(self.server_name()?, stream);
        let late = |_| format!("no handshake within {} s", CONNECT_TIMEOUT.as_secs());
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, handshake).await.map_err(late)?;
        let mut stream = stream.map_err(|e| format!("handshake: {e}"))?;
        write_and_close(&mut stream, frames).await.map_err(unread)?;
        confirm(stream.get_ref().0).await.map_err(unread)
    }
}

/// Writes all bytes, ends this direction, and waits for the end of the other one.
async fn write_and_close(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin + Send),
    bytes: &[u8],
) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.shutdown().await?;
    let mut answer = stream.take(MAX_ANSWER_BYTES);
    match tokio::io::copy(&mut answer, &mut tokio::io::sink()).await {
        Ok(read) if read < MAX_ANSWER_BYTES => Ok(()),
        Ok(_) => Err(io::Error::other("the answer is too long")),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(io::Error::new(
            ErrorKind::UnexpectedEof,
            "the connection ended without the end of TLS (close_notify)",
        )),
        Err(error) => Err(error),
    }
}

/// Bytes that the other host has not acknowledged; 0 if the system does not know them.
#[expect(unsafe_code, reason = "the length of the queue of a socket is an ioctl")]
fn unacknowledged(stream: &TcpStream) -> libc::c_int {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor stays open during the call, and the call writes one integer.
    let done = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done == 0 { bytes } else { 0 }
}

/// Waits until the other host has acknowledged all bytes and the end. The end of a server that closed too early can
/// arrive before its reset.
async fn confirm(stream: &TcpStream) -> io::Result<()> {
    let acknowledged = async {
        loop {
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            if unacknowledged(stream) == 0 {
                return Ok(());
            }
            tokio::time::sleep(CONFIRM_PAUSE).await;
        }
    };
    let late = |_| io::Error::from(ErrorKind::TimedOut);
    tokio::time::timeout(CONFIRM_TIMEOUT, acknowledged).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::super::batch::first_batch;
    use super::super::batch::tests::event;
    use super::*;

    #[test]
    fn a_message_has_the_header_the_data_and_the_json() {
        let batch = first_batch(vec![event(7, "A\"d\\a]\n", "Größe 😀")]).unwrap();
        let text = message(&batch[0], "berth.example.org");
        let end = text.find("] {").unwrap();
        let (head, json) = (&text[..end], &text[end + 2..]);
        assert_eq!(
            head,
            "<109>1 2026-11-18T11:06:40.123456Z berth.example.org berth - quota.set [berth@32473 seq=\"7\" \
             id=\"aud_7\" action=\"quota.set\" actor=\"A\\\"d\\\\a\\] \" subject=\"default\" hash=\"ab\""
        );
        assert!(json.is_ascii() && json.contains("Gr\\u00f6\\u00dfe \\ud83d\\ude00"), "{json}");
        let parsed: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(parsed, serde_json::from_str::<serde_json::Value>(&batch[0].json).unwrap());
        let frame = frames(&batch, "berth.example.org");
        assert!(frame.starts_with(format!("{} <109>1 ", text.len()).as_bytes()));
    }

    #[test]
    fn a_field_of_the_header_has_printable_characters_and_a_limit() {
        assert_eq!(header_field("a b\u{e9}\nc", 255), "abc");
        assert_eq!(header_field("", 32), "-");
        assert_eq!(header_field(&"x".repeat(40), 32).len(), 32);
        assert_eq!(time_field(Timestamp::from_micros(i64::MAX)), "-");
    }
}
