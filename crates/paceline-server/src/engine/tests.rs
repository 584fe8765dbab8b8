//! The door, with an engine behind it that computes with a made-up model.

use std::time::Duration;

use paceline_engine::fake::{FakeBackend, FakeFailures};
use paceline_engine::{BackendLimits, EngineConfig};

use super::*;

fn open() -> EngineHandle {
    let limits = BackendLimits {
        n_blocks: 256,
        block_size: 16,
        max_rows: 64,
        max_model_len: 256,
        n_vocab: 64,
    };
    let backend = FakeBackend::new(limits, FakeFailures::default());
    let engine = Engine::new(backend, EngineConfig::default()).unwrap();
    let queue = Queue::new(QueueLimits { max_requests: 100, max_tokens: 10_000 });
    let options = WorkerOptions {
        queue_timeout: None,
        target_itl: None,
        batch_itl_factor: None,
        tracer: None,
    };
    start(engine, queue, Arc::new(Metrics::default()), options).unwrap()
}

fn job(n_prompt: u32, n: u32, is_whole: bool) -> Job {
    let params = SamplingParams { n, max_tokens: 20, ignore_eos: true, ..SamplingParams::greedy() };
    Job {
        prompt: (0..n_prompt).map(|i| i % 50).collect(),
        params: Arc::new(params),
        priority: Priority::Normal,
        tenant: 0,
        timeout: None,
        constraint: None,
        is_whole,
    }
}

/// All there is to hear: what came with each call, as text.
async fn hear(jobs: Vec<Job>) -> Vec<Vec<(u32, String)>> {
    let mut inbox = open().submit(jobs, Instant::now(), Label::default()).unwrap();
    let (mut heard, mut messages) = (Vec::new(), Vec::new());
    while inbox.receive(&mut messages).await {
        heard.push(messages.drain(..).map(|m| (m.prompt, format!("{:?}", m.news))).collect());
    }
    heard
}

fn of_prompt(heard: &[Vec<(u32, String)>], prompt: u32) -> Vec<String> {
    let all = heard.iter().flatten().filter(|(of, _)| *of == prompt);
    all.map(|(_, news)| news.clone()).collect()
}

#[tokio::test]
async fn who_waits_for_the_whole_hears_the_same_at_once() {
    let jobs = |is_whole| vec![job(5, 1, is_whole), job(40, 3, is_whole)];
    let (each, whole) = (hear(jobs(false)).await, hear(jobs(true)).await);
    for (prompt, n) in [(0, 1), (1, 3)] {
        let news = of_prompt(&whole, prompt);
        assert_eq!(news, of_prompt(&each, prompt));
        // A start, and twenty tokens and an end of each sequence.
        assert_eq!(news.len(), 1 + 21 * n);
        let together = whole.iter().filter(|heard| heard.iter().any(|(of, _)| *of == prompt));
        assert_eq!(together.count(), 1, "news of prompt {prompt} came in pieces");
    }
}

#[tokio::test]
async fn refusals_and_ends_from_outside_are_heard_too() {
    // Longer than the model's context.
    let heard = hear(vec![job(1000, 1, true)]).await;
    assert!(heard[0][0].1.starts_with("Refused"), "{heard:?}");
    let handle = open();
    handle.cancel_all();
    let mut inbox = handle.submit(vec![job(5, 1, true)], Instant::now(), Label::default()).unwrap();
    let mut messages = Vec::new();
    let received = inbox.receive(&mut messages);
    assert!(tokio::time::timeout(Duration::from_secs(60), received).await.unwrap());
    let last = messages.pop().map(|message| message.news);
    let is_cancelled = matches!(last, Some(News::Finished { reason: FinishReason::Cancelled, .. }));
    assert!(is_cancelled, "{last:?}");
}
