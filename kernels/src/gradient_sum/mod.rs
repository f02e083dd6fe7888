//! Adds the gradients of a step's micro-batches exactly, so that the sum has no order.
//!
//! Each element is rounded once to a 64-bit integer and the integers are added. The result is the
//! same bits for every order of the micro-batches and for every distribution over processes. A step
//! with a single micro-batch keeps its gradient as it is.

mod cpu;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
#[cfg(any(feature = "cuda", feature = "cuda-source"))]
mod nccl;
pub mod reference;

use burn::tensor::{DType, Tensor, TensorData};

use crate::adamw::concatenate;
use crate::cpu::buffer::plain;
#[cfg(feature = "cube")]
use crate::route::is_served_by_gpu;

/// Elements must be smaller than this in magnitude. They are part of the gradient of a mean loss.
pub const LIMIT: f32 = 1024.0;

/// Bits below the binary point of a sum of one part. Sums of parts below [`LIMIT`] then stay below
/// 2^61.
const FRACTION_BITS: i32 = 51;

/// The sum of the gradients of one step, `[p]`, as far as this process has computed them.
#[derive(Debug)]
pub struct GradientSum {
    /// Number of parts of the whole step, in all processes.
    n_parts: usize,
    /// Number of values of a part.
    n_values: usize,
    /// Number of sums on a GPU: the values, the flag, and zeros at the end.
    #[cfg(feature = "cube")]
    n_sums: usize,
    sums: Sums,
}

#[derive(Debug)]
enum Sums {
    /// No part yet.
    Empty,
    /// The only part of the step.
    Single(Box<Tensor<1>>),
    /// `[p + 1]`; the last element is above 0 if an element was out of range.
    Host(Vec<i64>),
    /// The same values on a GPU, `[n_sums]`.
    #[cfg(feature = "cube")]
    Device(Box<Tensor<1, burn::tensor::Int>>),
}

/// Adds the integers of all processes: the argument becomes their element-wise sum.
pub type AddAll<'a, E> = &'a mut dyn FnMut(&mut [i64]) -> Result<(), E>;

/// The factor of an element before it is rounded: a power of 2, so the product is exact.
fn scale(n_parts: usize) -> f32 {
    let bits = n_parts.next_power_of_two().trailing_zeros();
    2.0_f32.powi(FRACTION_BITS - bits as i32)
}

impl GradientSum {
    /// An empty sum of `n_parts` parts of `n_values` values each. `n_parts` counts the parts of all
    /// processes.
    pub fn new(n_values: usize, n_parts: usize) -> Self {
        Self {
            n_parts,
            n_values,
            #[cfg(feature = "cube")]
            n_sums: n_values + 1,
            sums: Sums::Empty,
        }
    }

    /// The empty sum, with room for [`finish_on_gpus`](Self::finish_on_gpus) with `world_size`
    /// processes, which divide the values among themselves.
    #[cfg(feature = "cuda")]
    pub fn for_ranks(self, world_size: usize) -> Self {
        Self {
            n_sums: nccl::piece_len(self.n_values + 1, world_size) * world_size,
            ..self
        }
    }

    /// Adds a part.
    ///
    /// # Shapes
    ///
    /// - `part`: `[p]`, f32
    ///
    /// # Panics
    ///
    /// If `part` has another length than the sum, or a step with one part gets a second one.
    pub fn add(&mut self, part: Tensor<1>) {
        crate::operation!("gradient_sum");
        assert_eq!(
            part.dims(),
            [self.n_values],
            "gradient_sum: values of a part"
        );
        if self.n_parts == 1 {
            assert!(
                matches!(self.sums, Sums::Empty),
                "gradient_sum: two parts of a step that has one"
            );
            self.sums = Sums::Single(Box::new(part));
            return;
        }
        #[cfg(feature = "cube")]
        if is_served_by_gpu(&part) && part.dtype() == DType::F32 && self.n_values > 0 {
            let scale = scale(self.n_parts);
            let before = match std::mem::replace(&mut self.sums, Sums::Empty) {
                Sums::Device(sums) => Some(*sums),
                _ => None,
            };
            self.sums = Sums::Device(Box::new(cuda::add(before, part, scale, self.n_sums)));
            return;
        }
        self.add_on_host(0, &part);
    }

    /// Adds a part that consists of matrices, whose values follow each other. Each matrix is freed
    /// when it has been added.
    ///
    /// # Shapes
    ///
    /// - `matrices`: `[p]` values in all, f32
    ///
    /// # Panics
    ///
    /// As [`add`](Self::add).
    pub fn add_matrices(&mut self, matrices: Vec<Tensor<2>>) {
        #[cfg(feature = "cube")]
        let is_whole = matrices.first().is_some_and(is_served_by_gpu);
        #[cfg(not(feature = "cube"))]
        let is_whole = false;
        if self.n_parts == 1 || is_whole {
            return self.add(concatenate(matrices));
        }
        crate::operation!("gradient_sum");
        let mut start = 0;
        for matrix in matrices {
            let n = matrix.shape().num_elements();
            assert!(start + n <= self.n_values, "gradient_sum: values of a part");
            self.add_on_host(start, &matrix.reshape([n]));
            start += n;
        }
        assert_eq!(start, self.n_values, "gradient_sum: values of a part");
    }

