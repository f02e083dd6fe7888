//! `doctor` with several processes: each checks its machine, then they time their connections.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tooltune_ranks::preflight::{Preflight, Timed, measure};
use tooltune_ranks::{Launch, Ranks, Settings, local};

use super::super::train::ranks;
use super::super::{DeviceOption, count_noun, plain_table, print_line};
use super::{list_problems, load, print_findings};
use crate::cli::DoctorArgs;
use crate::config::Device;
use crate::device;
use crate::doctor::{check_machine, gradient_bytes};
use crate::error::Error;
use crate::eval::served::{from_bytes, to_bytes};
use crate::models::load::FrozenWeights;
use crate::process::available_memory_bytes;
use crate::recipes::data_plane::DataPlane;

/// Bytes of a megabyte.
const MEGABYTE: u64 = 1_000_000;

/// Sizes of sums and gathered messages that are always measured.
const BYTES: [u64; 2] = [MEGABYTE, 64 * MEGABYTE];

/// GPU memory that a sum needs, as a multiple of its bytes: integers, pieces, parts and results.
const NCCL_COPIES: u64 = 4;

/// What a rank reports about its machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    /// The problems, one per line; empty if there are none.
    problems: String,
    /// Available memory, divided by the ranks of the host.
    memory_bytes: Option<u64>,
}

/// Checks this rank's machine, and measures the connections together with the other ranks.
///
/// # Errors
///
/// - A rank does not arrive, is lost, or has another program, config or the same GPU.
/// - A machine is not ready.
pub(super) fn run(
    args: &DoctorArgs,
    device_option: &DeviceOption,
    launch: &Launch,
) -> Result<(), Error> {
    local::watch_parent(launch)?;
    let (mut config, device) = load(args, device_option)?;
    let device = ranks::device_of_rank(device, launch);
    if let Some(config) = &mut config {
        config.device = device;
        ranks::check_world_size(launch.world_size, config)?;
    }
    let defaults = Settings::default();
    let settings = Settings {
        meeting_seconds: args.wait.unwrap_or(defaults.meeting_seconds),
        ..defaults
    };
    let mut connected = ranks::connect(launch, device, config.as_ref(), settings)?;
    let is_leader = connected.is_leader();
    let checked = (|| {
        let findings = check_machine(config.as_ref(), device);
        if is_leader {
            print_findings(&findings)?;
        }
        let report = Report {
            problems: list_problems(&findings),
            memory_bytes: available_memory_bytes()
                .map(|bytes| bytes / launch.local_world_size.max(1) as u64),
        };
        let own_bytes = config.as_ref().and_then(gradient_bytes);
        compare(&mut connected, &report, (device, own_bytes), args.megabytes)
    })();
    match checked {
        Ok(problems) => {
            connected.end()?;
            match problems {
                problems if problems.is_empty() && is_leader => print_line("the ranks are ready"),
                problems if problems.is_empty() => Ok(()),
                problems => Err(Error::Usage(format!("not ready:\n{problems}"))),
            }
        }
        Err(Error::Ranks(error)) if !is_leader => Err(Error::OtherRank(error)),
        Err(error) => {
            connected.fail(&error.to_string(), error.status_for_other_ranks());
            Err(error)
        }
    }
}

