//! A cuDNN operation graph, and the execution plan that computes it.

use std::fmt::Write;

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Type,
    cudnnBackendHeurMode_t as Heuristics, cudnnDataType_t as Data, cudnnHandle_t,
    cudnnPointwiseMode_t as Mode, cudnnReduceTensorOp_t as Reduce,
};

use super::descriptor::{Address, Descriptor, Refusal, check_status};
use crate::choice_cache::{self, Files};

/// Maximum number of engine configurations to try, best first.
const MOST_ENGINES: usize = 16;

/// Four dimensions or strides.
pub(super) type Four = [i64; 4];

/// A tensor of a graph: its index among the graph's tensors, and its dimensions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tensor {
    index: usize,
    pub(super) dims: Four,
    pub(super) strides: Four,
}

/// A graph under construction.
#[derive(Debug, Default)]
pub(super) struct Graph {
    tensors: Vec<Descriptor>,
    operations: Vec<Descriptor>,
    /// The descriptors that operations refer to.
    parts: Vec<Descriptor>,
    /// Scalars that are passed at each execution, in host memory.
    scalars: Vec<(i64, f32)>,
    /// Everything above that determines a plan, one line per entry: the cache key.
    description: String,
}

/// Storage of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    /// On the device, at an address that the caller passes.
    Given,
    /// Only within the plan.
    Virtual,
    /// A scalar on the host.
    Scalar,
}

/// Tensors with the true dimensions of each document's product, if they are smaller than the
/// operands.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ProductLengths {
    pub(super) m: Option<Tensor>,
    pub(super) n: Option<Tensor>,
    pub(super) k: Option<Tensor>,
    /// Value of the elements beyond these dimensions.
    pub(super) padding: Option<f64>,
}

/// Row-major strides.
pub(super) fn row_major([_, b, c, d]: Four) -> Four {
    [b * c * d, c * d, d, 1]
}

