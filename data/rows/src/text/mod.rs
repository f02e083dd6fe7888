//! Rows of text in, token ids with a loss weight for every token out.
//!
//! [`read_rows`] checks rows, a [`ChatTemplate`] renders each once, a [`Tokenizer`] reads the text
//! once, and the character spans of the turns decide which tokens are learned.
//! The decision to question: no token is ever found by its number or by tokenizing a part. Byte
//! offsets connect spans with tokens, and what a row would silently lose is an error.

mod byte_level_bpe;
mod call_check;
mod columns;
mod conversation;
mod error;
mod formats;
mod gguf_vocabulary;
mod given_back;
mod inspect;
mod mask;
mod message_fields;
mod prepare;
mod prompt;
mod rows;
mod sentence_piece;
mod slot;
mod slot_prompt;
mod supervise;
mod system;
mod template;
mod tokenizer;
mod tokenizer_library;
mod tool_results;
mod validators;
mod word_piece;

#[cfg(test)]
mod tests;

pub use byte_level_bpe::ByteLevelBpe;
pub use call_check::DeclaredTool;
pub use columns::Columns;
pub use conversation::{ContentValue, Conversation, Message, Role, ToolCall, ValueOrigin};
pub use error::DataError;
pub use prompt::AskedPrompt;

pub use formats::{
    DataFormat, FormatError, NotRead, Recognised, RecognisedFormat, RowNotes, Unread, recognise,
    recognise_file, recognise_records,
};
pub use gguf_vocabulary::VocabularyError;
pub use given_back::NotGivenBack;
pub use inspect::{InspectedRow, InspectedToken, InspectedTurn, InspectedValue, inspect_row};
pub use mask::{ArgumentMask, MaskConfig, OnEmpty, OnLostReasoning, SpanWeight, Straddle, TrainOn};
pub use message_fields::MessageFieldError;
pub use prepare::{
    DropReason, DroppedRow, Gathering, OnOverflow, PrepareOptions, PrepareReport, Prepared,
    StraddlingToken, TokenizeOutcome, TokenizedExample, TokenizedRow, UnlearnedTurns, WithoutBos,
    prepare, prompt_ids, tokenize_row,
};
pub use rows::{Row, RowParser, RowReader, RowRecord, RowRecords, read_rows, read_tools};
pub use sentence_piece::SentencePiece;
pub use slot::{SlotRow, slot_completion};
pub use slot_prompt::SlotPrompt;
pub use system::{InspectedSystem, SystemSource};
pub use template::{
    ChatTemplate, Exceeded, GenerationPrompt, NoDate, RenderedText, Span, SpanKind, SpecialTokens,
    TemplateBudgetError, TemplateDate, TemplateKwargError, TextTemplate, TurnBegin, TurnError,
    Turns,
};
pub use tokenizer::{AddedToken, AddedTokens, Encoded, Specials, Tokenizer};
pub use tool_results::{InMessages, ToolNotes};
pub use word_piece::{BertNormalization, SentenceIds, WordPiece, WordPieceOptions};

pub use crate::faults::{Faults, all_rows};