/// Measures the connections, and prints the results on rank 0. Returns the problems of all ranks on
/// rank 0, and an empty text on the others.
fn compare(
    ranks: &mut Ranks,
    report: &Report,
    (device, own_bytes): (Device, Option<u64>),
    megabytes: Option<u64>,
) -> Result<String, Error> {
    let Some(reports) = ranks.gather(&to_bytes(report))? else {
        measure(ranks, &[])?;
        measure_nccl(ranks, device, &[])?;
        return Ok(String::new());
    };
    let reports = reports.iter().map(|bytes| from_bytes(bytes));
    let reports: Vec<Report> = reports.collect::<Result<_, Error>>()?;
    let wanted = own_bytes.into_iter().chain(megabytes.map(|n| n * MEGABYTE));
    let wanted: BTreeSet<u64> = BYTES.into_iter().chain(wanted).collect();
    let mut sizes = Vec::new();
    for bytes in wanted {
        match too_little_memory(&reports, bytes) {
            None => sizes.push(usize::try_from(bytes).unwrap_or(usize::MAX)),
            Some((rank, available)) => print_line(&format!(
                "not measured: {} needs twice that memory, and rank {rank} has {} available",
                in_megabytes(bytes),
                in_megabytes(available)
            ))?,
        }
    }
    let measured = measure(ranks, &sizes)?;
    if reports.iter().any(|report| !report.problems.is_empty()) {
        sizes.clear();
    }
    let by_nccl = measure_nccl(ranks, device, &sizes)?;
    if let Some(measured) = measured {
        print_measured(ranks, &measured, (device, &by_nccl), own_bytes)?;
    }
    let problems = reports.iter().enumerate().filter_map(|(rank, report)| {
        let host = &ranks.hosts()[rank];
        (!report.problems.is_empty())
            .then(|| format!("rank {rank} on {host}:\n{}", report.problems))
    });
    Ok(problems.collect::<Vec<_>>().join("\n"))
}

/// The first rank with too little memory for sums and messages of this size, and its memory.
fn too_little_memory(reports: &[Report], bytes: u64) -> Option<(usize, u64)> {
    let memory = reports.iter().enumerate();
    let mut memory = memory.filter_map(|(rank, report)| Some((rank, report.memory_bytes?)));
    memory.find(|(_, available)| available / 2 < bytes)
}

/// Measures sums between GPUs; returns those of rank 0's sizes, and none without NCCL. All ranks call
/// it.
///
/// - `bytes`: sizes of rank 0; the other ranks' are ignored.
fn measure_nccl(ranks: &mut Ranks, device: Device, bytes: &[usize]) -> Result<Vec<Timed>, Error> {
    let sizes: Vec<usize> = from_bytes(&ranks.broadcast(to_bytes(&bytes))?)?;
    if sizes.is_empty() || device == Device::Cpu {
        return Ok(Vec::new());
    }
    let opened = device::open(device)?;
    let mut data_plane = DataPlane::open(ranks, &opened, device, FrozenWeights::Resident)?;
    if let Some(description) = data_plane.description().filter(|_| ranks.is_leader()) {
        print_line(description)?;
    }
    let free = device::free_memory_bytes(&opened);
    let free = ranks.gather(&to_bytes(&free.unwrap_or(u64::MAX)))?;
    let free = free.unwrap_or_default();
    let free = free.iter().map(|bytes| from_bytes::<u64>(bytes));
    let least = free.collect::<Result<Vec<_>, _>>()?.into_iter().min();
    let least: Option<u64> = from_bytes(&ranks.broadcast(to_bytes(&least))?)?;
    let fits = |bytes: &usize| least.is_none_or(|least| *bytes as u64 <= least / NCCL_COPIES);
    let mut measured = Vec::new();
    for bytes in sizes.into_iter().filter(fits) {
        let time = data_plane.time_sum(bytes / size_of::<i64>(), &opened, ranks)?;
        measured.extend(time.map(|time| Timed { bytes, time }));
    }
    data_plane.close()?;
    Ok(measured)
}