impl Graph {
    /// Adds a tensor. `ragged` has the start of each document, in elements.
    fn tensor(
        &mut self,
        (uid, storage): (i64, Storage),
        data: Data,
        dims: Four,
        strides: Four,
        ragged: Option<Tensor>,
    ) -> Result<Tensor, Refusal> {
        let offsets = ragged.map(|ragged| ragged.index);
        self.append_description(format_args!(
            "tensor {uid} {storage:?} {data:?} {dims:?} {strides:?} {offsets:?}"
        ));
        let (is_virtual, is_scalar) = (storage == Storage::Virtual, storage == Storage::Scalar);
        let tensor = Descriptor::new(Type::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[uid])?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[data])?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &dims)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_STRIDES, &strides)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[16i64])?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[is_virtual])?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[is_scalar])?;
        if let Some(ragged) = ragged {
            let offsets = &self.tensors[ragged.index];
            tensor.set_parts(Name::CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, &[offsets])?;
        }
        self.tensors.push(tensor.finalize()?);
        Ok(Tensor {
            index: self.tensors.len() - 1,
            dims,
            strides,
        })
    }

    fn append_description(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.description, "{line}");
    }

    /// A tensor whose address the caller passes under the number `uid`.
    pub(super) fn external_tensor(
        &mut self,
        uid: i64,
        data: Data,
        dims: Four,
        strides: Four,
        ragged: Option<Tensor>,
    ) -> Result<Tensor, Refusal> {
        self.tensor((uid, Storage::Given), data, dims, strides, ragged)
    }

    /// A tensor that exists only within the plan.
    pub(super) fn virtual_tensor(
        &mut self,
        data: Data,
        dims: Four,
        strides: Four,
        ragged: Option<Tensor>,
    ) -> Result<Tensor, Refusal> {
        let uid = self.own_uid();
        self.tensor((uid, Storage::Virtual), data, dims, strides, ragged)
    }

    /// A scalar.
    pub(super) fn scalar(&mut self, value: f32) -> Result<Tensor, Refusal> {
        let uid = self.own_uid();
        self.scalars.push((uid, value));
        let data = Data::CUDNN_DATA_FLOAT;
        self.tensor((uid, Storage::Scalar), data, [1; 4], [1; 4], None)
    }

    /// Internal tensors are numbered above those that the caller names.
    fn own_uid(&self) -> i64 {
        1_000 + self.tensors.len() as i64
    }

    /// Element-wise `mode` of `inputs`: one input, two, or two and the selection mask.
    pub(super) fn pointwise(
        &mut self,
        mode: Mode,
        inputs: &[Tensor],
        data: Data,
    ) -> Result<Tensor, Refusal> {
        let y = self.virtual_tensor(data, inputs[0].dims, inputs[0].strides, None)?;
        self.pointwise_into(mode, inputs, None, y)?;
        Ok(y)
    }

    /// The index of each element along an axis.
    pub(super) fn index(&mut self, like: Tensor, axis: i64) -> Result<Tensor, Refusal> {
        let y = self.virtual_tensor(Data::CUDNN_DATA_INT32, like.dims, like.strides, None)?;
        self.pointwise_into(Mode::CUDNN_POINTWISE_GEN_INDEX, &[like], Some(axis), y)?;
        Ok(y)
    }

    /// Like [`Self::pointwise`], writing to an existing tensor.
    pub(super) fn pointwise_into(
        &mut self,
        mode: Mode,
        inputs: &[Tensor],
        axis: Option<i64>,
        y: Tensor,
    ) -> Result<(), Refusal> {
        let indices: Vec<usize> = inputs.iter().map(|input| input.index).collect();
        self.append_description(format_args!("{mode:?} {indices:?} {axis:?} {}", y.index));
        let how = Descriptor::new(Type::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        how.set(Name::CUDNN_ATTR_POINTWISE_MODE, &[mode])?;
        let precision = match mode {
            Mode::CUDNN_POINTWISE_GEN_INDEX => Data::CUDNN_DATA_INT32,
            Mode::CUDNN_POINTWISE_CMP_LT
            | Mode::CUDNN_POINTWISE_CMP_GE
            | Mode::CUDNN_POINTWISE_CMP_GT
            | Mode::CUDNN_POINTWISE_LOGICAL_AND => Data::CUDNN_DATA_BOOLEAN,
            _ => Data::CUDNN_DATA_FLOAT,
        };
        how.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, &[precision])?;
        if let Some(axis) = axis {
            how.set(Name::CUDNN_ATTR_POINTWISE_AXIS, &[axis])?;
        }
        let how = how.finalize()?;
        let operation = Descriptor::new(Type::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&how])?;
        let names = [
            Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            Name::CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        for (name, input) in names.into_iter().zip(inputs) {
            operation.set_parts(name, &[&self.tensors[input.index]])?;
        }
        let result = &self.tensors[y.index];
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[result])?;
        self.add(operation, how)
    }

    /// `c = a b` for each document and head, accumulated in f32.
    pub(super) fn product(
        &mut self,
        [a, b, c]: [Tensor; 3],
        lengths: ProductLengths,
    ) -> Result<(), Refusal> {
        let [m, n, k] = [lengths.m, lengths.n, lengths.k].map(|size| size.map(|size| size.index));
        let (of, padding) = ([a, b, c].map(|tensor| tensor.index), lengths.padding);
        self.append_description(format_args!("product {of:?} {m:?} {n:?} {k:?} {padding:?}"));
        let how = Descriptor::new(Type::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
        how.set(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, &[Data::CUDNN_DATA_FLOAT])?;
        if let Some(padding) = lengths.padding {
            how.set(Name::CUDNN_ATTR_MATMUL_PADDING_VALUE, &[padding])?;
        }
        let how = how.finalize()?;
        let operation = Descriptor::new(Type::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&how])?;
        let operands = [
            (Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, Some(a)),
            (Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, Some(b)),
            (Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, Some(c)),
            (
                Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
                lengths.m,
            ),
            (
                Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
                lengths.n,
            ),
            (
                Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC,
                lengths.k,
            ),
        ];
        for (name, tensor) in operands {
            if let Some(tensor) = tensor {
                operation.set_parts(name, &[&self.tensors[tensor.index]])?;
            }
        }
        self.add(operation, how)
    }

    /// Reduces `x` to `y` along the dimensions in which `y` is shorter.
    pub(super) fn reduce(&mut self, by: Reduce, x: Tensor, y: Tensor) -> Result<(), Refusal> {
        self.append_description(format_args!("{by:?} {} {}", x.index, y.index));
        let how = Descriptor::new(Type::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?;
        how.set(Name::CUDNN_ATTR_REDUCTION_OPERATOR, &[by])?;
        how.set(
            Name::CUDNN_ATTR_REDUCTION_COMP_TYPE,
            &[Data::CUDNN_DATA_FLOAT],
        )?;
        let how = how.finalize()?;
        let operation = Descriptor::new(Type::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&how])?;
        let [x, y] = [x, y].map(|tensor| &self.tensors[tensor.index]);
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &[x])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &[y])?;
        self.add(operation, how)
    }

    /// `x` with its last two dimensions swapped.
    pub(super) fn transpose(
        &mut self,
        x: Tensor,
        data: Data,
        ragged: Option<Tensor>,
    ) -> Result<Tensor, Refusal> {
        let swapped = |[a, b, c, d]: Four| [a, b, d, c];
        let y = self.virtual_tensor(data, swapped(x.dims), swapped(x.strides), ragged)?;
        self.append_description(format_args!("reshape {} {}", x.index, y.index));
        let operation = Descriptor::new(Type::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?;
        let [from, to] = [x, y].map(|tensor| &self.tensors[tensor.index]);
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &[from])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &[to])?;
        self.operations.push(operation.finalize()?);
        Ok(y)
    }

    fn add(&mut self, operation: Descriptor, how: Descriptor) -> Result<(), Refusal> {
        self.operations.push(operation.finalize()?);
        self.parts.push(how);
        Ok(())
    }

    /// The plan of the best engine that supports the graph, for the GPU of `target`: the cached plan if
    /// cuDNN still accepts it, otherwise a new one.
    ///
    /// # Errors
    ///
    /// If no engine supports it: the message of the last one.
    pub(super) fn plan(self, target: &PlanTarget) -> Result<Plan, Refusal> {
        let Some(plans) = &target.plans else {
            return self.compile(target);
        };
        let name = choice_cache::key_hash(&self.description);
        // If several threads need the same plan, only one builds it.
        let _claim = plans.claim(&name);
        if let Some(json) = plans.get(&name) {
            match load_plan(&json, target) {
                Ok((plan, workspace)) => {
                    return Ok(Plan {
                        plan,
                        workspace,
                        scalars: self.scalars,
                        _made_of: None,
                    });
                }
                Err(refusal) => tracing::debug!("cuDNN rejected a cached plan ({refusal})"),
            }
        }
        let plan = self.compile(target)?;
        // If the plan cannot be serialised, the next process builds it again.
        match plan
            .plan
            .text(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
        {
            Ok(json) => plans.store(&name, &json),
            Err(refusal) => tracing::debug!("cuDNN could not serialise a plan ({refusal})"),
        }
        Ok(plan)
    }

    fn compile(self, target: &PlanTarget) -> Result<Plan, Refusal> {
        let graph = Descriptor::new(Type::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        let operations: Vec<&Descriptor> = self.operations.iter().collect();
        graph.set_parts(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations)?;
        target.set_handle(&graph, Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE)?;
        let graph = graph.finalize()?;

        let heuristics = Descriptor::new(Type::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristics.set_parts(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&graph])?;
        let mode = Heuristics::CUDNN_HEUR_MODE_A;
        heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?;
        target.set_properties(&heuristics, Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP)?;
        let heuristics = heuristics.finalize()?;
        let configurations = heuristics.parts(
            Name::CUDNN_ATTR_ENGINEHEUR_RESULTS,
            Type::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
            MOST_ENGINES,
        )?;
        let mut refusal = Refusal {
            status: sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED,
            reason: "cuDNN proposed no engine".to_owned(),
        };
        for configuration in configurations {
            match build_plan(&configuration, target) {
                Ok((plan, workspace)) => {
                    return Ok(Plan {
                        plan,
                        workspace,
                        scalars: self.scalars,
                        _made_of: Some([graph, configuration]),
                    });
                }
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }
}

/// The plan of one configuration, and its workspace size in bytes.
fn build_plan(
    configuration: &Descriptor,
    target: &PlanTarget,
) -> Result<(Descriptor, usize), Refusal> {
    let plan = Descriptor::new(Type::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    plan.set_parts(
        Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
        &[configuration],
    )?;
    target.set_handle(&plan, Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE)?;
    target.set_properties(&plan, Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)?;
    with_workspace(plan.finalize()?)
}

/// The plan from cuDNN's serialised form, with its compiled kernels, and its workspace size in
/// bytes.
fn load_plan(json: &[u8], target: &PlanTarget) -> Result<(Descriptor, usize), Refusal> {
    let plan = Descriptor::new(Type::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    target.set_handle(&plan, Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE)?;
    target.set_properties(&plan, Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)?;
    plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, json)?;
    with_workspace(plan.finalize()?)
}

fn with_workspace(plan: Descriptor) -> Result<(Descriptor, usize), Refusal> {
    let bytes = plan.integer(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
    Ok((plan, usize::try_from(bytes).unwrap_or(0)))
}

/// The GPU that a plan is for, and the cache for GPUs of this kind.
#[derive(Debug)]
pub(super) struct PlanTarget {
    gpu: Gpu,
    plans: Option<Files>,
}

#[derive(Debug)]
enum Gpu {
    /// The GPU of a handle.
    Handle(cudnnHandle_t),
    /// A GPU described by its properties, for building plans only.
    Properties(Descriptor),
}

impl PlanTarget {
    /// The GPU of a handle.
    pub(super) fn from_handle(handle: cudnnHandle_t, plans: Option<Files>) -> Self {
        Self {
            gpu: Gpu::Handle(handle),
            plans,
        }
    }

    /// The GPU with an index, without a handle: for building plans only.
    pub(super) fn from_device(index: i32, plans: Option<Files>) -> Result<Self, Refusal> {
        let properties = Descriptor::new(Type::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        properties.set(Name::CUDNN_ATTR_DEVICEPROP_DEVICE_ID, &[index])?;
        Ok(Self {
            gpu: Gpu::Properties(properties.finalize()?),
            plans,
        })
    }

    /// A GPU with these properties, which need not be present.
    pub(super) fn from_properties(json: &str, plans: Option<Files>) -> Result<Self, Refusal> {
        let properties = Descriptor::new(Type::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        properties.set(
            Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
            json.as_bytes(),
        )?;
        Ok(Self {
            gpu: Gpu::Properties(properties.finalize()?),
            plans,
        })
    }

    fn set_handle(&self, descriptor: &Descriptor, name: Name) -> Result<(), Refusal> {
        match &self.gpu {
            Gpu::Handle(handle) => descriptor.set(name, &[*handle]),
            Gpu::Properties(_) => Ok(()),
        }
    }

    fn set_properties(&self, descriptor: &Descriptor, name: Name) -> Result<(), Refusal> {
        match &self.gpu {
            Gpu::Handle(_) => Ok(()),
            Gpu::Properties(properties) => descriptor.set_parts(name, &[properties]),
        }
    }
}

/// An execution plan, with which a GPU computes a graph.
#[derive(Debug)]
pub(super) struct Plan {
    plan: Descriptor,
    /// Workspace size in bytes.
    pub(super) workspace: usize,
    scalars: Vec<(i64, f32)>,
    /// The graph and the configuration, unless the plan came from the cache.
    _made_of: Option<[Descriptor; 2]>,
}

impl Plan {
    /// Queues the plan on the stream of the handle.
    ///
    /// # Safety
    ///
    /// `places` has an address for each tensor that the caller provides, on the device and as large
    /// as the graph requires; `workspace` has the plan's workspace size. All stay valid until the
    /// work is done.
    ///
    /// # Errors
    ///
    /// If cuDNN or the driver reports an error.
    pub(super) unsafe fn enqueue(
        &self,
        handle: cudnnHandle_t,
        places: &[(i64, u64)],
        workspace: u64,
    ) -> Result<(), Refusal> {
        let scalars = self.scalars.iter();
        let own = scalars.map(|(uid, number)| (*uid, (&raw const *number) as u64));
        let (uids, addresses): (Vec<i64>, Vec<Address>) = places
            .iter()
            .copied()
            .chain(own)
            .map(|(uid, address)| (uid, Address(address)))
            .unzip();
        let pack = Descriptor::new(Type::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &uids)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?;
        pack.set(
            Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
            &[Address(workspace)],
        )?;
        let pack = pack.finalize()?;
        // SAFETY: guaranteed by the caller; host scalars are read before the call returns.
        check_status(unsafe { sys::cudnnBackendExecute(handle, self.plan.raw(), pack.raw()) })
    }
}
