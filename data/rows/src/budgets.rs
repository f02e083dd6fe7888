//! What input may ask for: every budget of work, bytes and depth that texts from elsewhere are held to.
//!
//! Each constant gives its reason here; docs/limits.md tells users what exceeds it and what to do.
//! The error of a budget says what was asked for, the limit, and the setting, if there is one.

/// The most bytes of a file that is read whole, with the name of its constant, which errors say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// How many.
    pub bytes: u64,
    /// As docs/limits.md spells it.
    pub name: &'static str,
}

impl Limit {
    /// A limit of a file.
    pub const fn new(name: &'static str, bytes: u64) -> Self {
        Self { bytes, name }
    }
}

/// The most bytes of a line. As JSON values, which take some times as much, a line of this length
/// still fits a laptop's memory; the longest row of a public data set that is read here has less
/// than a hundredth of it.
pub const LINE_BYTES: usize = 256 << 20;

/// The most bytes of a document that is read whole, after it is decompressed.
pub const DOCUMENT_BYTES: usize = 2 << 30;

/// The most bytes of the standard input that are read as one text: twice those of the longest text
/// that a template writes.
pub const INPUT_BYTES: Limit = Limit::new("INPUT_BYTES", 16 << 20);

/// The most bytes of the report of a data pipeline, which has some lines for each reason of a drop.
pub const PIPELINE_REPORT_BYTES: Limit = Limit::new("PIPELINE_REPORT_BYTES", 16 << 20);

/// Bytes that the operations of an OpenAPI specification together copy of it: a component that they
/// share is copied for each. GitHub's, of a thousand operations, copy some megabytes.
pub const SPEC_BYTES: usize = 512 << 20;

/// Bytes of the schema of a parameter or a response with everything that it refers to. Those of
/// GitHub's take a tenth of it on average; a payment's, in which each object holds the others, has
/// no end that a document could hold.
pub const SCHEMA_BYTES: usize = 64 << 10;

/// The most bytes of a message of an MCP server. The longest lists of tools have some hundred
/// kilobytes, and a prompt holds a thousandth of it.
pub const MCP_MESSAGE_BYTES: usize = 16 << 20;

/// The most tools of an MCP server, and the most pages that they come on.
pub const MCP_TOOLS: usize = 10_000;

/// The most bytes of a `tokenizer.json`. Those of the largest vocabularies have about 35 MB.
pub const TOKENIZER_BYTES: Limit = Limit::new("TOKENIZER_BYTES", 64 << 20);

/// The most bytes of a chat template, in a file of its own or within another. The longest public
/// ones have about 50 KB.
pub const TEMPLATE_BYTES: Limit = Limit::new("TEMPLATE_BYTES", 1 << 20);

/// The most bytes of a `tokenizer_config.json`. The longest public ones have 1 MB.
pub const TOKENIZER_CONFIG_BYTES: Limit = Limit::new("TOKENIZER_CONFIG_BYTES", 16 << 20);

/// The most requests in a row that may have no answer before the fault is taken for the server's. A
/// server that fails for every request is so left after some tries, where thousands of rows would
/// each be tried for minutes; rows that a server refuses by their contents seldom follow each other.
pub const FAULTS_IN_A_ROW: usize = 8;

/// The most tokens of an expression that may stand within each other, and the most branches of an
/// `if`. The parser calls itself for each; templates of models reach a tenth of it.
pub const TEMPLATE_NESTING: usize = 500;

/// The most bytes of a name in a template. Names are compared wherever they are looked up.
pub const TEMPLATE_NAME_BYTES: usize = 256;

/// The most blocks (`{% block %}`) of a template. Each call of a macro looks at all of them.
pub const TEMPLATE_BLOCKS: usize = 100;

/// The most bytes of texts and lists that operators between literals make while a template
/// compiles, as `"=" * 80` does. The engine computes such an expression anew on each level of the
/// one around it.
pub const TEMPLATE_LITERAL_BYTES: usize = 1 << 20;

/// The most steps of one rendering, a step being an instruction of the template engine: about a
/// second. A conversation of a hundred messages takes some ten thousand.
pub const TEMPLATE_STEPS: u64 = 10_000_000;

/// The most steps of all renderings of one row, 32 bytes of their texts being one more: about half
/// a minute. A chat of 2,000 messages, every second of them learned, stays below.
pub const ROW_STEPS: u64 = 100_000_000;

/// The most bytes of the texts and lists that one rendering makes, in sum: that is also what it can
/// hold at once. A conversation of a hundred messages makes less than one MiB.
pub const TEMPLATE_MADE_BYTES: usize = 256 << 20;

/// The most bytes of the texts and lists that one rendering searches and compares, in sum: about a
/// second.
pub const TEMPLATE_READ_BYTES: usize = 1 << 30;

/// The most levels of lists and maps in a value that a template prints or compares. Rows have at
/// most 127.
pub const TEMPLATE_VALUE_LEVELS: usize = 256;

/// The most bytes of the text that a template writes, and of a text that is read as tokens: about
/// two million tokens, more than any model reads, for which a tokenizer takes about two GiB.
pub const TEMPLATE_TEXT_BYTES: usize = 8 << 20;

/// The most levels of a `tokenizer.json`. Those of models have seven.
pub const TOKENIZER_LEVELS: usize = 32;

