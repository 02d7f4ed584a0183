//! The probe of a replica that speaks HTTP/2: a GET of its readiness path, or `grpc.health.v1.Health/Check`.

use std::future::poll_fn;
use std::pin::Pin;

use hyper::body::{Body, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::super::settings::GRPC;
use super::MOST_BYTES;

/// Bytes that the replica can send unread.
const WINDOW_BYTES: u32 = 64 << 10;
/// The message with the status SERVING, with its length before it.
const SERVING: [u8; 7] = [0, 0, 0, 0, 2, 8, 1];

/// Asks a server once. `true`: it is ready; `None`: it gives no answer of HTTP/2.
pub(super) async fn is_answered(stream: TcpStream, path: &str) -> Option<bool> {
    let built = Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = built.ok()?;
    tokio::select! {
        answered = ask(&mut sender, path) => answered,
        // Without the connection there is no answer.
        _ = connection => None,
    }
}

async fn ask(sender: &mut SendRequest<String>, path: &str) -> Option<bool> {
    let Some(name) = path.strip_prefix(GRPC) else {
        let request = Request::get(format!("http://localhost{path}")).header("accept", "*/*");
        let request = request.header("user-agent", "berth-worker").body(String::new()).ok()?;
        return Some(sender.send_request(request).await.ok()?.status() == StatusCode::OK);
    };
    let request = Request::builder()
        .method(Method::POST)
        .uri("http://localhost/grpc.health.v1.Health/Check")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "berth-worker")
        .body(check(name)?)
        .ok()?;
    let answer = sender.send_request(request).await.ok()?;
    let is_ok = answer.status() == StatusCode::OK;
    Some(is_ok && is_serving(answer.into_body()).await?)
}

/// The message of a check, with its length before it. Each byte is ASCII: a name has at most 100 characters.
fn check(name: &str) -> Option<String> {
    let length = u8::try_from(name.len()).ok()?;
    // Field 1 is the name.
    let field = if length == 0 { String::new() } else { format!("\n{}{name}", char::from(length)) };
    let bytes = u8::try_from(field.len()).ok().filter(u8::is_ascii)?;
    Some(format!("\0\0\0\0{}{field}", char::from(bytes)))
}

/// Reads a message and the status in the trailers.
async fn is_serving(mut body: Incoming) -> Option<bool> {
    let mut message = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.ok()?;
        if let Some(trailers) = frame.trailers_ref() {
            let is_ok = trailers.get("grpc-status").is_some_and(|status| status == "0");
            return Some(is_ok && message == SERVING);
        }
        let data = frame.into_data().ok()?;
        if message.len() + data.len() > MOST_BYTES {
            return None;
        }
        message.extend_from_slice(&data);
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper::{HeaderMap, Response};
    use tokio::net::TcpListener;

    use super::*;

    /// An answer of one message and trailers.
    struct Answer(Option<Vec<u8>>, Option<&'static str>);

    impl Body for Answer {
        type Data = hyper::body::Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Infallible>>> {
            let data = self.0.take().map(|data| hyper::body::Frame::data(data.into()));
            let frame = data.or_else(|| {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", self.1.take()?.parse().unwrap());
                Some(hyper::body::Frame::trailers(trailers))
            });
            std::task::Poll::Ready(frame.map(Ok))
        }
    }

    /// A server of HTTP/2 with a path `/ready` and the health of `digits`.
    async fn answer(request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
        let (head, mut body) = request.into_parts();
        let mut asked = Vec::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            asked.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        let mut answer = match (head.uri.path(), asked.as_slice()) {
            ("/ready", b"") => Response::new(Answer(None, None)),
            ("/grpc.health.v1.Health/Check", b"\0\0\0\0\x08\n\x06digits" | b"\0\0\0\0\0") => {
                assert_eq!(head.headers["te"], "trailers");
                Response::new(Answer(Some(SERVING.to_vec()), Some("0")))
            }
            ("/grpc.health.v1.Health/Check", b"\0\0\0\0\x04\n\x02no") => {
                Response::new(Answer(Some(vec![0, 0, 0, 0, 2, 8, 2]), Some("0")))
            }
            ("/grpc.health.v1.Health/Check", b"\0\0\0\0\x05\n\x03bad") => {
                Response::new(Answer(Some(SERVING.to_vec()), Some("2")))
            }
            ("/grpc.health.v1.Health/Check", _) => Response::new(Answer(None, Some("5"))),
            _ => {
                let mut absent = Response::new(Answer(None, None));
                *absent.status_mut() = StatusCode::NOT_FOUND;
                absent
            }
        };
        answer.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        Ok(answer)
    }

    #[tokio::test]
    async fn a_server_of_http2_is_ready_by_a_path_or_by_its_health() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(answer)));
            }
        });
        for (path, expected) in [
            ("/ready", true),
            ("/other", false),
            ("grpc:", true),
            ("grpc:digits", true),
            ("grpc:no", false),
            ("grpc:bad", false),
            ("grpc:unknown", false),
        ] {
            let stream = TcpStream::connect(at).await.unwrap();
            assert_eq!(is_answered(stream, path).await, Some(expected), "{path}");
        }
    }

    #[tokio::test]
    async fn a_server_of_http1_gives_no_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let sent = tokio::io::AsyncWriteExt::write_all(&mut server, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        sent.await.unwrap();
        assert_eq!(is_answered(stream, "/ready").await, None);
    }
}
