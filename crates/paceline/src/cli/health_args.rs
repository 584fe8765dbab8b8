//! Flags of `paceline health`, and what an address on the command line stands for.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, value_parser};

#[derive(Args, Debug)]
pub(crate) struct HealthArgs {
    /// Where the server listens
    #[arg(long, default_value = "127.0.0.1")]
    host: String,

    /// Its port
    #[arg(long, default_value_t = 8000)]
    port: u16,

    /// How long to wait for an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = value_parser!(u64).range(1..=600))]
    timeout: u64,
}

impl HealthArgs {
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        socket_address(&self.host, self.port)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

pub(super) fn socket_address(host: &str, port: u16) -> Result<SocketAddr> {
    let found = (host, port).to_socket_addrs();
    let mut found = found.with_context(|| format!("{host} is no address"))?;
    found.next().with_context(|| format!("{host} has no address"))
}
