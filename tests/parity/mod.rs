//! Numbers against transformers and PEFT, from fixtures whose scripts stand in `scripts/fixtures`.

mod backward;
mod logits;
mod peft;
mod smollm2;
