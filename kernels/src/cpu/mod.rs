//! Fused operations on slices of f32, for tensors that live in the memory of the CPU.
//!
//! A function reads and writes slices, splits its work between the threads of rayon, and gives
//! the same bits for any number of them.

pub(crate) mod bf16;
pub(crate) mod buffer;
pub(crate) mod exp;
pub mod gemm;
pub(crate) mod isa;
pub mod matrix;
pub mod product;
pub(crate) mod rows;
pub(crate) mod scratch;
pub(crate) mod shared;
pub(crate) mod sum;
pub(crate) mod tile;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile_avx512;
pub(crate) mod tiles;

/// Evaluates an expression with a name for the tiles of this CPU: `v` registers wide where the
/// width can be chosen.
macro_rules! with_tile {
    ($t:ident, $v:literal => $work:expr) => {
        match $crate::cpu::isa::Isa::detect() {
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::isa::Isa::Avx512 => {
                type $t = $crate::cpu::tile_avx512::Avx512<$v>;
                $work
            }
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::isa::Isa::Avx2 => {
                type $t = $crate::cpu::tile_avx2::Avx2;
                $work
            }
            $crate::cpu::isa::Isa::Portable => {
                type $t = $crate::cpu::tile::Portable;
                $work
            }
        }
    };
}

pub(crate) use with_tile;
