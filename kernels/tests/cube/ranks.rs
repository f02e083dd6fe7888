//! Sums of several processes with a GPU each, by NCCL.
//!
//! A test starts this program once per rank, for each number of ranks that the machine has GPUs for.

use std::process::{Child, Command};

use burn::tensor::{Device, Tensor};
use tooltune_kernels::gpu;
use tooltune_kernels::gradient_sum::{GradientSum, LIMIT, reference};
use tooltune_kernels::nccl::{self, Communicator, UniqueId};

use crate::support::{Numbers, keep_kernels, values};

/// Environment variable of a rank: its number, the number of ranks, and the id in hexadecimal.
const RANK: &str = "TOOLTUNE_TEST_RANK";

/// Runs the test `name` in 1, 2, 3 and 4 processes, and `member` in each of them.
fn in_ranks(name: &str, member: impl Fn(&Communicator, &Device)) {
    in_ranks_with(name, |[communicator], device| {
        communicator.warm_up(1000).expect("the first sum");
        member(&communicator, device);
        communicator.close().expect("closes");
    });
}

/// Runs the test `name` in 1, 2, 3 and 4 processes, and `member` in each of them with `N`
/// communicators.
pub(crate) fn in_ranks_with<const N: usize>(
    name: &str,
    member: impl Fn([Communicator; N], &Device),
) {
    if let Ok(rank) = std::env::var(RANK) {
        let words: Vec<&str> = rank.split(' ').collect();
        let [rank, world_size] = [words[0], words[1]].map(|word| word.parse().expect("a number"));
        keep_kernels();
        let device = Device::cuda(rank);
        let joined = std::array::from_fn(|i| {
            let id = |at: usize| {
                u8::from_str_radix(&words[2 + i][2 * at..2 * at + 2], 16).expect("a byte")
            };
            let id = UniqueId(std::array::from_fn(id));
            let joined = Communicator::new(&device, &id, rank, world_size);
            joined.unwrap_or_else(|error| panic!("{error}"))
        });
        member(joined, &device);
        return;
    }
    if let Err(problem) = nccl::version() {
        eprintln!("not run: {problem}");
        return;
    }
    let n_gpus = gpu::driver().expect("a driver").gpus.len();
    for world_size in (1..=4).filter(|&world_size| world_size <= n_gpus) {
        let ids = [0; N].map(|_| hexadecimal(&UniqueId::new().expect("an id")));
        let id = ids.join(" ");
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", name, "--nocapture", "--test-threads", "1"]);
            command.env(RANK, format!("{rank} {world_size} {id}"));
            command.spawn().expect("a process")
        };
        let children: Vec<Child> = (0..world_size).map(start).collect();
        let statuses = children
            .into_iter()
            .map(|mut child| child.wait().expect("ends"));
        for (rank, status) in statuses.collect::<Vec<_>>().into_iter().enumerate() {
            assert!(status.success(), "rank {rank} of {world_size}: {status}");
        }
    }
}

fn hexadecimal(id: &UniqueId) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bits(x: Tensor<1>) -> Vec<u32> {
    values(x).into_iter().map(f32::to_bits).collect()
}

/// The numbers of the parts that a rank has; the last rank has none if there are few.
fn share(n_parts: usize, rank: usize, world_size: usize) -> impl Iterator<Item = usize> {
    (0..n_parts).filter(move |i| i * 7 % world_size == rank)
}

/// The sum of one rank.
fn sum_of_rank(parts: &[Tensor<1>], communicator: &Communicator, device: &Device) -> GradientSum {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let mut sum = GradientSum::new(parts[0].dims()[0], parts.len()).for_ranks(world_size);
    share(parts.len(), rank, world_size).for_each(|i| sum.add(parts[i].clone().to_device(device)));
    sum
}

/// The same sum, added on the hosts of all ranks.
fn sum_on_hosts(parts: &[Tensor<1>], world_size: usize) -> Tensor<1> {
    let mut total: Vec<i64> = Vec::new();
    let mut last = None;
    // In the second round, each rank gets the total of the first one.
    for round in 0..2 {
        for rank in 0..world_size {
            let mut sum = GradientSum::new(parts[0].dims()[0], parts.len());
            share(parts.len(), rank, world_size).for_each(|i| sum.add(parts[i].clone()));
            let mut add_all = |sums: &mut [i64]| {
                total.resize(sums.len(), 0);
                match round {
                    0 => total.iter_mut().zip(sums).for_each(|(a, b)| *a += *b),
                    _ => sums.copy_from_slice(&total),
                }
                Ok::<(), ()>(())
            };
            last = sum.finish(&parts[0], Some(&mut add_all)).ok();
        }
    }
    last.expect("at least one rank")
}

