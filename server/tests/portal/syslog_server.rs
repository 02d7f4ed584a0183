//! A syslog server over TLS with a strict parser of RFC 5425 and RFC 5424. It shares no code with the portal.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use berth_types::time::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A parsed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub priority: u32,
    pub at: Timestamp,
    pub host: String,
    pub app: String,
    pub process: String,
    pub message_id: String,
    pub data_name: String,
    pub data: Vec<(String, String)>,
    pub text: String,
}

impl Message {
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.data.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Splits a stream into its messages: a length without leading zeros, a space, and this number of bytes.
pub fn split_frames(mut bytes: &[u8]) -> Result<Vec<String>, String> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || bytes[0] == b'0' || bytes.get(digits) != Some(&b' ') {
            return Err(format!("no length at {:?}", &bytes[..bytes.len().min(20)]));
        }
        let length: usize = std::str::from_utf8(&bytes[..digits]).unwrap().parse().unwrap();
        let rest = &bytes[digits + 1..];
        let message = rest.get(..length).ok_or_else(|| format!("{length} bytes are promised"))?;
        frames.push(String::from_utf8(message.to_vec()).map_err(|e| e.to_string())?);
        bytes = &rest[length..];
    }
    Ok(frames)
}

/// A field of the header up to the next space: printable ASCII characters.
fn field<'a>(text: &mut &'a str, name: &str, max: usize) -> Result<&'a str, String> {
    let (found, rest) = text.split_once(' ').ok_or_else(|| format!("no end of {name}"))?;
    if found.is_empty() || found.len() > max || !found.bytes().all(|byte| (33..=126).contains(&byte)) {
        return Err(format!("{name} is {found:?}"));
    }
    *text = rest;
    Ok(found)
}

fn is_data_name(name: &str) -> bool {
    let good = |byte: u8| (33..=126).contains(&byte) && !b"= ]\"".contains(&byte);
    (1..=32).contains(&name.len()) && name.bytes().all(good)
}

/// The value of a parameter after its opening quotation mark, and the text after the closing one.
fn value(text: &str) -> Result<(String, &str), String> {
    let (mut out, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((out, &text[at + 1..])),
            ']' => return Err("a bracket without an escape".to_owned()),
            '\\' => match chars.next() {
                Some((_, c @ ('"' | '\\' | ']'))) => out.push(c),
                other => return Err(format!("an escape of {other:?}")),
            },
            c => out.push(c),
        }
    }
    Err("no end of a value".to_owned())
}

/// The one element of structured data: its name, its parameters and the text after it.
type Data<'a> = (String, Vec<(String, String)>, &'a str);

fn data(text: &str) -> Result<Data<'_>, String> {
    let text = text.strip_prefix('[').ok_or("no structured data")?;
    let end = text.find([' ', ']']).ok_or("no end of the structured data")?;
    let (name, mut rest) = text.split_at(end);
    let mut parameters = Vec::new();
    while let Some(next) = rest.strip_prefix(' ') {
        let (parameter, after) = next.split_once("=\"").ok_or("no value of a parameter")?;
        let (found, after) = value(after)?;
        if !is_data_name(parameter) {
            return Err(format!("a parameter with the name {parameter:?}"));
        }
        parameters.push((parameter.to_owned(), found));
        rest = after;
    }
    let rest = rest.strip_prefix(']').ok_or("no end of the structured data")?;
    // A name of one's own has an `@` and an enterprise number.
    let own = name.split_once('@').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
    if !is_data_name(name) || !own {
        return Err(format!("structured data with the name {name:?}"));
    }
    Ok((name.to_owned(), parameters, rest))
}

