//! A server with a fake model: real sockets, real tokenizer, a backend that can be held still.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::Duration;

use paceline_engine::fake::{FakeBackend, FakeFailures, FakeModel};
use paceline_engine::{
    Backend, BackendError, BackendLimits, Batch, Engine, EngineConfig, Pooling, Sampled, Token,
};
use paceline_model::gguf::Gguf;
use paceline_model::synth::{SynthSpec, gguf_bytes};
use paceline_model::template::ChatTemplate;
use paceline_model::tokenizer::{SpecialTokens, Tokenizer};
use paceline_server::{Embedding, ServedModel, Server, ServerHandle, ServerOptions};
use serde_json::Value;

use crate::client::{Exchange, Response, get_bytes, post_bytes};

pub(crate) const MODEL: &str = "org/fake-model";

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let bytes = gguf_bytes(&SynthSpec::tiny("llama")).unwrap();
    let gguf = Gguf::parse(bytes).unwrap();
    Arc::new(Tokenizer::from_metadata(gguf.metadata()).unwrap())
});

pub(crate) fn tokenizer() -> &'static Tokenizer {
    &TOKENIZER
}

pub(crate) fn limits() -> BackendLimits {
    BackendLimits {
        n_blocks: 256,
        block_size: 16,
        max_rows: 256,
        max_model_len: 1024,
        n_vocab: TOKENIZER.n_vocab() as u32,
    }
}

/// A backend that takes a step only when the test lets it.
pub(crate) struct Gated<B> {
    inner: B,
    steps: Option<Receiver<()>>,
    /// What it says, whatever the model would.
    script: Option<Vec<Token>>,
    /// How far each sample row of the step is.
    places: Vec<usize>,
    /// Times it will still say that there is something to make ready.
    n_prepare: u32,
}

impl<B: Backend> Backend for Gated<B> {
    fn limits(&self) -> BackendLimits {
        self.inner.limits()
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), BackendError> {
        if let Some(steps) = &self.steps {
            // A test that is over lets everything run.
            let _ = steps.recv();
        }
        self.places.clear();
        self.places.extend(batch.samples.iter().map(|sample| sample.n_generated as usize));
        self.inner.submit(batch)
    }

    fn collect(&mut self, results: &mut Vec<Sampled>) -> Result<(), BackendError> {
        self.inner.collect(results)?;
        if let Some(script) = &self.script {
            for (result, &place) in results.iter_mut().zip(&self.places) {
                result.token = *script.get(place).unwrap_or(&TOKENIZER.eos_tokens()[0]);
            }
        }
        Ok(())
    }

    fn prepare(&mut self) -> bool {
        std::thread::sleep(Duration::from_millis(1));
        self.n_prepare = self.n_prepare.saturating_sub(1);
        self.n_prepare > 0
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    pub(crate) options: ServerOptions,
    pub(crate) engine: EngineConfig,
    pub(crate) is_gated: bool,
    pub(crate) failures: FakeFailures,
    pub(crate) pooling: Pooling,
    /// Instead of what suits most tests.
    pub(crate) n_blocks: Option<u32>,
    /// What the model says to everything.
    pub(crate) script: Option<&'static str>,
    /// Instead of the tokenizer's own.
    pub(crate) template: Option<&'static str>,
}

/// A running server; ends with the test.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) handle: ServerHandle,
    gate: Option<SyncSender<()>>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl TestServer {
    pub(crate) fn new(setup: Setup) -> TestServer {
        let server = TestServer::without_model(setup.options.clone());
        server.load(setup)
    }

    pub(crate) fn plain() -> TestServer {
        TestServer::new(Setup::default())
    }

    /// One whose grammars may take as long as they like: no test ends by the clock.
    pub(crate) fn patient(setup: Setup) -> TestServer {
        let grammar_timeout = Duration::from_secs(3600);
        let options = ServerOptions { grammar_timeout, ..setup.options };
        TestServer::new(Setup { options, ..setup })
    }

    pub(crate) fn without_model(options: ServerOptions) -> TestServer {
        let server = Server::bind(([127, 0, 0, 1], 0).into(), options).unwrap();
        let address = server.local_addr().unwrap();
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run()));
        TestServer { address, handle, gate: None, thread }
    }

    pub(crate) fn load(mut self, setup: Setup) -> TestServer {
        // Many permits may be given ahead.
        let (gate, steps) = sync_channel(100_000);
        let model = FakeModel::new(limits().n_vocab);
        let n_blocks = setup.n_blocks.unwrap_or(limits().n_blocks);
        let limits = BackendLimits { n_blocks, ..limits() };
        let inner = FakeBackend::with_model(limits, model, setup.failures);
        let script =
            setup.script.map(|text| TOKENIZER.encode(text, SpecialTokens::AsText).unwrap());
        let steps = setup.is_gated.then_some(steps);
        let backend = Gated { inner, steps, script, places: Vec::new(), n_prepare: 100 };
        self.gate = setup.is_gated.then_some(gate);
        let engine = Engine::new(backend, setup.engine).unwrap();
        let template = match setup.template {
            Some(source) => Some(ChatTemplate::new(source, "", "").unwrap()),
            None => ChatTemplate::of_tokenizer(&TOKENIZER).unwrap(),
        };
        let names = vec![MODEL.to_owned(), "alias".to_owned()];
        let served = ServedModel {
            names,
            tokenizer: Arc::clone(&TOKENIZER),
            template,
            // What the fake model has.
            embedding: Embedding { pooling: setup.pooling, n_dims: 4 },
            #[cfg(feature = "nats")]
            id: None,
        };
        assert!(self.handle.serve(engine, served).unwrap());
        self
    }

    /// Lets a gated engine take so many more steps.
    pub(crate) fn allow_steps(&self, n: usize) {
        for _ in 0..n {
            self.gate.as_ref().unwrap().send(()).unwrap();
        }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.start(path, body).finish()
    }

    /// Sends a request and does not wait for its answer.
    pub(crate) fn start(&self, path: &str, body: &Value) -> Exchange {
        Exchange::send(self.address, &post_bytes(path, &[], body.to_string().as_bytes()))
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        Exchange::send(self.address, &get_bytes(path, &[])).finish()
    }

    /// A sample of `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let is_sample =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let line = page.lines().find(is_sample).unwrap_or_else(|| panic!("no {name} in {page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a sample of `/metrics` has a value.
    pub(crate) fn wait_for(&self, name: &str, is_right: impl Fn(f64) -> bool) {
        for _ in 0..10_000 {
            if is_right(self.metric(name)) {
                return;
            }
        }
        panic!("{name} stays at {}", self.metric(name));
    }

    /// Waits for the server to end by itself.
    pub(crate) fn join(mut self) {
        self.gate = None;
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.gate = None;
        self.handle.shut_down();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok());
        }
    }
}
