//! Tensors in memory that was another tensor's before.
//!
//! A program of its own, whose tests take turns: operations of other threads take memory from the
//! same pool.

#[path = "../../tests/support/bounds.rs"]
mod bounds;
#[path = "../../tests/support/place.rs"]
mod place;

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::Flex;
use burn::tensor::{DType, Device, Distribution, Tensor};
use tooltune_kernels::cpu::pool::release;
use tooltune_kernels::swiglu::{reference, swiglu};

use bounds::Quantity;

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
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
fn a_result_lies_where_the_last_one_of_its_size_lay_and_holds_its_own_numbers() {
    let _turn = turn();
    let inputs: Vec<_> = (0..3).map(|_| random([311, 2 * 1237])).collect();
    let first = swiglu(inputs[0].clone());
    let place = address(&first);
    drop(first);
    for input in &inputs {
        let y = swiglu(input.clone());
        assert_eq!(address(&y), place);
        let expected = reference::swiglu(input.clone());
        for (ours, expected) in values(&y).iter().zip(values(&expected)) {
            let off = f64::from(ours - expected) / f64::from(1.0 + expected.abs());
            assert!(off.abs() <= Quantity::Operation.bound(), "{off}");
        }
    }
}

#[test]
fn results_that_live_at_once_share_no_memory() {
    let _turn = turn();
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
fn burns_operations_change_and_copy_and_cut_such_memory_as_any_other() {
    let _turn = turn();
    for dtype in [DType::F32, DType::BF16] {
        let input = random([90, 2 * 400]).cast(dtype);
        let y = swiglu(input.clone());
        let before = values(&y);
        // Shared: the change must go to a copy.
        let changed = y.clone().mul_scalar(2.0).add(y.clone());
        assert_eq!(values(&y), before);
        for (changed, before) in values(&changed).iter().zip(&before) {
            let off = f64::from(changed - 3.0 * before).abs();
            let most = Quantity::Operation.bound_in(dtype) * 3.0 * f64::from(before.abs());
            assert!(off <= most, "{changed} {before}");
        }
        // Alone: the change may be made in place.
        let place = address(&y);
        let y = y.mul_scalar(2.0);
        assert_eq!(address(&y), place, "changed in place");
        let part = y.clone().slice([3..5, 7..9]);
        let expected: Vec<f32> = [3 * 400 + 7, 3 * 400 + 8, 4 * 400 + 7, 4 * 400 + 8]
            .map(|i| 2.0 * before[i])
            .to_vec();
        assert_eq!(values(&part), expected);
        let data = y.into_data().convert::<f32>();
        let taken: Vec<f32> = data.try_into_vec().expect("f32");
        assert!(
            taken
                .iter()
                .zip(&before)
                .all(|(taken, before)| *taken == 2.0 * before)
        );
    }
}

#[test]
fn tensors_outlive_the_release_of_the_pool() {
    let _turn = turn();
    let input = random([400, 2 * 300]);
    let y = swiglu(input.clone());
    let before = values(&y);
    drop(swiglu(input.clone()));
    release();
    let again = swiglu(input);
    assert_eq!(values(&y), before);
    assert_eq!(values(&again), before);
    drop(y);
    release();
    assert_eq!(values(&again), before);
}

/// The resident set, in bytes.
#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("what the system says");
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    kibibytes.map_or(0, |kibibytes: usize| kibibytes * 1024)
}

#[cfg(target_os = "linux")]
#[test]
fn a_release_gives_pages_back_though_a_tensor_lies_behind_them() {
    let _turn = turn();
    release();
    let [n, d] = [4_000, 2_000];
    let input = random([n, 2 * d]);
    let before = resident_bytes();
    let (large, behind) = (
        swiglu(input.clone()),
        swiglu(input.clone().narrow(0, 0, 20)),
    );
    let values_behind = values(&behind);
    let bytes = n * d * 4;
    assert!(resident_bytes() > before + bytes * 9 / 10);
    drop(large);
    // For the next step, which has them at once.
    assert!(resident_bytes() > before + bytes * 9 / 10);
    release();
    assert!(resident_bytes() < before + bytes / 4);
    assert_eq!(values(&behind), values_behind);
    let again = swiglu(input);
    assert_eq!(values(&again)[..20 * d], values_behind);
}
