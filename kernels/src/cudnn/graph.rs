//! A graph of operations for cuDNN, and the plan that computes it.

use std::fmt::Write;

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Type,
    cudnnBackendHeurMode_t as Heuristics, cudnnDataType_t as Data, cudnnHandle_t,
    cudnnPointwiseMode_t as Mode, cudnnReduceTensorOp_t as Reduce,
};

use super::descriptor::{Address, Descriptor, Refusal, checked};
use crate::kept::{self, Files};

/// Engine configurations that are tried, the best first.
const MOST_ENGINES: usize = 16;

/// Four dimensions or strides.
pub(super) type Four = [i64; 4];

/// A tensor of a graph: its place among the graph's tensors, and its dimensions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tensor {
    index: usize,
    pub(super) dims: Four,
    pub(super) strides: Four,
}

/// Operations so far.
#[derive(Debug, Default)]
pub(super) struct Graph {
    tensors: Vec<Descriptor>,
    operations: Vec<Descriptor>,
    /// The descriptors that operations refer to.
    parts: Vec<Descriptor>,
    /// Numbers that are given at each execution, from the memory of the host.
    scalars: Vec<(i64, f32)>,
    /// All of the above that a plan follows from, a line each.
    said: String,
}

/// Where a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    /// On the device, where the caller says.
    Given,
    /// Within the plan only.
    Virtual,
    /// On the host: a number.
    Scalar,
}

/// Sizes that a product is cut to, for each document.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cut {
    pub(super) m: Option<Tensor>,
    pub(super) n: Option<Tensor>,
    pub(super) k: Option<Tensor>,
    /// What the rest of a cut product holds.
    pub(super) padding: Option<f64>,
}

/// Row-major strides.
pub(super) fn packed([_, b, c, d]: Four) -> Four {
    [b * c * d, c * d, d, 1]
}

