//! Pulling with a pretended pip and a pretended hub.

mod server;

use std::cell::RefCell;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use sha2::{Digest, Sha256};
use zip::write::SimpleFileOptions;

use super::*;
use server::{Server, sha256};

const MODEL: &[u8] = b"a model, as far as the tests are concerned";

/// A place with its own caches, a wheel to serve, and ways to call pip.
struct Place {
    dir: ScratchDir,
    options: PullOptions,
}

impl Place {
    /// Neither pip nor hub work until a test says so.
    fn new(name: &str) -> Self {
        let dir = ScratchDir::new_in(&std::env::temp_dir(), name).unwrap();
        let dirs = CacheDirs { models: dir.path().join("cache"), hub: dir.path().join("hub") };
        let mut options = PullOptions::new(dirs);
        options.pip_commands = vec![vec!["/nonexistent/pip".into()]];
        // Nothing listens there, so a connection is refused at once.
        options.hub_endpoint = Some("http://127.0.0.1:9".to_owned());
        options.default_model = WheelModel {
            package: "tiny-model==1".to_owned(),
            wheel_bytes: 500,
            member: "tiny/model.gguf".to_owned(),
            file_name: "model.gguf".to_owned(),
            size: MODEL.len() as u64,
            sha256: sha256(MODEL),
            hub_repo: "org/tiny".to_owned(),
        };
        Self { dir, options }
    }

    fn write_wheel(&self, member: &str, contents: &[u8]) -> PathBuf {
        let path = self.dir.path().join("source.whl");
        let mut writer = zip::ZipWriter::new(File::create(&path).unwrap());
        writer.start_file("tiny/__init__.py", SimpleFileOptions::default()).unwrap();
        writer.start_file(member, SimpleFileOptions::default()).unwrap();
        writer.write_all(contents).unwrap();
        writer.finish().unwrap();
        path
    }

    /// A program that stands in for pip: finds `--dest DIR` among its arguments, then runs `body`.
    fn script(&self, body: &str) -> Vec<OsString> {
        let path = self.dir.path().join("pip.sh");
        let find = "while [ $# -gt 0 ]; do [ \"$1\" = --dest ] && dest=$2; last=$1; shift; done";
        fs::write(&path, format!("#!/bin/sh\n{find}\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        // Through the shell: executing a file just written can fail while another test forks.
        vec!["/bin/sh".into(), path.into()]
    }

    fn with_pip(mut self, body: &str) -> Self {
        self.options.pip_commands = vec![self.script(body)];
        self
    }

    fn with_wheel(self, member: &str, contents: &[u8]) -> Self {
        let wheel = self.write_wheel(member, contents);
        let body = format!("cp '{}' \"$dest/tiny_model-1-py3-none-any.whl\"", wheel.display());
        self.with_pip(&body)
    }

    fn pull(&self) -> Result<PathBuf, PullError> {
        resolve(&Source::Default, &Silent, &self.options)
    }

    /// The names in the cache, hidden ones too.
    fn cached_names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.options.cache_dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }
}

/// Remembers what it was told.
#[derive(Default)]
struct Log(RefCell<Vec<String>>);

impl Progress for Log {
    fn start(&self, what: &str, total: Option<u64>) {
        self.0.borrow_mut().push(format!("start {what} {total:?}"));
    }

    fn at(&self, bytes: u64) {
        self.0.borrow_mut().push(format!("at {bytes}"));
    }

