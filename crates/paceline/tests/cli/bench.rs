//! A workbench: a directory with a tiny model, and a way to call the binary in it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use paceline_model::gguf::{GgufWriter, Metadata};
use paceline_model::synth::{SynthSpec, write_gguf};
use serde_json::Value;

pub(crate) struct Bench {
    dir: tempfile::TempDir,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Bench {
    /// A directory with `tiny.gguf` in it: context 256, byte-level vocabulary, chat template.
    pub(crate) fn new() -> Bench {
        let bench = Bench { dir: tempfile::tempdir().unwrap() };
        let spec = SynthSpec { context: 256, ..SynthSpec::tiny("llama") };
        write_gguf(&spec, &bench.path("tiny.gguf")).unwrap();
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// A model file with nothing but an architecture's name.
    pub(crate) fn write_strange_model(&self, name: &str) {
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", "perceptron");
        let mut bytes = Vec::new();
        GgufWriter::new(metadata).write_to(&mut bytes, |_, _| Ok(())).unwrap();
        self.write(name, bytes);
    }

    /// Calls `paceline` in the directory, with nothing on standard input.
    pub(crate) fn call(&self, args: &[&str]) -> Ran {
        self.call_with(args, "")
    }

    pub(crate) fn call_with(&self, args: &[&str], stdin: &str) -> Ran {
        let mut child = self.spawn(args);
        // A command that does not read may be gone already.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let output = child.wait_with_output().unwrap();
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Starts `paceline` in the directory, with pipes at all ends.
    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        self.start(Command::new(env!("CARGO_BIN_EXE_paceline")).args(args))
    }

    /// The same, where no file may grow beyond so many blocks of 512 bytes: writes fail as they do
    /// on a full disk.
    #[cfg(unix)]
    pub(crate) fn spawn_on_full_disk(&self, n_blocks: u32, args: &[&str]) -> Child {
        let script = format!("trap '' XFSZ; ulimit -f {n_blocks}; exec \"$0\" \"$@\"");
        let binary = env!("CARGO_BIN_EXE_paceline");
        self.start(Command::new("sh").args(["-c", &script, binary]).args(args))
    }

    fn start(&self, command: &mut Command) -> Child {
        command
            .current_dir(self.dir.path())
            // Nothing may be fetched, and nothing of the user's be found.
            .env("PACELINE_CACHE", self.path("cache"))
            .env("HF_HOME", self.path("hub"))
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Ran {
    /// Checks the exit code; shows everything if it is another.
    pub(crate) fn expect(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Checks for an error of one line that says this.
    pub(crate) fn expect_error(self, code: i32, says: &str) {
        let ran = self.expect(code);
        let error = ran.stderr.lines().find(|line| line.starts_with("error: "));
        let error = error.unwrap_or_else(|| panic!("no error line: {ran:#?}"));
        assert!(error.contains(says), "{error:?} does not say {says:?}");
        assert!(!ran.stderr.contains("panicked"), "{ran:#?}");
    }
}

/// The values on the lines of a JSONL text.
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
