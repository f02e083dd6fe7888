//! Which instruction set the CPU offers, and loops compiled once for each.

/// Instruction sets with code of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    /// 512-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What the target always has.
    Portable,
}

impl Isa {
    /// The best one of this CPU.
    pub(crate) fn detect() -> Self {
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

/// Whether the CPU has AVX-512 and its instructions for bf16.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_pairs() -> bool {
    Isa::detect() == Isa::Avx512 && is_x86_feature_detected!("avx512bf16")
}

/// Compiles a function for numbers `T` twice, for AVX-512 without and with its instructions for
/// bf16, and picks at run time; the constant `$pairs` says which.
///
/// The caller vouches for AVX-512 and for what else the function says.
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
