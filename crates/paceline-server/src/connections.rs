//! Sockets: accepting them, the limits on what arrives there, and the end of the server.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};

use crate::app::App;

/// How long to wait after an accept that failed for want of file descriptors and the like.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long the clients of cut-off requests get to hear of it.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What every connection needs.
struct Acceptor {
    listener: TcpListener,
    app: Arc<App>,
    router: Router,
    /// One for each connection that may be open.
    places: Arc<Semaphore>,
    /// Becomes true when connections are to end after what they are at.
    closing: watch::Sender<bool>,
}

/// Serves until told to stop, then lets what is under way finish.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    router: Router,
    stop: Arc<Notify>,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(app.options.max_connections));
    let (closing, _) = watch::channel(false);
    let acceptor = Acceptor { listener, app, router, places, closing };
    tokio::select! {
        never = acceptor.accept_all() => match never? {},
        () = stop.notified() => {}
    }
    acceptor.drain().await;
    acceptor.close().await;
    Ok(())
}

type Place = tokio::sync::OwnedSemaphorePermit;

/// The next connection, when there is room for it.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> io::Result<(TcpStream, Place)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    loop {
        match listener.accept().await {
            Ok((socket, _)) => return Ok((socket, place)),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Drives one connection to its end.
fn connection(
    socket: TcpStream,
    app: &App,
    router: Router,
    mut closing: watch::Receiver<bool>,
) -> impl Future<Output = ()> + use<> {
    // Tokens are small and must not wait for each other.
    let _ = socket.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(app.options.header_timeout)
        // A client that closes its side has gone: its request is cancelled.
        .half_close(false)
        .max_buf_size(app.options.max_header_bytes.max(8192));
    let service = TowerToHyperService::new(router);
    async move {
        let connection = builder.serve_connection(TokioIo::new(socket), service);
        tokio::pin!(connection);
        let is_closing = async { closing.wait_for(|&is_closing| is_closing).await.is_ok() };
        let ended = tokio::select! {
            ended = &mut connection => ended,
            _ = is_closing => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended badly");
        }
    }
}

impl Acceptor {
    /// Takes connections, for ever.
    async fn accept_all(&self) -> io::Result<Infallible> {
        loop {
            let (socket, place) = accept(&self.listener, &self.places).await?;
            let closing = self.closing.subscribe();
            let connection = connection(socket, &self.app, self.router.clone(), closing);
            tokio::spawn(async move {
                connection.await;
                drop(place);
            });
        }
    }

    /// Readiness fails, no request is taken, and what runs gets its time. The port stays open for
    /// health checks until then.
    async fn drain(&self) {
        self.app.drain();
        let timeout = self.app.options.shutdown_timeout;
        tracing::info!(seconds = timeout.as_secs_f64(), "draining: no new requests are taken");
        tokio::select! {
            () = self.app.wait_until_idle() => tracing::info!("all requests are done"),
            () = tokio::time::sleep(timeout) => cut_off(&self.app).await,
            _ = self.accept_all() => {}
        }
    }

    /// Lets connections send what they have, and ends them.
    async fn close(self) {
        // Nobody listens if all connections are gone already.
        let _ = self.closing.send(true);
        let all = u32::try_from(self.app.options.max_connections).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(LAST_WORDS, self.places.acquire_many(all)).await;
    }
}

/// Ends what has not finished in time, and lets its clients hear of it.
async fn cut_off(app: &App) {
    tracing::warn!("some requests are cut off: the time to finish them is over");
    app.cancel_all();
    let _ = tokio::time::timeout(LAST_WORDS, app.wait_until_idle()).await;
}

/// Where the server can be reached.
pub(crate) fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
