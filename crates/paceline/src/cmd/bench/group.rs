//! One batch of equal sequences: prompts in, then all of them decode in step.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use paceline::{Finish, GenerateParams, Llm, LlmOptions, Piece, RequestId, SamplingParams, Token};
use paceline_cpu::KV_BLOCK;
use paceline_cpu::quant::Rng;

use crate::cli::{ShapeArgs, UsageError};

/// Blocks the pool has beyond need: admission leaves one in a hundred free.
const SPARE_BLOCKS: u32 = 8;

/// What each sequence does, and how large a step may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) n_prompt: u32,
    pub(super) n_new: u32,
    /// Rows a step may have.
    pub(super) max_rows: u32,
    /// Guesses a sequence may have in a step.
    pub(super) n_drafts: u32,
}

impl Shape {
    /// Steps need room for every sequence of the largest batch and for prompts beside them.
    pub(super) fn new(args: &ShapeArgs, max_batch: u32) -> Shape {
        let n_drafts = args.num_speculative_tokens;
        let max_rows = args.max_num_batched_tokens.max((2 + n_drafts) * max_batch);
        Shape { n_prompt: args.prompt_tokens, n_new: args.new_tokens, max_rows, n_drafts }
    }

    /// The most steps until each of `batch` sequences has its first token, if early ones decode
    /// meanwhile.
    fn max_prefill_steps(self, batch: u32) -> u32 {
        let rows = u64::from(batch) * u64::from(self.n_prompt);
        let steps = rows.div_ceil(u64::from(self.max_rows - batch)) + 1;
        u32::try_from(steps).unwrap_or(u32::MAX)
    }

    /// Tokens a sequence may come to have. Early ones go on until the last one is done, unless
    /// guesses take them further in a step than others.
    fn max_len(self, batch: u32) -> u32 {
        if self.n_drafts > 0 {
            return self.n_prompt.saturating_add(self.n_new);
        }
        let steps = self.max_prefill_steps(batch);
        self.n_prompt.saturating_add(self.n_new).saturating_add(steps)
    }

    /// Tokens a sequence has halfway through decoding: what the cost of a step is reckoned with.
    pub(super) fn mean_len(self) -> f64 {
        f64::from(self.n_prompt) + f64::from(self.n_new) / 2.0
    }

    /// Bytes of keys and values the batch holds in the end.
    pub(super) fn n_kv_blocks(self, batch: u32) -> u64 {
        u64::from(self.max_len(batch).div_ceil(KV_BLOCK as u32)) * u64::from(batch)
    }

    /// An engine that holds the largest batch, and nothing more.
    pub(super) fn options(self, max_batch: u32) -> Result<LlmOptions> {
        let n_blocks = self.n_kv_blocks(max_batch);
        // Admission expects blocks for what is still to come on top of those that are held.
        let n_to_come = u64::from(max_batch) * u64::from(self.max_len(max_batch) - self.n_prompt);
        let n_expected = n_to_come.div_ceil(KV_BLOCK as u64);
        let n_blocks = n_blocks + n_expected + n_blocks / 50 + u64::from(SPARE_BLOCKS);
        let n_blocks = u32::try_from(n_blocks);
        let Ok(n_blocks) = n_blocks else {
            bail!(UsageError("so many tokens at once are beyond any machine".to_owned()));
        };
        Ok(LlmOptions {
            max_num_seqs: max_batch,
            max_num_batched_tokens: self.max_rows,
            num_kv_blocks: Some(n_blocks),
            num_speculative_tokens: self.n_drafts,
            ..LlmOptions::default()
        })
    }

    /// Checks that a batch fits the model's context.
    pub(super) fn check(self, llm: &Llm, max_batch: u32) -> Result<()> {
        let (wanted, found) = (self.max_len(max_batch), llm.facts().max_model_len);
        let (prompt, new) = (self.n_prompt, self.n_new);
        ensure!(
            wanted <= found,
            UsageError(format!(
                "{prompt} prompt and {new} new tokens in a batch of {max_batch} need a context of \
                 {wanted}, but the model has {found}"
            ))
        );
        Ok(())
    }
}

/// What one batch took.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupTiming {
    pub(super) prefill: Duration,
    /// Rows computed meanwhile: all prompt tokens, and those of early sequences' answers.
    pub(super) n_prefill_rows: usize,
    pub(super) decode: Duration,
    /// The part of `decode` spent in the forward pass.
    pub(super) decode_forward: Duration,
    pub(super) n_decoded: usize,
    /// Guesses computed over all, and those that were right.
    pub(super) n_drafted: u64,
    pub(super) n_accepted: u64,
    /// From the start to each sequence's first token.
    pub(super) first_tokens: Vec<Duration>,
    /// The first tokens of each sequence, as many as were asked for.
    pub(super) answers: Vec<Vec<Token>>,
}