/// The most steps of a normalizer, a pre-tokenizer or a decoder, each of which goes through the
/// whole text. Those of models have fewer than twenty.
pub const TOKENIZER_STEPS: usize = 100;

/// How many times as long the steps of a pre-tokenizer or a decoder may make a text, at worst.
/// Those of models reach 24.
pub const TOKENIZER_GROWTH: usize = 100;

/// The most bytes that a normalizer may make of a text; the library keeps sixteen more for each.
pub const TOKENIZER_TEXT_BYTES: usize = 16 << 20;

/// The most bytes that a normalizer may make of some 256 bytes of a text: 4,000 times as many, where
/// Unicode's own forms reach eighteen.
pub const TOKENIZER_PIECE_BYTES: usize = 1 << 20;

/// The most bytes that one step of a normalizer may make of such a piece, at worst: they are held
/// before they are counted, each with its place, which takes sixteen times as much.
pub const TOKENIZER_STEP_BYTES: usize = 16 << 20;

/// The most characters of a word that a WordPiece model looks at, with the square of which its time
/// grows. BERT's models have 100.
pub const TOKENIZER_WORD_CHARS: usize = 256;

/// The most bytes of a token of a SentencePiece vocabulary in GGUF, which is taken apart in every way.
/// Those of Gemma have at most 48, those of Llama 2 likewise.
pub const SENTENCE_PIECE_BYTES: usize = 1024;

/// Looks at a value in one walk of a validator. A gold of ten thousand leaves under a schema of ten
/// branches a leaf takes a hundredth; a walk that takes all of it ends within half a second.
pub const VALIDATION_STEPS: u64 = 10_000_000;

/// The most bytes of the errors of one walk of a validator, with the values that they copy.
pub const VALIDATION_ERROR_BYTES: u64 = 64 << 20;

/// Broken rules of one value that are listed; more of them help nobody to fix it.
pub const LISTED_FAULTS: usize = 1_000;

/// Ways through the branches of a schema at one place of a value. The widest schema of
/// JSONSchemaBench has 91.
pub const SCHEMA_WAYS: u64 = 100_000;

/// Schemas that lead to each other at one place of a value. Validators recurse over them.
pub const SCHEMA_LEVELS: usize = 500;

/// Levels of the schema times levels of the value. A stack with room for more would be larger than
/// the memory that a validation may take.
pub const SCHEMA_STACK_LEVELS: usize = 64_000;

/// Values inside of a schema that is compiled once more, each of its definitions by itself.
pub const MEMORY_SCHEMA_NODES: usize = 100_000;

/// Steps back of one match of a pattern that looks around or back.
pub const BACKTRACK_STEPS: usize = 100_000;

/// Steps of a comparison of two texts by ROUGE-L, each of 64 pairs of words. Two texts of 100,000
/// words each fit; a model's answer has some thousands.
pub const ROUGE_STEPS: u64 = 400_000_000;

/// Leaves of a completion that differ from the gold value's and are compared by their likeness: their
/// vectors take 1.5 KB each. SLOT's golds have some dozens.
pub const COMPARED_LEAVES: usize = 100_000;

/// Pairs of `patternProperties` whose patterns are compared as automata, each within a millisecond;
/// those that begin with different texts are told apart without.
pub const PATTERN_PAIRS: usize = 2_000;

/// Pairs of alternatives of `oneOf` that are compared with each other: 1,000 alternatives.
pub const ALTERNATIVE_PAIRS: usize = 500_000;

/// Remainders by which the multiples of a step of `multipleOf` are told apart: each is a state of an
/// automaton, which is walked over all tokens of the vocabulary.
pub const STEP_REMAINDERS: u32 = 5_000;

/// How often parts of a schema with an `$id` are compiled: each anew for each way that leads to it.
pub const COMPILED_RESOURCES: usize = 2_000;

/// Bytes of the ways to all parts of a schema, which its validator keeps. A schema of 100,000
/// properties has 4 MiB.
pub const SCHEMA_PLACE_BYTES: usize = 64 << 20;

/// Parts of a schema that is made flat, references followed: twenty can describe a million.
pub const FLAT_PARTS: usize = 20_000;

/// Properties of a flat schema.
pub const FLAT_LEAVES: usize = 10_000;

/// Bytes of the names of a flat schema, and of the parts that it is made of, each with the way to it;
/// both are held some five times over. A schema of 10,000 leaves has 2 MiB.
pub const FLAT_BYTES: usize = 16 << 20;

/// Patterns of one schema.
pub const SCHEMA_PATTERNS: usize = 10_000;

/// Patterns of one schema whose automaton takes more than 256 KiB, or that look around or back.
pub const LARGE_PATTERNS: usize = 32;

/// Bytes of the ways to all parts of the calls of one line of `score`, each of which is answered with
/// the keys above it. A call of 100,000 arguments has 14 MiB.
pub const CALL_PLACE_BYTES: usize = 64 << 20;

/// Pairs of a predicted and a gold call of one sample that `score` compares: 2,000 calls with 2,000.
pub const CALL_PAIRS: usize = 4_000_000;

/// Nodes of the sub-graphs of a graph that are listed, all together.
pub const SUBGRAPH_NODES: usize = 10_000_000;
