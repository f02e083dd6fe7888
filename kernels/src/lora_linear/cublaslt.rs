//! Stacked LoRA linear layers by cuBLASLt: scales, residual, bias and sums are part of the products,
//! and factor gradients are written directly to the optimizer's buffer. For f32, and for ranks and
//! sizes that [`super::low_rank`] does not support.
//!
//! The reference is [`super::composed`].

use burn::backend::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::adapter::{AdapterPlan, PartLayout};
use super::backend::{Frozen, Saved, Spec};
use super::composed::cast;
use super::cpu::Wants;
use super::cuda::{dense_weight, parts, scale};
use crate::cube::launch::output;
use crate::cublaslt::{self, Matrix, Product};
use crate::dropout::Dropout;
use crate::dropout::cuda::{add_kept, apply_dropout};

/// The factors of a stack, in the dtype that products read.
struct Factors {
    tensor: CubeTensor,
    inputs: usize,
}

impl Factors {
    fn new(factors: &CubeTensor, plan: &AdapterPlan, dtype: DType) -> Self {
        Self {
            tensor: cast::<CubeBackend>(factors.clone(), dtype),
            inputs: plan.layout.in_features,
        }
    }

    /// `[r, in]`.
    fn a(&self, part: &PartLayout) -> Matrix {
        let range = part.a(self.inputs);
        Matrix::from_flat(&self.tensor, range, [part.rank, self.inputs])
    }

    /// `[out, r]`.
    fn b(&self, part: &PartLayout) -> Matrix {
        let range = part.b(self.inputs);
        Matrix::from_flat(&self.tensor, range, [part.out_features, part.rank])
    }
}

/// `x` after a part's dropout.
fn with_dropout(x: &Matrix, dropout: Option<Dropout>) -> Matrix {
    dropout.map_or_else(
        || x.clone(),
        |dropout| Matrix::new(&apply_dropout(x.tensor().clone(), dropout)),
    )
}

/// Same contract as [`super::backend::LinearPasses::linear_forward`]; `None` if cuBLASLt cannot
/// compute it.
pub(super) fn forward(
    x: &CubeTensor,
    factors: Option<&CubeTensor>,
    residual: Option<&CubeTensor>,
    frozen: &Frozen<CubeBackend>,
    spec: &Spec,
) -> Option<(CubeTensor, Option<CubeTensor>)> {
    let x = Matrix::new(x);
    let [n, _] = x.dims();
    if n == 0 || !cublaslt::is_served(&x.tensor().client) {
        return None;
    }
    let dtype = x.tensor().dtype;
    let outputs = spec.out_features.iter().sum();
    let y_dtype = if residual.is_some() {
        DType::F32
    } else {
        dtype
    };
    let bias = frozen.bias.clone().into_option();
    let bias = bias.map(|bias| cast::<CubeBackend>(bias, y_dtype));
    let y = output(x.tensor(), [n, outputs], y_dtype);
    let sums = Matrix::new(&y);
    let dense = || Product {
        c: residual.map(Matrix::new),
        bias: bias.clone(),
        ..Product::new(
            x.clone(),
            Matrix::new(&dense_weight(frozen, spec)).transposed(),
            sums.clone(),
        )
    };
    let adapted = spec.adapter.iter().flat_map(|plan| &plan.layout.parts);
    let n_adapted: usize = adapted.map(|part| part.out_features).sum();
    // The dense product adds the adapters' output while it computes, so the adapters need not read
    // its result. If there is already a summand, or not all columns are adapted, they run after it.
    let comes_last = residual.is_none() && factors.is_some() && n_adapted == outputs;
    if !spec.unread && !comes_last {
        dense().enqueue()?;
    }
    let mut low = None;
    if let (Some(factors), Some(plan)) = (factors, &spec.adapter) {
        let factors = Factors::new(factors, plan, dtype);
        let ranks = plan.layout.parts.iter().map(|part| part.rank).sum();
        let lows = output(x.tensor(), [n, ranks], dtype);
        let mut first = 0;
        for (part, dropout) in parts(plan, spec) {
            let own = Matrix::new(&lows).columns(first..first + part.rank);
            first += part.rank;
            let down = Product::new(
                with_dropout(&x, dropout),
                factors.a(part).transposed(),
                own.clone(),
            );
            down.scaled(scale(part, dropout)).enqueue()?;
            if spec.unread {
                continue;
            }
            let range = part.first_output..part.first_output + part.out_features;
            let up = Product::new(own, factors.b(part).transposed(), sums.columns(range));
            if comes_last { up } else { up.accumulate() }.enqueue()?;
        }
        low = Some(lows);
    }
    if !spec.unread && comes_last {
        dense().accumulate().enqueue()?;
    }
    Some((y, low))
}