/// Prompts of unlike tokens; those of a smaller batch are the first of a larger one's.
pub(super) fn prompts(llm: &Llm, n: u32, n_tokens: u32) -> Vec<Vec<Token>> {
    let n_vocab = llm.spec().n_vocab;
    let prompt = |i: u32| {
        let mut rng = Rng::new(u64::from(i));
        (0..n_tokens).map(|_| rng.below(n_vocab) as Token).collect()
    };
    (0..n).map(prompt).collect()
}

/// Greedy, and on past any end token: `max_tokens` it is.
pub(super) fn params(max_tokens: u32) -> GenerateParams {
    let sampling = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::greedy() };
    GenerateParams { sampling, ..GenerateParams::default() }
}

/// Runs one batch: until every sequence has its first token (prefill), then until each has its
/// other tokens (decode). Without guesses all sequences take part in each step, with them until
/// they are done.
pub(super) fn run(llm: &mut Llm, prompts: &[Vec<Token>], shape: Shape) -> Result<GroupTiming> {
    let before = llm.stats();
    // A tenant of its own: what the same prompts were answered before must not be guessed from.
    let tenant = before.n_requests;
    let max_tokens = shape.max_len(prompts.len() as u32) - shape.n_prompt;
    let params = GenerateParams { tenant, ..params(max_tokens) };
    let mut group = Group::start(llm, prompts, &params)?;
    while group.timing.answers.iter().any(Vec::is_empty) {
        let elapsed = group.step()?;
        group.timing.prefill += elapsed;
    }
    let n_tokens: usize = group.timing.answers.iter().map(Vec::len).sum();
    let n_prompt: usize = prompts.iter().map(Vec::len).sum();
    group.timing.n_prefill_rows = n_prompt + n_tokens - prompts.len();
    while group.timing.answers.iter().any(|answer| answer.len() < shape.n_new as usize) {
        let forward = group.session.llm().forward_time();
        let elapsed = group.step()?;
        group.timing.decode += elapsed;
        group.timing.decode_forward += group.session.llm().forward_time() - forward;
    }
    let after = group.session.llm().stats();
    let mut timing = group.timing;
    timing.n_drafted = after.n_drafted_tokens - before.n_drafted_tokens;
    timing.n_accepted = after.n_accepted_tokens - before.n_accepted_tokens;
    timing.n_decoded = timing.answers.iter().map(Vec::len).sum::<usize>() - n_tokens;
    timing.answers.iter_mut().for_each(|answer| answer.truncate(shape.n_new as usize));
    Ok(timing)
}

struct Group<'a> {
    session: paceline::Session<'a>,
    ids: Vec<RequestId>,
    pieces: Vec<Piece>,
    start: Instant,
    timing: GroupTiming,
}

impl<'a> Group<'a> {
    fn start(llm: &'a mut Llm, prompts: &[Vec<Token>], params: &GenerateParams) -> Result<Self> {
        let n = prompts.len();
        let timing = GroupTiming {
            answers: vec![Vec::new(); n],
            first_tokens: vec![Duration::ZERO; n],
            ..GroupTiming::default()
        };
        let mut session = llm.session();
        let ids = prompts.iter().map(|prompt| session.add(prompt.clone(), params));
        let ids = ids.collect::<Result<Vec<_>, _>>()?;
        Ok(Group { session, ids, pieces: Vec::new(), start: Instant::now(), timing })
    }

    /// One step, timed; what came out of it is noted outside the time.
    fn step(&mut self) -> Result<Duration> {
        let start = Instant::now();
        let is_busy = self.session.step(&mut self.pieces);
        let elapsed = start.elapsed();
        let first_token = self.start.elapsed();
        ensure!(is_busy, "the engine has nothing to do before all sequences have their tokens");
        for piece in self.pieces.drain(..) {
            if let Some(finish) = piece.finish.filter(|finish| *finish != Finish::Length) {
                bail!("a sequence ended before its time ({})", finish.name());
            }
            let Ok(i) = self.ids.binary_search(&piece.request) else { continue };
            if self.timing.answers[i].is_empty() {
                self.timing.first_tokens[i] = first_token;
            }
            self.timing.answers[i].extend(piece.token);
        }
        Ok(elapsed)
    }
}
