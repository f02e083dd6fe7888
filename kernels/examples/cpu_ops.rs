//! Speed of each operation on the CPU, fused and reference in turns, by CPU time of the process.
//!
//! `RAYON_NUM_THREADS=1 cargo run --release -p tooltune-kernels --example cpu_ops` prints the best
//! of several runs of each, at the sizes of SmolLM2-135M with 1,024 tokens in one document.

use burn::tensor::{Device, Distribution, Tensor};
use tooltune_kernels::attention::{self, Causality, Documents};
use tooltune_kernels::linear_cross_entropy::{linear_cross_entropy, reference as loss_reference};
use tooltune_kernels::{LoraFactors, RopeTable, Supervision};
use tooltune_kernels::{lora_linear, rms_norm, rope, swiglu};

const N: usize = 1024;
const ROUNDS: usize = 7;

fn main() {
    println!(
        "{:44}{:>12}{:>12}{:>8}",
        "operation", "fused", "reference", "ratio"
    );
    linear_layers();
    head();
    elementwise();
    attentions();
}

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

/// What a run is measured in, and how much of it there is.
enum Work {
    Flops(usize),
    Bytes(usize),
}

fn linear_layers() {
    for (rows, inputs, outputs) in [
        (N, 576, 576),
        (N, 576, 192),
        (N, 576, 1536),
        (N, 1536, 576),
        (1, 576, 1536),
        (8, 576, 1536),
    ] {
        let (x, weight) = (random([rows, inputs]), random([outputs, inputs]));
        let adapter = LoraFactors {
            a: random([8, inputs]),
            b: random([outputs, 8]),
            scaling: 2.0,
        };
        let flops = 2 * rows * (inputs * outputs + 8 * (inputs + outputs));
        compare(
            &format!("lora_linear {rows}x{inputs}x{outputs}"),
            Work::Flops(flops),
            &|| lora_linear::lora_linear(x.clone(), &weight, None, Some((&adapter, None))),
            &|| {
                lora_linear::reference::lora_linear(
                    x.clone(),
                    &weight,
                    None,
                    Some((&adapter, None)),
                )
            },
        );
        if rows == N {
            let run = |forward: &dyn Fn(Tensor<2>, &LoraFactors) -> Tensor<2>| {
                let tracked = Tensor::from_inner(x.clone()).require_grad();
                let leaf = |t: &Tensor<2>| Tensor::from_inner(t.clone()).require_grad();
                let factors = LoraFactors {
                    a: leaf(&adapter.a),
                    b: leaf(&adapter.b),
                    scaling: 2.0,
                };
                let y = forward(tracked.clone(), &factors);
                let found = y.sum().backward();
                tracked.grad(&found).expect("a leaf")
            };
            compare(
                &format!("lora_linear {rows}x{inputs}x{outputs}, both ways"),
                Work::Flops(2 * flops + 4 * rows * 8 * (inputs + outputs)),
                &|| run(&|x, f| lora_linear::lora_linear(x, &weight, None, Some((f, None)))),
                &|| {
                    run(&|x, f| {
                        lora_linear::reference::lora_linear(x, &weight, None, Some((f, None)))
                    })
                },
            );
        }
    }
}

fn head() {
    let (rows, vocab, d) = (256, 49152, 576);
    let (hidden, head) = (random([rows, d]), random([vocab, d]));
    let targets: Vec<u32> = (0..rows as u32).map(|i| i * 97 % vocab as u32).collect();
    let by = Supervision::new(&targets, &vec![1.0; rows]);
    compare(
        "linear_cross_entropy 256x576x49152",
        Work::Flops(4 * rows * vocab * d),
        &|| linear_cross_entropy(hidden.clone(), &head, &by, 1.0, 128).d_hidden,
        &|| {
            let hidden = Tensor::from_inner(hidden.clone()).require_grad();
            let loss = loss_reference::linear_cross_entropy(hidden.clone(), &head, &by);
            hidden.grad(&loss.backward()).expect("a leaf")
        },
    );
}

