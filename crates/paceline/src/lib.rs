//! Paceline: batch inference for language models.
