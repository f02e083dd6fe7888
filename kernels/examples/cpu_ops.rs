use tooltune_kernels::cpu::{
    gemm::gemm,
    matrix::{Matrix, MatrixMut},
};
fn cpu() -> f64 {
    unsafe {
        let mut t = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t);
        t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
    }
}
fn main() {
    let r = |n: usize| {
        (0..n)
            .map(|i| ((i * 7919 % 1000) as f32) / 500.0 - 1.0)
            .collect::<Vec<f32>>()
    };
    for (m, n, k) in [
        (1024, 576, 576),
        (1024, 1536, 576),
        (1024, 576, 1536),
        (128, 49152, 576),
        (2048, 2048, 2048),
        (1024, 4096, 4096),
        (1, 49152, 576),
        (8, 49152, 576),
        (8, 1536, 576),
        (32, 1536, 576),
        (40, 1536, 576),
        (1024, 8, 576),
        (1024, 8, 1536),
        (1536, 8, 1024),
        (8, 1536, 1024),
        (1024, 1536, 8),
    ] {
        for form in ["NT", "NN", "TN"] {
            let (a, b) = (r(m * k), r(n * k));
            let mut c = vec![std::mem::MaybeUninit::new(0f32); m * n];
            let am = if form == "TN" {
                Matrix::of_rows(&a, m).transposed()
            } else {
                Matrix::of_rows(&a, k)
            };
            let bm = if form == "NT" {
                Matrix::of_rows(&b, k).transposed()
            } else {
                Matrix::of_rows(&b, n)
            };
            let mut best = f64::MAX;
            for _ in 0..(5_000_000_000 / (m * n * k * 2)).max(3).min(100) {
                let t = cpu();
                gemm(MatrixMut::uninitialised(&mut c, n), &[(am, bm)]);
                best = best.min(cpu() - t);
            }
            println!(
                "{form} {m}x{n}x{k}: {:.3} ms {:.1} GFLOP/s {:.1} GB/s",
                best * 1e3,
                2.0 * (m * n * k) as f64 / best * 1e-9,
                4.0 * (m * k + n * k + m * n) as f64 / best * 1e-9
            );
        }
    }
}
