//! Memory for numbers that stay, one array beside the other in huge pages.
//!
//! For frozen weights: a new token reads them all from memory, and at the end of a page the processor
//! stops asking ahead. With pages of 4 KiB, one core of a Zen 4 reads 24 GB/s, with huge ones 31.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use super::pool::{ALIGNMENT, Memory, give_back};

/// Bytes of memory that arrays share; those larger than half of it have their own.
const CHUNK: usize = 32 << 20;

/// The chunk that has room left, and its first free byte.
static OPEN: Mutex<Option<(Arc<Memory>, usize)>> = Mutex::new(None);

/// Numbers in memory that is given back with them.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    first: NonNull<T>,
    len: usize,
    chunk: Arc<Memory>,
}

// SAFETY: numbers belong to whoever has the value, on any thread; shared values only lend them.
unsafe impl<T: Send> Send for Kept<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Kept<T> {}

impl<T: Copy> Kept<T> {
    /// `n` times the same number.
    pub(crate) fn repeated(value: T, n: usize) -> Self {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
        let (chunk, start) = place(n * size_of::<T>());
        // SAFETY: the chunk is longer; these bytes were given to nobody else, and are aligned for
        // numbers.
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

/// So many bytes that nobody else has: their memory, and where they start in it.
fn place(bytes: usize) -> (Arc<Memory>, usize) {
    if bytes > CHUNK / 2 {
        return (Arc::new(Memory::new(bytes)), 0);
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut with_room = open.take().and_then(|(mut chunk, used)| {
        // Nobody has anything in it any more if it can be changed.
        let used = if Arc::get_mut(&mut chunk).is_some() {
            0
        } else {
            used
        };
        (used + bytes <= CHUNK).then_some((chunk, used))
    });
    let (chunk, used) = with_room.get_or_insert_with(|| (Arc::new(Memory::new(CHUNK)), 0));
    let placed = (chunk.clone(), *used);
    *used += bytes.next_multiple_of(ALIGNMENT);
    *open = with_room;
    placed
}

impl<T> Drop for Kept<T> {
    /// Gives the pages back, though others may have the rest of the chunk.
    fn drop(&mut self) {
        if Arc::strong_count(&self.chunk) > 1 {
            // SAFETY: these numbers alone, which nobody reads any more; whoever gets them next writes
            // before reading.
            unsafe { give_back(self.first.cast(), self.len * size_of::<T>()) }
        }
    }
}

impl<T> Deref for Kept<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: as many were written, and stay until the end of this value.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as many were written, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, Kept};

    #[test]
    fn arrays_keep_their_numbers_while_others_come_and_go() {
        let lengths = [1, 3, 70_000, 0, CHUNK / 8, CHUNK / 4 + 1, 1 << 20, 5];
        let mut kept: Vec<Kept<u32>> = Vec::new();
        for round in 0..4 {
            for (i, &n) in lengths.iter().enumerate() {
                let mut array = Kept::repeated(0u32, n);
                assert!(
                    array.iter().all(|&number| number == 0),
                    "{n} in round {round}"
                );
                array.fill((lengths.len() * round + i) as u32);
                kept.push(array);
            }
            // Every other one goes; those between them must stay as they are.
            let mut place = 0;
            kept.retain(|_| {
                place += 1;
                place % 2 == round % 2
            });
            for array in &kept {
                assert!(array.iter().all(|number| Some(number) == array.first()));
            }
        }
        let mut firsts: Vec<u32> = kept.iter().filter_map(|a| a.first().copied()).collect();
        firsts.dedup();
        let n_filled = kept.iter().filter(|array| !array.is_empty()).count();
        assert_eq!(firsts.len(), n_filled, "no array has another's numbers");
    }
}
