//! Outgoing mail: its settings, its header, its way, and the number of mails that were not sent. Must not decide about
//! contents or retries.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lettre::message::{Mailbox, SinglePart};
use lettre::transport::smtp;
use lettre::{AsyncFileTransport, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};
use rand::TryRngCore;
use rand::rngs::OsRng;
use reqwest::Url;

const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest sending of a mail, with its connection.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// True if the URL of a mail server allows no connection without TLS.
fn requires_tls(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let required =
        || url.query_pairs().find(|(name, _)| name == "tls").is_some_and(|(_, value)| value == "required");
    url.scheme() == "smtps" || required()
}

/// True if the mail server of a URL is on this host.
fn local_mail_server(url: &str) -> bool {
    let host = Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    host.is_some_and(|host| {
        let host = host.trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

/// The text about a refused URL. The URL has a password, so no part of it goes into the text.
fn unusable(error: &smtp::Error) -> String {
    if error.is_tls() {
        return format!("--smtp cannot have TLS on this host: {error}");
    }
    "--smtp needs a URL such as smtps://USER:PASSWORD@mail.example.org. In USER and PASSWORD write % as %25, @ as %40, \
     : as %3A, / as %2F, ? as %3F and # as %23"
        .to_owned()
}

/// The domain of the sender in ASCII, for the ids of messages.
fn id_domain(from: &Mailbox) -> String {
    let domain = from.email.domain();
    let url = Url::parse(&format!("https://{domain}")).ok();
    url.and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_else(|| domain.to_owned())
}

/// The way of mails.
enum Way {
    Smtp(AsyncSmtpTransport<Tokio1Executor>),
    Files(PathBuf),
}

/// The mails since the last report.
#[derive(Default)]
struct Outcomes {
    sent: u64,
    failed: u64,
    last_error: String,
}

/// The sender of mails.
pub struct Mailer {
    way: Way,
    from: Mailbox,
    id_domain: String,
    /// The longest sending of one mail to the server.
    send_within: Duration,
    outcomes: Mutex<Outcomes>,
}

impl Mailer {
    /// `smtp` is a URL such as `smtps://user:password@host`. Without it mail goes to files in `outbox`.
    ///
    /// # Errors
    /// The text for the operator about the invalid option.
    pub fn new(smtp: Option<&str>, from: &str, outbox: &Path) -> Result<Self, String> {
        let way = match smtp {
            Some(url) => {
                let builder =
                    AsyncSmtpTransport::<Tokio1Executor>::from_url(url).map_err(|error| unusable(&error))?;
                if !requires_tls(url) && !local_mail_server(url) {
                    return Err(
                        "--smtp must have TLS: use smtps://… or add ?tls=required to smtp://…; only a \
                                server on this host may be without it"
                            .to_owned(),
                    );
                }
                Way::Smtp(builder.timeout(Some(TIMEOUT)).build())
            }
            None => Way::Files(outbox.to_owned()),
        };
        let from: Mailbox = from.parse().map_err(|_| {
            format!("--mail-from {from:?} is no e-mail address, such as \"Berth <berth@example.org>\"")
        })?;
        let (id_domain, outcomes) = (id_domain(&from), Mutex::default());
        Ok(Self { way, id_domain, from, send_within: SEND_TIMEOUT, outcomes })
    }

    fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A plain text with all that receivers expect in its header.
    fn message(&self, to: &str, subject: &str, text: String) -> Result<Message, String> {
        let to: Mailbox = to.parse().map_err(|_| "Invalid e-mail address".to_owned())?;
        let mut id = [0u8; 16];
        OsRng.try_fill_bytes(&mut id).map_err(|_| "The system gives no random numbers".to_owned())?;
        let id = format!("<{}@{}>", hex::encode(id), self.id_domain);
        let builder = Message::builder().message_id(Some(id)).from(self.from.clone()).to(to);
        builder.subject(subject).singlepart(SinglePart::plain(text)).map_err(|e| e.to_string())
    }

    async fn try_send(&self, to: &str, subject: &str, text: String) -> Result<(), String> {
        let message = self.message(to, subject, text)?;
        match &self.way {
            Way::Smtp(smtp) => {
                // The limit of the transport is that of the connection only.
                let sent = tokio::time::timeout(self.send_within, smtp.send(message)).await;
                sent.map_err(|_| "The mail server gave no answer in time".to_owned())?
                    .map(drop)
                    .map_err(|e| e.to_string())
            }
            Way::Files(dir) => {
                tokio::fs::create_dir_all(dir).await.map_err(|e| e.to_string())?;
                let files = AsyncFileTransport::<Tokio1Executor>::new(dir);
                files.send(message).await.map(drop).map_err(|e| e.to_string())
            }
        }
    }

    /// Sends a mail, and counts it for the next report.
    ///
    /// # Errors
    /// The reason. The mail was not sent.
    pub async fn send(&self, to: &str, subject: &str, text: String) -> Result<(), String> {
        let sent = self.try_send(to, subject, text).await;
        let mut outcomes = self.outcomes();
        match &sent {
            Ok(()) => outcomes.sent += 1,
            Err(reason) => {
                outcomes.failed += 1;
                // Not all operators may read the addresses of people.
                outcomes.last_error = reason.replace(to, "the receiver");
            }
        }
        sent
    }

    /// Reports the mails since the last call.
    ///
    /// # Errors
    /// The number of mails that were not sent, with the reason of the last one.
    pub fn report(&self) -> Result<(), String> {
        let Outcomes { sent, failed, last_error } = std::mem::take(&mut *self.outcomes());
        if failed == 0 {
            return Ok(());
        }
        Err(format!(
            "mails not sent: {failed} of {}; links and invitations are not sent again; the last error: {last_error}",
            sent + failed
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailer(smtp: Option<&str>, from: &str) -> Result<Mailer, String> {
        Mailer::new(smtp, from, Path::new("/nowhere"))
    }

    #[test]
    fn a_bad_setting_of_mail_names_its_option_and_shows_no_password() {
        for bad in [
            "",
            "http://x",
            "mail.example.org",
            "mail.example.org:25",
            "smtps://",
            "smtps://user:secret/1@mail.example.org",
            "smtp://mail.example.org",
            "smtp://user:secret@mail.example.org:25",
            "smtp://user:tls=required@mail.example.org",
            "smtp://mail.example.org/tls=required",
            "smtp://mail.example.org?not_tls=required",
            "smtp://mail.example.org?tls=opportunistic&tls=required",
        ] {
            let error = mailer(Some(bad), "berth@example.org").err().unwrap();
            assert!(error.starts_with("--smtp ") && !error.contains("secret"), "{bad}: {error}");
        }
        for good in [
            "smtps://user:secret@mail.example.org",
            "smtps://user:secret%2F1@mail.example.org",
            "smtp://mail.example.org?tls=required",
            "smtp://127.0.0.1:1025",
            "smtp://localhost",
            "smtp://[::1]:25",
        ] {
            assert_eq!(mailer(Some(good), "berth@example.org").map(drop), Ok(()), "{good}");
        }
        for bad in ["berth", "", "Berth <berth>"] {
            let error = mailer(None, bad).err().unwrap();
            assert!(error.starts_with("--mail-from "), "{bad}: {error}");
        }
    }

    #[tokio::test]
    async fn a_silent_server_of_mail_is_an_error() {
        // It accepts the connection and says nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("smtp://{}", silent.local_addr().unwrap());
        let send_within = Duration::from_millis(200);
        let mailer = Mailer { send_within, ..mailer(Some(&url), "berth@example.org").unwrap() };
        let sent = mailer.send("ada@example.org", "Hello", "Hello".to_owned()).await;
        assert_eq!(sent, Err("The mail server gave no answer in time".to_owned()));
        assert!(mailer.report().unwrap_err().contains("1 of 1"));
    }

    #[test]
    fn the_id_of_a_message_has_the_domain_of_its_sender() {
        for (from, domain) in
            [("Berth <berth@Example.org>", "example.org"), ("berth@bücher.example", "xn--bcher-kva.example")]
        {
            let mailer = mailer(None, from).unwrap();
            let id = || {
                let message = mailer.message("ada@example.org", "Hello", "Hello".to_owned()).unwrap();
                let text = String::from_utf8(message.formatted()).unwrap();
                text.lines().find_map(|line| line.strip_prefix("Message-ID: ").map(str::to_owned)).unwrap()
            };
            let (one, other) = (id(), id());
            assert!(one.starts_with('<') && one.ends_with(&format!("@{domain}>")), "{one}");
            assert_ne!(one, other);
        }
    }

    #[tokio::test]
    async fn mails_that_were_not_sent_are_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("outbox");
        let mailer = Mailer::new(None, "berth@example.org", &file).unwrap();
        let send = || mailer.send("ada@example.org", "Hello", "Hello".to_owned());
        assert_eq!(mailer.report(), Ok(()));
        std::fs::write(&file, "in the way").unwrap();
        send().await.unwrap_err();
        std::fs::remove_file(&file).unwrap();
        send().await.unwrap();
        let report = mailer.report().unwrap_err();
        assert!(
            report.starts_with(
                "mails not sent: 1 of 2; links and invitations are not sent again; the last error: "
            ),
            "{report}"
        );
        assert_eq!(mailer.report(), Ok(()));
    }
}
