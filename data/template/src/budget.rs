//! Work limits of one rendering: the strings and lists that it creates, and the bytes and items
//! that it reads.
//!
//! A template comes with a model, so it is untrusted input: ten lines that double a string fill the
//! memory. The engine limits its own steps (fuel). Every operator, filter, method and test of
//! `python` charges the cost of a single step here. The counters are thread-local, because a
//! rendering runs on one thread, and a comparison deep inside a sort cannot receive them as an
//! argument. Containers of containers are kept until the rendering ends, and are then dropped
//! newest first. Otherwise, dropping a list nested forty thousand levels deep would recurse forty
//! thousand times, and namespaces that contain themselves would never be dropped.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use minijinja::{Error, ErrorKind, Value};

use super::python::{Namespace, are_equal};
use crate::budgets::{
    ROW_STEPS, TEMPLATE_MADE_BYTES, TEMPLATE_READ_BYTES, TEMPLATE_TEXT_BYTES, TEMPLATE_VALUE_LEVELS,
};

/// Bytes charged for creating or comparing a list item.
pub(super) const ITEM: usize = 64;

/// Bytes of a string that can be written, split or compared in the time of one step.
const BYTES_PER_STEP: u64 = 32;

thread_local! {
    static STEPS_OF_ROW: Cell<Option<u64>> = const { Cell::new(None) };
    static CREATED_BYTES: Cell<usize> = const { Cell::new(0) };
    static READ_BYTES: Cell<usize> = const { Cell::new(0) };
    static KEPT_VALUES: RefCell<Vec<Value>> = const { RefCell::new(Vec::new()) };
    static NAMESPACES: RefCell<Vec<Arc<Namespace>>> = const { RefCell::new(Vec::new()) };
    static LOOP_VALUES: RefCell<Vec<Vec<Value>>> = const { RefCell::new(Vec::new()) };
}

/// A template or a rendering exceeds a limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("chat template, line {line}: {exceeded}")]
pub struct TemplateBudgetError {
    /// Line of the template, from 1; 0 if unknown.
    pub line: usize,
    /// The exceeded limit and by how much it is exceeded.
    pub exceeded: Exceeded,
}

/// What to do if the text is too long because of its row.
const SHORTER_ROW: &str = "shorten the row, or remove it";

/// The value that exceeds a limit, and the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    excess: String,
    limit: String,
    constant: &'static str,
    remedy: &'static str,
}

impl Exceeded {
    /// Creates the message that `excess` is above `limit`, whose constant is called `constant`.
    pub(super) fn new(excess: String, limit: String, constant: &'static str) -> Self {
        Self {
            excess,
            limit,
            constant,
            remedy: "simplify the template, or set data.chat_template to another one",
        }
    }

    /// Whether the row causes the excess, not the template.
    pub(super) fn is_row_fault(&self) -> bool {
        self.remedy == SHORTER_ROW
    }

    pub(super) fn too_many_steps(limit: u64) -> Self {
        let limit = group_digits(limit);
        Self::new(
            format!("a rendering takes more than {limit} steps"),
            format!("{limit} steps"),
            "TEMPLATE_STEPS",
        )
    }

    pub(super) fn text_too_long(n_bytes: usize) -> Self {
        Self {
            remedy: SHORTER_ROW,
            ..Self::new(
                format!("it writes {} bytes", group_digits(n_bytes as u64)),
                format!("{} bytes", group_digits(TEMPLATE_TEXT_BYTES as u64)),
                "TEMPLATE_TEXT_BYTES",
            )
        }
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            excess,
            limit,
            constant,
            remedy,
        } = self;
        write!(
            formatter,
            "{excess}, but the limit is {limit} ({constant} in docs/limits.md); {remedy}"
        )
    }
}

impl std::error::Error for Exceeded {}

impl From<Exceeded> for Error {
    fn from(exceeded: Exceeded) -> Self {
        Self::new(ErrorKind::InvalidOperation, "too much").with_source(exceeded)
    }
}

/// Charges the bytes of a string or list before it is created.
pub(super) fn charge_created(n_bytes: usize) -> Result<(), Error> {
    let sum = CREATED_BYTES.get().saturating_add(n_bytes);
    CREATED_BYTES.set(sum);
    if sum > TEMPLATE_MADE_BYTES {
        Err(Exceeded::new(
            format!(
                "a rendering creates {} more bytes of strings and lists, {} bytes in total",
                group_digits(n_bytes as u64),
                group_digits(sum as u64)
            ),
            format!("{} bytes", group_digits(TEMPLATE_MADE_BYTES as u64)),
            "TEMPLATE_MADE_BYTES",
        )
        .into())
    } else {
        Ok(())
    }
}

