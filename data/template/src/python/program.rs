//! A template as instructions with Python's semantics, compiled once and rendered often.
//!
//! The engine compares values of any types, finds numbers in strings, and loops over none. Python
//! raises an error in these cases. No setting changes the engine, so the compiled template is
//! rewritten: an instruction that differs becomes a call to a function of `operators`, under a name
//! that no template can write. Instructions whose cost the engine's steps do not reflect, such as
//! creating a list, are also replaced.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::thread;

use minijinja::machinery::{self, CodeGenerator, Instruction, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, Value};
use tooltune_disk::budgets::TEMPLATE_BYTES;
use tooltune_json::catch_panic;

use super::super::budget::{Exceeded, ITEM, Rendering, TemplateBudgetError, charge_row};
use super::super::nesting::{check_literals, check_nesting};
use super::operators::DICT_METHODS;
use crate::budgets::TEMPLATE_TEXT_BYTES;

/// Steps charged for a failed rendering; most renderings that fail do so near the start.
const FAILED_STEPS: u64 = 10_000;

/// Stack for a parser that recurses up to [`crate::budgets::TEMPLATE_NESTING`] levels.
const STACK_BYTES: usize = 32 << 20;

const NAME: &str = "chat_template";

/// A compiled template.
pub(crate) struct Program {
    source: &'static str,
    instructions: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
}

/// The reason that a template does not compile.
#[derive(Debug)]
pub(crate) enum NotCompiled {
    Engine(Error),
    TooMuch(TemplateBudgetError),
    /// The engine panicked, or no thread could be started.
    Failed(String),
}

impl Program {
    /// Compiles a template's source.
    pub(crate) fn new(source: &str, syntax: SyntaxConfig) -> Result<Self, NotCompiled> {
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
        let source = leak_source(source);
        run_on_large_stack(move || Self::compile(source, syntax))
            .unwrap_or_else(|reason| Err(NotCompiled::Failed(reason)))
    }

    fn compile(source: &'static str, syntax: SyntaxConfig) -> Result<Self, NotCompiled> {
        check_nesting(source, syntax.clone()).map_err(NotCompiled::TooMuch)?;
        let tree = machinery::parse(source, NAME, syntax).map_err(NotCompiled::Engine)?;
        check_literals(&tree)
            .map_err(|exceeded| NotCompiled::TooMuch(TemplateBudgetError { line: 1, exceeded }))?;
        let mut generator = CodeGenerator::new(NAME, source);
        generator.compile_stmt(&tree);
        let (instructions, blocks) = generator.finish();
        Ok(Self {
            source,
            instructions: rewrite_instructions(&instructions),
            blocks: blocks
                .iter()
                .map(|(name, block)| (*name, rewrite_instructions(block)))
                .collect(),
        })
    }

