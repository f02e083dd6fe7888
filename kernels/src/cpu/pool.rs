//! Memory of large tensors, kept for the tensors of the next step.
//!
//! Allocators give large blocks back to the operating system, which clears every page again when
//! the next step touches it. Blocks kept here come in sizes an eighth apart, so that steps of
//! nearly the same length share them. What is in use and what is kept together never exceed what
//! was in use at the peak, or 32 MiB: a block of a new size replaces those that lay longest.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{AllocationProperty, Bytes};
use burn_std::{AccessError, AccessPolicy, AllocationController};

/// Bytes below which the allocator reuses memory by itself.
const SMALLEST: usize = 1 << 16;

/// Blocks start at cache lines.
pub(super) const ALIGNMENT: usize = 64;

/// Bytes of a huge page. A block of several such pages starts with one, and asks for them: clearing
/// and finding 512 small ones costs a step of an encoder a tenth of its time.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes in use and kept that work with a lower peak may have: operations whose results replace each
/// other, one after the other, would else give each block back before the next.
const SMALL_WORK: usize = 32 << 20;

static POOL: Pool = Pool::new();

/// Gives all memory that no tensor uses back to the allocator, and forgets the peak.
///
/// For a change of work, as from training to generation.
pub fn release() {
    POOL.release();
}

/// Numbers that become a tensor without a copy.
pub struct Buffer<T> {
    block: Block,
    len: usize,
    numbers: PhantomData<T>,
}

impl<T: Copy> Buffer<T> {
    /// `n` numbers that `fill` writes.
    ///
    /// # Safety
    ///
    /// `fill` initialises every element.
    pub(crate) unsafe fn filled(n: usize, fill: impl FnOnce(&mut [MaybeUninit<T>])) -> Self {
        let mut block = POOL.take(n * size_of::<T>());
        let first = block.memory.first.as_ptr().cast::<MaybeUninit<T>>();
        debug_assert!(align_of::<T>() <= ALIGNMENT && block.bytes().len() >= n * size_of::<T>());
        // SAFETY: the block is this buffer's alone, has room for `n`, and is aligned for them.
        fill(unsafe { std::slice::from_raw_parts_mut(first, n) });
        Self {
            block,
            len: n,
            numbers: PhantomData,
        }
    }

    /// `n` times the same number.
    pub(crate) fn repeated(value: T, n: usize) -> Self {
        // SAFETY: all are written.
        unsafe { Self::filled(n, |to| to.fill(MaybeUninit::new(value))) }
    }

    pub(crate) fn copy_of(values: &[T]) -> Self {
        // SAFETY: all are written.
        unsafe {
            Self::filled(values.len(), |to| {
                to.write_copy_of_slice(values);
            })
        }
    }

    /// The numbers as the memory of a tensor, which comes back to the pool with the tensor's end.
    pub(crate) fn into_bytes(self) -> Bytes {
        let len = self.len * size_of::<T>();
        // SAFETY: as many bytes are initialised.
        unsafe { Bytes::from_controller(Box::new(self.block), len) }
    }
}

impl<T: Copy> Default for Buffer<T> {
    /// No numbers.
    fn default() -> Self {
        // SAFETY: there is none to write.
        unsafe { Self::filled(0, |_| ()) }
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let first = self.block.memory.first.as_ptr().cast();
        // SAFETY: as many are initialised, and nobody else has the block.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let first = self.block.memory.first.as_ptr().cast();
        // SAFETY: as many are initialised, and nobody else has the block.
        unsafe { std::slice::from_raw_parts_mut(first, self.len) }
    }
}

impl<T: PartialEq> PartialEq for Buffer<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&**self).finish()
    }
}

/// A piece of the allocator's memory.
#[derive(Debug)]
pub(super) struct Memory {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory belongs to whoever has the value, on any thread; shared values only lend it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many bytes, not 0; those of several huge pages start with one, and ask for them.
    pub(super) fn new(bytes: usize) -> Self {
        let layout = Self::layout(bytes);
        // SAFETY: sizes of blocks are not zero.
        let first = unsafe { alloc(layout) };
        let first = NonNull::new(first).unwrap_or_else(|| handle_alloc_error(layout));
        #[cfg(target_os = "linux")]
        if layout.align() == HUGE_PAGE {
            // SAFETY: whole pages of this memory alone, whose contents the advice leaves as they
            // are. Without huge pages it is refused, and the small ones do.
            let _ = unsafe {
                let whole = bytes / HUGE_PAGE * HUGE_PAGE;
                let advice = rustix::mm::Advice::LinuxHugepage;
                rustix::mm::madvise(first.as_ptr().cast(), whole, advice)
            };
        }
        Self { first, bytes }
    }

    pub(super) fn first(&self) -> NonNull<u8> {
        self.first
    }