/// Charges the items of a list before it is created.
pub(super) fn charge_created_items(n_items: usize) -> Result<(), Error> {
    charge_created(n_items.saturating_mul(ITEM))
}

/// Charges the bytes of a string before it is searched or compared.
pub(super) fn charge_read(n_bytes: usize) -> Result<(), Error> {
    let sum = READ_BYTES.get().saturating_add(n_bytes);
    READ_BYTES.set(sum);
    if sum > TEMPLATE_READ_BYTES {
        Err(Exceeded::new(
            format!(
                "a rendering searches and compares {} bytes of strings and lists, with {ITEM} \
                 bytes per list item",
                group_digits(sum as u64)
            ),
            format!("{} bytes", group_digits(TEMPLATE_READ_BYTES as u64)),
            "TEMPLATE_READ_BYTES",
        )
        .into())
    } else {
        Ok(())
    }
}

/// Charges the items of a list before it is searched or compared.
pub(super) fn charge_read_items(n_items: usize) -> Result<(), Error> {
    charge_read(n_items.saturating_mul(ITEM))
}

/// Nesting depth of a walk through a value.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Level(usize);

impl Level {
    /// Descends one level into a list or map, and charges for it.
    pub(super) fn descend(self) -> Result<Self, Error> {
        // Descending costs several times as much as comparing an item.
        charge_read_items(4)?;
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

/// Charges for a new list or map of this many items, and keeps it if an item is a container.
pub(super) fn charge_container(value: Value, items: &[Value]) -> Result<Value, Error> {
    charge_created_items(items.len() + 1)?;
    if items.iter().any(|item| item.as_object().is_some()) {
        keep_until_end(value.clone());
    }
    Ok(value)
}

/// Keeps a value until the rendering ends.
pub(super) fn keep_until_end(value: Value) {
    KEPT_VALUES.with_borrow_mut(|values| values.push(value));
}

/// Keeps a namespace until the rendering ends, and then empties it.
pub(super) fn keep_namespace(namespace: Arc<Namespace>) {
    NAMESPACES.with_borrow_mut(|namespaces| namespaces.push(namespace));
}

/// Returns an index for these values. Equal values have the same index, for all values passed to
/// `loop.changed` so far.
pub(super) fn index_of_values(values: Vec<Value>) -> Result<usize, Error> {
    LOOP_VALUES.with_borrow_mut(|known_values| {
        // The latest values are the most likely to be repeated.
        for (number, others) in known_values.iter().enumerate().rev() {
            if are_equal(others, &values)? {
                return Ok(number);
            }
        }
        charge_created_items(values.len() + 1)?;
        known_values.push(values);
        Ok(known_values.len() - 1)
    })
}

/// Counts the work of all renderings of one row, from zero. Once the limit is reached, further
/// renderings of the row are refused before they begin. The code that started the count reports the
/// reason.
pub(super) struct RowRenderings(());

impl RowRenderings {
    pub(super) fn start() -> Self {
        STEPS_OF_ROW.set(Some(0));
        Self(())
    }
}

impl Drop for RowRenderings {
    fn drop(&mut self) {
        STEPS_OF_ROW.set(None);
    }
}

/// Whether the renderings of a row have used their whole budget.
pub(super) fn is_row_budget_spent() -> bool {
    STEPS_OF_ROW
        .get()
        .is_some_and(|n_steps| n_steps > ROW_STEPS)
}

/// Charges a rendering with its steps and the bytes that it wrote.
pub(super) fn charge_row(n_steps: u64, n_bytes: usize) {
    if let Some(sum) = STEPS_OF_ROW.get() {
        let output_steps = n_bytes as u64 / BYTES_PER_STEP;
        STEPS_OF_ROW.set(Some(
            sum.saturating_add(n_steps).saturating_add(output_steps),
        ));
    }
}

/// Counters of one rendering, which are reset at its start and end.
pub(super) struct Rendering(());

impl Rendering {
    pub(super) fn start() -> Self {
        CREATED_BYTES.set(0);
        READ_BYTES.set(0);
        Self(())
    }
}

impl Drop for Rendering {
    fn drop(&mut self) {
        // First empty the namespaces, which may contain themselves; then drop the other containers
        // before their contents.
        for namespace in NAMESPACES.take() {
            namespace.clear();
        }
        LOOP_VALUES.take();
        let mut values = KEPT_VALUES.take();
        while values.pop().is_some() {}
    }
}

/// Formats a number with thousands separators.
fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (digit_idx, digit) in digits.char_indices() {
        if digit_idx > 0 && (digits.len() - digit_idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
