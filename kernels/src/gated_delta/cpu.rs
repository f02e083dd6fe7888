//! Forward pass of the gated delta rule on slices.
//!
//! A task is a key head of a document, with the value heads that use it. It processes the document
//! one chunk at a time: the corrections within a chunk are a triangular system of equations;
//! reading and updating the state are products of small matrices. Tasks depend on shapes only,
//! never on the number of threads, so the summation order is fixed.

use std::mem::MaybeUninit;

use super::DeltaHeads;
use super::cpu_chunk::{CHUNK, KeyHead, Strides, ValueHead};
use crate::Documents;
use crate::cpu::number::Number;
use crate::cpu::packed::convert::narrow_slice;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::for_tasks;
use crate::cpu::scratch::with_scratch;
use crate::cpu::shared::Shared;

/// Inputs of the rule, with the shapes of [`super::DeltaInputs`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a, T> {
    pub(crate) qkv: &'a [T],
    pub(crate) log_decay: &'a [f32],
    pub(crate) beta: &'a [f32],
    pub(crate) heads: DeltaHeads,
}

/// A key head of a document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) document: usize,
    /// Index of its first token.
    pub(super) start: usize,
    pub(super) length: usize,
    pub(super) key_head: usize,
}

impl Task {
    /// All tasks, long documents first, so that no thread starts a long one when the others are
    /// done.
    pub(super) fn all(documents: &Documents, heads: DeltaHeads) -> Vec<Self> {
        let spans = documents.spans().enumerate();
        let heads = |(document, (start, length))| {
            (0..heads.key_heads).map(move |key_head| Self {
                document,
                start,
                length,
                key_head,
            })
        };
        let mut tasks: Vec<Self> = spans.flat_map(heads).collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(task.length));
        tasks
    }

    /// Value heads that use this key head.
    pub(super) fn value_heads(&self, heads: DeltaHeads) -> std::ops::Range<usize> {
        let group = heads.value_heads / heads.key_heads;
        self.key_head * group..(self.key_head + 1) * group
    }

    /// First token and length of each chunk.
    pub(super) fn chunks(
        &self,
    ) -> impl DoubleEndedIterator<Item = (usize, usize)> + ExactSizeIterator + use<> {
        let Self { start, length, .. } = *self;
        let chunks = (0..length.div_ceil(CHUNK)).map(|chunk| chunk * CHUNK);
        chunks.map(move |first| (start + first, CHUNK.min(length - first)))
    }
}

/// The outputs of all tokens, `[n, value heads, value_dim]`; padding rows are zero.
pub(crate) fn read<T: Number>(inputs: Inputs<'_, T>, documents: &Documents) -> Buffer<T> {
    walk(inputs, documents, None)
}

/// The outputs, and the final state of each document, `[documents, value heads, key_dim,
/// value_dim]`.
pub(crate) fn read_with_states<T: Number>(
    inputs: Inputs<'_, T>,
    documents: &Documents,
) -> (Buffer<T>, Buffer<f32>) {
    let heads = inputs.heads;
    let mut outputs = None;
    let numbers = documents.spans().count() * heads.value_heads * heads.key_dim * heads.value_dim;
    // SAFETY: the task of each document and key head writes the states of its value heads.
    let states = unsafe {
        Buffer::filled(numbers, |states| {
            outputs = Some(walk(inputs, documents, Some(Shared::new(states))));
        })
    };
    (outputs.unwrap_or_default(), states)
}

type States<'a> = Option<Shared<'a, MaybeUninit<f32>>>;

fn walk<T: Number>(inputs: Inputs<'_, T>, documents: &Documents, states: States<'_>) -> Buffer<T> {
    let width = inputs.heads.values();
    // SAFETY: tasks write the tokens of all documents for all value heads; the padding is written
    // here.
    unsafe {
        Buffer::filled(documents.n_tokens() * width, |out| {
            out[documents.end() * width..].fill(MaybeUninit::new(T::narrow(0.0)));
            let out = Shared::new(out);
            let tasks = Task::all(documents, inputs.heads);
            for_tasks(&tasks, |task| walk_document(inputs, task, &out, &states));
        })
    }
}

/// # Safety
///
/// No one else accesses the outputs or states of the task's value heads.
unsafe fn walk_document<T: Number>(
    inputs: Inputs<'_, T>,
    task: &Task,
    out: &Shared<'_, MaybeUninit<T>>,
    states: &States<'_>,
) {
    let heads = inputs.heads;
    let strides = Strides::new(heads);
    let group = task.value_heads(heads);
    let sizes = [
        KeyHead::floats(strides),
        ValueHead::floats(strides),
        CHUNK * strides.value,
        group.len() * strides.state(),
    ];
    with_scratch(sizes.iter().sum(), |memory| {
        let (keys, memory) = memory.split_at_mut(sizes[0]);
        let (values, memory) = memory.split_at_mut(sizes[1]);
        let (read, all_states) = memory.split_at_mut(sizes[2]);
        let mut key_head = KeyHead::from_memory(keys, strides);
        let mut value_head = ValueHead::from_memory(values, strides);
        for (first, m) in task.chunks() {
            let is_first = first == task.start;
            key_head.load(inputs, task.key_head, first, m);
            for (head, state) in group
                .clone()
                .zip(all_states.chunks_exact_mut(strides.state()))
            {
                let previous = (!is_first).then_some(&*state);
                value_head.load(inputs, head, first, &key_head);
                value_head.solve(&key_head, previous);
                value_head.read(&key_head, previous, read);
                value_head.update_state_in_place(&key_head, state, is_first);
                for (i, row) in read.chunks_exact(strides.value).take(m).enumerate() {
                    let index = ((first + i) * heads.value_heads + head) * heads.value_dim;
                    // SAFETY: guaranteed by the caller.
                    let to = unsafe { out.slice(index, heads.value_dim) };
                    narrow_slice(&row[..heads.value_dim], to);
                }
            }
        }
        let Some(states) = states else {
            return;
        };
        for (head, state) in group.zip(all_states.chunks_exact(strides.state())) {
            let first = (task.document * heads.value_heads + head) * heads.key_dim;
            for (i, row) in state.chunks_exact(strides.value).enumerate() {
                // SAFETY: guaranteed by the caller.
                let to = unsafe { states.slice((first + i) * heads.value_dim, heads.value_dim) };
                narrow_slice(&row[..heads.value_dim], to);
            }
        }
    });
}