    fn layout(bytes: usize) -> Layout {
        let align = match bytes >= 2 * HUGE_PAGE {
            true => HUGE_PAGE,
            false => ALIGNMENT,
        };
        Layout::from_size_align(bytes, align).expect("a size that memory can have")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody uses it any more.
        unsafe { dealloc(self.first.as_ptr(), Self::layout(self.bytes)) }
    }
}

/// Memory on loan from a pool.
struct Block {
    memory: ManuallyDrop<Memory>,
    pool: &'static Pool,
}

impl Block {
    fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        let first = self.memory.first.as_ptr().cast();
        // SAFETY: the memory is this block's alone, and the bytes need not be initialised.
        unsafe { std::slice::from_raw_parts_mut(first, self.memory.bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: taken once, when the block ends.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if memory.bytes >= SMALLEST {
            self.pool.put(memory);
        }
    }
}

impl AllocationController for Block {
    /// Less than it is: Burn copies with the alignment that it is told, which has a limit.
    fn alloc_align(&self) -> usize {
        align_of::<u128>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        Ok(self.bytes())
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let first = self.memory.first.as_ptr().cast();
        // SAFETY: the memory is this block's alone, and the bytes need not be initialised.
        Ok(unsafe { std::slice::from_raw_parts(first, self.memory.bytes) })
    }

    /// A copy in a block of its own.
    fn duplicate(&self) -> Option<Box<dyn AllocationController>> {
        let mut copy = self.pool.take(self.memory.bytes);
        let from = self.memory(AccessPolicy::default()).ok()?;
        copy.bytes().get_mut(..from.len())?.copy_from_slice(from);
        Some(Box::new(copy))
    }
}

/// Blocks that nobody uses.
struct Pool(Mutex<Shelves>);

/// A shelf for each size; all in bytes.
struct Shelves {
    /// Memory and when it came; the latest is last.
    free: BTreeMap<usize, VecDeque<(u64, Memory)>>,
    free_bytes: usize,
    used_bytes: usize,
    peak_bytes: usize,
    /// Counts what came.
    time: u64,
}

impl Pool {
    const fn new() -> Self {
        Self(Mutex::new(Shelves {
            free: BTreeMap::new(),
            free_bytes: 0,
            used_bytes: 0,
            peak_bytes: 0,
            time: 0,
        }))
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        // Nothing that runs under the lock leaves it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for `bytes` bytes of arbitrary value.
    fn take(&'static self, bytes: usize) -> Block {
        let size = block_size(bytes);
        let memory = if size < SMALLEST {
            None
        } else {
            let (found, surplus) = self.shelves().take(size);
            // The lock is open again: the allocator takes its time.
            drop(surplus);
            found
        };
        Block {
            memory: ManuallyDrop::new(memory.unwrap_or_else(|| Memory::new(size))),
            pool: self,
        }
    }

    fn put(&self, memory: Memory) {
        self.shelves().put(memory);
    }

    fn release(&self) {
        let mut shelves = self.shelves();
        let used = shelves.used_bytes;
        shelves.peak_bytes = used;
        let surplus = shelves.surplus(used);
        drop(shelves);
        drop(surplus);
    }
}

impl Shelves {
    /// The memory of this size that came last, if there is some, and what has to go otherwise.
    fn take(&mut self, size: usize) -> (Option<Memory>, Vec<Memory>) {
        self.used_bytes += size;
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        match self.free.get_mut(&size).and_then(VecDeque::pop_back) {
            Some((_, memory)) => {
                self.free_bytes -= size;
                (Some(memory), Vec::new())
            }
            None => (None, self.surplus(self.peak_bytes.max(SMALL_WORK))),
        }
    }

    fn put(&mut self, memory: Memory) {
        let size = memory.bytes;
        self.used_bytes -= size;
        self.free_bytes += size;
        self.time += 1;
        let shelf = self.free.entry(size).or_default();
        shelf.push_back((self.time, memory));
    }

    /// Removes the oldest until what is left and in use is at most `most` bytes.
    fn surplus(&mut self, most: usize) -> Vec<Memory> {
        let mut surplus = Vec::new();
        while self.used_bytes + self.free_bytes > most {
            let shelves = self.free.values_mut().filter(|shelf| !shelf.is_empty());
            let oldest = shelves.min_by_key(|shelf| shelf[0].0);
            let Some((_, memory)) = oldest.and_then(VecDeque::pop_front) else {
                break;
            };
            self.free_bytes -= memory.bytes;
            surplus.push(memory);
        }
        surplus
    }
}

/// The next size that blocks have: multiples of an eighth of a power of two.
fn block_size(bytes: usize) -> usize {
    if bytes < SMALLEST {
        return bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
    }
    let power = 1 << bytes.ilog2();
    bytes.next_multiple_of(power / 8)
}

#[cfg(test)]
mod tests {
    use super::{
        ALIGNMENT, AllocationController, Block, HUGE_PAGE, Pool, SMALL_WORK, SMALLEST, block_size,
    };