/// Parses a message with one element of structured data and a text.
pub fn parse(text: &str) -> Result<Message, String> {
    let (priority, mut rest) =
        text.strip_prefix('<').and_then(|text| text.split_once('>')).ok_or("no priority")?;
    let number: u32 = priority.parse().map_err(|_| format!("the priority {priority:?}"))?;
    if number > 191 || number.to_string() != priority {
        return Err(format!("the priority {priority:?}"));
    }
    if field(&mut rest, "the version", 1)? != "1" {
        return Err("another version".to_owned());
    }
    let time = field(&mut rest, "the time", 32)?;
    let fraction = time.split_once('.').map_or("0Z", |(_, fraction)| fraction);
    if time.as_bytes().get(10) != Some(&b'T') || !time.ends_with('Z') || fraction.len() > 7 {
        return Err(format!("the time {time:?}"));
    }
    let at: Timestamp = time.parse().map_err(|_| format!("the time {time:?}"))?;
    let host = field(&mut rest, "the host", 255)?.to_owned();
    let app = field(&mut rest, "the application", 48)?.to_owned();
    let process = field(&mut rest, "the process", 128)?.to_owned();
    let message_id = field(&mut rest, "the id of the message", 32)?.to_owned();
    let (data_name, data, rest) = data(rest)?;
    let text = rest.strip_prefix(' ').ok_or("no text")?.to_owned();
    Ok(Message { priority: number, at, host, app, process, message_id, data_name, data, text })
}

/// A server on this host with a certificate of its own authority.
pub struct SyslogServer {
    pub port: u16,
    /// The PEM file with the authority.
    pub authority: PathBuf,
    /// The number of next connections that end after the handshake, without a read.
    pub refusals: Arc<AtomicUsize>,
    /// The number of next connections that are read and lost: they end without the end of TLS.
    pub cut_offs: Arc<AtomicUsize>,
    streams: Arc<Mutex<Vec<Vec<u8>>>>,
    _dir: tempfile::TempDir,
}

impl SyslogServer {
    pub async fn open() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "Log authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("authority.pem");
        std::fs::write(&file, authority.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate: CertificateDer<'static> = params.signed_by(&key, &authority).unwrap().into();
        let key: PrivateKeyDer<'static> = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (refusals, streams): (Arc<AtomicUsize>, Arc<Mutex<Vec<Vec<u8>>>>) = Default::default();
        let cut_offs: Arc<AtomicUsize> = Arc::default();
        let (to_refuse, to_cut_off, received) = (refusals.clone(), cut_offs.clone(), streams.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust the authority ends the handshake.
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let left = |n: usize| n.checked_sub(1);
                if to_refuse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
                    continue;
                }
                let mut bytes = Vec::new();
                let read = stream.read_to_end(&mut bytes).await;
                if to_cut_off.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
                    continue;
                }
                if read.is_ok() {
                    received.lock().unwrap().push(bytes);
                    let _ = stream.shutdown().await;
                }
            }
        });
        Self { port, authority: file, refusals, cut_offs, streams, _dir: dir }
    }

    /// All messages, connection by connection.
    pub fn messages(&self) -> Vec<Message> {
        let streams = self.streams.lock().unwrap().clone();
        let frames = streams.iter().flat_map(|stream| split_frames(stream).unwrap());
        frames.map(|frame| parse(&frame).unwrap_or_else(|why| panic!("{why}: {frame}"))).collect()
    }
}

#[test]
fn the_parser_is_strict() {
    let good = "<109>1 2026-11-18T11:06:40.123456Z h berth - quota.set [berth@32473 a=\"x\\]\\\"\"] {}";
    let parsed = parse(good).unwrap();
    assert_eq!((parsed.parameter("a"), parsed.text.as_str()), (Some("x]\""), "{}"));
    for (from, to) in [
        ("<109>", "<0109>"),
        ("<109>", "<192>"),
        ("<109>1", "<109>2"),
        (".123456Z", ".1234567Z"),
        ("40.123456Z", "40.123456+00:00"),
        (" h ", "  "),
        ("\\]", "]"),
        ("\\]", "\\n"),
        ("berth@32473", "berth"),
        ("a=", "a b="),
        ("\"] {}", "\"]{}"),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good, "{from}");
        assert!(parse(&bad).is_err(), "{bad}");
    }
    assert_eq!(split_frames(b"2 ab3 c d").unwrap(), ["ab", "c d"]);
    for bad in ["02 ab", "3 ab", "2ab", "2 ab\n", "ab"] {
        assert!(split_frames(bad.as_bytes()).is_err(), "{bad}");
    }
}
