//! All that comes out of model files.
