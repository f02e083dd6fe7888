//! Memory of large tensors, kept for the tensors of the next step.
//!
//! Allocators give large blocks back to the operating system, which clears every page again when
//! the next step touches it, or keep them in sizes that the next step has no use for. Here tensors lie
//! side by side in a few regions of huge pages, each at the first place that is free; what is given
//! back joins what is free beside it. Steps of any lengths then fill the same pages, and what a run
//! holds is what its largest step had in use, and a hundredth more.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
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

/// Bytes of a huge page. Memory with room for such pages starts with one, and asks for them: clearing
/// and finding 512 small ones takes ten times as long.
const HUGE_PAGE: usize = 2 << 20;

/// Least bytes of a region. They are addresses; pages come when a tensor touches them.
const REGION: usize = 256 << 20;

static POOL: Pool = Pool::new();

/// Gives all pages that no tensor uses back to the operating system.
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
        let first = block.first.as_ptr().cast::<MaybeUninit<T>>();
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
        let first = self.block.first.as_ptr().cast();
        // SAFETY: as many are initialised, and nobody else has the block.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let first = self.block.first.as_ptr().cast();
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
    /// So many bytes, not 0; those with room for huge pages start with one, and ask for them.
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
        let align = if bytes >= HUGE_PAGE {
            HUGE_PAGE
        } else {
            ALIGNMENT
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
    first: NonNull<u8>,
    bytes: usize,
    pool: &'static Pool,
}

// SAFETY: memory belongs to whoever has the block, on any thread; shared blocks only lend it.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the memory is this block's alone, and the bytes need not be initialised.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr().cast(), self.bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.bytes < SMALLEST {
            drop(Memory {
                first: self.first,
                bytes: self.bytes,
            })
        } else {
            self.pool.put(self.first, self.bytes)
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
        // SAFETY: the memory is this block's alone, and the bytes need not be initialised.
        Ok(unsafe { std::slice::from_raw_parts(self.first.as_ptr().cast(), self.bytes) })
    }

    /// A copy in a block of its own.
    fn duplicate(&self) -> Option<Box<dyn AllocationController>> {
        let mut copy = self.pool.take(self.bytes);
        let from = self.memory(AccessPolicy::default()).ok()?;
        copy.bytes().get_mut(..from.len())?.copy_from_slice(from);
        Some(Box::new(copy))
    }
}

/// Where large blocks lie: the regions by their age, for a step begins in the pages of the last one.
struct Pool(Mutex<Vec<Region>>);

impl Pool {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn regions(&self) -> MutexGuard<'_, Vec<Region>> {
        // Nothing that runs under the lock leaves it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for `bytes` bytes of arbitrary value.
    fn take(&'static self, bytes: usize) -> Block {
        let bytes = bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let first = if bytes < SMALLEST {
            ManuallyDrop::new(Memory::new(bytes)).first
        } else {
            self.place(bytes)
        };
        Block {
            first,
            bytes,
            pool: self,
        }
    }

    /// The first place that is free for so many bytes.
    fn place(&self, bytes: usize) -> NonNull<u8> {
        let mut regions = self.regions();
        let found = regions.iter_mut().find_map(|region| region.take(bytes));
        found.unwrap_or_else(|| {
            let mut region = Region::new(bytes.next_multiple_of(REGION));
            let first = region.take(bytes).expect("a region for these bytes");
            regions.push(region);
            first
        })
    }

    fn put(&self, first: NonNull<u8>, bytes: usize) {
        let mut regions = self.regions();
        let region = regions.iter_mut().find(|region| region.has(first));
        region.expect("the region of a block").put(first, bytes);
    }

    /// Gives back regions without a block, and of the others the pages without one.
    fn release(&self) {
        let mut regions = self.regions();
        regions.retain(Region::is_used);
        for (&first, &bytes) in regions.iter().flat_map(|region| &region.free) {
            // SAFETY: nobody uses the stretch, and whoever takes it expects arbitrary values.
            unsafe { give_back(first, bytes) }
        }
    }
}

/// Memory that blocks share, in order of their addresses.
struct Region {
    memory: Memory,
    /// Bytes of each free stretch by its first one; no two of them touch.
    free: BTreeMap<NonNull<u8>, usize>,
}

// SAFETY: what is free is a part of the memory, which belongs to whoever has this value.
unsafe impl Send for Region {}

impl Region {
    fn new(bytes: usize) -> Self {
        let memory = Memory::new(bytes);
        let free = BTreeMap::from([(memory.first, bytes)]);
        Self { memory, free }
    }

    fn has(&self, first: NonNull<u8>) -> bool {
        let start = self.memory.first.addr().get();
        (start..start + self.memory.bytes).contains(&first.addr().get())
    }

    fn is_used(&self) -> bool {
        self.free.get(&self.memory.first) != Some(&self.memory.bytes)
    }

    /// The lowest place for so many bytes, if there is one.
    fn take(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let (&first, &free) = self.free.iter().find(|(_, free)| **free >= bytes)?;
        self.free.remove(&first);
        if free > bytes {
            // SAFETY: the stretch is longer.
            self.free.insert(unsafe { first.add(bytes) }, free - bytes);
        }
        Some(first)
    }

