//! Sockets: accepting them, the limits on what arrives there, and the end of the server.

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

/// Serves until told to stop, then lets what is under way finish.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    router: Router,
    stop: Arc<Notify>,
) -> io::Result<()> {
    let (closing, _) = watch::channel(false);
    let places = Arc::new(Semaphore::new(app.options.max_connections));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = stop.notified() => break,
        };
        let (socket, place) = accepted?;
        let connection = connection(socket, &app, router.clone(), closing.subscribe());
        tokio::spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drain(listener, app, router, closing).await;
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

/// Readiness fails, no request is taken, and what runs gets its time. The port stays open for
/// health checks until then.
async fn drain(listener: TcpListener, app: Arc<App>, router: Router, closing: watch::Sender<bool>) {
    app.drain();
    let timeout = app.options.shutdown_timeout;
    tracing::info!(seconds = timeout.as_secs_f64(), "draining: no new requests are taken");
    let places = Arc::new(Semaphore::new(app.options.max_connections));
    let answer_health = async {
        while let Ok((socket, place)) = accept(&listener, &places).await {
            let connection = connection(socket, &app, router.clone(), closing.subscribe());
            tokio::spawn(async move {
                connection.await;
                drop(place);
            });
        }
    };
    tokio::select! {
        () = app.wait_until_idle() => tracing::info!("all requests are done"),
        () = tokio::time::sleep(timeout) => cut_off(&app).await,
        () = answer_health => {}
    }
    // Nobody listens if all connections are gone already.
    let _ = closing.send(true);
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
