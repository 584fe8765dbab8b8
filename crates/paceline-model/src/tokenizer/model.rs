//! The `tokenizers` model behind both of a tokenizer's pipelines.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::models::TrainerWrapper;
use tokenizers::{Model, ModelWrapper, Result, Token};

/// A model shared by two pipelines, so that its tables exist once.
///
/// The ids of added tokens are known by name but kept away from the model: text that merely
/// spells `<s>` can then never become that token by merging.
#[derive(Clone)]
pub(super) struct SharedModel(Arc<Inner>);

struct Inner {
    model: ModelWrapper,
    added: HashMap<String, u32>,
}

impl SharedModel {
    pub(super) fn new(model: ModelWrapper, added: HashMap<String, u32>) -> Self {
        Self(Arc::new(Inner { model, added }))
    }
}

impl Model for SharedModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, sequence: &str) -> Result<Vec<Token>> {
        self.0.model.tokenize(sequence)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        let added = self.0.added.get(token).copied();
        added.or_else(|| self.0.model.token_to_id(token))
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.model.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.model.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.model.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        self.0.model.save(folder, prefix)
    }

    fn get_trainer(&self) -> TrainerWrapper {
        self.0.model.get_trainer()
    }
}
