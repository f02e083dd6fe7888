//! The factors of stacked adapters as one piece of the flat parameter buffer.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Tensor, bf16};

use super::cpu_factors::PackedFactors;
use super::flat_gradient::{FlatGradient, GradientPlace};
use super::magnitudes::Magnitudes;
use crate::cpu::packed::operand::Operand;

/// The adapter of one map of a stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterPart {
    /// Rank.
    pub rank: usize,
    /// `lora_alpha / r`, or `lora_alpha / √r` with rsLoRA; computed, never configured.
    pub scaling: f64,
}

/// Where the factors of stacked adapters lie in their buffer: for each map that has an adapter
/// A `[r, in]`, then B `[out, r]`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterLayout {
    pub(crate) in_features: usize,
    /// Output features of all maps, adapted or not.
    pub(crate) outputs: usize,
    pub(crate) parts: Vec<PartLayout>,
    /// Columns of all low-rank values, each part's even.
    pub(crate) low_width: usize,
}

/// One adapter of a stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PartLayout {
    /// Which map of the stack.
    pub(crate) map: usize,
    /// First output column.
    pub(crate) first_output: usize,
    pub(crate) out_features: usize,
    pub(crate) rank: usize,
    pub(crate) scaling: f32,
    /// First element in the buffer.
    pub(crate) offset: usize,
    /// First column of its low-rank values.
    pub(crate) first_low: usize,
}

impl AdapterLayout {
    /// The layout for maps of `out_features`, of which those with a part are adapted.
    pub fn new(
        in_features: usize,
        out_features: &[usize],
        adapted: &[Option<AdapterPart>],
    ) -> Self {
        let mut layout = Self {
            in_features,
            outputs: out_features.iter().sum(),
            parts: Vec::new(),
            low_width: 0,
        };
        let (mut first_output, mut offset) = (0, 0);
        for (map, (&out_features, part)) in out_features.iter().zip(adapted).enumerate() {
            if let Some(AdapterPart { rank, scaling }) = *part {
                layout.parts.push(PartLayout {
                    map,
                    first_output,
                    out_features,
                    rank,
                    scaling: scaling as f32,
                    offset,
                    first_low: layout.low_width,
                });
                offset += rank * (in_features + out_features);
                layout.low_width += rank.next_multiple_of(2);
            }
            first_output += out_features;
        }
        layout
    }

    /// Elements of all factors.
    pub fn len(&self) -> usize {
        self.parts
            .last()
            .map_or(0, |part| part.b(self.in_features).end)
    }

    /// Whether no map is adapted.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl PartLayout {
    /// Elements of A in the buffer.
    pub(crate) fn a(&self, in_features: usize) -> Range<usize> {
        self.offset..self.offset + self.rank * in_features
    }

    /// Elements of B in the buffer.
    pub(crate) fn b(&self, in_features: usize) -> Range<usize> {
        let start = self.offset + self.rank * in_features;
        start..start + self.rank * self.out_features
    }
}

/// Trainable factors of stacked maps, in PEFT's layout.
#[derive(Debug, Clone)]
pub struct StackedAdapter {
    /// All of them, as [`AdapterLayout`] says; f32, but for those of [`StackedLinear::joined`].
    ///
    /// [`StackedLinear::joined`]: super::StackedLinear::joined
    pub factors: Tensor<1>,
    /// With DoRA, of the outputs of the adapted maps.
    pub magnitudes: Option<Magnitudes>,
    /// The same factors in the type that products read, where somebody has rounded them already.
    pub(super) rounded: Option<Tensor<1>>,
    /// Where their gradient belongs.
    gradient_place: Option<GradientPlace>,
    layout: Arc<AdapterLayout>,
    packed: PackedAdapter,
}

/// The factors packed for the CPU's products in either type, once they are needed.
#[derive(Debug, Clone, Default)]
pub(crate) struct PackedAdapter {
    f32: Arc<PackedFactors<f32>>,
    bf16: Arc<PackedFactors<bf16>>,
}

/// A type that factors are packed in.
pub(crate) trait PackedIn: Operand {
    fn factors(packed: &PackedAdapter) -> &PackedFactors<Self>;
}

impl PackedIn for f32 {
    fn factors(packed: &PackedAdapter) -> &PackedFactors<Self> {
        &packed.f32
    }
}

impl PackedIn for bf16 {
    fn factors(packed: &PackedAdapter) -> &PackedFactors<Self> {
        &packed.bf16
    }
}

/// What an operation needs to know of an adapter beside its factors.
#[derive(Debug, Clone)]
pub(crate) struct AdapterPlan {
    pub(crate) layout: Arc<AdapterLayout>,
    pub(crate) packed: PackedAdapter,
    #[cfg_attr(
        not(feature = "cube"),
        expect(dead_code, reason = "passes on the CPU give gradients of their own")
    )]
    pub(crate) gradient_place: Option<GradientPlace>,
}

