//! Which instruction set the CPU offers, and loops compiled once for each.

use std::sync::OnceLock;

/// Names a smaller instruction set than the CPU's best: `avx512`, `avx2` or `portable`; or, where it
/// multiplies pairs of bf16, whether tiles do (`pairs`) or widen them (`widened`). For tests of what
/// other CPUs run, and for comparing results between machines.
pub const LIMIT_VARIABLE: &str = "TOOLTUNE_ISA";

/// Instruction sets with code of their own, the smaller first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Isa {
    /// What the target always has.
    Portable,
    /// 256-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// What is used of this CPU.
#[derive(Debug, Clone, Copy)]
struct Used {
    isa: Isa,
    has_pairs: bool,
    widens_pairs: bool,
}

impl Used {
    fn get() -> Self {
        static USED: OnceLock<Used> = OnceLock::new();
        *USED.get_or_init(|| Self::within(std::env::var(LIMIT_VARIABLE).ok().as_deref()))
    }

    fn within(limit: Option<&str>) -> Self {
        let most = match limit {
            Some("portable") => Isa::Portable,
            #[cfg(target_arch = "x86_64")]
            Some("avx2") => Isa::Avx2,
            _ => Isa::best(),
        };
        let isa = most.min(Isa::best());
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

/// Whether the instruction for pairs of bf16 takes longer than the four of f32 that do as much.
///
/// It does on Intel, where one of them starts every other cycle but two of f32 in each: on Emerald
/// Rapids pairs came to 80 GFLOP/s a core and f32 to 160. On Zen 5 pairs are twice as fast as f32.
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
    /// The best one of this CPU, within [`LIMIT_VARIABLE`].
    #[inline]
    pub(crate) fn detect() -> Self {
        Used::get().isa
    }

    fn best() -> Self {
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

/// Whether this CPU multiplies pairs of bf16 (AVX-512 BF16), within [`LIMIT_VARIABLE`].
pub(crate) fn has_pairs() -> bool {
    Used::get().has_pairs
}

/// Whether products of bf16 are made with numbers widened to f32: there are no pairs, or they are
/// slower. Portable loops take pairs as they are.
pub(crate) fn widens_pairs() -> bool {
    Used::get().widens_pairs
}

/// The instructions that operations on this CPU use, for people to read.
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

/// Compiles a function for numbers `T` twice, for AVX-512 without and with its instructions for
/// bf16, and picks at run time; the constant `$pairs` says which.
///
/// The caller vouches for AVX-512 and for what else the function says.
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
                // SAFETY: as the caller promises.
                unsafe { body::<$t, false>($($arg),*) }
            }
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")]
            unsafe fn pairs<$t: $crate::cpu::number::Number>($($arg: $ty),*) {
                // SAFETY: as the caller promises.
                unsafe { body::<$t, true>($($arg),*) }
            }
            // SAFETY: AVX-512 by the caller's promise, the rest detected.
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

/// Compiles a function once for each instruction set and picks at run time.
///
/// The body is ordinary Rust; the compiler's vectors grow with the instruction set. It contains no
/// fused multiply-add, so that every CPU rounds alike. Type parameters stand in brackets.
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
                // SAFETY: detected.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::isa::Isa::Avx512 => unsafe {
                    avx512 ::<$($($t,)+)? $($n)?> ($($arg),*)
                },
                // SAFETY: detected.
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