impl Graph {
    /// `ragged` says where each document begins, in elements.
    fn tensor(
        &mut self,
        (uid, storage): (i64, Storage),
        data: Data,
        dims: Four,
        strides: Four,
        ragged: Option<Tensor>,
    ) -> Result<Tensor, Refusal> {
        let offsets = ragged.map(|ragged| ragged.index);
        self.say(format_args!(
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
        self.tensors.push(tensor.finalized()?);
        Ok(Tensor {
            index: self.tensors.len() - 1,
            dims,
            strides,
        })
    }

    fn say(&mut self, line: std::fmt::Arguments<'_>) {
        // A string takes all that is written.
        let _ = writeln!(self.said, "{line}");
    }

    /// A tensor that the caller gives the address of, under the number `uid`.
    pub(super) fn given(
        &mut self,
        uid: i64,
        data: Data,
        dims: Four,
        strides: Four,
        ragged: Option<Tensor>,
    ) -> Result<Tensor, Refusal> {
        self.tensor((uid, Storage::Given), data, dims, strides, ragged)
    }

    /// A tensor that exists within the plan only.
    pub(super) fn within(
        &mut self,
        data: Data,
        dims: Four,
        strides: Four,
        ragged: Option<Tensor>,
    ) -> Result<Tensor, Refusal> {
        let uid = self.own_uid();
        self.tensor((uid, Storage::Virtual), data, dims, strides, ragged)
    }

    /// A number.
    pub(super) fn scalar(&mut self, value: f32) -> Result<Tensor, Refusal> {
        let uid = self.own_uid();
        self.scalars.push((uid, value));
        let data = Data::CUDNN_DATA_FLOAT;
        self.tensor((uid, Storage::Scalar), data, [1; 4], [1; 4], None)
    }

    /// Numbers of tensors that the caller does not name lie above those that it does.
    fn own_uid(&self) -> i64 {
        1_000 + self.tensors.len() as i64
    }

    /// `mode` of `inputs`, by element: one input, two, or two and the choice between them.
    pub(super) fn pointwise(
        &mut self,
        mode: Mode,
        inputs: &[Tensor],
        data: Data,
    ) -> Result<Tensor, Refusal> {
        let y = self.within(data, inputs[0].dims, inputs[0].strides, None)?;
        self.pointwise_into(mode, inputs, None, y)?;
        Ok(y)
    }

    /// The index of each element along an axis.
    pub(super) fn index(&mut self, like: Tensor, axis: i64) -> Result<Tensor, Refusal> {
        let y = self.within(Data::CUDNN_DATA_INT32, like.dims, like.strides, None)?;
        self.pointwise_into(Mode::CUDNN_POINTWISE_GEN_INDEX, &[like], Some(axis), y)?;
        Ok(y)
    }

    /// As [`Self::pointwise`], into a tensor that is there already.
    pub(super) fn pointwise_into(
        &mut self,
        mode: Mode,
        inputs: &[Tensor],
        axis: Option<i64>,
        y: Tensor,
    ) -> Result<(), Refusal> {
        let indices: Vec<usize> = inputs.iter().map(|input| input.index).collect();
        self.say(format_args!("{mode:?} {indices:?} {axis:?} {}", y.index));
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
        let how = how.finalized()?;
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

    /// `c = a b` for each document and head, f32 inside.
    pub(super) fn product(&mut self, [a, b, c]: [Tensor; 3], cut: Cut) -> Result<(), Refusal> {
        let [m, n, k] = [cut.m, cut.n, cut.k].map(|size| size.map(|size| size.index));
        let (of, padding) = ([a, b, c].map(|tensor| tensor.index), cut.padding);
        self.say(format_args!("product {of:?} {m:?} {n:?} {k:?} {padding:?}"));
        let how = Descriptor::new(Type::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
        how.set(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, &[Data::CUDNN_DATA_FLOAT])?;
        if let Some(padding) = cut.padding {
            how.set(Name::CUDNN_ATTR_MATMUL_PADDING_VALUE, &[padding])?;
        }
        let how = how.finalized()?;
        let operation = Descriptor::new(Type::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&how])?;
        let operands = [
            (Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, Some(a)),
            (Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, Some(b)),
            (Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, Some(c)),
            (
                Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
                cut.m,
            ),
            (
                Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
                cut.n,
            ),
            (
                Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC,
                cut.k,
            ),
        ];
        for (name, tensor) in operands {
            if let Some(tensor) = tensor {
                operation.set_parts(name, &[&self.tensors[tensor.index]])?;
            }
        }
        self.add(operation, how)
    }

    /// `y`, `x` reduced along the dimensions in which `y` is shorter.
    pub(super) fn reduce(&mut self, by: Reduce, x: Tensor, y: Tensor) -> Result<(), Refusal> {
        self.say(format_args!("{by:?} {} {}", x.index, y.index));
        let how = Descriptor::new(Type::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?;
        how.set(Name::CUDNN_ATTR_REDUCTION_OPERATOR, &[by])?;
        how.set(
            Name::CUDNN_ATTR_REDUCTION_COMP_TYPE,
            &[Data::CUDNN_DATA_FLOAT],
        )?;
        let how = how.finalized()?;
        let operation = Descriptor::new(Type::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&how])?;
        let [x, y] = [x, y].map(|tensor| &self.tensors[tensor.index]);
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &[x])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &[y])?;
        self.add(operation, how)
    }

    /// `x` with its last two dimensions exchanged.
    pub(super) fn transposed(
        &mut self,
        x: Tensor,
        data: Data,
        ragged: Option<Tensor>,
    ) -> Result<Tensor, Refusal> {
        let swapped = |[a, b, c, d]: Four| [a, b, d, c];
        let y = self.within(data, swapped(x.dims), swapped(x.strides), ragged)?;
        self.say(format_args!("reshape {} {}", x.index, y.index));
        let operation = Descriptor::new(Type::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?;
        let [from, to] = [x, y].map(|tensor| &self.tensors[tensor.index]);
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &[from])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &[to])?;
        self.operations.push(operation.finalized()?);
        Ok(y)
    }

    fn add(&mut self, operation: Descriptor, how: Descriptor) -> Result<(), Refusal> {
        self.operations.push(operation.finalized()?);
        self.parts.push(how);
        Ok(())
    }

