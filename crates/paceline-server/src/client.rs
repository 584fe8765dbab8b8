//! A small HTTP/1.1 client: what `paceline bench serve` sends its load with, and how traces leave
//! the server.
//!
//! Owns connections and their reuse. Refuses to know JSON, events, TLS and redirects: it speaks
//! plain http to one server.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{url:?} is no address of a server; write it as in http://127.0.0.1:8000")]
    BadUrl { url: String },
    #[error("{url:?}: only http:// is spoken here")]
    NotHttp { url: String },
    #[error("cannot connect to {authority}: {error}")]
    Connect { authority: String, error: std::io::Error },
    #[error("{path:?} is no path")]
    BadPath { path: String },
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the response has more than {limit} bytes")]
    TooLarge { limit: usize },
}

/// A server's address, and what all paths there begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    host: String,
    port: u16,
    prefix: String,
}

impl Origin {
    /// Reads `http://HOST[:PORT][/PREFIX]`.
    pub fn parse(url: &str) -> Result<Origin, ClientError> {
        let bad = || ClientError::BadUrl { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| bad())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some(_) => return Err(ClientError::NotHttp { url: url.to_owned() }),
            None => return Err(bad()),
        }
        // The host of an IPv6 address comes with its brackets.
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Origin { host, port: uri.port_u16().unwrap_or(80), prefix })
    }

    /// What all paths begin with; empty or `/…` without an end slash.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The same server with another prefix.
    pub fn with_prefix(&self, prefix: &str) -> Origin {
        Origin { prefix: prefix.to_owned(), ..self.clone() }
    }

    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

type Sender = SendRequest<Full<Bytes>>;

/// Sends requests to one server. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    origin: Origin,
    authority: String,
    /// Sent with every request.
    headers: HeaderMap,
    /// Connections that wait for a request.
    idle: Mutex<Vec<Sender>>,
}

/// A response whose head has come.
#[derive(Debug)]
pub struct Response {
    status: u16,
    body: Incoming,
    /// Kept until the body has been read; dropping it before closes the connection.
    sender: Option<Sender>,
    client: Arc<Inner>,
}

impl Client {
    /// `headers` are sent with every request.
    pub fn new(origin: Origin, headers: HeaderMap) -> Client {
        let authority = origin.authority();
        Client { inner: Arc::new(Inner { origin, authority, headers, idle: Mutex::default() }) }
    }

    pub async fn get(&self, path: &str) -> Result<Response, ClientError> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Sends JSON.
    pub async fn post(&self, path: &str, body: Bytes) -> Result<Response, ClientError> {
        self.send(Method::POST, path, body).await
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response, ClientError> {
        while let Some(mut sender) = self.inner.take_idle() {
            // Its last response may have been read before the connection's own task saw its end.
            if sender.ready().await.is_err() {
                continue;
            }
            let request = self.inner.request(&method, path, body.clone())?;
            match self.inner.exchange(sender, request).await {
                // A server may close a kept connection at any time, even as a request is sent;
                // what is sent here does no harm twice.
                Err(ClientError::Broken(_)) => {}
                other => return other,
            }
        }
        let sender = self.inner.connect().await?;
        let request = self.inner.request(&method, path, body)?;
        self.inner.exchange(sender, request).await
    }
}

impl Inner {
    fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|sender| !sender.is_closed())
    }

    async fn connect(&self) -> Result<Sender, ClientError> {
        let Origin { host, port, .. } = &self.origin;
        let failed = |error| ClientError::Connect { authority: self.authority.clone(), error };
        let socket = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
        // Requests are small and must not wait for each other.
        socket.set_nodelay(true).map_err(failed)?;
        let (sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        // What goes wrong there is heard by the request that is under way.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let path = format!("{}{path}", self.origin.prefix);
        let uri: Uri = path.parse().map_err(|_| ClientError::BadPath { path })?;
        let has_body = !body.is_empty();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        let headers = request.headers_mut();
        if let Ok(authority) = HeaderValue::from_str(&self.authority) {
            headers.insert(HOST, authority);
        }
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Ok(request)
    }

    async fn exchange(
        self: &Arc<Inner>,
        mut sender: Sender,
        request: Request<Full<Bytes>>,
    ) -> Result<Response, ClientError> {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body();
        Ok(Response { status, body, sender: Some(sender), client: Arc::clone(self) })
    }
}

impl Response {
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The next piece of the body, as it comes; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        if let Some(sender) = self.sender.take() {
            let mut idle = self.client.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push(sender);
        }
        Ok(None)
    }

    /// The whole body, if it has at most `limit` bytes.
    pub async fn bytes(mut self, limit: usize) -> Result<Bytes, ClientError> {
        let mut bytes = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            if bytes.len() + chunk.len() > limit {
                return Err(ClientError::TooLarge { limit });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// Answers on each connection so often, and closes it; returns how many connections came.
    fn serve(listener: std::net::TcpListener, n_answers: usize) -> usize {
        let mut n_left: usize = 6;
        let mut n_connections = 0;
        while n_left > 0 {
            let (mut socket, _) = listener.accept().unwrap();
            n_connections += 1;
            for _ in 0..n_answers.min(n_left) {
                let (mut seen, mut byte) = (Vec::new(), [0]);
                while !seen.ends_with(b"\r\n\r\n") {
                    socket.read_exact(&mut byte).unwrap();
                    seen.push(byte[0]);
                }
                assert!(seen.starts_with(b"GET /a/b HTTP/1.1\r\n"));
                socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
                n_left -= 1;
            }
        }
        n_connections
    }

    #[test]
    fn connections_are_kept_and_replaced_when_they_close() {
        for (n_answers, n_connections) in [(6, 1), (2, 3)] {
            let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let url = format!("http://{}/a", listener.local_addr().unwrap());
            let server = std::thread::spawn(move || serve(listener, n_answers));
            let client = Client::new(Origin::parse(&url).unwrap(), HeaderMap::new());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                for _ in 0..6 {
                    let response = client.get("/b").await.unwrap();
                    assert_eq!(response.status(), 200);
                    assert_eq!(response.bytes(2).await.unwrap(), "ok");
                }
            });
            assert_eq!(server.join().unwrap(), n_connections);
        }
    }

    #[test]
    fn addresses_are_read_and_wrong_ones_named() {
        for (url, authority, prefix) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
            ("http://localhost", "localhost:80", ""),
            ("http://a.b:9/v1/", "a.b:9", "/v1"),
            ("http://[::1]:7/x/y", "[::1]:7", "/x/y"),
        ] {
            let origin = Origin::parse(url).unwrap();
            assert_eq!((origin.authority().as_str(), origin.prefix()), (authority, prefix));
        }
        for url in ["", "8000", "127.0.0.1:8000", "http://", "/v1", "http:// a"] {
            assert!(matches!(Origin::parse(url), Err(ClientError::BadUrl { .. })), "{url}");
        }
        assert!(matches!(Origin::parse("https://a"), Err(ClientError::NotHttp { .. })));
    }
}
