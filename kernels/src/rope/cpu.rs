//! Rotation of heads on slices.

use std::mem::MaybeUninit;

use crate::cpu::isa::for_each_isa;
use crate::cpu::rows::map_rows;

/// Which way heads are turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// By the angles of the table.
    Forward,
    /// Back: the gradient of the other.
    Back,
}

impl Turn {
    pub(crate) fn reversed(self) -> Self {
        match self {
            Self::Forward => Self::Back,
            Self::Back => Self::Forward,
        }
    }
}

/// Tables of a micro-batch, `[n, c / 2]` each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tables<'a> {
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
    /// `c / 2`.
    pub(crate) half: usize,
}

/// Turns each head of `[n, heads, c]`.
pub(crate) fn rotate(x: &[f32], heads: usize, tables: Tables<'_>, turn: Turn) -> Vec<f32> {
    let width = heads * 2 * tables.half;
    let sign = match turn {
        Turn::Forward => 1.0,
        Turn::Back => -1.0,
    };
    // SAFETY: `rotate_rows` writes every element of its target.
    unsafe {
        map_rows(x, width, |start, x, y| {
            let first = start / width * tables.half;
            let (cos, sin) = (&tables.cos[first..], &tables.sin[first..]);
            rotate_rows(x, width, Tables { cos, sin, ..tables }, sign, y);
        })
    }
}

for_each_isa! {
    fn rotate_rows(
        x: &[f32],
        width: usize,
        tables: Tables<'_>,
        sign: f32,
        y: &mut [MaybeUninit<f32>],
    ) {
        let half = tables.half;
        let tables = tables.cos.chunks_exact(half).zip(tables.sin.chunks_exact(half));
        let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width));
        for ((x, y), (cos, sin)) in rows.zip(tables) {
            for (x, y) in x.chunks_exact(2 * half).zip(y.chunks_exact_mut(2 * half)) {
                let (x1, x2) = x.split_at(half);
                let (y1, y2) = y.split_at_mut(half);
                let pairs = x1.iter().zip(x2).zip(y1.iter_mut().zip(y2));
                for (((&x1, &x2), (y1, y2)), (&cos, &sin)) in pairs.zip(cos.iter().zip(sin)) {
                    let sin = sign * sin;
                    y1.write(x1 * cos - x2 * sin);
                    y2.write(x2 * cos + x1 * sin);
                }
            }
        }
    }
}