    /// The plan of the best engine that takes the graph, for the GPU of `on`: the one that was kept, if
    /// cuDNN still takes it, else a new one.
    ///
    /// # Errors
    ///
    /// No engine takes it: what the last one said.
    pub(super) fn plan(self, on: &Place) -> Result<Plan, Refusal> {
        let Some(plans) = &on.plans else {
            return self.compiled(on);
        };
        let name = kept::name_of(&self.said);
        // Of threads that want the same plan one makes it.
        let _claim = plans.claim(&name);
        if let Some(json) = plans.get(&name) {
            match restored(&json, on) {
                Ok((plan, workspace)) => {
                    return Ok(Plan {
                        plan,
                        workspace,
                        scalars: self.scalars,
                        _made_of: None,
                    });
                }
                Err(refusal) => tracing::debug!("cuDNN does not take a kept plan ({refusal})"),
            }
        }
        let plan = self.compiled(on)?;
        // Without its text a plan is made again by the next process.
        match plan
            .plan
            .text(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
        {
            Ok(json) => plans.put(&name, &json),
            Err(refusal) => tracing::debug!("cuDNN has no text of a plan ({refusal})"),
        }
        Ok(plan)
    }

    fn compiled(self, on: &Place) -> Result<Plan, Refusal> {
        let graph = Descriptor::new(Type::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        let operations: Vec<&Descriptor> = self.operations.iter().collect();
        graph.set_parts(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations)?;
        on.set_handle(&graph, Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE)?;
        let graph = graph.finalized()?;

        let heuristics = Descriptor::new(Type::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristics.set_parts(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&graph])?;
        let mode = Heuristics::CUDNN_HEUR_MODE_A;
        heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?;
        on.set_properties(&heuristics, Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP)?;
        let heuristics = heuristics.finalized()?;
        let configurations = heuristics.parts(
            Name::CUDNN_ATTR_ENGINEHEUR_RESULTS,
            Type::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
            MOST_ENGINES,
        )?;
        let mut refusal = Refusal {
            status: sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED,
            reason: "no engine was proposed".to_owned(),
        };
        for configuration in configurations {
            match finished(&configuration, on) {
                Ok((plan, workspace)) => {
                    return Ok(Plan {
                        plan,
                        workspace,
                        scalars: self.scalars,
                        _made_of: Some([graph, configuration]),
                    });
                }
                Err(said) => refusal = said,
            }
        }
        Err(refusal)
    }
}

/// The plan of one configuration, and the bytes of its workspace.
fn finished(configuration: &Descriptor, on: &Place) -> Result<(Descriptor, usize), Refusal> {
    let plan = Descriptor::new(Type::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    plan.set_parts(
        Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
        &[configuration],
    )?;
    on.set_handle(&plan, Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE)?;
    on.set_properties(&plan, Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)?;
    with_workspace(plan.finalized()?)
}

/// The plan that a text of cuDNN's describes, with its compiled kernels, and the bytes of its workspace.
fn restored(json: &[u8], on: &Place) -> Result<(Descriptor, usize), Refusal> {
    let plan = Descriptor::new(Type::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    on.set_handle(&plan, Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE)?;
    on.set_properties(&plan, Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)?;
    plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, json)?;
    with_workspace(plan.finalized()?)
}

fn with_workspace(plan: Descriptor) -> Result<(Descriptor, usize), Refusal> {
    let bytes = plan.integer(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
    Ok((plan, usize::try_from(bytes).unwrap_or(0)))
}

/// Which GPU a plan is for, and what is kept of plans for such ones.
#[derive(Debug)]
pub(super) struct Place {
    gpu: Gpu,
    plans: Option<Files>,
}

#[derive(Debug)]
enum Gpu {
    /// That of the handle.
    Handle(cudnnHandle_t),
    /// One that is described to cuDNN by its properties: nothing is computed there.
    Described(Descriptor),
}

impl Place {
    /// The GPU of a handle.
    pub(super) fn of(handle: cudnnHandle_t, plans: Option<Files>) -> Self {
        Self {
            gpu: Gpu::Handle(handle),
            plans,
        }
    }

    /// The GPU of an index, without a handle: nothing is computed there.
    pub(super) fn of_device(index: i32, plans: Option<Files>) -> Result<Self, Refusal> {
        let properties = Descriptor::new(Type::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        properties.set(Name::CUDNN_ATTR_DEVICEPROP_DEVICE_ID, &[index])?;
        Ok(Self {
            gpu: Gpu::Described(properties.finalized()?),
            plans,
        })
    }

    /// A GPU of these properties, without one.
    pub(super) fn described(json: &str, plans: Option<Files>) -> Result<Self, Refusal> {
        let properties = Descriptor::new(Type::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        properties.set(
            Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
            json.as_bytes(),
        )?;
        Ok(Self {
            gpu: Gpu::Described(properties.finalized()?),
            plans,
        })
    }

    fn set_handle(&self, of: &Descriptor, name: Name) -> Result<(), Refusal> {
        match &self.gpu {
            Gpu::Handle(handle) => of.set(name, &[*handle]),
            Gpu::Described(_) => Ok(()),
        }
    }

    fn set_properties(&self, of: &Descriptor, name: Name) -> Result<(), Refusal> {
        match &self.gpu {
            Gpu::Handle(_) => Ok(()),
            Gpu::Described(properties) => of.set_parts(name, &[properties]),
        }
    }
}

/// How a GPU computes a graph.
#[derive(Debug)]
pub(super) struct Plan {
    plan: Descriptor,
    /// Bytes of scratch memory.
    pub(super) workspace: usize,
    scalars: Vec<(i64, f32)>,
    /// The graph and the configuration, unless the plan was kept.
    _made_of: Option<[Descriptor; 2]>,
}

impl Plan {
    /// Queues the plan on the stream of the handle.
    ///
    /// # Safety
    ///
    /// `places` names each tensor that the caller gives, with an address on the device of what the
    /// graph says of it; `workspace` has as many bytes as the plan asks for. All stay until the work is
    /// done.
    ///
    /// # Errors
    ///
    /// cuDNN or the driver refuses.
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
        let pack = pack.finalized()?;
        // SAFETY: the caller's contract; the numbers of the host are read before the call returns.
        checked(unsafe { sys::cudnnBackendExecute(handle, self.plan.raw(), pack.raw()) })
    }
}