/// Same contract as [`super::backend::LinearPasses::linear_backward`]; `None` if cuBLASLt cannot
/// compute it.
pub(super) fn backward(
    saved: &Saved<CubeBackend>,
    dy: &CubeTensor,
    wants: Wants,
) -> Option<(Option<CubeTensor>, Option<CubeTensor>)> {
    let x = Matrix::new(&saved.x);
    let [n, inputs] = x.dims();
    if n == 0 || !cublaslt::is_served(&x.tensor().client) {
        return None;
    }
    let dtype = x.tensor().dtype;
    let dy = Matrix::new(&cast::<CubeBackend>(dy.clone(), dtype));
    let wants_input = wants == Wants::InputAndFactors;
    let dense = |dx: &CubeTensor| {
        let weight = Matrix::new(&dense_weight(&saved.frozen, &saved.spec));
        Product::new(dy.clone(), weight, Matrix::new(dx))
    };
    let (Some(factors), Some(plan), Some(low)) = (&saved.factors, &saved.spec.adapter, &saved.low)
    else {
        let dx = wants_input.then(|| output(x.tensor(), [n, inputs], dtype));
        if let Some(dx) = &dx {
            dense(dx).enqueue()?;
        }
        return Some((dx, None));
    };
    let mut dx = wants_input.then(|| output(x.tensor(), [n, inputs], dtype));
    let gradients = output(x.tensor(), [plan.layout.len()], DType::F32);
    let gradient = |range, shape| Matrix::from_flat(&gradients, range, shape);
    let factors = Factors::new(factors, plan, dtype);
    let low = Matrix::new(low);
    // The adapters' contributions come first; the dense product adds them while it computes.
    let (mut first, mut has_share) = (0, false);
    for (part, dropout) in parts(plan, &saved.spec) {
        let range = part.first_output..part.first_output + part.out_features;
        let (dy, low) = (dy.columns(range), low.columns(first..first + part.rank));
        first += part.rank;
        let d_low = Matrix::new(&output(x.tensor(), [n, part.rank], dtype));
        let down = Product::new(dy.clone(), factors.b(part), d_low.clone());
        down.scaled(scale(part, dropout)).enqueue()?;
        let d_a = gradient(part.a(inputs), [part.rank, inputs]);
        Product::new(d_low.clone().transposed(), with_dropout(&x, dropout), d_a).enqueue()?;
        let d_b = gradient(part.b(inputs), [part.out_features, part.rank]);
        Product::new(dy.transposed(), low, d_b).enqueue()?;
        let Some(sum) = dx.take() else {
            continue;
        };
        dx = Some(match dropout {
            None => {
                let up = Product::new(d_low, factors.a(part), Matrix::new(&sum));
                if has_share { up.accumulate() } else { up }.enqueue()?;
                sum
            }
            Some(dropout) => {
                let own = output(x.tensor(), [n, inputs], dtype);
                Product::new(d_low, factors.a(part), Matrix::new(&own)).enqueue()?;
                match has_share {
                    true => add_kept(sum, own, dropout),
                    false => apply_dropout(own, dropout),
                }
            }
        });
        has_share = true;
    }
    if let Some(dx) = &dx {
        let dense = dense(dx);
        if has_share { dense.accumulate() } else { dense }.enqueue()?;
    }
    Some((dx, Some(gradients)))
}
