//! `paceline health`: whether a server is there and has its model, for containers and supervisors
//! that have no HTTP client at hand.
//!
//! One GET over a plain socket; nothing but the status is read.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cli::{HealthArgs, Outcome};

/// Enough for the first line of any answer.
const MAX_LINE: u64 = 64;

pub(crate) fn run(args: &HealthArgs) -> Result<Outcome> {
    let address = args.address()?;
    let line = first_line(address, args.timeout())
        .with_context(|| format!("{address} does not answer"))?;
    match status(&line) {
        Some(200) => {
            writeln!(io::stdout(), "ok")?;
            Ok(Outcome::Done)
        }
        Some(status) => bail!("{address} is not ready: its /health answers {status}"),
        None => bail!("{address} does not speak HTTP"),
    }
}

/// The start of what `/health` answers. Each wait is bounded, and so is their number.
fn first_line(address: SocketAddr, timeout: Duration) -> io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect_timeout(&address, timeout)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))?;
    write!(socket, "GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut line = Vec::new();
    BufReader::new(socket).take(MAX_LINE).read_until(b'\n', &mut line)?;
    Ok(line)
}

/// The status in `HTTP/1.1 200 OK`.
fn status(line: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(line).ok()?.trim_end();
    let (_, rest) = line.strip_prefix("HTTP/1.")?.split_once(' ')?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}