    fn finish(&self) {
        self.0.borrow_mut().push("finish".to_owned());
    }
}

#[test]
fn sources_are_read() {
    let hub = |repo: &str, file: Option<&str>| Source::Hub {
        repo: repo.to_owned(),
        file: file.map(str::to_owned),
    };
    let good = [
        ("default", Source::Default),
        ("smollm2", Source::Default),
        ("model.gguf", Source::Path("model.gguf".into())),
        ("../dir/x.safetensors", Source::Path("../dir/x.safetensors".into())),
        ("hf:org/repo", hub("org/repo", None)),
        ("hf:org/repo-1.5_B:sub/f.gguf", hub("org/repo-1.5_B", Some("sub/f.gguf"))),
    ];
    for (text, expected) in good {
        assert_eq!(Source::parse(text).unwrap(), expected, "{text}");
    }
    let bad = ["", "hf:", "hf:repo", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a/b:", "hf:a/b c"];
    let escaping = ["hf:a/b:../../etc/passwd", "hf:a/b:/etc/passwd", "hf:a/b:x\\..\\y"];
    for text in bad.into_iter().chain(escaping) {
        let error = Source::parse(text).unwrap_err();
        assert!(matches!(error, PullError::BadSource { .. }), "{text}: {error}");
    }
}

#[test]
fn a_path_must_exist() {
    let place = Place::new("path");
    let file = place.dir.path().join("m.gguf");
    fs::write(&file, "x").unwrap();
    let resolved = |path: &Path| resolve(&Source::Path(path.into()), &Silent, &place.options);
    assert_eq!(resolved(&file).unwrap(), file);
    assert_eq!(resolved(place.dir.path()).unwrap(), place.dir.path());
    let error = resolved(&place.dir.path().join("none.gguf")).unwrap_err();
    assert!(matches!(error, PullError::NoSuchPath(_)), "{error}");
    let error = resolved(Path::new("org/repo")).unwrap_err().to_string();
    assert!(error.contains("hf:org/repo"), "{error}");
}

#[test]
fn the_usual_directories_follow_the_environment() {
    let dirs = |variables: &[(&str, &str)]| {
        let found = CacheDirs::usual(|name| {
            let pair = variables.iter().find(|(key, _)| *key == name);
            pair.map(|(_, value)| OsString::from(value))
        });
        found.map(|dirs| (dirs.models.display().to_string(), dirs.hub.display().to_string()))
    };
    let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
    assert_eq!(dirs(&[("HOME", "/h")]), pair("/h/.cache/paceline", "/h/.cache/huggingface/hub"));
    let other = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/hf")];
    assert_eq!(dirs(&other), pair("/x/paceline", "/hf/hub"));
    let all = [("PACELINE_CACHE", "/p"), ("HF_HUB_CACHE", "/q"), ("XDG_CACHE_HOME", "")];
    assert_eq!(dirs(&all), pair("/p", "/q"));
    assert_eq!(dirs(&[]), None);
}

#[test]
fn the_default_model_comes_out_of_the_wheel() {
    let mut place = Place::new("wheel").with_wheel("tiny/model.gguf", MODEL);
    let log = Log::default();
    let path = resolve(&Source::Default, &log, &place.options).unwrap();
    assert_eq!(path, place.options.cache_dir.join("model.gguf"));
    assert_eq!(fs::read(&path).unwrap(), MODEL);
    assert_eq!(place.cached_names(), ["model.gguf"], "nothing else is left");

    let log = log.0.into_inner();
    assert_eq!(log[0], "start tiny-model==1 Some(500)");
    assert!(log.contains(&"start model.gguf Some(42)".to_owned()), "{log:?}");
    assert_eq!(log[log.len() - 2..], ["at 42", "finish"]);

    place.options.pip_commands.clear();
    place.options.offline = true;
    assert_eq!(place.pull().unwrap(), path, "the second time nothing is fetched");
}

#[test]
fn the_progress_shows_the_growing_download() {
    let place = Place::new("grow");
    let wheel = place.write_wheel("tiny/model.gguf", MODEL);
    // Waits until somebody has looked at the first part of the file: no clock decides.
    let seen = place.dir.path().join("seen");
    let body = format!(
        "printf 12345 > \"$TMPDIR/x\"; while [ ! -e '{}' ]; do :; done; rm \"$TMPDIR/x\"; \
         cp '{}' \"$dest/t.whl\"",
        seen.display(),
        wheel.display()
    );
    let place = place.with_pip(&body);

    struct Watcher(PathBuf);
    impl Progress for Watcher {
        fn start(&self, _what: &str, _total: Option<u64>) {}
        fn at(&self, bytes: u64) {
            if bytes == 5 {
                fs::write(&self.0, "").unwrap();
            }
        }
        fn finish(&self) {}
    }
    resolve(&Source::Default, &Watcher(seen), &place.options).unwrap();
}

#[test]
fn damaged_wheels_leave_nothing_behind() {
    let other = vec![b'x'; MODEL.len()];
    let cases: [(&str, &str, &[u8]); 4] = [
        ("sha256", "tiny/model.gguf", &other),
        ("expected 42", "tiny/model.gguf", b"short"),
        ("expected 42", "tiny/model.gguf", &[b'x'; 5000]),
        ("not as expected", "tiny/other.gguf", MODEL),
    ];
    for (words, member, contents) in cases {
        let place = Place::new("damaged").with_wheel(member, contents);
        let error = place.pull().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(place.cached_names(), [""; 0], "{words}");
    }
    for body in ["echo not a zip > \"$dest/x.whl\"", "true"] {
        let place = Place::new("damaged").with_pip(body);
        let error = place.pull().unwrap_err().to_string();
        assert!(error.contains("not as expected"), "{error}");
        assert_eq!(place.cached_names(), [""; 0]);
    }
}

#[test]
fn a_cut_off_model_in_the_cache_is_replaced() {
    let place = Place::new("cut").with_wheel("tiny/model.gguf", MODEL);
    fs::create_dir_all(&place.options.cache_dir).unwrap();
    fs::write(place.options.cache_dir.join("model.gguf"), &MODEL[..7]).unwrap();
    assert_eq!(fs::read(place.pull().unwrap()).unwrap(), MODEL);
}

#[test]
fn pip_is_looked_for_under_several_names() {
    let mut place = Place::new("names").with_wheel("tiny/model.gguf", MODEL);
    let working = place.options.pip_commands.remove(0);
    let module = "echo '/usr/bin/python3: No module named pip' >&2; exit 1";
    let without = vec!["/bin/sh".into(), "-c".into(), module.into()];
    place.options.pip_commands = vec![vec![], vec!["/nonexistent/pip".into()], without, working];
    place.pull().unwrap();
}

#[test]
fn pips_own_words_are_repeated() {
    let place = Place::new("words").with_pip(
        "echo 'WARNING: retrying' >&2; echo 'ERROR: No matching distribution found' >&2; exit 1",
    );
    let error = place.pull().unwrap_err().to_string();
    assert!(error.contains("tiny-model==1: ERROR: No matching distribution"), "{error}");
    assert_eq!(place.cached_names(), [""; 0]);

    let place = Place::new("words").with_pip("echo 'OSError: No space left on device' >&2; exit 1");
    let error = place.pull().unwrap_err();
    assert!(matches!(error, PullError::DiskFull { .. }), "{error}");
    assert_eq!(place.cached_names(), [""; 0]);
}

#[test]
fn without_pip_and_hub_the_error_says_what_to_do() {
    let place = Place::new("neither");
    let error = place.pull().unwrap_err();
    assert!(matches!(error, PullError::DefaultUnavailable { .. }));
    let text = error.to_string();
    let path = place.options.cache_dir.join("model.gguf").display().to_string();
    for words in ["Install pip", &path, "-m PATH", "pip is not installed", "cannot be reached"] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    assert_eq!(place.cached_names(), [""; 0]);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let mut place = Place::new("unwritable").with_wheel("tiny/model.gguf", MODEL);
    let file = place.dir.path().join("file");
    fs::write(&file, "").unwrap();
    place.options.cache_dir = file.join("cache");
    let error = place.pull().unwrap_err();
    assert!(matches!(error, PullError::Unwritable { .. }), "{error}");
    assert!(error.to_string().contains("choose another cache directory"), "{error}");
}

#[test]
fn without_pip_the_hub_has_the_same_file() {
    let server = Server::start(&[("org/tiny", "model.gguf", MODEL)]);
    let mut place = Place::new("hubdefault");
    place.options.hub_endpoint = Some(server.url());
    let path = place.pull().unwrap();
    assert_eq!(path, place.options.cache_dir.join("model.gguf"));
    assert_eq!(fs::read(path).unwrap(), MODEL);

    // From then on, and from the hub's cache too, without any network.
    fs::remove_dir_all(&place.options.cache_dir).unwrap();
    place.options.offline = true;
    assert_eq!(fs::read(place.pull().unwrap()).unwrap(), MODEL);
}

#[test]
fn another_file_on_the_hub_is_not_taken_for_the_default_model() {
    let other = vec![b'x'; MODEL.len()];
    let server = Server::start(&[("org/tiny", "model.gguf", &other)]);
    let mut place = Place::new("hubother");
    place.options.hub_endpoint = Some(server.url());
    for _ in 0..2 {
        let error = place.pull().unwrap_err();
        let PullError::DefaultUnavailable { hub, .. } = error else {
            panic!("{error}");
        };
        assert!(matches!(*hub, PullError::Checksum { .. }), "{hub}");
        assert_eq!(place.cached_names(), [""; 0]);
    }
}

fn pull_hub(place: &Place, text: &str) -> Result<PathBuf, PullError> {
    resolve(&Source::parse(text).unwrap(), &Silent, &place.options)
}

#[test]
fn a_hub_repository_gives_its_preferred_file_and_then_works_offline() {
    let server = Server::start(&[
        ("org/quants", "README.md", b"hello"),
        ("org/quants", "m.Q8_0.gguf", b"eight"),
        ("org/quants", "m.Q4_K_M.gguf", b"four"),
    ]);
    let mut place = Place::new("hubquants");
    place.options.hub_endpoint = Some(server.url());
    let path = pull_hub(&place, "hf:org/quants").unwrap();
    assert!(path.ends_with("m.Q4_K_M.gguf"), "{}", path.display());
    assert_eq!(fs::read(&path).unwrap(), b"four");
    let named = pull_hub(&place, "hf:org/quants:m.Q8_0.gguf").unwrap();
    assert_eq!(fs::read(named).unwrap(), b"eight");

    place.options.hub_endpoint = Some("http://127.0.0.1:9".to_owned());
    place.options.offline = true;
    assert_eq!(pull_hub(&place, "hf:org/quants").unwrap(), path);
    let error = pull_hub(&place, "hf:org/quants:m.Q5_0.gguf").unwrap_err();
    assert!(matches!(error, PullError::Offline { .. }), "{error}");
}

#[test]
fn a_checkpoint_is_pulled_whole() {
    let index = br#"{"weight_map": {"a": "model-1-of-2.safetensors",
                                    "b": "model-2-of-2.safetensors"}}"#;
    let server = Server::start(&[
        ("org/base", "config.json", b"{}"),
        ("org/base", "tokenizer.json", b"{}"),
        ("org/base", "model-1-of-2.safetensors", b"one"),
        ("org/base", "model-2-of-2.safetensors", b"two"),
        ("org/base", "model.safetensors.index.json", index),
        ("org/base", "pytorch_model.bin", b"no"),
        ("org/base", "../../escape.gguf", b"no"),
    ]);
    let mut place = Place::new("hubbase");
    place.options.hub_endpoint = Some(server.url());
    let dir = pull_hub(&place, "hf:org/base").unwrap();
    assert_eq!(fs::read(dir.join("model-2-of-2.safetensors")).unwrap(), b"two");
    assert!(dir.join("config.json").is_file() && !dir.join("pytorch_model.bin").exists());