    /// Makes a block a part of what is free around it.
    fn put(&mut self, mut first: NonNull<u8>, mut bytes: usize) {
        let end = |first: NonNull<u8>, bytes: usize| first.addr().get() + bytes;
        let after = self.free.range(first..).next();
        if let Some((&after, &free)) = after
            && after.addr().get() == end(first, bytes)
        {
            self.free.remove(&after);
            bytes += free;
        }
        let before = self.free.range(..first).next_back();
        if let Some((&before, &free)) = before
            && end(before, free) == first.addr().get()
        {
            first = before;
            bytes += free;
        }
        self.free.insert(first, bytes);
    }
}

/// Gives back the pages that lie whole in a stretch of memory, where the system has a way to.
///
/// # Safety
///
/// The memory is the caller's, and nobody reads it before writing.
#[cfg(target_os = "linux")]
pub(super) unsafe fn give_back(first: NonNull<u8>, bytes: usize) {
    /// A multiple of the size of pages, which are larger on some systems than on others.
    const PAGES: usize = 1 << 16;
    let before = first.addr().get().next_multiple_of(PAGES) - first.addr().get();
    let whole = bytes.saturating_sub(before) / PAGES * PAGES;
    if whole == 0 {
        return;
    }
    // SAFETY: whole pages of the caller's memory. A refusal leaves them as they were.
    let _ = unsafe {
        let advice = rustix::mm::Advice::LinuxDontNeed;
        rustix::mm::madvise(first.add(before).as_ptr().cast(), whole, advice)
    };
}

#[cfg(not(target_os = "linux"))]
pub(super) unsafe fn give_back(_: NonNull<u8>, _: usize) {}

#[cfg(test)]
mod tests {
    use super::{
        ALIGNMENT, AllocationController, Block, HUGE_PAGE, Memory, Pool, REGION, SMALLEST,
    };

    fn pool() -> &'static Pool {
        Box::leak(Box::new(Pool::new()))
    }

    fn address(block: &Block) -> usize {
        block.first.as_ptr() as usize
    }

    /// Regions, and the bytes of each free stretch.
    fn state(pool: &Pool) -> (usize, Vec<usize>) {
        let regions = pool.regions();
        let free = regions.iter().flat_map(|region| region.free.values());
        (regions.len(), free.copied().collect())
    }

    #[test]
    fn a_block_lies_at_the_lowest_place_that_is_free() {
        let pool = pool();
        let [a, b, c] = [1_000_000, 3_000_000, 500_000].map(|bytes| pool.take(bytes));
        let first = address(&a);
        drop((a, b));
        let again = pool.take(3_500_000);
        assert_eq!(address(&again), first, "two that were given back are one");
        drop(again);
        let small = [pool.take(990_000), pool.take(2_000_000)];
        assert_eq!(address(&small[0]), first);
        let behind = 990_000_usize.next_multiple_of(ALIGNMENT);
        assert_eq!(address(&small[1]), first + behind);
        drop((small, c));
        assert_eq!(state(pool), (1, vec![REGION]));
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
    fn steps_of_any_lengths_fill_the_memory_of_the_longest() {
        let pool = pool();
        for tokens in [1_600, 300, 1_111, 1_599, 731, 1_234] {
            let step: Vec<_> = (0..40)
                .flat_map(|i| {
                    let kept = pool.take(tokens * (500 + 13 * i));
                    drop([pool.take(tokens * 1_000), pool.take(tokens * 300)]);
                    [kept, pool.take(tokens * 300)]
                })
                .collect();
            let longest: usize = (0..40).map(|i| 1_600 * (800 + 13 * i)).sum();
            let end = step.iter().map(|block| address(block) + block.bytes).max();
            let start = step.iter().map(address).min();
            let taken = end.zip(start).map_or(0, |(end, start)| end - start);
            assert!(
                taken < longest + 1_600 * 1_400,
                "{tokens}: {taken} of {longest}"
            );
            drop(step);
            assert_eq!(state(pool), (1, vec![REGION]));
        }
    }

    #[test]
    fn regions_without_a_block_go_with_a_release_and_others_stay_in_one_piece() {
        let pool = pool();
        let (mut kept, large) = (pool.take(SMALLEST), pool.take(REGION));
        kept.bytes().fill(std::mem::MaybeUninit::new(7));
        assert_eq!(state(pool).0, 2);
        drop(large);
        pool.release();
        assert_eq!(state(pool), (1, vec![REGION - SMALLEST]));
        // SAFETY: written above.
        assert!(
            kept.bytes()
                .iter()
                .all(|byte| unsafe { byte.assume_init() } == 7)
        );
        drop(kept);
        pool.release();
        assert_eq!(state(pool), (0, Vec::new()));
    }

    #[test]
    fn small_blocks_are_the_allocators() {
        let pool = pool();
        drop([pool.take(0), pool.take(SMALLEST - ALIGNMENT)]);
        assert_eq!(state(pool), (0, Vec::new()));
    }

    #[test]
    fn large_memory_begins_with_a_huge_page() {
        for bytes in [HUGE_PAGE, 5 * HUGE_PAGE + 1, 33 * HUGE_PAGE] {
            let memory = Memory::new(bytes);
            assert!((memory.first.as_ptr() as usize).is_multiple_of(HUGE_PAGE));
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
        assert_eq!(state(pool), (1, vec![REGION]));
    }
}
