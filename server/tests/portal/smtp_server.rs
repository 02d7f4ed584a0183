//! A mail server that keeps the messages it gets. It shares no code with the portal.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A received message (RFC 5322).
#[derive(Debug, Clone)]
pub struct Message {
    fields: Vec<(String, String)>,
    body: String,
}

impl Message {
    fn parse(text: &str) -> Self {
        let (header, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        // A line that begins with a space continues the field before it.
        let header = header.replace("\r\n ", " ");
        let fields = header.split("\r\n").filter_map(|line| line.split_once(": "));
        Self {
            fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            body: body.to_owned(),
        }
    }

    /// The value of a field of the header.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The text of a body in quoted-printable and UTF-8 (RFC 2045).
    pub fn text(&self) -> Option<String> {
        // An equals sign at the end of a line joins it to the next line.
        let joined = self.body.replace("=\r\n", "");
        let mut parts = joined.split('=');
        let mut bytes = parts.next()?.as_bytes().to_vec();
        for part in parts {
            let (code, plain) = part.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(code, 16).ok()?);
            bytes.extend_from_slice(plain.as_bytes());
        }
        String::from_utf8(bytes).ok()
    }
}

/// A server on this host.
pub struct SmtpServer {
    pub url: String,
    /// The number of next receivers that the server does not know.
    pub refusals: Arc<AtomicUsize>,
    received: Arc<Mutex<Vec<String>>>,
}

impl SmtpServer {
    pub async fn open() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("smtp://{}", listener.local_addr()?);
        let (refusals, received): (Arc<AtomicUsize>, Arc<Mutex<Vec<String>>>) = Default::default();
        let (to_refuse, taken) = (refusals.clone(), received.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(BufReader::new(stream), to_refuse.clone(), taken.clone()));
            }
        });
        Ok(Self { url, refusals, received })
    }

    /// All messages, in the order of their receipt.
    pub fn messages(&self) -> Vec<Message> {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received.iter().map(|text| Message::parse(text)).collect()
    }
}

/// Answers the commands of one connection (RFC 5321).
async fn converse(
    mut stream: BufReader<TcpStream>,
    to_refuse: Arc<AtomicUsize>,
    taken: Arc<Mutex<Vec<String>>>,
) -> io::Result<()> {
    stream.write_all(b"220 mail.example ESMTP\r\n").await?;
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let (verb, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        let left = |n: usize| n.checked_sub(1);
        let answer = match verb {
            "EHLO" | "MAIL" | "QUIT" => "250 mail.example".to_owned(),
            "RCPT" if to_refuse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() => {
                format!("550 {} is unknown", rest.trim_start_matches("TO:"))
            }
            "RCPT" => "250 known".to_owned(),
            "DATA" => {
                stream.write_all(b"354 go on\r\n").await?;
                let message = read_message(&mut stream).await?;
                taken.lock().unwrap_or_else(PoisonError::into_inner).push(message);
                "250 taken".to_owned()
            }
            _ => "502 not here".to_owned(),
        };
        stream.write_all(format!("{answer}\r\n").as_bytes()).await?;
    }
}

/// Reads up to the line with one full stop alone. Another line has one more if it begins with one.
async fn read_message(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut message = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.strip_prefix('.') {
            Some("\r\n") => return Ok(message),
            Some(rest) => message.push_str(rest),
            None => message.push_str(&line),
        }
    }
}
