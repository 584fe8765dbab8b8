//! Quantised formats.
