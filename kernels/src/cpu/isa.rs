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
