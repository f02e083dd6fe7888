//! What one rendering may ask for: texts and lists that it makes, bytes and items that it reads.
//!
//! A template comes with a model, so it is input: ten lines of one double a text until the memory
//! is full. The engine counts its own steps (fuel); what a single step does is counted here, by
//! every operator, filter, method and test of `python`. The counts belong to the thread, because a
//! rendering stays on one, and a comparison deep inside a sort has no other way to them.
//! The decision to question: values that hold others are kept until a rendering ends and then
//! dropped newest first. A list that was put into itself forty thousand times would else be dropped
//! by as many calls within each other, and namespaces that hold themselves never.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use minijinja::{Error, ErrorKind, Value};

use super::python::{Namespace, are_equal};
use crate::budgets::{
    ROW_STEPS, TEMPLATE_MADE_BYTES, TEMPLATE_READ_BYTES, TEMPLATE_TEXT_BYTES, TEMPLATE_VALUE_LEVELS,
};

/// Bytes that an item of a list takes, and what comparing one counts as reading.
pub(super) const ITEM: usize = 64;

/// Bytes of a text that are written, taken apart and compared in the time of a step.
const BYTES_OF_A_STEP: u64 = 32;

thread_local! {
    static ROW: Cell<Option<u64>> = const { Cell::new(None) };
    static MADE: Cell<usize> = const { Cell::new(0) };
    static READ: Cell<usize> = const { Cell::new(0) };
    static KEPT: RefCell<Vec<Value>> = const { RefCell::new(Vec::new()) };
    static NAMESPACES: RefCell<Vec<Arc<Namespace>>> = const { RefCell::new(Vec::new()) };
    static CHANGED: RefCell<Vec<Vec<Value>>> = const { RefCell::new(Vec::new()) };
}

/// A template asks for more than a rendering, or a template, may have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("chat template, line {line}: {exceeded}")]
pub struct TemplateBudgetError {
    /// Line of the template, from 1; 0 when unknown.
    pub line: usize,
    /// What it asks for, and the limit.
    pub exceeded: Exceeded,
}

/// What to do about a text that is as long as its row makes it.
const SHORTER_ROW: &str = "shorten the row, or take it out";

/// What is asked for, and of what there is how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    asked: String,
    limit: String,
    constant: &'static str,
    remedy: &'static str,
}

impl Exceeded {
    /// `asked` of something of which there is `limit`, with the name of its constant.
    pub(super) fn new(asked: String, limit: String, constant: &'static str) -> Self {
        Self {
            asked,
            limit,
            constant,
            remedy: "write the template with less, or set data.chat_template to another",
        }
    }

    /// Whether the row asks for it and not the template.
    pub(super) fn is_of_the_row(&self) -> bool {
        self.remedy == SHORTER_ROW
    }

    pub(super) fn steps(limit: u64) -> Self {
        let limit = grouped(limit);
        Self::new(
            format!("a rendering takes more than {limit} steps"),
            format!("{limit} steps"),
            "TEMPLATE_STEPS",
        )
    }

    pub(super) fn text(n_bytes: usize) -> Self {
        Self {
            remedy: SHORTER_ROW,
            ..Self::new(
                format!("it writes {} bytes", grouped(n_bytes as u64)),
                format!("{} bytes", grouped(TEMPLATE_TEXT_BYTES as u64)),
                "TEMPLATE_TEXT_BYTES",
            )
        }
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            asked,
            limit,
            constant,
            remedy,
        } = self;
        write!(
            formatter,
            "{asked}, and the limit is {limit} ({constant} in docs/limits.md); {remedy}"
        )
    }
}

impl std::error::Error for Exceeded {}

impl From<Exceeded> for Error {
    fn from(exceeded: Exceeded) -> Self {
        Self::new(ErrorKind::InvalidOperation, "too much").with_source(exceeded)
    }
}

/// Counts bytes of a text or list that is to be made, before it is.
pub(super) fn made(n_bytes: usize) -> Result<(), Error> {
    let sum = MADE.get().saturating_add(n_bytes);
    MADE.set(sum);
    if sum > TEMPLATE_MADE_BYTES {
        Err(Exceeded::new(
            format!(
                "with {} bytes more, the texts and lists that a rendering makes are {} bytes",
                grouped(n_bytes as u64),
                grouped(sum as u64)
            ),
            format!("{} bytes", grouped(TEMPLATE_MADE_BYTES as u64)),
            "TEMPLATE_MADE_BYTES",
        )
        .into())
    } else {
        Ok(())
    }
}

