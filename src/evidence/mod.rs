//! What is kept of a run. Here: the only maker of text that a model or a lifecycle record may see.

pub mod redact;
