//! Compiles a schema or a list of tools into a grammar, with bounded time and stack.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use llguidance::Matcher;
use serde_json::{Map, Value};

use super::calls::{CallFormat, Frame, call_schema, read_tools};
use super::constraint::{CompiledGrammar, Constraint};
use super::error::GrammarError;
use super::forbidden_substrings::ForbiddenSubstrings;
use super::lower::Lowerer;
use super::options::{GrammarOptions, Lengths};
use super::vocabulary::Vocabulary;
use super::write::WrittenGrammar;
use super::{probe, schema, write};

/// Stack of compilation, which recurses over the schema. It suffices for the limits in `lower`.
const STACK_BYTES: usize = 256 << 20;

/// The compiled constraint on a completion, for one vocabulary.
#[derive(Clone)]
pub struct Grammar {
    vocabulary: Vocabulary,
    built: CompiledGrammar,
    forbidden_substrings: Arc<ForbiddenSubstrings>,
}

impl Grammar {
    /// Compiles a JSON Schema of draft 4 to 2020-12. The draft is 2020-12 if there is no `$schema`.
    ///
    /// Every completion is one JSON value that is valid under the schema and has no duplicate key.
    /// Keys are in schema order. Strings are spelled as in Python's `json.dumps`. Numbers are
    /// spelled like this too, or in other valid spellings. docs/constrained.md lists valid JSON
    /// that is never generated.
    ///
    /// # Errors
    ///
    /// - The schema is invalid, refers to another document, or allows no finite value.
    /// - It uses a keyword that is not enforced. The error contains its JSON pointer.
    /// - It is too large, or compilation exceeds the time limit of the options.
    pub fn json_schema(
        vocabulary: &Vocabulary,
        schema: &Value,
        options: &GrammarOptions,
    ) -> Result<Self, GrammarError> {
        let (schema, keys, formats) = (schema.clone(), options.keys, options.formats);
        let lowered = move || {
            let mut lowerer = Lowerer::new(formats);
            let root = lowerer.document(&keys.apply_to(&schema))?;
            lowerer.finish(root)
        };
        let frame = CallFormat::Plain.frame(false);
        Self::compile(vocabulary, lowered, frame, options)
    }

    /// Compiles one call of one of the tools in the model's own format. Several calls are allowed
    /// if the format is a [`CallFormat::Sequence`] or [`GrammarOptions::parallel_tool_calls`] is
    /// set.
    ///
    /// Tools have the format of chat templates. With [`Keys::Declared`] a call has no argument that
    /// its tool does not declare.
    ///
    /// [`Keys::Declared`]: super::Keys::Declared
    ///
    /// # Errors
    ///
    /// - There is no tool, or a tool has no name or a duplicate name.
    /// - The parameters of a tool fail as in [`Grammar::json_schema`].
    pub fn tool_call(
        vocabulary: &Vocabulary,
        tools: &[Value],
        format: CallFormat,
        options: &GrammarOptions,
    ) -> Result<Self, GrammarError> {
        let tools = read_tools(tools)?;
        let (keys, formats) = (options.keys, options.formats);
        let lowered = move || {
            let mut lowerer = Lowerer::new(formats);
            let root = call_schema(&tools, format, &mut lowerer, keys)?;
            lowerer.finish(root)
        };
        let frame = format.frame(options.parallel_tool_calls);
        Self::compile(vocabulary, lowered, frame, options)
    }

    /// A constraint at the start of a completion.
    pub fn constraint(&self) -> Constraint {
        let forbidden_substrings = Arc::clone(&self.forbidden_substrings);
        Constraint::new(
            self.vocabulary.clone(),
            self.built.clone(),
            forbidden_substrings,
        )
    }

    /// Whether [`Lengths::Short`] has set a limit on a list or a string.
    pub fn is_shortened(&self) -> bool {
        self.built.is_shortened
    }

    /// The vocabulary for which the grammar is compiled.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Compiles on a separate thread. If compilation takes too long, this function returns, and the
    /// thread ends at one of the compiler's limits.
    fn compile(
        vocabulary: &Vocabulary,
        lowered: impl FnOnce() -> Result<Map<String, Value>, GrammarError> + Send + 'static,
        frame: Frame,
        options: &GrammarOptions,
    ) -> Result<Self, GrammarError> {
        let (sender, receiver) = mpsc::channel();
        let (thread_vocabulary, thread_options) = (vocabulary.clone(), options.clone());
        let marks = frame.forbidden_substring().map(str::to_owned);
        let texts: Vec<String> = options
            .forbidden_substrings
            .iter()
            .cloned()
            .chain(marks)
            .collect();
        let forbidden_substrings = Arc::new(ForbiddenSubstrings::new(vocabulary, &texts));
        let checked = Arc::clone(&forbidden_substrings);
        let work = move || {
            let compiled = lowered().and_then(|schema| {
                schema.values().try_for_each(|part| checked.check(part))?;
                let plain_frame = CallFormat::Plain.frame(false);
                probe::patterns(&thread_vocabulary, &schema, |string| {
                    build(&thread_vocabulary, &plain_frame, string, &thread_options)
                })?;
                build(&thread_vocabulary, &frame, &schema, &thread_options)
            });
            // After a timeout there is no receiver, so ignore the error.
            let _ = sender.send(compiled);
        };
        std::thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .map_err(|error| GrammarError::TooLarge {
                reason: format!("cannot start a thread to compile it: {error}"),
            })?;
        match receiver.recv_timeout(options.max_compile_time) {
            Ok(built) => Ok(Self {
                vocabulary: vocabulary.clone(),
                built: built?,
                forbidden_substrings,
            }),
            Err(RecvTimeoutError::Timeout) => Err(GrammarError::TooLarge {
                reason: format!("compiling took over {:?}", options.max_compile_time),
            }),
            Err(RecvTimeoutError::Disconnected) => Err(GrammarError::TooLarge {
                reason: "the compiler stopped unexpectedly".to_owned(),
            }),
        }
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar")
            .field("vocabulary", &self.vocabulary)
            .finish_non_exhaustive()
    }
}

fn build(
    vocabulary: &Vocabulary,
    frame: &Frame,
    lowered: &Map<String, Value>,
    options: &GrammarOptions,
) -> Result<CompiledGrammar, GrammarError> {
    let mut schemas = schema::read(lowered)?;
    let is_shortened = options.lengths == Lengths::Short && schemas.shorten();
    let WrittenGrammar {
        grammar,
        has_finite_keys,
    } = write::write_grammar(vocabulary, frame, &schemas, options.layout)?;
    let parser = vocabulary
        .factory()
        .create_parser_from_init_default(grammar)
        .map_err(write::parser_error)?;
    let matcher = Matcher::new(Ok(parser));
    match matcher.get_error() {
        Some(error) => Err(write::parser_error(error)),
        None => Ok(CompiledGrammar {
            matcher,
            has_finite_keys,
            is_shortened,
        }),
    }
}