fn elementwise() {
    let (x, weight) = (random([N, 576]), random([576]));
    let both_ways = |work: &dyn Fn(Tensor<2>) -> Tensor<2>, x: &Tensor<2>| {
        let tracked = Tensor::from_inner(x.clone()).require_grad();
        let found = work(tracked.clone()).sum().backward();
        tracked.grad(&found).expect("a leaf")
    };
    let bytes = 4 * N * 576;
    compare(
        "rms_norm 1024x576",
        Work::Bytes(2 * bytes),
        &|| rms_norm::rms_norm(x.clone(), &weight, 1e-5),
        &|| rms_norm::reference::rms_norm(x.clone(), &weight, 1e-5),
    );
    compare(
        "rms_norm 1024x576, both ways",
        Work::Bytes(5 * bytes),
        &|| both_ways(&|x| rms_norm::rms_norm(x, &weight, 1e-5), &x),
        &|| both_ways(&|x| rms_norm::reference::rms_norm(x, &weight, 1e-5), &x),
    );
    let positions: Vec<u32> = (0..N as u32).collect();
    let table = RopeTable::new(&positions, &[0.1; 32], 1.0, &Device::flex());
    let heads = random([N, 9, 64]);
    compare(
        "rope 1024x9x64",
        Work::Bytes(2 * bytes),
        &|| rope::rope(heads.clone(), &table),
        &|| rope::reference::rope(heads.clone(), &table),
    );
    let (gate, up) = (random([N, 1536]), random([N, 1536]));
    let bytes = 4 * N * 1536;
    compare(
        "swiglu 1024x1536",
        Work::Bytes(3 * bytes),
        &|| swiglu::swiglu(gate.clone(), up.clone()),
        &|| swiglu::reference::swiglu(gate.clone(), up.clone()),
    );
    compare(
        "swiglu 1024x1536, both ways",
        Work::Bytes(8 * bytes),
        &|| both_ways(&|gate| swiglu::swiglu(gate, up.clone()), &gate),
        &|| both_ways(&|gate| swiglu::reference::swiglu(gate, up.clone()), &gate),
    );
}

fn attentions() {
    let (q, k, v) = (random([N, 9, 64]), random([N, 3, 64]), random([N, 3, 64]));
    for length in [N, N / 4] {
        let borders: Vec<usize> = (0..=N / length).map(|i| i * length).collect();
        let documents = Documents::new(&borders, N);
        let flops = 9 * 4 * 64 * N * length / 2;
        let name = format!("attention 9/3 heads of 64, {} documents", N / length);
        let args = || (q.clone(), k.clone(), v.clone());
        compare(
            &name,
            Work::Flops(flops),
            &|| {
                let (q, k, v) = args();
                attention::attention(q, k, v, &documents, Causality::Causal)
            },
            &|| {
                let (q, k, v) = args();
                attention::reference::attention(q, k, v, &documents, Causality::Causal)
            },
        );
        type Attend = fn(Tensor<3>, Tensor<3>, Tensor<3>, &Documents, Causality) -> Tensor<3>;
        let run = |attend: Attend| {
            let [q, k, v] = [&q, &k, &v].map(|x| Tensor::from_inner(x.clone()).require_grad());
            let y = attend(q.clone(), k, v, &documents, Causality::Causal);
            q.grad(&y.sum().backward()).expect("a leaf")
        };
        compare(
            &format!("{name}, both ways"),
            Work::Flops(flops * 7 / 2),
            &|| run(attention::attention),
            &|| run(attention::reference::attention),
        );
    }
    let (q, keys, values) = (
        random([8, 9, 64]),
        random([8, 3, 1024, 64]),
        random([8, 3, 1024, 64]),
    );
    compare(
        "decode, 8 rows, 1000 columns",
        Work::Bytes(2 * 4 * 8 * 3 * 1000 * 64),
        &|| attention::decode(q.clone(), &keys, &values, &[0; 8], 1000),
        &|| attention::reference::decode(q.clone(), &keys, &values, &[0; 8], 1000),
    );
}

/// Runs both in turns and prints the best of each.
fn compare<const D: usize>(
    name: &str,
    work: Work,
    fused: &dyn Fn() -> Tensor<D>,
    reference: &dyn Fn() -> Tensor<D>,
) {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for (best, run) in best.iter_mut().zip([fused, reference]) {
            let start = cpu_seconds();
            let result = run();
            *best = best.min(cpu_seconds() - start);
            drop(result);
        }
    }
    let rate = |seconds: f64| match work {
        Work::Flops(n) => format!("{:.0} GF/s", n as f64 / seconds * 1e-9),
        Work::Bytes(n) => format!("{:.1} GB/s", n as f64 / seconds * 1e-9),
    };
    println!(
        "{name:44}{:>12}{:>12}{:>8.1}",
        rate(best[0]),
        rate(best[1]),
        best[1] / best[0]
    );
}

/// CPU time of all threads so far.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec`, which lives on this stack.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