#[test]
fn gradients_of_several_gpus_have_the_bits_of_the_exact_sum() {
    let name = "ranks::gradients_of_several_gpus_have_the_bits_of_the_exact_sum";
    in_ranks(name, |communicator, device| {
        let mut numbers = Numbers::new(51);
        let like = |part: &Tensor<1>| part.clone().to_device(device);
        for (n, n_parts) in [(1, 2), (5, 1), (31, 4), (1000, 3), (1024, 8), (50_003, 5)] {
            let parts: Vec<Tensor<1>> = (0..n_parts)
                .map(|i| numbers.tensor([n]).mul_scalar(10.0_f64.powi(-2 * i)))
                .collect();
            let sum = sum_of_rank(&parts, communicator, device);
            sum.wait();
            let ours = sum
                .finish_on_gpus(&like(&parts[0]), communicator)
                .expect("a sum");
            let ours = bits(ours);
            let name = format!("{n} values, {n_parts} parts");
            assert_eq!(ours, bits(reference::sum(&parts)), "{name}: reference");
            let on_hosts = sum_on_hosts(&parts, communicator.world_size());
            assert_eq!(ours, bits(on_hosts), "{name}: hosts");
        }
        // Values out of range, in the first or the last part.
        for (value, is_nan) in [
            (LIMIT.next_down(), false),
            (-LIMIT, true),
            (f32::INFINITY, true),
            (f32::NAN, true),
        ] {
            for at in [0, 3] {
                let part = |i: usize| {
                    let last = if i == at { value } else { 0.25 };
                    Tensor::<1>::from_data([0.5, -1.0, last], &Device::flex())
                };
                let parts: Vec<Tensor<1>> = (0..4).map(part).collect();
                let sum = sum_of_rank(&parts, communicator, device);
                let ours = sum
                    .finish_on_gpus(&like(&parts[0]), communicator)
                    .expect("a sum");
                let ours = values(ours);
                assert_eq!(ours[0].is_nan(), is_nan, "{value} in part {at}");
                let expected = values(reference::sum(&parts));
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&ours), bits(&expected), "{value} in part {at}");
            }
        }
        // Vectors of rank 0.
        let vectors: [Tensor<1>; 3] = [0; 3].map(|_| numbers.tensor([777]));
        let own = vectors.each_ref().map(|vector| {
            let factor = if communicator.rank() == 0 { 1.0 } else { 5.0 };
            like(vector).mul_scalar(factor)
        });
        let given = communicator.broadcast(own).expect("a broadcast");
        assert_eq!(given.map(bits), vectors.map(bits), "vectors of rank 0");
    });
}

#[test]
fn gradients_of_another_thread_are_added_after_their_computation() {
    let name = "ranks::gradients_of_another_thread_are_added_after_their_computation";
    in_ranks(name, |communicator, device| {
        let mut numbers = Numbers::new(52);
        let parts: Vec<Tensor<1>> = (0..4).map(|_| numbers.tensor([3000])).collect();
        let add = || sum_of_rank(&parts, communicator, device);
        // Still in that thread's queue when it ends.
        let sum = std::thread::scope(|scope| scope.spawn(add).join());
        let like = parts[0].clone().to_device(device);
        let sum = sum.expect("the other thread does not panic");
        let ours = sum.finish_on_gpus(&like, communicator).expect("a sum");
        assert_eq!(bits(ours), bits(reference::sum(&parts)));
    });
}

/// This needs no GPU, only the library.
#[test]
fn groups_have_ids_of_their_own() {
    let version = match nccl::version() {
        Ok(version) => version,
        Err(problem) => return eprintln!("not run: {problem}"),
    };
    assert!(version >= 21_300, "{version}");
    println!("NCCL {}", nccl::version_name(version));
    let [first, second] = [0; 2].map(|_| UniqueId::new().expect("an id"));
    assert_ne!(first, second);
    println!("id {}", hexadecimal(&first));
}

#[test]
fn versions_have_names() {
    assert_eq!(nccl::version_name(23_203), "2.32.3");
    assert_eq!(nccl::version_name(21_805), "2.18.5");
    assert_eq!(nccl::version_name(2_804), "2.8.4");
}
