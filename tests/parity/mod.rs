//! Numbers against transformers and PEFT, from fixtures whose scripts stand in `scripts/fixtures`.

mod backward;
mod families;
mod logits;
mod minilm;
mod peft;
mod retriever;
mod retriever_kinds;
mod smollm2;
mod starting;
