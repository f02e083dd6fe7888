//! The LoRA factors of stacked layers as one slice of the flat parameter buffer.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Tensor, bf16};

use super::cpu_factors::PackedFactors;
use super::flat_gradient::{FlatGradient, GradientSlot};
use super::magnitudes::Magnitudes;
use crate::cpu::packed::operand::Operand;

/// The adapter of one layer of a stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterPart {
    /// Rank.
    pub rank: usize,
    /// `lora_alpha / r`, or `lora_alpha / √r` with rsLoRA; always computed, never set directly.
    pub scaling: f64,
}

/// Locations of the factors of stacked adapters in their buffer: for each adapted layer A `[r, in]`,
/// then B `[out, r]`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterLayout {
    pub(crate) in_features: usize,
    /// Output features of all layers, adapted or not.
    pub(crate) outputs: usize,
    pub(crate) parts: Vec<PartLayout>,
    /// Columns of all low-rank values; each part has an even number.
    pub(crate) low_width: usize,
}

/// The adapter of one layer of a stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PartLayout {
    /// Index of the layer in the stack.
    pub(crate) layer: usize,
    /// First output column.
    pub(crate) first_output: usize,
    pub(crate) out_features: usize,
    pub(crate) rank: usize,
    pub(crate) scaling: f32,
    /// Index of the first element in the buffer.
    pub(crate) offset: usize,
    /// First column of its low-rank values.
    pub(crate) first_low: usize,
}

impl AdapterLayout {
    /// The layout for layers with `out_features`; a layer with a part is adapted.
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
        for (layer, (&out_features, part)) in out_features.iter().zip(adapted).enumerate() {
            if let Some(AdapterPart { rank, scaling }) = *part {
                layout.parts.push(PartLayout {
                    layer,
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

    /// Number of elements of all factors.
    pub fn len(&self) -> usize {
        self.parts
            .last()
            .map_or(0, |part| part.b(self.in_features).end)
    }

    /// Whether no layer is adapted.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl PartLayout {
    /// Element range of A in the buffer.
    pub(crate) fn a(&self, in_features: usize) -> Range<usize> {
        self.offset..self.offset + self.rank * in_features
    }

    /// Element range of B in the buffer.
    pub(crate) fn b(&self, in_features: usize) -> Range<usize> {
        let start = self.offset + self.rank * in_features;
        start..start + self.rank * self.out_features
    }
}

/// Trainable factors of stacked layers, in PEFT's layout.
#[derive(Debug, Clone)]
pub struct StackedAdapter {
    /// All factors, in the order of [`AdapterLayout`]; f32, except in
    /// [`StackedLinear::with_combined_adapter`].
    ///
    /// [`StackedLinear::with_combined_adapter`]: super::StackedLinear::with_combined_adapter
    pub factors: Tensor<1>,
    /// DoRA magnitudes of the adapted layers' outputs, with DoRA.
    pub magnitudes: Option<Magnitudes>,
    /// The same factors in the dtype that products read, if already cast.
    pub(super) rounded: Option<Tensor<1>>,
    /// Destination of their gradient.
    gradient_slot: Option<GradientSlot>,
    layout: Arc<AdapterLayout>,
    packed: PackedAdapter,
}

/// The factors in either dtype, packed for the CPU's products when first needed.
#[derive(Debug, Clone, Default)]
pub(crate) struct PackedAdapter {
    f32: Arc<PackedFactors<f32>>,
    bf16: Arc<PackedFactors<bf16>>,
}

/// A dtype that factors are packed in.
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

/// Data of an adapter that an operation needs, other than its factors.
#[derive(Debug, Clone)]
pub(crate) struct AdapterPlan {
    pub(crate) layout: Arc<AdapterLayout>,
    pub(crate) packed: PackedAdapter,
    #[cfg_attr(
        not(feature = "cube"),
        expect(dead_code, reason = "CPU passes return separate gradients")
    )]
    pub(crate) gradient_slot: Option<GradientSlot>,
}

impl StackedAdapter {
    /// An adapter with the factors of `layout`.
    ///
    /// # Panics
    ///
    /// If their number does not match the layout: a bug of the caller.
    pub fn new(factors: Tensor<1>, layout: Arc<AdapterLayout>) -> Self {
        assert_eq!(
            factors.dims(),
            [layout.len()],
            "the factors must have the elements of the layout"
        );
        Self {
            factors,
            magnitudes: None,
            rounded: None,
            gradient_slot: None,
            layout,
            packed: PackedAdapter::default(),
        }
    }

    /// Sets the factors already cast to the dtype that products read, so that one cast serves all
    /// stacks. `rounded` must not be under autodiff.
    ///
    /// # Panics
    ///
    /// If the number of elements does not match the layout: a bug of the caller.
    #[must_use]
    pub fn with_rounded(self, rounded: Tensor<1>) -> Self {
        assert_eq!(
            rounded.dims(),
            self.factors.dims(),
            "the cast factors must have the shape of the factors"
        );
        Self {
            rounded: Some(rounded),
            ..self
        }
    }

    /// Sets the destination of the factors' gradient: `whole`, starting at element `start`.
    #[must_use]
    pub fn with_gradient_in(self, whole: &FlatGradient, start: usize) -> Self {
        Self {
            gradient_slot: Some(whole.slot(start)),
            ..self
        }
    }

    /// The same factors with other magnitudes, or as plain LoRA without magnitudes.
    #[must_use]
    pub fn with_magnitudes(&self, magnitudes: Option<Magnitudes>) -> Self {
        Self {
            magnitudes,
            ..self.clone()
        }
    }

    /// The same values, registered with autodiff by `track`.
    #[must_use]
    pub fn tracked(&self, track: impl Fn(Tensor<1>) -> Tensor<1>) -> Self {
        let magnitudes = self.magnitudes.as_ref();
        Self {
            factors: track(self.factors.clone()),
            magnitudes: magnitudes.map(|magnitudes| magnitudes.tracked(&track)),
            ..self.clone()
        }
    }

    /// Merges the adapters of all layers into one adapter of the concatenated output, so that two
    /// products compute it: all A are stacked, and the B form a block-diagonal matrix. Rows of
    /// layers without an adapter are zero.
    ///
    /// For inference only: factors are cast to `dtype`, and for few rows, wider products take no
    /// longer. `None` if the layers have different scalings, or magnitudes.
    pub(super) fn combined(&self, dtype: DType) -> Option<Self> {
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

    /// The trained tensors, in the order of the flat parameter buffer: factors, then magnitudes.
    pub fn trained(&self) -> Vec<Tensor<1>> {
        let magnitudes = self.magnitudes.iter().map(|m| m.values.clone());
        std::iter::once(self.factors.clone())
            .chain(magnitudes)
            .collect()
    }

    /// Layout of the factors.
    pub fn layout(&self) -> &AdapterLayout {
        &self.layout
    }

    pub(crate) fn plan(&self) -> AdapterPlan {
        AdapterPlan {
            layout: self.layout.clone(),
            packed: self.packed.clone(),
            gradient_slot: self.gradient_slot.clone(),
        }
    }

    /// A and B of a part.
    pub(crate) fn factors_of(&self, part: &PartLayout) -> (Tensor<2>, Tensor<2>) {
        let slice = |range: Range<usize>, shape: [usize; 2]| {
            let piece = self.factors.clone().narrow(0, range.start, range.len());
            piece.reshape(shape)
        };
        let in_features = self.layout.in_features;
        (
            slice(part.a(in_features), [part.rank, in_features]),
            slice(part.b(in_features), [part.out_features, part.rank]),
        )
    }
}