    place.options.offline = true;
    assert_eq!(pull_hub(&place, "hf:org/base").unwrap(), dir);
    fs::remove_file(dir.join("model-2-of-2.safetensors")).unwrap();
    let error = pull_hub(&place, "hf:org/base").unwrap_err();
    assert!(matches!(error, PullError::Offline { .. }), "a shard is missing: {error}");
}

/// Where the hub's cache keeps the contents of a file.
fn blob(place: &Place, name: &str) -> PathBuf {
    place.options.hub_dir.join("models--org--tiny/blobs").join(name)
}

#[test]
fn a_cut_off_download_is_resumed() {
    let server = Server::start(&[("org/tiny", "model.gguf", MODEL)]);
    let mut place = Place::new("hubresume");
    place.options.hub_endpoint = Some(server.url());
    let part = blob(&place, &format!("{}.part", sha256(MODEL)));
    fs::create_dir_all(part.parent().unwrap()).unwrap();

    fs::write(&part, &MODEL[..20]).unwrap();
    let path = pull_hub(&place, "hf:org/tiny:model.gguf").unwrap();
    assert_eq!(fs::read(&path).unwrap(), MODEL);
    assert!(server.requested_ranges().contains(&"bytes=20-".to_owned()));
    assert!(!part.exists());

    // Whole, but not yet in its place: the server would refuse to send what is missing.
    fs::remove_dir_all(&place.options.hub_dir).unwrap();
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, MODEL).unwrap();
    let path = pull_hub(&place, "hf:org/tiny:model.gguf").unwrap();
    assert_eq!(fs::read(&path).unwrap(), MODEL);
}

