//! A memory pool for large tensors, reused from step to step.
//!
//! Allocators either return large blocks to the operating system, which clears every page again in
//! the next step, or keep them in sizes that the next step cannot use. This pool places tensors
//! side by side in a few regions of huge pages, each at the first free position, and merges freed
//! blocks with their free neighbours. Steps of any length then reuse the same pages, and a run's
//! memory is the peak use of its largest step plus one percent.

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

/// Bytes below which the allocator's own reuse suffices.
const SMALLEST: usize = 1 << 16;

/// Blocks are aligned to cache lines.
pub(super) const ALIGNMENT: usize = 64;

/// Bytes of a huge page. Memory that is large enough is aligned to such pages and requests them:
/// clearing and mapping 512 small pages takes ten times as long.
const HUGE_PAGE: usize = 2 << 20;

/// Minimum bytes of a region. This reserves addresses only; pages are allocated when a tensor
/// touches them.
const REGION: usize = 256 << 20;

static POOL: Pool = Pool::new();

/// Returns all unused pages to the operating system.
///
/// Call this when the kind of work changes, for example from training to generation.
pub fn release() {
    POOL.release();
}

/// Elements that become a tensor without a copy.
pub struct Buffer<T> {
    block: Block,
    len: usize,
    numbers: PhantomData<T>,
}

impl<T: Copy> Buffer<T> {
    /// `n` elements, written by `fill`.
    ///
    /// # Safety
    ///
    /// `fill` initialises every element.
    pub(crate) unsafe fn filled(n: usize, fill: impl FnOnce(&mut [MaybeUninit<T>])) -> Self {
        let mut block = POOL.allocate(n * size_of::<T>());
        let first = block.first.as_ptr().cast::<MaybeUninit<T>>();
        debug_assert!(align_of::<T>() <= ALIGNMENT && block.bytes().len() >= n * size_of::<T>());
        // SAFETY: only this buffer uses the block, which has space for `n` elements and their
        // alignment.
        fill(unsafe { std::slice::from_raw_parts_mut(first, n) });
        Self {
            block,
            len: n,
            numbers: PhantomData,
        }
    }

    /// `n` copies of the same value.
    pub(crate) fn repeated(value: T, n: usize) -> Self {
        // SAFETY: all elements are written.
        unsafe { Self::filled(n, |to| to.fill(MaybeUninit::new(value))) }
    }

    pub(crate) fn copy_of(values: &[T]) -> Self {
        // SAFETY: all elements are written.
        unsafe {
            Self::filled(values.len(), |to| {
                to.write_copy_of_slice(values);
            })
        }
    }

    /// The elements as the memory of a tensor; returned to the pool when the tensor is dropped.
    pub(crate) fn into_bytes(self) -> Bytes {
        let len = self.len * size_of::<T>();
        // SAFETY: this number of bytes is initialised.
        unsafe { Bytes::from_controller(Box::new(self.block), len) }
    }
}

impl<T: Copy> Default for Buffer<T> {
    /// An empty buffer.
    fn default() -> Self {
        // SAFETY: there is no element to write.
        unsafe { Self::filled(0, |_| ()) }
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let first = self.block.first.as_ptr().cast();
        // SAFETY: this number of elements is initialised, and no one else has the block.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let first = self.block.first.as_ptr().cast();
        // SAFETY: this number of elements is initialised, and no one else has the block.
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

/// Memory from the allocator.
#[derive(Debug)]
pub(super) struct Memory {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the owner of the value, on any thread; shared references only
// borrow it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `bytes` bytes, not 0; large allocations are aligned to huge pages and request
    /// them.
    pub(super) fn new(bytes: usize) -> Self {
        let layout = Self::layout(bytes);
        // SAFETY: block sizes are not zero.
        let first = unsafe { alloc(layout) };
        let first = NonNull::new(first).unwrap_or_else(|| handle_alloc_error(layout));
        #[cfg(target_os = "linux")]
        if layout.align() == HUGE_PAGE {
            // SAFETY: whole pages of this memory, whose contents the advice does not change.
            // Without huge pages the call fails, and small pages are used.
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
        Layout::from_size_align(bytes, align).expect("a valid allocation size")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no longer in use.
        unsafe { dealloc(self.first.as_ptr(), Self::layout(self.bytes)) }
    }
}

/// Memory borrowed from a pool.
struct Block {
    first: NonNull<u8>,
    bytes: usize,
    pool: &'static Pool,
}

// SAFETY: the memory belongs to the owner of the block, on any thread; shared references only
// borrow it.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: only this block uses the memory, and the bytes need not be initialised.
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
            self.pool.free(self.first, self.bytes)
        }
    }
}

