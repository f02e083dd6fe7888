//! Writes sets of values as rules and lexemes of llguidance's parser.

mod repeat;
mod values;

use std::collections::HashMap;

use llguidance::api::{GenGrammarOptions, GrammarId, GrammarInit, ParserLimits, SkipSpec};
use llguidance::derivre::RegexAst;
use llguidance::earley::lexerspec::{LexemeClass, LexemeIdx, LexerSpec};
use llguidance::earley::{Grammar, SymIdx, SymbolProps};

use super::calls::{Frame, Next};
use super::constraint::first_line;
use super::error::GrammarError;
use super::options::Layout;
use super::schema::Schemas;
use super::vocabulary::Vocabulary;

/// The reason why no grammar can be written for a set of values.
pub(super) enum Fault {
    /// The set is empty, which is acceptable if the schema has another alternative.
    Never(String),
    Refused(GrammarError),
}

impl From<GrammarError> for Fault {
    fn from(error: GrammarError) -> Self {
        Self::Refused(error)
    }
}

impl From<Fault> for GrammarError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Never(why) => Self::unsupported("", format!("allows no value: {why}")),
            Fault::Refused(error) => error,
        }
    }
}

/// Converts an error of llguidance.
pub(super) fn parser_error(error: impl std::fmt::Display) -> GrammarError {
    let reason = first_line(&error.to_string());
    if reason.contains("too large") || reason.contains("too big") || reason.contains("limit") {
        GrammarError::TooLarge { reason }
    } else {
        GrammarError::unsupported("", reason)
    }
}

/// A grammar, with properties that it cannot express.
pub(super) struct WrittenGrammar {
    pub(super) grammar: GrammarInit,
    /// Whether an object can have used all of its possible keys, because duplicates are not
    /// allowed.
    pub(super) has_finite_keys: bool,
}

/// Writes a grammar, symbol by symbol.
pub(super) struct Writer<'s> {
    grammar: Grammar,
    lexer: LexerSpec,
    limits: ParserLimits,
    class: LexemeClass,
    layout: Layout,
    schemas: &'s Schemas,
    /// The symbol of each lexeme.
    lexemes: HashMap<LexemeIdx, SymIdx>,
    /// The symbol of each referenced definition.
    definitions: HashMap<usize, SymIdx>,
    /// Definitions that are not written yet.
    pending: Vec<usize>,
    /// The symbol of any value.
    any: Option<SymIdx>,
    at_most: HashMap<(SymIdx, usize), SymIdx>,
    exactly: HashMap<(SymIdx, usize), SymIdx>,
    /// Whether an object can have used all of its possible keys.
    has_finite_keys: bool,
}

/// The grammar of values in a frame.
///
/// # Errors
///
/// - No value is allowed, or alternatives of `oneOf` may overlap.
/// - A limit of the parser is exceeded.
pub(super) fn write_grammar(
    vocabulary: &Vocabulary,
    frame: &Frame,
    schemas: &Schemas,
    layout: Layout,
) -> Result<WrittenGrammar, GrammarError> {
    let mut lexer = LexerSpec::new().map_err(parser_error)?;
    let skip = SkipSpec::unbounded(RegexAst::NoMatch);
    let class = lexer
        .setup_lexeme_class_with_skip(skip)
        .map_err(parser_error)?;
    lexer.regex_builder.unicode(true);
    lexer.regex_builder.utf8(true);
    let mut writer = Writer {
        grammar: Grammar::new(None),
        lexer,
        limits: vocabulary.factory().limits().clone(),
        class,
        layout,
        schemas,
        lexemes: HashMap::new(),
        definitions: HashMap::new(),
        pending: Vec::new(),
        any: None,
        at_most: HashMap::new(),
        exactly: HashMap::new(),
        has_finite_keys: false,
    };
    let json = writer.frame(vocabulary, frame)?;
    let start = writer.json()?;
    writer
        .grammar
        .link_gen_grammar(json, start)
        .map_err(parser_error)?;
    let none = llguidance::HashMap::default();
    let Writer {
        mut grammar,
        mut lexer,
        has_finite_keys,
        ..
    } = writer;
    grammar
        .resolve_grammar_refs(&mut lexer, &none)
        .map_err(parser_error)?;
    Ok(WrittenGrammar {
        grammar: GrammarInit::Internal(grammar, lexer),
        has_finite_keys,
    })
}