#[test]
fn a_file_that_is_not_what_the_hub_announced_is_removed() {
    let server = Server::start(&[("org/tiny", "model.gguf", MODEL)]);
    let mut place = Place::new("hubdamaged");
    place.options.hub_endpoint = Some(server.url());
    // The first part of a download that went wrong.
    let part = blob(&place, &format!("{}.part", sha256(MODEL)));
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, b"not the first bytes").unwrap();
    let error = pull_hub(&place, "hf:org/tiny:model.gguf").unwrap_err();
    assert!(matches!(error, PullError::Checksum { .. }), "{error}");
    assert!(!blob(&place, &sha256(MODEL)).exists());

    let path = pull_hub(&place, "hf:org/tiny:model.gguf").unwrap();
    assert_eq!(fs::read(path).unwrap(), MODEL, "the next try starts anew");
}

#[test]
fn the_hubs_refusals_are_told_apart() {
    let server = Server::start(&[("org/tiny", "README.md", b"x")]);
    let mut place = Place::new("hubrefusals");
    place.options.hub_endpoint = Some(server.url());
    let error = pull_hub(&place, "hf:org/none").unwrap_err();
    assert!(matches!(error, PullError::UnknownRepo { .. }), "{error}");
    let error = pull_hub(&place, "hf:org/tiny:none.gguf").unwrap_err();
    assert!(matches!(error, PullError::UnknownFile { .. }), "{error}");
    let error = pull_hub(&place, "hf:org/tiny").unwrap_err();
    assert!(matches!(error, PullError::NoModelInRepo { .. }), "{error}");
    let error = pull_hub(&place, "hf:org/gated").unwrap_err();
    assert!(matches!(error, PullError::Forbidden { .. }), "{error}");

    place.options.hub_endpoint = Some("http://127.0.0.1:9".to_owned());
    let error = pull_hub(&place, "hf:org/tiny:none.gguf").unwrap_err();
    assert!(matches!(error, PullError::Network { .. }), "{error}");
    assert!(error.to_string().contains("cannot be reached"), "{error}");
}

#[test]
fn an_unwritable_hub_cache_is_named() {
    let server = Server::start(&[("org/tiny", "model.gguf", MODEL)]);
    let mut place = Place::new("hubunwritable");
    place.options.hub_endpoint = Some(server.url());
    let file = place.dir.path().join("file");
    fs::write(&file, "").unwrap();
    place.options.hub_dir = file;
    let error = pull_hub(&place, "hf:org/tiny:model.gguf").unwrap_err();
    assert!(matches!(error, PullError::Unwritable { .. }), "{error}");
}

#[test]
fn the_default_model_is_described_consistently() {
    let model = WheelModel::smollm2();
    assert!(model.member.ends_with(&model.file_name));
    assert_eq!(model.sha256.len(), 64);
    assert!(model.sha256.starts_with("b179c9523d0e6a0f"));
    assert!(is_repo_name(&model.hub_repo));
}