impl StackedAdapter {
    /// The factors of `layout`.
    ///
    /// # Panics
    ///
    /// If their number is another: a bug of the caller.
    pub fn new(factors: Tensor<1>, layout: Arc<AdapterLayout>) -> Self {
        assert_eq!(factors.dims(), [layout.len()], "elements of the factors");
        Self {
            factors,
            magnitudes: None,
            rounded: None,
            gradient_place: None,
            layout,
            packed: PackedAdapter::default(),
        }
    }

    /// The same, with the `factors` cast to the type that products read: once for all stacks instead of by
    /// each of them. Without autodiff.
    ///
    /// # Panics
    ///
    /// If their number is another: a bug of the caller.
    #[must_use]
    pub fn with_rounded(self, rounded: Tensor<1>) -> Self {
        assert_eq!(rounded.dims(), self.factors.dims(), "rounded factors");
        Self {
            rounded: Some(rounded),
            ..self
        }
    }

    /// The same, whose factors' gradient belongs into `whole` from its value `start` on.
    #[must_use]
    pub fn with_gradient_in(self, whole: &FlatGradient, start: usize) -> Self {
        Self {
            gradient_place: Some(whole.at(start)),
            ..self
        }
    }

    /// The same factors with other magnitudes, or as plain LoRA.
    #[must_use]
    pub fn with_magnitudes(&self, magnitudes: Option<Magnitudes>) -> Self {
        Self {
            magnitudes,
            ..self.clone()
        }
    }

    /// The same values, which `track` gives to autodiff.
    #[must_use]
    pub fn tracked(&self, track: impl Fn(Tensor<1>) -> Tensor<1>) -> Self {
        let magnitudes = self.magnitudes.as_ref();
        Self {
            factors: track(self.factors.clone()),
            magnitudes: magnitudes.map(|magnitudes| magnitudes.tracked(&track)),
            ..self.clone()
        }
    }

    /// The adapters of all maps as one of their whole output, so that two products compute it: every A
    /// below the others, and each B beside zeros. Rows of maps without an adapter are zeros.
    ///
    /// For computing alone, where products of few rows take no longer for being wider: factors are cast to
    /// `dtype`. `None` where maps are scaled differently, or by magnitudes.
    pub(super) fn joined(&self, dtype: DType) -> Option<Self> {
        let layout = &self.layout;
        let scaling = layout.parts.first()?.scaling;
        if self.magnitudes.is_some() || layout.parts.iter().any(|part| part.scaling != scaling) {
            return None;
        }
        let rank = layout.parts.iter().map(|part| part.rank).sum();
        let options = (&self.factors.device(), dtype);
        let mut b = Tensor::<2>::zeros([layout.outputs, rank], options);
        let mut flat = Vec::new();
        let mut first = 0;
        for part in &layout.parts {
            let (a, own) = self.factors_of(part);
            let outputs = part.first_output..part.first_output + part.out_features;
            b = b.slice_assign([outputs, first..first + part.rank], own.cast(dtype));
            flat.push(a.cast(dtype).reshape([part.rank * layout.in_features]));
            first += part.rank;
        }
        flat.push(b.reshape([layout.outputs * rank]));
        let scaling = f64::from(scaling);
        let joined = AdapterPart { rank, scaling };
        let joined = AdapterLayout::new(layout.in_features, &[layout.outputs], &[Some(joined)]);
        Some(Self::new(Tensor::cat(flat, 0), Arc::new(joined)))
    }

    /// What is trained, in the order of the flat parameter buffer: factors, then magnitudes.
    pub fn trained(&self) -> Vec<Tensor<1>> {
        let magnitudes = self.magnitudes.iter().map(|m| m.values.clone());
        std::iter::once(self.factors.clone())
            .chain(magnitudes)
            .collect()
    }

    /// Where the factors lie.
    pub fn layout(&self) -> &AdapterLayout {
        &self.layout
    }

    pub(crate) fn plan(&self) -> AdapterPlan {
        AdapterPlan {
            layout: self.layout.clone(),
            packed: self.packed.clone(),
            gradient_place: self.gradient_place.clone(),
        }
    }

    /// A and B of a part.
    pub(crate) fn factors_of(&self, part: &PartLayout) -> (Tensor<2>, Tensor<2>) {
        let cut = |range: Range<usize>, shape: [usize; 2]| {
            let piece = self.factors.clone().narrow(0, range.start, range.len());
            piece.reshape(shape)
        };
        let in_features = self.layout.in_features;
        (
            cut(part.a(in_features), [part.rank, in_features]),
            cut(part.b(in_features), [part.out_features, part.rank]),
        )
    }
}
