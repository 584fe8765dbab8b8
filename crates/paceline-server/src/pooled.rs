//! Vectors out of the engine: what an HTTP request that generates nothing waits for.

use crate::engine::{Inbox, Message, News};
use crate::error::ApiError;
use crate::reply::{broken, refused};

/// Waits for the vectors of all prompts. Dropping this cancels what still runs.
pub(crate) async fn read(mut inbox: Inbox, n_prompts: usize) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut vectors = vec![Vec::new(); n_prompts];
    let mut messages: Vec<Message> = Vec::new();
    let mut n_running = n_prompts;
    while n_running > 0 {
        if !inbox.receive(&mut messages).await {
            return Err(ApiError::internal("the engine has stopped"));
        }
        for Message { prompt, news } in messages.drain(..) {
            match news {
                News::Pooled(vector) => {
                    if let Some(place) = vectors.get_mut(prompt as usize) {
                        *place = vector;
                    }
                }
                News::Finished { reason, .. } => {
                    // All that ends well has told its vector before.
                    if vectors.get(prompt as usize).is_none_or(Vec::is_empty) {
                        return Err(broken(reason));
                    }
                    n_running -= 1;
                }
                news @ (News::Refused(_) | News::QueueTimeout) => return Err(refused(news)),
                News::Started { .. } | News::PromptLogprob(_) | News::Token { .. } => {}
            }
        }
    }
    Ok(vectors)
}
