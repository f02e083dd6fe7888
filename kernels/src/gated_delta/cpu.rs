//! The gated delta rule on slices, forward.
//!
//! A task is a key head of a document with the value heads that read it. It walks the document a chunk
//! of tokens at a time: what the tokens of a chunk correct of each other is a triangular system of
//! equations, what they find in the state and hand on to it are products of small matrices. Tasks depend
//! on shapes alone and never on threads, and so does every sum.

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

/// What the rule reads; shapes are those of [`super::DeltaInputs`].
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
    /// First token.
    pub(super) start: usize,
    pub(super) length: usize,
    pub(super) key_head: usize,
}

impl Task {
    /// All of them, those of long documents first, so that no thread begins with one when the others
    /// are done.
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

    /// Value heads that read it.
    pub(super) fn value_heads(&self, heads: DeltaHeads) -> std::ops::Range<usize> {
        let group = heads.value_heads / heads.key_heads;
        self.key_head * group..(self.key_head + 1) * group
    }

    /// First tokens of its chunks, and how many they have.
    pub(super) fn chunks(
        &self,
    ) -> impl DoubleEndedIterator<Item = (usize, usize)> + ExactSizeIterator + use<> {
        let Self { start, length, .. } = *self;
        let chunks = (0..length.div_ceil(CHUNK)).map(|chunk| chunk * CHUNK);
        chunks.map(move |first| (start + first, CHUNK.min(length - first)))
    }
}

/// What every token reads, `[n, value heads, value_dim]`; padding rows are zero.
pub(crate) fn read<T: Number>(inputs: Inputs<'_, T>, documents: &Documents) -> Buffer<T> {
    walk(inputs, documents, None)
}

/// The same, and the state that each document ends with, `[documents, value heads, key_dim,
/// value_dim]`.
pub(crate) fn read_with_states<T: Number>(
    inputs: Inputs<'_, T>,
    documents: &Documents,
) -> (Buffer<T>, Buffer<f32>) {
    let heads = inputs.heads;
    let mut read = None;
    let numbers = documents.spans().count() * heads.value_heads * heads.key_dim * heads.value_dim;
    // SAFETY: a task of each document and key head writes the states of its value heads.
    let states = unsafe {
        Buffer::filled(numbers, |states| {
            read = Some(walk(inputs, documents, Some(Shared::new(states))));
        })
    };
    (read.unwrap_or_default(), states)
}

type States<'a> = Option<Shared<'a, MaybeUninit<f32>>>;

fn walk<T: Number>(inputs: Inputs<'_, T>, documents: &Documents, states: States<'_>) -> Buffer<T> {
    let width = inputs.heads.values();
    // SAFETY: tasks write the tokens of all documents for all value heads, the rest is written here.
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
/// Nobody else touches what the task's value heads read, or their states.
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
        let mut key_head = KeyHead::in_memory(keys, strides);
        let mut value_head = ValueHead::in_memory(values, strides);
        for (first, m) in task.chunks() {
            let is_first = first == task.start;
            key_head.load(inputs, task.key_head, first, m);
            for (head, state) in group
                .clone()
                .zip(all_states.chunks_exact_mut(strides.state()))
            {
                let before = (!is_first).then_some(&*state);
                value_head.load(inputs, head, first, &key_head);
                value_head.solve(&key_head, before);
                value_head.read(&key_head, before, read);
                value_head.hand_on_in_place(&key_head, state, is_first);
                for (i, row) in read.chunks_exact(strides.value).take(m).enumerate() {
                    let at = ((first + i) * heads.value_heads + head) * heads.value_dim;
                    // SAFETY: as the caller promises.
                    let to = unsafe { out.slice(at, heads.value_dim) };
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
                // SAFETY: as the caller promises.
                let to = unsafe { states.slice((first + i) * heads.value_dim, heads.value_dim) };
                narrow_slice(&row[..heads.value_dim], to);
            }
        }
    });
}