    fn pool() -> &'static Pool {
        Box::leak(Box::new(Pool::new()))
    }

    fn address(block: &Block) -> usize {
        block.memory.first.as_ptr() as usize
    }

    /// Bytes in use, kept, and in use at the peak.
    fn state(pool: &Pool) -> [usize; 3] {
        let shelves = pool.shelves();
        let kept: usize = shelves.free.values().flatten().map(|(_, m)| m.bytes).sum();
        assert_eq!(kept, shelves.free_bytes);
        [shelves.used_bytes, kept, shelves.peak_bytes]
    }

    #[test]
    fn sizes_have_room_and_waste_at_most_an_eighth() {
        for bytes in (0..3000).chain((SMALLEST - 70..SMALLEST * 5).step_by(61)) {
            let size = block_size(bytes);
            assert!(size >= bytes && size.is_multiple_of(ALIGNMENT) && size > 0);
            assert!(size <= bytes.max(512) * 9 / 8, "{bytes} {size}");
            assert_eq!(block_size(size), size);
        }
    }

    #[test]
    fn a_block_given_back_is_the_next_one_of_nearly_its_size() {
        let pool = pool();
        let first = pool.take(1_000_000);
        let kept = address(&first);
        drop(first);
        let second = pool.take(990_000);
        assert_eq!(address(&second), kept);
        assert_ne!(address(&pool.take(1_000_000)), kept, "a block in use");
    }

    #[test]
    fn a_copy_has_the_same_bytes_in_memory_of_its_own() {
        let pool = pool();
        let mut block = pool.take(100_000);
        block.bytes().fill(std::mem::MaybeUninit::new(7));
        let copy = block.duplicate().expect("a copy");
        let from = copy.memory(Default::default()).expect("memory");
        assert_ne!(from.as_ptr() as usize, address(&block));
        // SAFETY: copied from initialised bytes.
        assert!(from.iter().all(|byte| unsafe { byte.assume_init() } == 7));
    }

    #[test]
    fn what_is_kept_and_used_never_exceeds_the_peak_and_the_oldest_goes_first() {
        let pool = pool();
        let size = SMALL_WORK / 8;
        let blocks: Vec<_> = (1..=4).map(|i| pool.take(i * size)).collect();
        drop(blocks);
        assert_eq!(state(pool), [0, 10 * size, 10 * size]);
        let other = pool.take(5 * size);
        // Those of 1, 2 and 3 went; the one of 4 stays.
        assert_eq!(state(pool), [5 * size, 4 * size, 10 * size]);
        drop(other);
        for i in 1..200 {
            let [used, kept, peak] = state(pool);
            assert!(used + kept <= peak.max(SMALL_WORK));
            drop([pool.take(i * 77_777), pool.take(i * 33_333)]);
        }
        pool.release();
        assert_eq!(state(pool), [0; 3]);
    }

    #[test]
    fn small_work_keeps_blocks_of_all_its_sizes() {
        let pool = pool();
        for _ in 0..3 {
            drop(pool.take(SMALL_WORK / 2));
            drop(pool.take(SMALL_WORK / 4));
        }
        let peak = SMALL_WORK / 2;
        assert_eq!(state(pool), [0, SMALL_WORK / 2 + SMALL_WORK / 4, peak]);
    }

    #[test]
    fn small_blocks_are_the_allocators() {
        let pool = pool();
        drop([pool.take(0), pool.take(SMALLEST - ALIGNMENT)]);
        assert_eq!(state(pool), [0; 3]);
    }

    #[test]
    fn large_blocks_begin_with_a_huge_page() {
        let pool = pool();
        for bytes in [2 * HUGE_PAGE, 5 * HUGE_PAGE + 1, 33 * HUGE_PAGE] {
            let mut block = pool.take(bytes);
            assert!(address(&block).is_multiple_of(HUGE_PAGE));
            block.bytes()[bytes - 1].write(1);
        }
    }

    #[test]
    fn threads_never_get_the_same_block_at_once() {
        let pool = pool();
        std::thread::scope(|scope| {
            for mark in 0..8u8 {
                scope.spawn(move || {
                    for i in 0..300 {
                        let mut block =
                            pool.take(SMALLEST + (i * 7 + usize::from(mark)) % 5 * SMALLEST);
                        block.bytes()[..4096].fill(std::mem::MaybeUninit::new(mark));
                        std::thread::yield_now();
                        // SAFETY: just written.
                        let seen = |byte: &std::mem::MaybeUninit<u8>| unsafe { byte.assume_init() };
                        assert!(block.bytes()[..4096].iter().all(|byte| seen(byte) == mark));
                    }
                });
            }
        });
        let [used, kept, peak] = state(pool);
        assert!(used == 0 && kept <= peak.max(SMALL_WORK));
    }
}