fn print_measured(
    ranks: &Ranks,
    measured: &Preflight,
    (device, by_nccl): (Device, &Vec<Timed>),
    own_bytes: Option<u64>,
) -> Result<(), Error> {
    let hosts: BTreeSet<&String> = ranks.hosts().iter().collect();
    print_line(&format!(
        "{} on {}, measured by rank 0 on {} (medians):",
        count_noun(ranks.world_size(), "rank"),
        count_noun(hosts.len(), "host"),
        ranks.hosts()[0]
    ))?;
    let name = |rank: usize| format!("rank {rank} on {}", ranks.hosts()[rank]);
    let mut table = plain_table();
    if let Some(pair) = measured.most_distant() {
        let longest = format!("at most {}, to {}", in_units(pair.longest), name(pair.rank));
        table.add_row(["round trip", "", &in_units(pair.round_trip), &longest]);
    }
    let order = in_units(measured.order);
    table.add_row(["order and replies", "", &order, "with all ranks"]);
    let timed = [
        ("sums", &measured.sums),
        ("sums by NCCL", by_nccl),
        ("messages", &measured.gathers),
    ];
    for (subject, list) in timed {
        for one in list {
            let bytes = in_megabytes(one.bytes as u64);
            let rate = in_gigabytes(one.rate());
            table.add_row([subject, &bytes, &in_units(one.time), &rate]);
        }
    }
    print_line(&table.trim_fmt())?;
    if let Some(pair) = measured.slowest() {
        print_line(&format!(
            "slowest rank: {}, {} from rank 0 and {} to rank 0",
            name(pair.rank),
            in_gigabytes(pair.to_rank),
            in_gigabytes(pair.from_rank)
        ))?;
    }
    let own = |sum: &&Timed| Some(sum.bytes as u64) == own_bytes;
    let fastest = by_nccl.iter().find(own);
    let Some(sum) = fastest.or_else(|| measured.sums.iter().find(own)) else {
        return Ok(());
    };
    let n_ranks = ranks.world_size();
    let bandwidth = match device {
        Device::Cpu => Some(bandwidth_of_leader(sum, n_ranks)),
        // `plan` expects NCCL.
        Device::Cuda(_) => fastest.map(|sum| bandwidth_of_gpus(sum, n_ranks)),
    };
    let prediction = bandwidth.map_or_else(String::new, |bandwidth| {
        let bandwidth = bandwidth / 1e9;
        format!(
            "; predict the run with `tooltune plan --ranks {n_ranks} --bandwidth {bandwidth:.4}`"
        )
    });
    print_line(&format!(
        "each step of this run adds {} per rank: about {}{prediction}",
        in_megabytes(sum.bytes as u64),
        in_units(sum.time)
    ))
}

/// Bytes per second that rank 0 sends and receives during a sum: the values of each other rank, and
/// the sums for each of them.
fn bandwidth_of_leader(sum: &Timed, world_size: usize) -> f64 {
    2.0 * (world_size - 1) as f64 * sum.rate()
}

/// Bytes per second that each GPU sends during a sum by NCCL: 64-bit integers of the pieces that
/// others add, and 32-bit sums of its own.
fn bandwidth_of_gpus(sum: &Timed, world_size: usize) -> f64 {
    1.5 * (world_size - 1) as f64 / world_size as f64 * sum.rate()
}

/// "64.0 MB"; sizes below 0.1 MB have three decimals.
fn in_megabytes(bytes: u64) -> String {
    let megabytes = bytes as f64 / MEGABYTE as f64;
    let decimals = if megabytes < 0.1 { 3 } else { 1 };
    format!("{megabytes:.decimals$} MB")
}

/// "0.85 GB/s"
fn in_gigabytes(bytes_per_second: f64) -> String {
    format!("{:.2} GB/s", bytes_per_second / 1e9)
}

/// "85 µs", "3.1 ms" or "2.50 s"
fn in_units(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_needs_twice_its_memory_on_every_rank_that_reports_it() {
        let report = |memory_bytes| Report {
            problems: String::new(),
            memory_bytes,
        };
        let reports = [report(Some(200)), report(None), report(Some(100))];
        assert_eq!(too_little_memory(&reports, 50), None);
        assert_eq!(too_little_memory(&reports, 51), Some((2, 100)));
        assert_eq!(too_little_memory(&reports, 101), Some((0, 200)));
    }

    #[test]
    fn rates_count_what_the_leader_or_a_gpu_exchanges() {
        let sum = Timed {
            bytes: 1_000_000,
            time: Duration::from_millis(10),
        };
        assert!((bandwidth_of_leader(&sum, 4) - 6e8).abs() < 1.0);
        assert!((bandwidth_of_gpus(&sum, 4) - 1.125e8).abs() < 1.0);
    }

    #[test]
    fn times_have_three_units() {
        let in_micros = |n| in_units(Duration::from_micros(n));
        assert_eq!(in_micros(85), "85 µs");
        assert_eq!(in_micros(3_100), "3.1 ms");
        assert_eq!(in_micros(2_500_000), "2.50 s");
        assert_eq!(in_megabytes(64_000_000), "64.0 MB");
        assert_eq!(in_megabytes(12_288), "0.012 MB");
    }
}
