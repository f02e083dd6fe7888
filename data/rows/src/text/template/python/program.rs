//! A template as instructions with Python's meaning, made once and rendered often.
//!
//! The engine compares values of any kinds, finds numbers in texts, and loops over none; Python
//! fails. No setting changes that, so the compiled template is rewritten: an instruction that
//! differs becomes a call of a function of `operators`, under a name that no template can write.
//! So does one whose cost the engine's steps do not show, such as a list that is made.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::thread;

use minijinja::machinery::{self, CodeGenerator, Instruction, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, Value};

use super::super::budget::{Exceeded, ITEM, Rendering, TemplateBudgetError, spend};
use super::super::nesting::{must_be_shallow, must_compute_little};
use super::operators::DICT_METHODS;
use crate::budgets::{TEMPLATE_BYTES, TEMPLATE_TEXT_BYTES};
use crate::contained::contained;

/// Steps that a rendering counts which failed; most do at its beginning.
const FAILED_STEPS: u64 = 10_000;

/// Room for a parser that calls itself for each level of [`crate::budgets::TEMPLATE_NESTING`].
const STACK_BYTES: usize = 32 << 20;

const NAME: &str = "chat_template";

/// A compiled template.
pub(in super::super) struct Program {
    source: &'static str,
    instructions: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
}

/// Why a template is none.
#[derive(Debug)]
pub(in super::super) enum NotCompiled {
    Engine(Error),
    TooMuch(TemplateBudgetError),
    /// The engine panicked, or no thread could be started.
    Failed(String),
}

impl Program {
    /// Compiles a template's source.
    pub(in super::super) fn new(source: &str, syntax: SyntaxConfig) -> Result<Self, NotCompiled> {
        if source.len() as u64 > TEMPLATE_BYTES.bytes {
            return Err(NotCompiled::TooMuch(TemplateBudgetError {
                line: 1,
                exceeded: Exceeded::new(
                    format!("it has {} bytes", source.len()),
                    format!("{} bytes", TEMPLATE_BYTES.bytes),
                    TEMPLATE_BYTES.name,
                ),
            }));
        }
        let source = kept(source);
        with_room(move || Self::compile(source, syntax))
            .unwrap_or_else(|reason| Err(NotCompiled::Failed(reason)))
    }

    fn compile(source: &'static str, syntax: SyntaxConfig) -> Result<Self, NotCompiled> {
        must_be_shallow(source, syntax.clone()).map_err(NotCompiled::TooMuch)?;
        let tree = machinery::parse(source, NAME, syntax).map_err(NotCompiled::Engine)?;
        must_compute_little(&tree)
            .map_err(|exceeded| NotCompiled::TooMuch(TemplateBudgetError { line: 1, exceeded }))?;
        let mut generator = CodeGenerator::new(NAME, source);
        generator.compile_stmt(&tree);
        let (instructions, blocks) = generator.finish();
        Ok(Self {
            source,
            instructions: rewritten(&instructions),
            blocks: blocks
                .iter()
                .map(|(name, block)| (*name, rewritten(block)))
                .collect(),
        })
    }

    /// The variables that the template reads and does not set.
    pub(in super::super) fn variables(&self, syntax: SyntaxConfig) -> HashSet<String> {
        let source = self.source;
        let read = with_room(move || {
            let mut environment = Environment::new();
            environment.set_syntax(syntax);
            let template = environment.template_from_str(source);
            template.map(|template| template.undeclared_variables(false))
        });
        read.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Renders the template.
    pub(in super::super) fn render(
        &self,
        environment: &Environment<'static>,
        context: Value,
    ) -> Result<String, Error> {
        let rendering = Rendering::begin();
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        let ended = contained(|| {
            machinery::eval(
                environment,
                &self.instructions,
                context,
                &self.blocks,
                &mut output,
                AutoEscape::None,
            )
            .map(|(_, state)| state.fuel_levels().map_or(0, |(n_steps, _)| n_steps))
        });
        drop(rendering);
        // How far a rendering came that failed is not known.
        let n_steps = ended.as_ref().ok().and_then(|steps| steps.as_ref().ok());
        spend(n_steps.copied().unwrap_or(FAILED_STEPS), text.len());
        ended.map_err(|panicked| {
            Error::new(
                minijinja::ErrorKind::InvalidOperation,
                format!("the template engine failed: {panicked}"),
            )
        })??;
        if text.len() > TEMPLATE_TEXT_BYTES {
            Err(Exceeded::text(text.len()).into())
        } else {
            Ok(text)
        }
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Program").finish_non_exhaustive()
    }
}

/// Runs what calls itself deeply on a thread with a large stack; an error is a panic, or that there
/// is no thread.
fn with_room<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || contained(call))
        .map_err(|error| format!("no thread for it: {error}"))?
        .join()
        .unwrap_or_else(|_| Err("its thread ended".to_owned()))
}