/// Counts so many items of a list that is to be made.
pub(super) fn made_items(n_items: usize) -> Result<(), Error> {
    made(n_items.saturating_mul(ITEM))
}

/// Counts bytes of a text that is to be searched or compared.
pub(super) fn read(n_bytes: usize) -> Result<(), Error> {
    let sum = READ.get().saturating_add(n_bytes);
    READ.set(sum);
    if sum > TEMPLATE_READ_BYTES {
        Err(Exceeded::new(
            format!(
                "the texts and lists that a rendering searches and compares are {} bytes, an item \
                 of a list counted as {ITEM}",
                grouped(sum as u64)
            ),
            format!("{} bytes", grouped(TEMPLATE_READ_BYTES as u64)),
            "TEMPLATE_READ_BYTES",
        )
        .into())
    } else {
        Ok(())
    }
}

/// Counts so many items of a list that is to be searched or compared.
pub(super) fn read_items(n_items: usize) -> Result<(), Error> {
    read(n_items.saturating_mul(ITEM))
}

/// How deep a walk through a value is; each level below it is one more.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Level(usize);

impl Level {
    /// The level of what a list or map holds, which is counted as read.
    pub(super) fn below(self) -> Result<Self, Error> {
        // Going into a value takes some times as long as comparing an item of it.
        read_items(4)?;
        if self.0 < TEMPLATE_VALUE_LEVELS {
            Ok(Self(self.0 + 1))
        } else {
            Err(Exceeded::new(
                format!("a list or map nests deeper than {TEMPLATE_VALUE_LEVELS} levels"),
                format!("{TEMPLATE_VALUE_LEVELS} levels"),
                "TEMPLATE_VALUE_LEVELS",
            )
            .into())
        }
    }
}

/// Counts a new list or map of this many items, and keeps it if one of them holds others.
pub(super) fn holder(value: Value, items: &[Value]) -> Result<Value, Error> {
    made_items(items.len() + 1)?;
    if items.iter().any(|item| item.as_object().is_some()) {
        keep(value.clone());
    }
    Ok(value)
}

/// Keeps a value until the rendering ends.
pub(super) fn keep(value: Value) {
    KEPT.with_borrow_mut(|kept| kept.push(value));
}

/// Keeps a namespace until the rendering ends, and empties it then.
pub(super) fn keep_namespace(namespace: Arc<Namespace>) {
    NAMESPACES.with_borrow_mut(|kept| kept.push(namespace));
}

/// The number of these values among all that loops were asked about, equal ones having the same.
pub(super) fn number_of(values: Vec<Value>) -> Result<usize, Error> {
    CHANGED.with_borrow_mut(|seen| {
        // What was asked last is what comes again.
        for (number, others) in seen.iter().enumerate().rev() {
            if are_equal(others, &values)? {
                return Ok(number);
            }
        }
        made_items(values.len() + 1)?;
        seen.push(values);
        Ok(seen.len() - 1)
    })
}

/// The work of all renderings that one row takes, which begins at nothing. Once there is too much of
/// it, no further rendering begins: what asked for one takes it for refused, and whoever began the
/// count says why.
pub(super) struct RowRenderings(());

impl RowRenderings {
    pub(super) fn begin() -> Self {
        ROW.set(Some(0));
        Self(())
    }
}

impl Drop for RowRenderings {
    fn drop(&mut self) {
        ROW.set(None);
    }
}

/// Whether the renderings of a row took all that they may.
pub(super) fn row_is_spent() -> bool {
    ROW.get().is_some_and(|n_steps| n_steps > ROW_STEPS)
}

/// Counts a rendering of this many steps that wrote so many bytes.
pub(super) fn spend(n_steps: u64, n_bytes: usize) {
    if let Some(sum) = ROW.get() {
        let written = n_bytes as u64 / BYTES_OF_A_STEP;
        ROW.set(Some(sum.saturating_add(n_steps).saturating_add(written)));
    }
}

/// The counts of one rendering, which begin at nothing and leave nothing behind.
pub(super) struct Rendering(());

impl Rendering {
    pub(super) fn begin() -> Self {
        MADE.set(0);
        READ.set(0);
        Self(())
    }
}

impl Drop for Rendering {
    fn drop(&mut self) {
        // First what may hold itself, then the others, each before those that it holds.
        for namespace in NAMESPACES.take() {
            namespace.clear();
        }
        CHANGED.take();
        let mut kept = KEPT.take();
        while kept.pop().is_some() {}
    }
}

/// A number with a comma between each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