impl AllocationController for Block {
    /// Reports a smaller alignment than the actual one, because Burn limits the alignment of
    /// copies.
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
        // SAFETY: only this block uses the memory, and the bytes need not be initialised.
        Ok(unsafe { std::slice::from_raw_parts(self.first.as_ptr().cast(), self.bytes) })
    }

    /// Copies the contents to a new block.
    fn duplicate(&self) -> Option<Box<dyn AllocationController>> {
        let mut copy = self.pool.allocate(self.bytes);
        let from = self.memory(AccessPolicy::default()).ok()?;
        copy.bytes().get_mut(..from.len())?.copy_from_slice(from);
        Some(Box::new(copy))
    }
}

/// The pool of large blocks. Regions are ordered by age, so that a step starts in the pages of the
/// previous one.
struct Pool(Mutex<Vec<Region>>);

impl Pool {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn regions(&self) -> MutexGuard<'_, Vec<Region>> {
        // Code under the lock leaves a consistent state even if it panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates `bytes` bytes with arbitrary contents.
    fn allocate(&'static self, bytes: usize) -> Block {
        let bytes = bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let first = if bytes < SMALLEST {
            ManuallyDrop::new(Memory::new(bytes)).first
        } else {
            self.allocate_in_region(bytes)
        };
        Block {
            first,
            bytes,
            pool: self,
        }
    }

    /// Allocates at the first free position that is large enough.
    fn allocate_in_region(&self, bytes: usize) -> NonNull<u8> {
        let mut regions = self.regions();
        let block = regions.iter_mut().find_map(|region| region.allocate(bytes));
        block.unwrap_or_else(|| {
            let mut region = Region::new(bytes.next_multiple_of(REGION));
            let first = region
                .allocate(bytes)
                .expect("the new region has space for these bytes");
            regions.push(region);
            first
        })
    }

    fn free(&self, first: NonNull<u8>, bytes: usize) {
        let mut regions = self.regions();
        let region = regions.iter_mut().find(|region| region.contains(first));
        region
            .expect("every block belongs to a region")
            .free(first, bytes);
    }

    /// Returns unused regions, and the unused pages of the others.
    fn release(&self) {
        let mut regions = self.regions();
        regions.retain(Region::is_used);
        for (&first, &bytes) in regions.iter().flat_map(|region| &region.free) {
            // SAFETY: the stretch is unused, and its next owner expects arbitrary values.
            unsafe { release_pages(first, bytes) }
        }
    }
}

/// Memory shared by blocks; regions are ordered by address.
struct Region {
    memory: Memory,
    /// Free stretches: start to length in bytes; adjacent stretches are merged.
    free: BTreeMap<NonNull<u8>, usize>,
}

// SAFETY: free stretches are parts of the memory, which belongs to the owner of this value.
unsafe impl Send for Region {}

impl Region {
    fn new(bytes: usize) -> Self {
        let memory = Memory::new(bytes);
        let free = BTreeMap::from([(memory.first, bytes)]);
        Self { memory, free }
    }

    fn contains(&self, first: NonNull<u8>) -> bool {
        let start = self.memory.first.addr().get();
        (start..start + self.memory.bytes).contains(&first.addr().get())
    }

    fn is_used(&self) -> bool {
        self.free.get(&self.memory.first) != Some(&self.memory.bytes)
    }

    /// Allocates at the lowest free position that is large enough, if any.
    fn allocate(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let (&first, &free) = self.free.iter().find(|(_, free)| **free >= bytes)?;
        self.free.remove(&first);
        if free > bytes {
            // SAFETY: the stretch is longer.
            self.free.insert(unsafe { first.add(bytes) }, free - bytes);
        }
        Some(first)
    }

    /// Frees a block and merges it with adjacent free stretches.
    fn free(&mut self, mut first: NonNull<u8>, mut bytes: usize) {
        let end = |first: NonNull<u8>, bytes: usize| first.addr().get() + bytes;
        let next = self.free.range(first..).next();
        if let Some((&next, &free)) = next
            && next.addr().get() == end(first, bytes)
        {
            self.free.remove(&next);
            bytes += free;
        }
        let previous = self.free.range(..first).next_back();
        if let Some((&previous, &free)) = previous
            && end(previous, free) == first.addr().get()
        {
            first = previous;
            bytes += free;
        }
        self.free.insert(first, bytes);
    }
}

/// Returns the pages that are entirely within a stretch of memory, if the system supports this.
///
/// # Safety
///
/// The memory belongs to the caller, and is written before it is read again.
#[cfg(target_os = "linux")]
pub(super) unsafe fn release_pages(first: NonNull<u8>, bytes: usize) {
    /// A multiple of the page size of every system.
    const PAGES: usize = 1 << 16;
    let unaligned = first.addr().get().next_multiple_of(PAGES) - first.addr().get();
    let whole = bytes.saturating_sub(unaligned) / PAGES * PAGES;
    if whole == 0 {
        return;
    }
    // SAFETY: whole pages of the caller's memory. On failure they are unchanged.
    let _ = unsafe {
        let advice = rustix::mm::Advice::LinuxDontNeed;
        rustix::mm::madvise(first.add(unaligned).as_ptr().cast(), whole, advice)
    };
}