/// The source for the rest of the process, once however often it is compiled: instructions borrow
/// from it, and a process reads few templates.
fn kept(source: &str) -> &'static str {
    static SOURCES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut sources = SOURCES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = sources.get(source) {
        return same;
    }
    let new: &'static str = Box::leak(source.to_owned().into_boxed_str());
    sources.insert(new);
    new
}

/// Names of our functions by the place in which the engine remembers them while it runs.
struct Names {
    first: u8,
    known: Vec<&'static str>,
}

/// Places that the engine has; a name without one is looked up each time.
const PLACES: usize = 50;
const NO_PLACE: u8 = u8::MAX;

impl Names {
    /// Behind the places of the filters that the template names itself.
    fn beside(original: &Instructions<'_>) -> Self {
        let taken = all_of(original).filter_map(|instruction| match instruction {
            Instruction::ApplyFilter(_, _, place) if *place != NO_PLACE => Some(place + 1),
            _ => None,
        });
        Self {
            first: taken.max().unwrap_or(0),
            known: Vec::new(),
        }
    }

    fn call<'s>(&mut self, name: &'static str, n_arguments: Option<u16>) -> Instruction<'s> {
        let known = self.known.iter().position(|other| *other == name);
        let idx = known.unwrap_or_else(|| {
            self.known.push(name);
            self.known.len() - 1
        });
        let place = usize::from(self.first) + idx;
        let place = if place < PLACES {
            u8::try_from(place).unwrap_or(NO_PLACE)
        } else {
            NO_PLACE
        };
        Instruction::ApplyFilter(name, n_arguments, place)
    }
}

fn all_of<'i, 's>(instructions: &'i Instructions<'s>) -> impl Iterator<Item = &'i Instruction<'s>> {
    (0..).map_while(|at| instructions.get(at))
}

fn rewritten<'s>(original: &Instructions<'s>) -> Instructions<'s> {
    let mut rewriter = Rewriter {
        names: Names::beside(original),
        frames: Vec::new(),
    };
    let parts: Vec<Vec<Instruction<'s>>> = all_of(original)
        .map(|instruction| rewriter.replacement(instruction))
        .collect();
    let mut places = vec![0_u32];
    for part in &parts {
        let last = places.last().copied().unwrap_or_default();
        places.push(last + u32::try_from(part.len()).unwrap_or_default());
    }
    let place = |target: &u32| {
        let old = usize::try_from(*target).unwrap_or(usize::MAX);
        places
            .get(old)
            .or(places.last())
            .copied()
            .unwrap_or_default()
    };
    let mut new = Instructions::new(original.name(), original.source());
    for (old, part) in (0..).zip(parts) {
        for instruction in part {
            let moved = match &instruction {
                Instruction::Iterate(to) => Instruction::Iterate(place(to)),
                Instruction::Jump(to) => Instruction::Jump(place(to)),
                Instruction::JumpIfFalse(to) => Instruction::JumpIfFalse(place(to)),
                Instruction::JumpIfFalseOrPop(to) => Instruction::JumpIfFalseOrPop(place(to)),
                Instruction::JumpIfTrueOrPop(to) => Instruction::JumpIfTrueOrPop(place(to)),
                Instruction::BuildMacro(name, to, flags) => {
                    Instruction::BuildMacro(name, place(to), *flags)
                }
                _ => instruction,
            };
            match original
                .get_line(old)
                .and_then(|line| u16::try_from(line).ok())
            {
                Some(line) => new.add_with_line(moved, line),
                None => new.add(moved),
            };
        }
    }
    new
}

