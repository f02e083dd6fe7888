//! Tensors in memory that another tensor used before.
//!
//! A separate program whose tests run one at a time, because operations of other threads use the
//! same pool.

#[path = "../../tests/support/bounds.rs"]
mod bounds;
#[path = "../../tests/support/test_device.rs"]
mod test_device;

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::Flex;
use burn::tensor::{DType, Device, Distribution, Tensor};
use tooltune_kernels::cpu::pool::release;
use tooltune_kernels::swiglu::{reference, swiglu};

use bounds::Quantity;

static POOL_LOCK: Mutex<()> = Mutex::new(());

fn lock_pool() -> MutexGuard<'static, ()> {
    POOL_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random(shape: [usize; 2]) -> Tensor<2> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

fn values(x: &Tensor<2>) -> Vec<f32> {
    x.clone().into_data().iter::<f32>().collect()
}

fn address(x: &Tensor<2>) -> usize {
    let primitive = x.clone().try_into_primitive::<Flex>();
    primitive.expect("a tensor on the CPU").bytes().as_ptr() as usize
}

#[test]
fn a_result_reuses_the_memory_of_the_last_one_of_its_size() {
    let _turn = lock_pool();
    let inputs: Vec<_> = (0..3).map(|_| random([311, 2 * 1237])).collect();
    let first = swiglu(inputs[0].clone());
    let memory = address(&first);
    drop(first);
    for input in &inputs {
        let y = swiglu(input.clone());
        assert_eq!(address(&y), memory);
        let expected = reference::swiglu(input.clone());
        for (ours, expected) in values(&y).iter().zip(values(&expected)) {
            let off = f64::from(ours - expected) / f64::from(1.0 + expected.abs());
            assert!(off.abs() <= Quantity::Operation.bound(), "{off}");
        }
    }
}

#[test]
fn live_results_share_no_memory() {
    let _turn = lock_pool();
    let input = random([157, 2 * 811]);
    let all: Vec<_> = (0..20).map(|_| swiglu(input.clone())).collect();
    let mut places: Vec<_> = all.iter().map(address).collect();
    places.sort_unstable();
    assert!(
        places
            .windows(2)
            .all(|pair| pair[1] - pair[0] >= 157 * 811 * 4)
    );
    let first = values(&all[0]);
    assert!(all.iter().all(|y| values(y) == first));
}

#[test]
fn burn_operations_work_on_pooled_memory() {
    let _turn = lock_pool();
    for dtype in [DType::F32, DType::BF16] {
        let input = random([90, 2 * 400]).cast(dtype);
        let y = swiglu(input.clone());
        let original = values(&y);
        // Shared: the change must be made in a copy.
        let changed = y.clone().mul_scalar(2.0).add(y.clone());
        assert_eq!(values(&y), original);
        for (changed, original) in values(&changed).iter().zip(&original) {
            let off = f64::from(changed - 3.0 * original).abs();
            let most = Quantity::Operation.bound_in(dtype) * 3.0 * f64::from(original.abs());
            assert!(off <= most, "{changed} {original}");
        }
        // Not shared: the change may be made in place.
        let place = address(&y);
        let y = y.mul_scalar(2.0);
        assert_eq!(address(&y), place, "changed in place");
        let part = y.clone().slice([3..5, 7..9]);
        let expected: Vec<f32> = [3 * 400 + 7, 3 * 400 + 8, 4 * 400 + 7, 4 * 400 + 8]
            .map(|i| 2.0 * original[i])
            .to_vec();
        assert_eq!(values(&part), expected);
        let data = y.into_data().convert::<f32>();
        let taken: Vec<f32> = data.try_into_vec().expect("f32");
        assert!(
            taken
                .iter()
                .zip(&original)
                .all(|(taken, original)| *taken == 2.0 * original)
        );
    }
}

#[test]
fn tensors_outlive_the_release_of_the_pool() {
    let _turn = lock_pool();
    let input = random([400, 2 * 300]);
    let y = swiglu(input.clone());
    let original = values(&y);
    drop(swiglu(input.clone()));
    release();
    let again = swiglu(input);
    assert_eq!(values(&y), original);
    assert_eq!(values(&again), original);
    drop(y);
    release();
    assert_eq!(values(&again), original);
}

/// The resident set, in bytes.
#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status is readable");
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    kibibytes.map_or(0, |kibibytes: usize| kibibytes * 1024)
}

#[cfg(target_os = "linux")]
#[test]
fn a_release_returns_pages_below_a_live_tensor() {
    let _turn = lock_pool();
    release();
    let [n, d] = [4_000, 2_000];
    let input = random([n, 2 * d]);
    let initial = resident_bytes();
    let (large, small) = (
        swiglu(input.clone()),
        swiglu(input.clone().narrow(0, 0, 20)),
    );
    let values_behind = values(&small);
    let bytes = n * d * 4;
    assert!(resident_bytes() > initial + bytes * 9 / 10);
    drop(large);
    // The pages are kept for the next step.
    assert!(resident_bytes() > initial + bytes * 9 / 10);
    release();
    assert!(resident_bytes() < initial + bytes / 4);
    assert_eq!(values(&small), values_behind);
    let again = swiglu(input);
    assert_eq!(values(&again)[..20 * d], values_behind);
}
