//! From tokens to text: what an HTTP request's task does with news from the engine.
//!
//! Owns the detokenisers and stop matchers of all sequences of one HTTP request. Knows nothing of
//! JSON.

use std::sync::Arc;

use paceline_engine::{FinishReason, Token, TokenLogprob};
use paceline_model::detokenize::{DetokenizeOptions, Detokenizer};
use paceline_model::stop::StopMatcher;
use paceline_model::tokenizer::Tokenizer;

use crate::engine::{Ended, Inbox, Message, News};
use crate::error::ApiError;
use crate::keys::Share;

/// How the tokens of one prompt become text.
#[derive(Clone, Debug)]
pub(crate) struct TextOptions {
    pub(crate) stop: StopMatcher,
    /// Tokens that end the text and are no part of it.
    pub(crate) end_tokens: Arc<[Token]>,
    pub(crate) skip_special: bool,
    pub(crate) n: u32,
    /// Nothing was asked for (`max_tokens: 0`): the one token that was computed is not shown.
    pub(crate) is_silent: bool,
}

/// Something to show.
#[derive(Debug)]
pub(crate) enum Update {
    Started { prompt: u32, n_cached: u32 },
    PromptLogprob { prompt: u32, logprob: TokenLogprob },
    Piece(Piece),
}

/// A piece of one sequence's text.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) prompt: u32,
    pub(crate) index: u32,
    /// Text that became complete; may be empty.
    pub(crate) text: String,
    pub(crate) token: Option<Token>,
    pub(crate) logprob: Option<Box<TokenLogprob>>,
    /// Set on the last piece of a sequence.
    pub(crate) finish: Option<Finish>,
}

/// How a sequence that went well ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
        }
    }
}

/// All sequences of one HTTP request. Dropping it cancels what still runs.
#[derive(Debug)]
pub(crate) struct Reply {
    inbox: Inbox,
    prompts: Vec<Vec<Sequence>>,
    n_running: usize,
    messages: Vec<Message>,
    share: Share,
}

#[derive(Debug)]
struct Sequence {
    detokenizer: Detokenizer,
    stop: StopMatcher,
    end_tokens: Arc<[Token]>,
    is_silent: bool,
    is_done: bool,
}

impl Reply {
    /// `options` has one entry for each prompt.
    pub(crate) fn new(
        inbox: Inbox,
        tokenizer: &Tokenizer,
        options: &[TextOptions],
        share: Share,
    ) -> Reply {
        let prompts: Vec<Vec<Sequence>> = options
            .iter()
            .map(|options| (0..options.n).map(|_| Sequence::new(tokenizer, options)).collect())
            .collect();
        let n_running = prompts.iter().map(Vec::len).sum();
        Reply { inbox, prompts, n_running, messages: Vec::new(), share }
    }

    /// Waits until the engine has begun, so that a refusal can still be a status of its own.
    pub(crate) async fn begin(&mut self) -> Result<(), ApiError> {
        self.receive().await?;
        let place = self
            .messages
            .iter()
            .position(|message| matches!(message.news, News::Refused(_) | News::QueueTimeout));
        match place {
            Some(place) => Err(refused(self.messages.swap_remove(place).news)),
            None => Ok(()),
        }
    }

    /// Waits for news and adds it to `updates`. False when every sequence has ended.
    pub(crate) async fn next(&mut self, updates: &mut Vec<Update>) -> Result<bool, ApiError> {
        if self.n_running == 0 {
            return Ok(false);
        }
        if self.messages.is_empty() {
            self.receive().await?;
        }
        let mut messages = std::mem::take(&mut self.messages);
        for message in messages.drain(..) {
            if let Some(update) = self.translate(message)? {
                updates.push(update);
            }
        }
        self.messages = messages;
        Ok(true)
    }

    async fn receive(&mut self) -> Result<(), ApiError> {
        match self.inbox.receive(&mut self.messages).await {
            true => Ok(()),
            false => Err(ApiError::internal("the engine has stopped")),
        }
    }