struct Rewriter {
    names: Names,
    /// The frames that are open, and whether each is that of a loop that may call itself.
    frames: Vec<bool>,
}

impl Rewriter {
    fn replacement<'s>(&mut self, instruction: &Instruction<'s>) -> Vec<Instruction<'s>> {
        use minijinja::machinery::Instruction as I;
        let names = &mut self.names;
        let mut operator = |name| vec![names.call(name, Some(2))];
        match instruction {
            I::Add => operator(":+"),
            I::Sub => operator(":-"),
            I::Mul => operator(":*"),
            I::Eq => operator(":=="),
            I::Ne => operator(":!="),
            I::Lt => operator(":<"),
            I::Lte => operator(":<="),
            I::Gt => operator(":>"),
            I::Gte => operator(":>="),
            I::In => operator(":in"),
            I::StringConcat => operator(":~"),
            I::GetItem => operator(":item"),
            // Which comparison it is cannot be seen from here, so only its values are looked at.
            I::CompareAndPreserve(_) => {
                let chained = names.call(":chained", Some(2));
                vec![chained, I::UnpackList(2), instruction.clone()]
            }
            I::Neg => vec![names.call(":neg", Some(1))],
            I::Slice => vec![names.call(":slice", Some(4))],
            I::GetAttr(name) if DICT_METHODS.contains(name) => vec![
                I::LoadConst(Value::from(*name)),
                names.call(":attribute", Some(2)),
            ],
            // A macro makes a list of them.
            I::GetAttr("arguments") => vec![instruction.clone(), names.call(":made", Some(1))],
            I::SetAttr(name) => vec![
                I::LoadConst(Value::from(*name)),
                names.call(":set", Some(3)),
                I::DiscardTop,
            ],
            I::BuildList(_) | I::BuildTuple(_) => {
                vec![instruction.clone(), names.call(":made", Some(1))]
            }
            I::BuildMap(n_pairs) => match u16::try_from(*n_pairs).ok().filter(|n| *n <= 1000) {
                Some(n_pairs) => vec![names.call(":map", Some(2 * n_pairs))],
                None => vec![names.call(":large_map", Some(0))],
            },
            I::MergeKwargs(_) => vec![instruction.clone(), names.call(":merged", Some(1))],
            I::UnpackLists(_) => vec![instruction.clone(), names.call(":unpacked", Some(1))],
            I::CallMethod("changed", n) => vec![names.call(":changed", *n)],
            I::CallMethod("cycle", n) => vec![names.call(":cycle", *n)],
            I::Include(_) | I::LoadBlocks => vec![names.call(":no_other_template", Some(1))],
            // Each macro that is declared in a frame makes the engine keep the names around it.
            I::Enclose(_) => vec![
                I::LoadConst(Value::from(12)),
                names.call(":unpacked", Some(1)),
                I::DiscardTop,
                instruction.clone(),
            ],
            // Longer ones are counted where values are written.
            I::EmitRaw(text) if text.len() > 24 => vec![
                I::LoadConst(Value::from_safe_string((*text).to_owned())),
                I::Emit,
            ],
            I::PushLoop(flags) => {
                const RECURSIVE: u8 = 2;
                self.frames.push(flags & RECURSIVE != 0);
                vec![names.call(":iterator", Some(1)), instruction.clone()]
            }
            I::PushWith => {
                self.frames.push(false);
                vec![instruction.clone()]
            }
            I::PopFrame | I::PopLoopFrame => {
                self.frames.pop();
                vec![instruction.clone()]
            }
            I::Lookup(_) => self.lookup(instruction),
            other => vec![other.clone()],
        }
    }

    /// A name is looked for in all frames, which is free where they are few.
    fn lookup<'s>(&mut self, instruction: &Instruction<'s>) -> Vec<Instruction<'s>> {
        const FEW: usize = 10;
        let n_frames = if self.frames.contains(&true) {
            200 + self.frames.len()
        } else {
            self.frames.len()
        };
        if n_frames <= FEW {
            return vec![instruction.clone()];
        }
        vec![
            Instruction::LoadConst(Value::from(n_frames * ITEM)),
            self.names.call(":searched", Some(1)),
            Instruction::DiscardTop,
            instruction.clone(),
        ]
    }
}
