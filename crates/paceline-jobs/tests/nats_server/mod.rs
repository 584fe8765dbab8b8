//! The real `nats-server` on a directory and a free port of its own, to be killed and started
//! again.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) struct NatsServer {
    child: Child,
    dir: tempfile::TempDir,
    port: u16,
}

impl NatsServer {
    /// `None`, and a word about it, where it is not installed.
    pub(crate) fn start() -> Option<NatsServer> {
        let Some(program) = program() else {
            let skipped = "SKIPPED: nats-server is not installed\n";
            // Past the harness, which shows nothing of tests that pass.
            let _ = std::io::stderr().write_all(skipped.as_bytes());
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let child = spawn(&program, dir.path(), "-1");
        let port = port_of(&child, dir.path());
        Some(NatsServer { child, dir, port })
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Ends it with SIGKILL and starts it again on what is on the disk.
    #[allow(dead_code, reason = "not every test restarts it")]
    pub(crate) fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let program = program().unwrap();
        self.child = spawn(&program, self.dir.path(), &self.port.to_string());
        assert_eq!(port_of(&self.child, self.dir.path()), self.port);
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    dirs.map(|dir| dir.join("nats-server")).find(|program| program.is_file())
}

fn spawn(program: &Path, dir: &Path, port: &str) -> Child {
    Command::new(program)
        .args(["-js", "-a", "127.0.0.1", "-p", port, "-sd"])
        .arg(dir.join("store"))
        .arg("--ports_file_dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// It writes its ports to a file once it listens.
fn port_of(child: &Child, dir: &Path) -> u16 {
    let path = dir.join(format!("nats-server_{}.ports", child.id()));
    for _ in 0..6000 {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let port = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|ports| {
            let url = ports["nats"][0].as_str()?.to_owned();
            url.rsplit(':').next()?.parse().ok()
        });
        if let Some(port) = port {
            return port;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nats-server does not start");
}
