//! Converts rows to token ids with one loss weight per token.
//!
//! [`read_rows`] checks rows, a [`ChatTemplate`](tooltune_template::ChatTemplate) renders each row
//! once, a [`Tokenizer`] encodes the text once, and the character spans of the turns select the
//! supervised tokens. Spans are mapped to tokens by byte offsets, never by searching for token ids
//! or encoding parts separately. Anything that a row would silently lose is an error.

mod blank;
mod byte_level_bpe;
mod call_check;
mod columns;
mod error;
mod formats;
mod gguf_vocabulary;
mod inspect;
mod mask;
mod pre_tokenizers;
mod prepare;
mod prompt;
mod round_trip;
mod rows;
mod sentence_piece;
mod slot;
mod slot_prompt;
mod supervise;
mod system;
mod tokenizer;
mod tokenizer_library;
mod tool_results;
mod validators;
mod word_piece;

#[cfg(test)]
mod tests;

pub use blank::is_blank;
pub use byte_level_bpe::ByteLevelBpe;
pub use call_check::DeclaredTool;
pub use columns::Columns;
pub use error::DataError;
pub use prompt::TokenizedPrompt;

pub use formats::{
    DataFormat, FormatError, RecognisedFile, RecognisedFormat, RowNotes, UnreadCount, UnreadData,
    recognise, recognise_file, recognise_records,
};
pub use gguf_vocabulary::VocabularyError;
pub use inspect::{InspectedRow, InspectedToken, InspectedTurn, InspectedValue, inspect_row};
pub use mask::{ArgumentMask, MaskConfig, OnEmpty, OnLostReasoning, SpanWeight, Straddle, TrainOn};
pub use prepare::{
    DropReason, DroppedRow, OnOverflow, PrepareOptions, PrepareReport, Prepared, ReportBuilder,
    StraddlingToken, TokenizeOutcome, TokenizedExample, TokenizedRow, UnsupervisedTurns,
    WithoutBos, prepare, prompt_ids, tokenize_row,
};
pub use round_trip::RoundTripMismatch;
pub use rows::{Row, RowParser, RowReader, RowRecord, RowRecords, read_rows, read_tools};
pub use sentence_piece::SentencePiece;
pub use slot::{SlotRow, slot_completion};
pub use slot_prompt::SlotPrompt;
pub use system::{InspectedSystem, SystemSource};
pub use tokenizer::{AddedToken, AddedTokens, Encoded, Specials, Tokenizer};
pub use tool_results::{InMessages, ToolNotes};
pub use word_piece::{BertNormalization, SentenceIds, WordPiece, WordPieceOptions};
