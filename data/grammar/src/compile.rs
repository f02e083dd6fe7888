//! Compiles a schema or a list of tools into a grammar, within bounded time and stack.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use llguidance::Matcher;
use serde_json::{Map, Value};

use super::calls::{CallFormat, Frame, call_schema, read_tools};
use super::constraint::{Built, Constraint};
use super::error::GrammarError;
use super::lower::Lowerer;
use super::options::{GrammarOptions, Lengths};
use super::unwritten::Unwritten;
use super::vocabulary::Vocabulary;
use super::write::Written;
use super::{probe, schema, write};

/// Compilation recurses over the schema; this holds what the limits of `lower` allow.
const STACK_BYTES: usize = 256 << 20;

/// What a completion must look like, compiled for one vocabulary.
#[derive(Clone)]
pub struct Grammar {
    vocabulary: Vocabulary,
    built: Built,
    unwritten: Arc<Unwritten>,
}

impl Grammar {
    /// Compiles a JSON Schema of draft 4 to 2020-12, the latter where `$schema` is absent.
    ///
    /// Every text that the grammar completes is one JSON value that is valid under the schema and
    /// has no key twice. Keys are written in the order of the schema, strings and numbers as Python's
    /// `json.dumps` spells them, numbers in other spellings too; docs/constrained.md lists the valid
    /// texts that are never written.
    ///
    /// # Errors
    ///
    /// - the schema is none, refers to another document, or allows no finite value
    /// - it uses a keyword that is not enforced; the error has its place
    /// - it is too large, or compiling takes longer than the options allow
    pub fn json_schema(
        vocabulary: &Vocabulary,
        schema: &Value,
        options: &GrammarOptions,
    ) -> Result<Self, GrammarError> {
        let (schema, keys, formats) = (schema.clone(), options.keys, options.formats);
        let lowered = move || {
            let mut lowerer = Lowerer::new(formats);
            let root = lowerer.document(&keys.of(&schema))?;
            lowerer.finish(root)
        };
        let frame = CallFormat::Plain.frame(false);
        Self::compile(vocabulary, lowered, frame, options)
    }

    /// Compiles one call of one of the tools, in the model's own format, or one call or more where
    /// the format is a [`CallFormat::Sequence`] or [`GrammarOptions::parallel_tool_calls`] says so.
    ///
    /// Tools are written as templates take them. With [`Keys::Declared`] a call has no argument
    /// that its tool does not declare.
    ///
    /// [`Keys::Declared`]: super::Keys::Declared
    ///
    /// # Errors
    ///
    /// - there is no tool, or one has no name or that of another
    /// - as [`Grammar::json_schema`], for the parameters of a tool
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

    /// The constraint of a completion that has not begun.
    pub fn constraint(&self) -> Constraint {
        let unwritten = Arc::clone(&self.unwritten);
        Constraint::new(self.vocabulary.clone(), self.built.clone(), unwritten)
    }

    /// Whether [`Lengths::Short`] has set a limit to a list or a text.
    pub fn is_shortened(&self) -> bool {
        self.built.is_shortened
    }

    /// The vocabulary that the grammar is compiled for.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Compiles on a thread of its own: a schema that takes too long is given up, and its thread
    /// ends when it meets one of the compiler's limits.
    fn compile(
        vocabulary: &Vocabulary,
        lowered: impl FnOnce() -> Result<Map<String, Value>, GrammarError> + Send + 'static,
        frame: Frame,
        options: &GrammarOptions,
    ) -> Result<Self, GrammarError> {
        let (sender, receiver) = mpsc::channel();
        let (own, own_options) = (vocabulary.clone(), options.clone());
        let marks = frame.unwritten().map(str::to_owned);
        let texts: Vec<String> = options.unwritten.iter().cloned().chain(marks).collect();
        let unwritten = Arc::new(Unwritten::new(vocabulary, &texts));
        let checked = Arc::clone(&unwritten);
        let work = move || {
            let compiled = lowered().and_then(|schema| {
                schema.values().try_for_each(|part| checked.check(part))?;
                let plain = CallFormat::Plain.frame(false);
                probe::patterns(&own, &schema, |string| {
                    build(&own, &plain, string, &own_options)
                })?;
                build(&own, &frame, &schema, &own_options)
            });
            // Nobody listens any more once the time is over.
            let _ = sender.send(compiled);
        };
        std::thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .map_err(|error| GrammarError::TooLarge {
                reason: format!("no thread to compile it: {error}"),
            })?;
        match receiver.recv_timeout(options.max_compile_time) {
            Ok(built) => Ok(Self {
                vocabulary: vocabulary.clone(),
                built: built?,
                unwritten,
            }),
            Err(RecvTimeoutError::Timeout) => Err(GrammarError::TooLarge {
                reason: format!("compiling took over {:?}", options.max_compile_time),
            }),
            Err(RecvTimeoutError::Disconnected) => Err(GrammarError::TooLarge {
                reason: "the compiler broke off".to_owned(),
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
) -> Result<Built, GrammarError> {
    let mut schemas = schema::read(lowered)?;
    let is_shortened = options.lengths == Lengths::Short && schemas.shorten();
    let Written {
        grammar,
        keys_run_out,
    } = write::written(vocabulary, frame, &schemas, options.layout)?;
    let parser = vocabulary
        .factory()
        .create_parser_from_init_default(grammar)
        .map_err(write::refused)?;
    let matcher = Matcher::new(Ok(parser));
    match matcher.get_error() {
        Some(error) => Err(write::refused(error)),
        None => Ok(Built {
            matcher,
            keys_run_out,
            is_shortened,
        }),
    }
}