    fn translate(&mut self, message: Message) -> Result<Option<Update>, ApiError> {
        let Message { prompt, news } = message;
        let (index, event) = match news {
            News::Started { n_cached } => return Ok(Some(Update::Started { prompt, n_cached })),
            News::PromptLogprob(logprob) => {
                return Ok(Some(Update::PromptLogprob { prompt, logprob }));
            }
            // Those who want vectors do not read them here.
            News::Pooled(_) => return Ok(None),
            News::Token { index, token, logprob } => {
                self.share.n_tokens += 1;
                (index, Ok((token, logprob)))
            }
            News::Finished { index, reason } => (index, Err(reason)),
            news @ (News::Refused(_) | News::QueueTimeout) => return Err(refused(news)),
        };
        let sequence =
            self.prompts.get_mut(prompt as usize).and_then(|p| p.get_mut(index as usize));
        let Some(sequence) = sequence.filter(|sequence| !sequence.is_done) else {
            return Ok(None);
        };
        let mut piece =
            Piece { prompt, index, text: String::new(), token: None, logprob: None, finish: None };
        match event {
            Ok((token, logprob)) => {
                sequence.push(token, logprob, &mut piece);
                if piece.finish.is_some() {
                    end(&self.inbox.ended, &piece);
                }
            }
            Err(reason) => sequence.finish(reason, &mut piece)?,
        }
        if piece.finish.is_some() {
            sequence.is_done = true;
            self.n_running -= 1;
        }
        Ok(Some(Update::Piece(piece)))
    }
}

/// Tells the engine that a stop string has come.
fn end(ended: &[Arc<Ended>], piece: &Piece) {
    if let Some(ended) = ended.get(piece.prompt as usize) {
        ended.end(piece.index);
    }
}

impl Sequence {
    fn new(tokenizer: &Tokenizer, options: &TextOptions) -> Sequence {
        let detokenize =
            DetokenizeOptions { skip_special: options.skip_special, continuation: true };
        Sequence {
            detokenizer: Detokenizer::new(tokenizer, detokenize),
            stop: options.stop.clone(),
            end_tokens: Arc::clone(&options.end_tokens),
            is_silent: options.is_silent,
            is_done: false,
        }
    }

    fn push(&mut self, token: Token, logprob: Option<Box<TokenLogprob>>, piece: &mut Piece) {
        if self.is_silent {
            return;
        }
        piece.token = Some(token);
        piece.logprob = logprob;
        // An end token ends the text and is not part of it; the engine's finish comes next.
        if self.end_tokens.contains(&token) {
            return;
        }
        let output = self.stop.push(self.detokenizer.push(token));
        piece.text.push_str(&output.text);
        piece.finish = output.stopped.map(|_| Finish::Stop);
    }

    fn finish(&mut self, reason: FinishReason, piece: &mut Piece) -> Result<(), ApiError> {
        let finish = match reason {
            FinishReason::Stop if !self.is_silent => Finish::Stop,
            FinishReason::Stop | FinishReason::Length => Finish::Length,
            other => return Err(broken(other)),
        };
        let output = self.stop.push(self.detokenizer.finish());
        piece.text.push_str(&output.text);
        piece.finish = Some(match output.stopped {
            Some(_) => Finish::Stop,
            None => {
                piece.text.push_str(&self.stop.finish());
                finish
            }
        });
        Ok(())
    }
}

/// The answer to a request that was not taken.
pub(crate) fn refused(news: News) -> ApiError {
    match news {
        News::Refused(error) => error.into(),
        _ => ApiError::Overloaded {
            message: "the request waited too long in the queue; try again later".to_owned(),
            code: "queue_timeout",
            retry_after: std::time::Duration::from_secs(5),
        },
    }
}

/// The answer to a request that did not come to its end.
pub(crate) fn broken(reason: FinishReason) -> ApiError {
    match reason {
        FinishReason::Cancelled => {
            ApiError::unavailable("the server is shutting down and could not finish the request")
        }
        FinishReason::Deadline => ApiError::Timeout,
        FinishReason::Preempted => ApiError::internal(
            "the KV pool is too small for what runs at once; the request was given up",
        ),
        FinishReason::Failed(failure) => ApiError::internal(failure.to_string()),
        FinishReason::Backend(message) => ApiError::internal(message),
        FinishReason::Stop | FinishReason::Length => ApiError::internal("ended without an error"),
    }
}