    /// Returns the variables that the template reads but does not set.
    pub(crate) fn variables(&self, syntax: SyntaxConfig) -> HashSet<String> {
        let source = self.source;
        let result = run_on_large_stack(move || {
            let mut environment = Environment::new();
            environment.set_syntax(syntax);
            let template = environment.template_from_str(source);
            template.map(|template| template.undeclared_variables(false))
        });
        result.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Renders the template.
    pub(crate) fn render(
        &self,
        environment: &Environment<'static>,
        context: Value,
    ) -> Result<String, Error> {
        let rendering = Rendering::start();
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        let outcome = catch_panic(|| {
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
        // The steps of a failed rendering are unknown.
        let n_steps = outcome.as_ref().ok().and_then(|steps| steps.as_ref().ok());
        charge_row(n_steps.copied().unwrap_or(FAILED_STEPS), text.len());
        outcome.map_err(|panicked| {
            Error::new(
                minijinja::ErrorKind::InvalidOperation,
                format!("the template engine failed: {panicked}"),
            )
        })??;
        if text.len() > TEMPLATE_TEXT_BYTES {
            Err(Exceeded::text_too_long(text.len()).into())
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

/// Runs a deeply recursive call on a thread with a large stack. Returns an error if the call panics
/// or no thread can be started.
fn run_on_large_stack<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || catch_panic(call))
        .map_err(|error| format!("cannot start a thread: {error}"))?
        .join()
        .unwrap_or_else(|_| Err("its thread ended unexpectedly".to_owned()))
}

/// Keeps each distinct source until the process ends, because instructions borrow from it. A
/// process compiles few templates.
fn leak_source(source: &str) -> &'static str {
    static SOURCES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut sources = SOURCES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = sources.get(source) {
        return same;
    }
    let new: &'static str = Box::leak(source.to_owned().into_boxed_str());
    sources.insert(new);
    new
}

/// Names of our functions, indexed by the slots of the engine's function cache.
struct Names {
    first: u8,
    names: Vec<&'static str>,
}

/// Number of cache slots of the engine. A function without a slot is looked up at each call.
const CACHE_SLOTS: usize = 50;
const NO_SLOT: u8 = u8::MAX;

impl Names {
    /// Starts after the slots of the filters that the template itself uses.
    fn after_template_filters(original: &Instructions<'_>) -> Self {
        let used_slots = iterate(original).filter_map(|instruction| match instruction {
            Instruction::ApplyFilter(_, _, slot) if *slot != NO_SLOT => Some(slot + 1),
            _ => None,
        });
        Self {
            first: used_slots.max().unwrap_or(0),
            names: Vec::new(),
        }
    }

    fn call<'s>(&mut self, name: &'static str, n_arguments: Option<u16>) -> Instruction<'s> {
        let existing = self.names.iter().position(|other| *other == name);
        let idx = existing.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        let slot = usize::from(self.first) + idx;
        let slot = if slot < CACHE_SLOTS {
            u8::try_from(slot).unwrap_or(NO_SLOT)
        } else {
            NO_SLOT
        };
        Instruction::ApplyFilter(name, n_arguments, slot)
    }
}

fn iterate<'i, 's>(
    instructions: &'i Instructions<'s>,
) -> impl Iterator<Item = &'i Instruction<'s>> {
    (0..).map_while(|at| instructions.get(at))
}

fn rewrite_instructions<'s>(original: &Instructions<'s>) -> Instructions<'s> {
    let mut rewriter = Rewriter {
        names: Names::after_template_filters(original),
        frames: Vec::new(),
    };
    let parts: Vec<Vec<Instruction<'s>>> = iterate(original)
        .map(|instruction| rewriter.replacement(instruction))
        .collect();
    let mut new_offsets = vec![0_u32];
    for part in &parts {
        let last = new_offsets.last().copied().unwrap_or_default();
        new_offsets.push(last + u32::try_from(part.len()).unwrap_or_default());
    }
    let new_position = |target: &u32| {
        let old = usize::try_from(*target).unwrap_or(usize::MAX);
        new_offsets
            .get(old)
            .or(new_offsets.last())
            .copied()
            .unwrap_or_default()
    };
    let mut new = Instructions::new(original.name(), original.source());
    for (old, part) in (0..).zip(parts) {
        for instruction in part {
            let relocated = match &instruction {
                Instruction::Iterate(to) => Instruction::Iterate(new_position(to)),
                Instruction::Jump(to) => Instruction::Jump(new_position(to)),
                Instruction::JumpIfFalse(to) => Instruction::JumpIfFalse(new_position(to)),
                Instruction::JumpIfFalseOrPop(to) => {
                    Instruction::JumpIfFalseOrPop(new_position(to))
                }
                Instruction::JumpIfTrueOrPop(to) => Instruction::JumpIfTrueOrPop(new_position(to)),
                Instruction::BuildMacro(name, to, flags) => {
                    Instruction::BuildMacro(name, new_position(to), *flags)
                }
                _ => instruction,
            };
            match original
                .get_line(old)
                .and_then(|line| u16::try_from(line).ok())
            {
                Some(line) => new.add_with_line(relocated, line),
                None => new.add(relocated),
            };
        }
    }
    new
}

struct Rewriter {
    names: Names,
    /// For each open frame, whether it belongs to a recursive loop.
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
            // The comparison operator is not accessible here, so only the operands are checked.
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
            // The engine collects a macro's arguments in a list.
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
            // For each macro in a frame, the engine stores the names of the enclosing frames.
            I::Enclose(_) => vec![
                I::LoadConst(Value::from(12)),
                names.call(":unpacked", Some(1)),
                I::DiscardTop,
                instruction.clone(),
            ],
            // Longer text is printed as a value, because this charges for its length.
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

    /// Charges for a name lookup, which searches all frames. A lookup in few frames is free.
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
