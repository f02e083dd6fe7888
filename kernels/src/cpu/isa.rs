//! Detects the CPU's instruction set, and compiles loops once for each.

use std::sync::OnceLock;

/// Environment variable that restricts the instruction set: `avx512`, `avx2` or `portable`. On CPUs
/// with bf16 pair instructions, `pairs` or `widened` selects whether tiles use them or widen bf16
/// to f32. For testing the code of other CPUs and for comparing results between machines.
pub const LIMIT_VARIABLE: &str = "TOOLTUNE_ISA";

/// Instruction sets with their own code, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Isa {
    /// The baseline of the target.
    Portable,
    /// 256-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// CPU features in use.
#[derive(Debug, Clone, Copy)]
struct Used {
    isa: Isa,
    has_pairs: bool,
    widens_pairs: bool,
}

impl Used {
    fn get() -> Self {
        static USED: OnceLock<Used> = OnceLock::new();
        *USED.get_or_init(|| Self::with_limit(std::env::var(LIMIT_VARIABLE).ok().as_deref()))
    }

    fn with_limit(limit: Option<&str>) -> Self {
        let most = match limit {
            Some("portable") => Isa::Portable,
            #[cfg(target_arch = "x86_64")]
            Some("avx2") => Isa::Avx2,
            _ => Isa::best_supported(),
        };
        let isa = most.min(Isa::best_supported());
        #[cfg(target_arch = "x86_64")]
        let has_bf16 = isa == Isa::Avx512 && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        let has_bf16 = false;
        let has_pairs = has_bf16 && limit != Some("avx512");
        let widens_pairs = match limit {
            _ if !has_pairs => isa > Isa::Portable,
            Some("pairs") => false,
            Some("widened") => true,
            _ => pairs_are_slow(),
        };
        Self {
            isa,
            has_pairs,
            widens_pairs,
        }
    }
}

/// Whether the bf16 pair instruction is slower than the four f32 instructions that do the same
/// work.
///
/// This is so on Intel: the instruction issues every other cycle, whereas two f32 instructions
/// issue per cycle. Emerald Rapids reached 80 GFLOP/s per core with pairs and 160 with f32. On Zen
/// 5 pairs are twice as fast as f32.
fn pairs_are_slow() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let vendor = std::arch::x86_64::__cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        name.as_flattened() == b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl Isa {
    /// The best instruction set of this CPU, restricted by [`LIMIT_VARIABLE`].
    #[inline]
    pub(crate) fn detect() -> Self {
        Used::get().isa
    }

    fn best_supported() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
            {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }
}

/// Whether this CPU multiplies pairs of bf16 (AVX-512 BF16), restricted by [`LIMIT_VARIABLE`].
pub(crate) fn has_pairs() -> bool {
    Used::get().has_pairs
}

/// Whether bf16 products widen their operands to f32, because there are no pair instructions or
/// they are slower. Portable loops use bf16 pairs unchanged.
pub(crate) fn widens_pairs() -> bool {
    Used::get().widens_pairs
}

/// Readable name of the instructions that operations use on this CPU.
pub fn instruction_set() -> &'static str {
    match Isa::detect() {
        Isa::Portable => "portable loops",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => "AVX2 with FMA",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if widens_pairs() => "AVX-512, BF16 widened",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if has_pairs() => "AVX-512 with BF16",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => "AVX-512",
    }
}

/// Compiles a function for element type `T` twice, for AVX-512 with and without its bf16
/// instructions, and picks one at run time. The constant `$pairs` is true in the version with bf16
/// instructions.
///
/// The caller guarantees AVX-512 and the function's own safety requirements.
#[cfg(target_arch = "x86_64")]
macro_rules! for_avx512 {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident [$t:ident, $pairs:ident]
        ($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $vis unsafe fn $name<$t: $crate::cpu::number::Number>($($arg: $ty),*) {
            #[inline(always)]
            unsafe fn body<$t: $crate::cpu::number::Number, const $pairs: bool>($($arg: $ty),*) $body
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
            unsafe fn plain<$t: $crate::cpu::number::Number>($($arg: $ty),*) {
                // SAFETY: guaranteed by the caller.
                unsafe { body::<$t, false>($($arg),*) }
            }
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")]
            unsafe fn pairs<$t: $crate::cpu::number::Number>($($arg: $ty),*) {
                // SAFETY: guaranteed by the caller.
                unsafe { body::<$t, true>($($arg),*) }
            }
            // SAFETY: the caller guarantees AVX-512; the other features were detected.
            unsafe {
                if $t::DTYPE == burn::tensor::DType::BF16 && $crate::cpu::isa::has_pairs() {
                    pairs::<$t>($($arg),*)
                } else {
                    plain::<$t>($($arg),*)
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(crate) use for_avx512;

/// Compiles a function once per instruction set and picks one at run time.
///
/// The body is plain Rust, which the compiler vectorises for each instruction set. It contains no
/// fused multiply-add, so every CPU rounds alike. Type parameters are in brackets.
macro_rules! for_each_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $([$($t:ident: $bound:ident),+])?
        $(<const $n:ident: usize>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name <$($($t: $bound,)+)? $(const $n: usize)?> ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body <$($($t: $bound,)+)? $(const $n: usize)?> ($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
            fn avx512 <$($($t: $bound,)+)? $(const $n: usize)?> ($($arg: $ty),*) $(-> $ret)? {
                body ::<$($($t,)+)? $($n)?> ($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 <$($($t: $bound,)+)? $(const $n: usize)?> ($($arg: $ty),*) $(-> $ret)? {
                body ::<$($($t,)+)? $($n)?> ($($arg),*)
            }
            match $crate::cpu::isa::Isa::detect() {
                // SAFETY: the CPU feature was detected.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::isa::Isa::Avx512 => unsafe {
                    avx512 ::<$($($t,)+)? $($n)?> ($($arg),*)
                },
                // SAFETY: the CPU feature was detected.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::isa::Isa::Avx2 => unsafe {
                    avx2 ::<$($($t,)+)? $($n)?> ($($arg),*)
                },
                $crate::cpu::isa::Isa::Portable => body ::<$($($t,)+)? $($n)?> ($($arg),*),
            }
        }
    };
}

pub(crate) use for_each_isa;
