//! Generates the CUDA C++ source of every kernel on a machine without CUDA.
//!
//! CubeCL generates this source when a kernel is first launched, and passes it to NVRTC. This
//! module generates it for a device description, so that it can be compiled and its registers
//! counted without a GPU.

use std::sync::Arc;

use burn::backend::StreamId;
use cubecl::cmma::MatrixLayout;
use cubecl::ir::features::Plane;
use cubecl::ir::{
    ContiguousElements, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties,
    MemoryDeviceProperties, MmaProperties, TargetProperties,
};
use cubecl::prelude::{BufferArg, CubeCount, CubeDim};
use cubecl::server::Handle;
use cubecl::{CubeKernel, define_kernel};
use cubecl_common::device::{DeviceId, ServiceId};
use cubecl_common::profile::TimingMethod;
use cubecl_cpp::cuda::arch::CudaArchitecture;
use cubecl_cpp::cuda::mma::CudaCmmaCompiler;
use cubecl_cpp::cuda::mma::manual::contiguous_elements_cuda;
use cubecl_cpp::register_supported_types;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, register_wmma_features};
use cubecl_cpp::target::Cuda;

/// Dtypes of activations and weights.
pub(crate) const ELEMENTS: [ElemType; 2] = [
    ElemType::Float(FloatKind::F32),
    ElemType::Float(FloatKind::BF16),
];

/// A kernel in the form that NVRTC receives.
#[derive(Debug, Clone)]
pub struct Source {
    /// The kernel's name, its compile-time sizes and its element type.
    pub name: String,
    /// CUDA C++.
    pub text: String,
    /// Bytes of shared memory per launch.
    pub shared_bytes: usize,
    /// Threads per block.
    pub units: u32,
}

/// Every kernel in every variant that training launches: f32 and bf16, with the widest vectors.
///
/// # Errors
///
/// A kernel that does not compile to CUDA C++: its name and the compiler's reason.
pub fn sources() -> Result<Vec<Source>, String> {
    let mut sources = Sources::new();
    crate::embedding::cuda::sources(&mut sources);
    crate::frozen_weight::quantised::cuda::sources(&mut sources);
    crate::rms_norm::cuda::sources(&mut sources);
    crate::head_norm::cuda::sources(&mut sources);
    crate::gated_delta::walk_on_gpu::sources(&mut sources);
    crate::select_rows::cuda::sources(&mut sources);
    crate::rope::cuda::sources(&mut sources);
    crate::swiglu::cuda::sources(&mut sources);
    crate::attention::cuda::sources(&mut sources);
    crate::dropout::cuda::sources(&mut sources);
    crate::lora_linear::low_rank::sources(&mut sources);
    crate::linear_cross_entropy::cuda::sources(&mut sources);
    crate::masked_argmax::cuda::sources(&mut sources);
    crate::gradient_sum::cuda::sources(&mut sources);
    crate::adamw::cuda::sources(&mut sources);
    sources.sources.into_iter().collect()
}

/// The target device, and the sources so far.
pub(crate) struct Sources {
    device: Arc<DeviceProperties>,
    target: Arc<TargetProperties>,
    sources: Vec<Result<Source, String>>,
}

impl Sources {
    fn new() -> Self {
        Self {
            device: Arc::new(device()),
            target: Arc::new(target()),
            sources: Vec::new(),
        }
    }

    /// Arguments of a kernel's constructor: the device, the target and an unused grid.
    pub(crate) fn device(&self) -> (Arc<DeviceProperties>, Arc<TargetProperties>, CubeCount) {
        (
            self.device.clone(),
            self.target.clone(),
            CubeCount::Static(1, 1, 1),
        )
    }

    /// A placeholder buffer for an argument.
    pub(crate) fn buffer(&self) -> BufferArg {
        let service = ServiceId::of::<Self>(DeviceId::new(0, 0));
        let stream = StreamId { value: 0 };
        // SAFETY: nothing is launched, so nothing accesses the buffer.
        unsafe { BufferArg::from_raw_parts(Handle::new(service, stream, 1 << 20), 1 << 16) }
    }

    /// Adds the source of `kernel`; `form` distinguishes its variants.
    pub(crate) fn add(&mut self, form: &str, dim: CubeDim, kernel: impl CubeKernel) {
        self.sources.push(source(form, dim, &kernel));
    }
}

fn source(form: &str, dim: CubeDim, kernel: &impl CubeKernel) -> Result<Source, String> {
    let definition = define_kernel(kernel).map_err(|error| format!("{form}: {error:?}"))?;
    let name = format!("{} {form}", definition.settings.kernel_name);
    let mut options = CompilationOptions::default();
    options.supports_features.grid_constants = true;
    let mut compiler = CppCompiler::<Cuda>::default();
    let compiled = cubecl::Compiler::compile(&mut compiler, definition, &options)
        .map_err(|error| format!("{name}: {error}"))?;
    Ok(Source {
        text: compiled.source,
        shared_bytes: compiled.shared_memory_size,
        units: dim.num_elems(),
        name,
    })
}

/// An A100, the oldest GPU with bf16; later GPUs accept the same source.
fn device() -> DeviceProperties {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 1024,
        max_shared_memory_size: 163 << 10,
        max_cube_count: (i32::MAX as u32, 65535, 65535),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(108),
        num_cpu_cores: None,
        last_level_cache_size: None,
        num_tensor_cores: Some(4),
        min_tensor_cores_dim: Some(8),
        max_vector_size: usize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let mut device = DeviceProperties::new(
        Default::default(),
        MemoryDeviceProperties::new(1 << 34, 512),
        hardware,
        TimingMethod::Device,
        DeviceIdentity::default(),
    );
    register_supported_types(&mut device);
    let architecture = CudaArchitecture {
        version: 80,
        tensor_cores: true,
    };
    let combinations = CudaCmmaCompiler::Cpp.supported_cmma_combinations(&architecture);
    register_wmma_features(combinations, &mut device);
    device.features.plane.insert(Plane::Ops);
    device.features.plane.insert(Plane::Sync);
    device.features.memory_reinterpret = true;
    device.features.alignment = true;
    device
}

fn target() -> TargetProperties {
    TargetProperties {
        mma: MmaProperties {
            register_size_bits: 32,
            const_plane_size: 32,
            register_layout_a: MatrixLayout::RowMajor,
            register_layout_b: MatrixLayout::ColMajor,
            register_layout_acc: MatrixLayout::RowMajor,
            register_duplication_a: 1,
            register_duplication_b: 1,
            register_duplication_acc: 1,
            contiguous_elements: ContiguousElements::new(contiguous_elements_cuda),
        },
    }
}