    /// Adds values to the elements from `start`, on the host.
    fn add_on_host(&mut self, start: usize, values: &Tensor<1>) {
        if matches!(self.sums, Sums::Empty) {
            self.sums = Sums::Host(vec![0; self.n_values + 1]);
        }
        let Sums::Host(sums) = &mut self.sums else {
            unreachable!("all parts of a sum are on one device");
        };
        let scale = scale(self.n_parts);
        match plain(values, DType::F32) {
            Some(values) => cpu::add(sums, start, values.numbers(), scale),
            None => cpu::add(sums, start, &host(values), scale),
        }
    }

    /// Returns the sum of the parts of all processes, `[p]`, on the device of `like`.
    ///
    /// All elements are NaN if an element of a part was not smaller than [`LIMIT`], or NaN. `add_all`
    /// is called exactly once; a process that computes alone has none.
    ///
    /// # Errors
    ///
    /// `add_all` fails.
    pub fn finish<E>(
        self,
        like: &Tensor<1>,
        add_all: Option<AddAll<'_, E>>,
    ) -> Result<Tensor<1>, E> {
        crate::operation!("gradient_sum");
        let device = like.device();
        let shape = [self.n_values];
        let place = |values: Vec<f32>| Tensor::from_data(TensorData::new(values, shape), &device);
        if self.n_parts == 1 {
            let Some(add_all) = add_all else {
                return Ok(match self.sums {
                    Sums::Single(part) => *part,
                    _ => place(vec![0.0; self.n_values]),
                });
            };
            // Only one process has a part. Zeros of the others leave its bits as they are.
            let mut bits = match &self.sums {
                Sums::Single(part) => cpu::to_bits(&host(part)),
                _ => vec![0; self.n_values],
            };
            add_all(&mut bits)?;
            return Ok(place(cpu::of_bits(&bits)));
        }
        let scale = scale(self.n_parts);
        #[cfg(feature = "cube")]
        if let (Sums::Device(sums), None) = (&self.sums, &add_all) {
            return Ok(cuda::to_floats(*sums.clone(), self.n_values, scale.recip()));
        }
        let mut sums = match self.sums {
            Sums::Host(sums) => sums,
            #[cfg(feature = "cube")]
            Sums::Device(sums) => {
                let sums = sums.into_data();
                sums.iter::<i64>().take(self.n_values + 1).collect()
            }
            Sums::Empty | Sums::Single(_) => vec![0; self.n_values + 1],
        };
        if let Some(add_all) = add_all {
            add_all(&mut sums)?;
        }
        Ok(place(cpu::to_floats(&sums, scale.recip())))
    }

    /// Waits until this process's GPU has computed its parts, so that a GPU that fails or hangs is
    /// found before other processes wait for its sums.
    ///
    /// # Panics
    ///
    /// As any read of a tensor whose computation failed.
    #[cfg(feature = "cuda")]
    pub fn wait(&self) {
        match &self.sums {
            Sums::Device(sums) => {
                let sums = sums.as_ref().clone();
                sums.narrow(0, self.n_values, 1).into_data();
            }
            Sums::Single(part) if self.n_values > 0 => {
                let part = part.as_ref().clone();
                part.narrow(0, 0, 1).into_data();
            }
            _ => {}
        }
    }

    /// As [`finish`](Self::finish), but NCCL adds on the GPUs of all processes of `communicator`:
    /// each adds and rounds a piece of the vector, and all exchange their pieces. The bits are
    /// those of [`finish`](Self::finish).
    ///
    /// Returns before the GPUs have finished.
    ///
    /// # Errors
    ///
    /// NCCL refuses an operation, or earlier work on this GPU failed.
    ///
    /// # Panics
    ///
    /// If the sum was not made [`for_ranks`](Self::for_ranks) of this communicator.
    #[cfg(feature = "cuda")]
    pub fn finish_on_gpus(
        self,
        like: &Tensor<1>,
        communicator: &crate::nccl::Communicator,
    ) -> Result<Tensor<1>, crate::nccl::NcclError> {
        crate::operation!("gradient_sum");
        let n_values = self.n_values;
        if n_values == 0 {
            return Ok(like.clone());
        }
        let device = like.device();
        if self.n_parts == 1 {
            let part = match self.sums {
                Sums::Single(part) => *part,
                _ => Tensor::zeros([n_values], (&device, DType::F32)),
            };
            return nccl::only_part(part, communicator);
        }
        let sums = match self.sums {
            Sums::Device(sums) => *sums,
            // This process had no part.
            _ => Tensor::zeros([self.n_sums], (&device, DType::I64)),
        };
        nccl::sum_of_ranks(sums, n_values, scale(self.n_parts).recip(), communicator)
    }
}

/// The values of a tensor on any device.
fn host(part: &Tensor<1>) -> Vec<f32> {
    part.to_data().iter::<f32>().collect()
}