impl Writer<'_> {
    fn symbol(&mut self, name: &str) -> SymIdx {
        let props = SymbolProps {
            grammar_id: self.class,
            ..SymbolProps::default()
        };
        self.grammar.fresh_symbol_ext(name, props)
    }

    fn start(&mut self) -> SymIdx {
        let start = self.symbol("start");
        self.grammar.sym_props_mut(start).is_start = true;
        start
    }

    fn add_rule(&mut self, left: SymIdx, right: Vec<SymIdx>) -> Result<(), GrammarError> {
        self.grammar.add_rule(left, right).map_err(parser_error)
    }

    /// A symbol for a sequence.
    fn join(&mut self, parts: Vec<SymIdx>) -> Result<SymIdx, GrammarError> {
        if let [only] = parts[..] {
            return Ok(only);
        }
        let sequence = self.symbol("");
        self.add_rule(sequence, parts)?;
        Ok(sequence)
    }

    /// A symbol for a choice.
    fn select(&mut self, options: Vec<SymIdx>) -> Result<SymIdx, GrammarError> {
        if let [only] = options[..] {
            return Ok(only);
        }
        let selected = self.symbol("");
        for option in options {
            self.add_rule(selected, vec![option])?;
        }
        Ok(selected)
    }

    /// A symbol for an optional part.
    fn optional(&mut self, part: SymIdx) -> Result<SymIdx, GrammarError> {
        let optional = self.symbol("");
        self.add_rule(optional, Vec::new())?;
        self.add_rule(optional, vec![part])?;
        Ok(optional)
    }

    fn lexeme(&mut self, expression: RegexAst) -> Result<SymIdx, GrammarError> {
        self.check_limits()?;
        let lexeme = self
            .lexer
            .add_greedy_lexeme(String::new(), expression, false, None, usize::MAX)
            .map_err(parser_error)?;
        self.add_terminal(lexeme)
    }

    fn literal(&mut self, text: &str) -> Result<SymIdx, GrammarError> {
        self.lexeme(RegexAst::Literal(text.to_owned()))
    }

    fn add_terminal(&mut self, lexeme: LexemeIdx) -> Result<SymIdx, GrammarError> {
        if let Some(symbol) = self.lexemes.get(&lexeme) {
            return Ok(*symbol);
        }
        let name = self.lexer.lexeme_def_to_string(lexeme);
        let name: String = name.chars().take(20).collect();
        let symbol = self.symbol(&name);
        self.grammar
            .make_terminal(symbol, lexeme, &self.lexer)
            .map_err(parser_error)?;
        self.lexemes.insert(lexeme, symbol);
        Ok(symbol)
    }

    /// Checks llguidance's compiler limits while the grammar grows.
    fn check_limits(&self) -> Result<(), GrammarError> {
        let reason = if self.lexer.cost() > self.limits.initial_lexer_fuel {
            "its strings need too many expressions"
        } else if self.grammar.num_symbols() > self.limits.max_grammar_size {
            "its grammar has too many symbols"
        } else {
            return Ok(());
        };
        Err(GrammarError::TooLarge {
            reason: reason.to_owned(),
        })
    }

    /// Writes the text around the JSON and returns the symbol of the JSON.
    fn frame(&mut self, vocabulary: &Vocabulary, frame: &Frame) -> Result<SymIdx, GrammarError> {
        let start = self.start();
        let json = self.symbol("json");
        let options = GenGrammarOptions {
            grammar: GrammarId::Name("json".to_owned()),
            temperature: None,
        };
        self.grammar
            .make_gen_grammar(json, options)
            .map_err(parser_error)?;
        let mut all = Vec::new();
        if vocabulary.drops_leading_blank() {
            let blank = self.literal(" ")?;
            all.push(self.optional(blank)?);
        }
        match frame {
            Frame::Once {
                marker,
                opening,
                closing,
                end_marker,
                next,
            } => {
                let mut one = Vec::new();
                one.extend(self.marker(vocabulary, frame, marker)?);
                one.extend(self.literal_if_any(opening)?);
                one.push(json);
                if let Next::Value(separator) = next {
                    let further = [self.literal(separator)?, json];
                    let further = self.join(further.to_vec())?;
                    one.push(self.any_number(further)?);
                }
                one.extend(self.literal_if_any(closing)?);
                one.extend(self.marker(vocabulary, frame, end_marker)?);
                if let Next::Frame(separator) = next {
                    let one = self.join(one)?;
                    let further = [self.literal(separator)?, one];
                    let further = self.join(further.to_vec())?;
                    all.extend([one, self.any_number(further)?]);
                } else {
                    all.extend(one);
                }
            }
            Frame::Marked(mark) => {
                if let Some(mark) = self.marker(vocabulary, frame, mark)? {
                    all.push(self.optional(mark)?);
                }
                all.push(json);
            }
            Frame::Tagged(open, close) => {
                let gaps = [self.literal(" ")?, self.literal("\n")?];
                let gap = self.select(gaps.to_vec())?;
                let gap = self.optional(gap)?;
                let mut call = Vec::new();
                call.extend(self.marker(vocabulary, frame, open)?);
                call.extend([gap, json, gap]);
                call.extend(self.marker(vocabulary, frame, close)?);
                let call = self.join(call)?;
                let next = self.join(vec![gap, call])?;
                all.extend([call, self.any_number(next)?]);
            }
        }
        self.add_rule(start, all)?;
        Ok(json)
    }

    fn literal_if_any(&mut self, text: &str) -> Result<Option<SymIdx>, GrammarError> {
        match text {
            "" => Ok(None),
            text => self.literal(text).map(Some),
        }
    }

    /// A marker, which is one token if the vocabulary has a special token with its spelling.
    fn marker(
        &mut self,
        vocabulary: &Vocabulary,
        frame: &Frame,
        text: &str,
    ) -> Result<Option<SymIdx>, GrammarError> {
        match vocabulary.special_token_id(text) {
            Some(id) if frame.uses_special_tokens() => {
                let lexeme = self
                    .lexer
                    .add_special_token(format!("<[{id}]>"), vec![id..=id])
                    .map_err(parser_error)?;
                self.add_terminal(lexeme).map(Some)
            }
            _ => self.literal_if_any(text),
        }
    }

    /// The JSON, in a lexeme class with its own whitespace.
    fn json(&mut self) -> Result<SymIdx, GrammarError> {
        let skip = match self.layout.white_space() {
            Some(expression) => RegexAst::Regex(expression.to_owned()),
            None => RegexAst::NoMatch,
        };
        let class = self
            .lexer
            .setup_lexeme_class_with_skip(SkipSpec::once(skip));
        self.class = class.map_err(parser_error)?;
        // Each lexeme belongs to one class, so lexemes of the frame cannot be reused.
        self.lexemes.clear();
        let start = self.start();
        let schemas = self.schemas;
        let root = self.value(&schemas.root)?;
        self.add_rule(start, vec![root])?;
        while let Some(name) = self.pending.pop() {
            let Some(schema) = schemas.definitions.get(name) else {
                continue;
            };
            let symbol_of_schema = self.value(schema)?;
            if let Some(symbol) = self.definitions.get(&name) {
                self.add_rule(*symbol, vec![symbol_of_schema])?;
            }
        }
        self.check_limits()?;
        Ok(start)
    }
}
