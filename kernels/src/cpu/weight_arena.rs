//! Long-lived memory for arrays, packed into huge pages.
//!
//! Frozen weights use it, because each new token reads all of them from memory, and the hardware
//! prefetcher stops at the end of a page. With pages of 4 KiB, one core of a Zen 4 reads 24 GB/s;
//! with huge pages, 31.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use super::pool::{ALIGNMENT, Memory, release_pages};

/// Bytes of a chunk that arrays share; arrays larger than half of it have their own memory.
const CHUNK: usize = 32 << 20;

/// The chunk with free space, and its first free byte.
static OPEN: Mutex<Option<(Arc<Memory>, usize)>> = Mutex::new(None);

/// Elements in arena memory, which is freed when they are dropped.
#[derive(Debug)]
pub(crate) struct ArenaArray<T> {
    first: NonNull<T>,
    len: usize,
    chunk: Arc<Memory>,
}

// SAFETY: the elements belong to the owner of the value, on any thread; shared references only
// borrow them.
unsafe impl<T: Send> Send for ArenaArray<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for ArenaArray<T> {}

impl<T: Copy> ArenaArray<T> {
    /// `n` copies of the same value.
    pub(crate) fn repeated(value: T, n: usize) -> Self {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
        let (chunk, start) = allocate(n * size_of::<T>());
        // SAFETY: the chunk is longer; these bytes belong to no one else, and are aligned for the
        // elements.
        let (first, room) = unsafe {
            let first = chunk.first().add(start).cast::<T>();
            let room = first.cast::<MaybeUninit<T>>();
            (first, std::slice::from_raw_parts_mut(room.as_ptr(), n))
        };
        room.fill(MaybeUninit::new(value));
        Self {
            first,
            len: n,
            chunk,
        }
    }
}

/// Allocates bytes for one array: their memory, and their offset in it.
fn allocate(bytes: usize) -> (Arc<Memory>, usize) {
    if bytes > CHUNK / 2 {
        return (Arc::new(Memory::new(bytes)), 0);
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut open_chunk = open.take().and_then(|(mut chunk, used)| {
        // If this is the only reference, all arrays of the chunk have been dropped.
        let used = if Arc::get_mut(&mut chunk).is_some() {
            0
        } else {
            used
        };
        (used + bytes <= CHUNK).then_some((chunk, used))
    });
    let (chunk, used) = open_chunk.get_or_insert_with(|| (Arc::new(Memory::new(CHUNK)), 0));
    let placed = (chunk.clone(), *used);
    *used += bytes.next_multiple_of(ALIGNMENT);
    *open = open_chunk;
    placed
}

impl<T> Drop for ArenaArray<T> {
    /// Returns the pages, even if other arrays use the rest of the chunk.
    fn drop(&mut self) {
        if Arc::strong_count(&self.chunk) > 1 {
            // SAFETY: only the pages of these elements, which are no longer used; their next owner
            // writes before reading.
            unsafe { release_pages(self.first.cast(), self.len * size_of::<T>()) }
        }
    }
}

impl<T> Deref for ArenaArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: this number of elements was written, and they live as long as this value.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for ArenaArray<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: this number of elements was written, and no one else has them.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::{ArenaArray, CHUNK};

    #[test]
    fn arrays_keep_their_values_while_others_are_allocated_and_freed() {
        let lengths = [1, 3, 70_000, 0, CHUNK / 8, CHUNK / 4 + 1, 1 << 20, 5];
        let mut arrays: Vec<ArenaArray<u32>> = Vec::new();
        for round in 0..4 {
            for (i, &n) in lengths.iter().enumerate() {
                let mut array = ArenaArray::repeated(0u32, n);
                assert!(
                    array.iter().all(|&number| number == 0),
                    "{n} in round {round}"
                );
                array.fill((lengths.len() * round + i) as u32);
                arrays.push(array);
            }
            // Drop every other array; the rest must keep their contents.
            let mut index = 0;
            arrays.retain(|_| {
                index += 1;
                index % 2 == round % 2
            });
            for array in &arrays {
                assert!(array.iter().all(|number| Some(number) == array.first()));
            }
        }
        let mut firsts: Vec<u32> = arrays.iter().filter_map(|a| a.first().copied()).collect();
        firsts.dedup();
        let n_filled = arrays.iter().filter(|array| !array.is_empty()).count();
        assert_eq!(firsts.len(), n_filled, "arrays do not overlap");
    }
}