#[cfg(not(target_os = "linux"))]
pub(super) unsafe fn release_pages(_: NonNull<u8>, _: usize) {}

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

    /// Regions, and the lengths of their free stretches.
    fn state(pool: &Pool) -> (usize, Vec<usize>) {
        let regions = pool.regions();
        let free = regions.iter().flat_map(|region| region.free.values());
        (regions.len(), free.copied().collect())
    }

    #[test]
    fn allocation_takes_the_lowest_free_address() {
        let pool = pool();
        let [a, b, c] = [1_000_000, 3_000_000, 500_000].map(|bytes| pool.allocate(bytes));
        let first = address(&a);
        drop((a, b));
        let again = pool.allocate(3_500_000);
        assert_eq!(
            address(&again),
            first,
            "two adjacent freed blocks are merged"
        );
        drop(again);
        let small = [pool.allocate(990_000), pool.allocate(2_000_000)];
        assert_eq!(address(&small[0]), first);
        let second_offset = 990_000_usize.next_multiple_of(ALIGNMENT);
        assert_eq!(address(&small[1]), first + second_offset);
        drop((small, c));
        assert_eq!(state(pool), (1, vec![REGION]));
    }

    #[test]
    fn a_clone_has_equal_bytes_in_separate_memory() {
        let pool = pool();
        let mut block = pool.allocate(100_000);
        block.bytes().fill(std::mem::MaybeUninit::new(7));
        let copy = block.duplicate().expect("a copy");
        let from = copy.memory(Default::default()).expect("memory");
        assert_ne!(from.as_ptr() as usize, address(&block));
        // SAFETY: copied from initialised bytes.
        assert!(from.iter().all(|byte| unsafe { byte.assume_init() } == 7));
    }

    #[test]
    fn steps_of_varying_lengths_need_the_memory_of_the_longest() {
        let pool = pool();
        for tokens in [1_600, 300, 1_111, 1_599, 731, 1_234] {
            let step: Vec<_> = (0..40)
                .flat_map(|i| {
                    let result = pool.allocate(tokens * (500 + 13 * i));
                    drop([pool.allocate(tokens * 1_000), pool.allocate(tokens * 300)]);
                    [result, pool.allocate(tokens * 300)]
                })
                .collect();
            let longest: usize = (0..40).map(|i| 1_600 * (800 + 13 * i)).sum();
            let end = step.iter().map(|block| address(block) + block.bytes).max();
            let start = step.iter().map(address).min();
            let spanned = end.zip(start).map_or(0, |(end, start)| end - start);
            assert!(
                spanned < longest + 1_600 * 1_400,
                "{tokens}: {spanned} of {longest}"
            );
            drop(step);
            assert_eq!(state(pool), (1, vec![REGION]));
        }
    }

    #[test]
    fn release_unmaps_only_regions_without_blocks() {
        let pool = pool();
        let (mut kept, large) = (pool.allocate(SMALLEST), pool.allocate(REGION));
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
    fn small_blocks_use_the_system_allocator() {
        let pool = pool();
        drop([pool.allocate(0), pool.allocate(SMALLEST - ALIGNMENT)]);
        assert_eq!(state(pool), (0, Vec::new()));
    }

    #[test]
    fn large_allocations_start_at_a_huge_page() {
        for bytes in [HUGE_PAGE, 5 * HUGE_PAGE + 1, 33 * HUGE_PAGE] {
            let memory = Memory::new(bytes);
            assert!((memory.first.as_ptr() as usize).is_multiple_of(HUGE_PAGE));
        }
    }

    #[test]
    fn threads_never_share_a_block() {
        let pool = pool();
        std::thread::scope(|scope| {
            for mark in 0..8u8 {
                scope.spawn(move || {
                    for i in 0..300 {
                        let mut block =
                            pool.allocate(SMALLEST + (i * 7 + usize::from(mark)) % 5 * SMALLEST);
                        block.bytes()[..4096].fill(std::mem::MaybeUninit::new(mark));
                        std::thread::yield_now();
                        // SAFETY: just written.
                        let value_of =
                            |byte: &std::mem::MaybeUninit<u8>| unsafe { byte.assume_init() };
                        assert!(
                            block.bytes()[..4096]
                                .iter()
                                .all(|byte| value_of(byte) == mark)
                        );
                    }
                });
            }
        });
        assert_eq!(state(pool), (1, vec![REGION]));
    }
}
