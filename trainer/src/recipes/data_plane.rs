//! The way in which the ranks of a run add their gradients: NCCL between GPUs, otherwise the hosts.
//!
//! NCCL is used if all ranks can use it. A collective has no time limit and cannot be stopped, so
//! none begins before all ranks have computed their gradients and decided to continue; a rank that is
//! lost later is found by its connection, and the others end themselves. If the ranks of a node divide
//! the frozen weights, they have a second communicator for the gathers. Collectives of the two never
//! run at the same time, because NCCL may hang then.

#[cfg(any(test, feature = "cuda"))]
use std::collections::BTreeMap;
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use tooltune_kernels::gradient_sum::GradientSum;
#[cfg(feature = "cuda")]
use tooltune_kernels::nccl::Communicator;
use tooltune_kernels::node_memory::NodeGroup;
use tooltune_ranks::Ranks;

use crate::config;
use crate::error::Error;
use crate::models::load::FrozenWeights;

/// How gradients are added.
#[derive(Debug, Default)]
pub struct DataPlane {
    #[cfg(feature = "cuda")]
    communicator: Option<Communicator>,
    #[cfg(feature = "cuda")]
    waiting: by_nccl::Waiting,
    /// The GPUs that divide the frozen weights, and their ranks.
    node: Option<(NodeGroup, Vec<usize>)>,
    description: Option<String>,
}

impl DataPlane {
    /// How the ranks of GPUs add their gradients; `None` for a process that runs alone and for CPUs.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The GPUs that divide the frozen weights.
    pub(super) fn node(&self) -> Option<&NodeGroup> {
        self.node.as_ref().map(|(group, _)| group)
    }

    /// Number of GPUs that divide the frozen weights, if GPUs do.
    pub fn n_node_ranks(&self) -> usize {
        self.node.as_ref().map_or(1, |(_, ranks)| ranks.len())
    }

    /// Number of micro-batches for which this rank computes or gathers weights, if `shares` has the
    /// micro-batches of each rank.
    pub(super) fn n_rounds(&self, shares: &[Vec<usize>], rank: usize) -> usize {
        match &self.node {
            Some((_, ranks)) => ranks.iter().map(|&rank| shares[rank].len()).max(),
            None => shares.get(rank).map(Vec::len),
        }
        .unwrap_or(0)
    }
}

#[cfg(not(feature = "cuda"))]
impl DataPlane {
    /// Decides together with the other ranks. A build without CUDA adds on the hosts.
    ///
    /// # Errors
    ///
    /// None in this build.
    pub fn open(
        _: &mut Ranks,
        _: &Device,
        _: config::Device,
        _: FrozenWeights,
    ) -> Result<Self, Error> {
        Ok(Self::default())
    }

    /// An empty sum for this data plane.
    pub(super) fn gradient_sum(&self, n_values: usize, n_parts: usize) -> GradientSum {
        GradientSum::new(n_values, n_parts)
    }

    /// Waits until this rank's gradients are computed, if another rank's GPU will wait for them.
    pub(super) fn wait(&self, _: &GradientSum) {}

    /// As [`wait`](Self::wait), and until all other ranks have done so.
    ///
    /// # Errors
    ///
    /// None in this build.
    pub(super) fn meet(&self, _: &GradientSum, _: &mut Ranks) -> Result<(), Error> {
        Ok(())
    }

    /// Adds the gradients of all ranks.
    ///
    /// # Errors
    ///
    /// A rank was lost.
    pub(super) fn add(
        &self,
        sum: GradientSum,
        like: &Tensor<1>,
        ranks: &mut Ranks,
    ) -> Result<Tensor<1>, Error> {
        add_on_hosts(sum, like, ranks)
    }

    /// Gives the leader's vectors to all ranks; `None` if the connections have to do it.
    ///
    /// # Errors
    ///
    /// None in this build.
    pub(super) fn share(
        &self,
        _: [&Tensor<1>; 3],
        _: &mut Ranks,
    ) -> Result<Option<[Tensor<1>; 3]>, Error> {
        Ok(None)
    }

    /// Median time of a sum of `n_values` values by NCCL; `None` without it.
    ///
    /// # Errors
    ///
    /// None in this build.
    pub fn time_sum(&self, _: usize, _: &Device, _: &mut Ranks) -> Result<Option<Duration>, Error> {
        Ok(None)
    }

    /// Whether NCCL connects the GPUs.
    pub(super) fn connects_gpus(&self) -> bool {
        false
    }

    /// Ends the connections between GPUs. All ranks call it after their last step.
    ///
    /// # Errors
    ///
    /// None in this build.
    pub fn close(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

fn add_on_hosts(sum: GradientSum, like: &Tensor<1>, ranks: &mut Ranks) -> Result<Tensor<1>, Error> {
    if ranks.world_size() == 1 {
        return sum.finish(like, None);
    }
    let mut add_all = |sums: &mut [i64]| Ok(ranks.add_all(sums)?);
    sum.finish::<Error>(like, Some(&mut add_all))
}

/// The ranks of each host, which must be equally many and at least two.
#[cfg(any(test, feature = "cuda"))]
fn ranks_of_nodes(hosts: &[String]) -> Result<Vec<Vec<usize>>, String> {
    let mut nodes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (rank, host) in hosts.iter().enumerate() {
        nodes.entry(host).or_default().push(rank);
    }
    let count = |host: &str| nodes.get(host).map_or(0, Vec::len);
    let first = hosts.first().map_or("", String::as_str);
    if let Some(host) = hosts.iter().find(|host| count(host) != count(first)) {
        return Err(format!(
            "{first} has {} ranks and {host} has {}; start the same number on each host",
            count(first),
            count(host)
        ));
    }
    if count(first) < 2 {
        return Err(format!(
            "{first} has one rank; start at least two on each host"
        ));
    }
    Ok(nodes.into_values().collect())
}

#[cfg(feature = "cuda")]
mod by_nccl {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use serde::{Deserialize, Serialize};
    use tooltune_kernels::gpu;
    use tooltune_kernels::nccl::{self, NcclError, UniqueId, version_name};
    use tooltune_ranks::RanksError;
    use tooltune_ranks::local::{OTHER_RANK_STATUS, STOPPED_STATUS};

    use super::*;
    use crate::eval::served::{from_bytes, to_bytes, unreadable};

    /// How long an error of NCCL waits for the loss of a rank, which explains it.
    const EXPLANATION: Duration = Duration::from_secs(3);

    /// Sums of one length that are timed.
    const TIMED_SUMS: usize = 5;

    /// How long a thread may wait for the GPUs of other ranks after the run has failed. `--ranks` kills
    /// ranks without a message 15 s after the first has failed.
    const BLOCKED: Duration = Duration::from_secs(10);

    /// Whether a thread of this process waits for the GPUs of other ranks.
    #[derive(Debug, Clone, Default)]
    pub(super) struct Waiting {
        now: Arc<AtomicBool>,
        /// Gathers may be in the queue of the GPU at any time.
        always: Arc<AtomicBool>,
    }

    impl Waiting {
        /// Runs `work`, which waits.
        fn during<T>(&self, work: impl FnOnce() -> T) -> T {
            self.now.store(true, Ordering::SeqCst);
            let result = work();
            self.now.store(false, Ordering::SeqCst);
            result
        }

        fn set_always(&self, always: bool) {
            self.always.store(always, Ordering::SeqCst);
        }

        fn is_waiting(&self) -> bool {
            [&self.now, &self.always]
                .into_iter()
                .any(|flag| flag.load(Ordering::SeqCst))
        }

        /// Ends this process when a thread has waited too long for the GPU of a rank that was lost:
        /// nothing else ends a collective reliably. The last checkpoint is complete, and a newer
        /// state cannot be read from the GPU. Otherwise that thread ends the process itself.
        fn end_process(&self, error: &RanksError, status: i32) {
            let mut since = Instant::now();
            while since.elapsed() < BLOCKED {
                std::thread::sleep(Duration::from_millis(100));
                if !self.is_waiting() {
                    since = Instant::now();
                }
            }
            tracing::error!(
                "{error}; the GPU of this rank still waits for the others, so nothing more is \
                 saved; the same command resumes from the last checkpoint"
            );
            nccl::end_process(status);
        }
    }

    /// What a rank can use.
    #[derive(Debug, Serialize, Deserialize)]
    struct Offer {
        /// NCCL's version, or why it cannot be used.
        version: Result<i32, String>,
        /// The GPU's PCI address.
        gpu: Option<String>,
    }

    /// The leader's decision.
    #[derive(Debug, Serialize, Deserialize)]
    enum Decision {
        /// NCCL of this version connects the group with this name.
        Nccl {
            version: i32,
            id: Vec<u8>,
            /// The ranks of each node, which divide the frozen weights, and the name of their group.
            nodes: Vec<(Vec<usize>, Vec<u8>)>,
        },
        /// The hosts add, for this reason.
        Hosts(String),
        /// The ranks cannot divide the frozen weights.
        CannotDivide(String),
    }

    impl DataPlane {
        /// Decides together with the other ranks, and connects the GPUs if NCCL is used.
        ///
        /// # Errors
        ///
        /// A rank was lost, NCCL cannot connect the GPUs, or `frozen_weights` needs other ranks.
        pub fn open(
            ranks: &mut Ranks,
            device: &Device,
            name: config::Device,
            frozen_weights: FrozenWeights,
        ) -> Result<Self, Error> {
            let world_size = ranks.world_size();
            let divides = frozen_weights == FrozenWeights::Node;
            let index = match name {
                config::Device::Cuda(index) if world_size > 1 => index,
                config::Device::Cuda(_) if divides => {
                    return Err(cannot_divide(
                        "this run has one rank; start it with --ranks",
                    ));
                }
                _ => return Ok(Self::default()),
            };
            let offer = Offer {
                version: nccl::version().map_err(|error| error.to_string()),
                gpu: gpu::pci_address(index),
            };
            let decision = match ranks.gather(&to_bytes(&offer))? {
                Some(offers) => to_bytes(&decide(&offers, ranks.hosts(), divides)?),
                None => Vec::new(),
            };
            let decision: Decision = from_bytes(&ranks.broadcast(decision)?)?;
            let (version, id, nodes) = match decision {
                Decision::CannotDivide(reason) => return Err(cannot_divide(&reason)),
                Decision::Hosts(reason) if divides => {
                    return Err(cannot_divide(&format!("it needs NCCL: {reason}")));
                }
                Decision::Hosts(reason) => {
                    return Ok(Self {
                        description: Some(format!(
                            "the hosts of {world_size} ranks add gradients, without NCCL: {reason}"
                        )),
                        ..Self::default()
                    });
                }
                Decision::Nccl { version, id, nodes } => (version, id, nodes),
            };
            let id = unique_id(id)?;
            ranks.pulse().phase("connecting GPUs");
            let waiting = Waiting::default();
            let status = match ranks.is_leader() {
                true => STOPPED_STATUS,
                false => OTHER_RANK_STATUS,
            };
            let blocked = waiting.clone();
            ranks.on_failure(move |error| blocked.end_process(error, status));
            let join = || Communicator::new(device, &id, ranks.rank(), world_size);
            let joined = waiting.during(join);
            let communicator = joined.map_err(|error| explained(error, ranks))?;
            let version = version_name(version);
            let mut description = format!("NCCL {version} adds the gradients of {world_size} GPUs");
            let own = nodes
                .into_iter()
                .find(|(members, _)| members.contains(&ranks.rank()));
            let node = match own {
                Some((members, id)) => {
                    let id = unique_id(id)?;
                    let n = members.len();
                    let index = members.iter().position(|&rank| rank == ranks.rank());
                    let join = || {
                        let index = index.unwrap_or(0);
                        NodeGroup::new(Communicator::new(device, &id, index, n)?)
                    };
                    let joined = waiting.during(join);
                    waiting.set_always(true);
                    description += &format!("; {n} GPUs of each node divide the frozen weights");
                    Some((joined.map_err(|error| explained(error, ranks))?, members))
                }
                None => None,
            };
            Ok(Self {
                communicator: Some(communicator),
                waiting,
                node,
                description: Some(description),
            })
        }

        /// Waits for all gathers before a collective of the other communicator.
        fn wait_for_gathers(&self) {
            if let Some((group, _)) = &self.node {
                group.wait_for_gathers();
            }
        }

        /// An empty sum for this data plane.
        pub(in super::super) fn gradient_sum(
            &self,
            n_values: usize,
            n_parts: usize,
        ) -> GradientSum {
            let sum = GradientSum::new(n_values, n_parts);
            match &self.communicator {
                Some(communicator) => sum.for_ranks(communicator.world_size()),
                None => sum,
            }
        }

        /// Waits until this rank's gradients are computed, if another rank's GPU will wait for
        /// them.
        pub(in super::super) fn wait(&self, sum: &GradientSum) {
            if self.communicator.is_some() {
                sum.wait();
            }
        }

        /// As [`wait`](Self::wait), and until all other ranks have done so.
        ///
        /// # Errors
        ///
        /// A rank was lost.
        pub(in super::super) fn meet(
            &self,
            sum: &GradientSum,
            ranks: &mut Ranks,
        ) -> Result<(), Error> {
            if self.communicator.is_some() {
                sum.wait();
                ranks.barrier()?;
            }
            Ok(())
        }

        /// Adds the gradients of all ranks.
        ///
        /// # Errors
        ///
        /// A rank was lost, or NCCL fails.
        pub(in super::super) fn add(
            &self,
            sum: GradientSum,
            like: &Tensor<1>,
            ranks: &mut Ranks,
        ) -> Result<Tensor<1>, Error> {
            let Some(communicator) = &self.communicator else {
                return add_on_hosts(sum, like, ranks);
            };
            let pulse = ranks.pulse();
            pulse.phase("adding gradients by NCCL");
            // The last place to notice that a rank was lost: nothing stops a collective.
            ranks.check()?;
            let added = self.waiting.during(|| {
                self.wait_for_gathers();
                let gradient = sum.finish_on_gpus(like, communicator)?;
                wait_for(&gradient);
                Ok(gradient)
            });
            pulse.progress();
            added.map_err(|error| explained(error, ranks))
        }

        /// Gives the leader's vectors to all ranks, and adds once to connect all GPUs; `None` if
        /// the connections have to do it.
        ///
        /// # Errors
        ///
        /// NCCL fails.
        pub(in super::super) fn share(
            &self,
            vectors: [&Tensor<1>; 3],
            ranks: &mut Ranks,
        ) -> Result<Option<[Tensor<1>; 3]>, Error> {
            let Some(communicator) = &self.communicator else {
                return Ok(None);
            };
            let n_values = vectors[0].dims()[0];
            let name = "number of trained parameters".to_owned();
            ranks.agree(&BTreeMap::from([(name, n_values.to_string())]))?;
            ranks.pulse().phase("first sum by NCCL");
            let shared = self.waiting.during(|| {
                self.wait_for_gathers();
                communicator.warm_up(n_values)?;
                let shared = communicator.broadcast(vectors.map(Tensor::clone))?;
                wait_for(&shared[0]);
                Ok(Some(shared))
            });
            shared.map_err(|error| explained(error, ranks))
        }

        /// Median time of a sum of `n_values` values by NCCL; `None` without it. All ranks call it.
        ///
        /// # Errors
        ///
        /// A rank was lost, NCCL fails, or the sum is wrong.
        pub fn time_sum(
            &self,
            n_values: usize,
            device: &Device,
            ranks: &mut Ranks,
        ) -> Result<Option<Duration>, Error> {
            let Some(communicator) = &self.communicator else {
                return Ok(None);
            };
            let warmed = self.waiting.during(|| communicator.warm_up(n_values));
            warmed.map_err(|error| explained(error, ranks))?;
            let part = Tensor::<1>::ones([n_values], device);
            let mut times = Vec::with_capacity(TIMED_SUMS);
            for _ in 0..TIMED_SUMS {
                let mut sum = self.gradient_sum(n_values, ranks.world_size());
                sum.add(part.clone());
                self.meet(&sum, ranks)?;
                let started = Instant::now();
                self.add(sum, &part, ranks)?;
                ranks.gather(&[])?;
                times.push(started.elapsed());
            }
            times.sort();
            Ok(times.get(TIMED_SUMS / 2).copied())
        }

        /// Whether NCCL connects the GPUs.
        pub(in super::super) fn connects_gpus(&self) -> bool {
            self.communicator.is_some()
        }

        /// Ends the connections between GPUs. All ranks call it after their last step.
        ///
        /// # Errors
        ///
        /// NCCL fails.
        pub fn close(&mut self) -> Result<(), Error> {
            let (node, communicator) = (self.node.take(), self.communicator.take());
            let closed = self.waiting.during(|| {
                node.map_or(Ok(()), |(group, _)| group.close())?;
                communicator.map_or(Ok(()), Communicator::close)
            });
            self.waiting.set_always(false);
            closed.map_err(|error| Error::Nccl(error.to_string()))
        }
    }

    fn unique_id(bytes: Vec<u8>) -> Result<UniqueId, Error> {
        bytes.try_into().map(UniqueId).map_err(|_| unreadable())
    }

    fn cannot_divide(reason: &str) -> Error {
        Error::Usage(format!(
            "model.frozen_weights = \"node\" divides the weights among the ranks of each node, but \
             {reason}; otherwise set it to \"host\" or \"resident\""
        ))
    }

    /// NCCL, if all ranks have the same version and different GPUs. `divides` says whether the ranks
    /// of a node divide the frozen weights.
    fn decide(offers: &[Vec<u8>], hosts: &[String], divides: bool) -> Result<Decision, Error> {
        let offers = offers.iter().map(|bytes| from_bytes(bytes));
        let offers = offers.collect::<Result<Vec<Offer>, Error>>()?;
        let leader = offers.first().and_then(|offer| offer.version.clone().ok());
        for (rank, offer) in offers.iter().enumerate() {
            let host = &hosts[rank];
            let version = match &offer.version {
                Ok(version) => *version,
                Err(problem) => {
                    return Ok(Decision::Hosts(format!("rank {rank} on {host}: {problem}")));
                }
            };
            if let Some(leader) = leader.filter(|&leader| leader != version) {
                let [version, leader] = [version, leader].map(version_name);
                return Ok(Decision::Hosts(format!(
                    "rank {rank} on {host} has version {version}, rank 0 has {leader}; install the \
                     same version on all hosts"
                )));
            }
            let is_same = |other: usize| &hosts[other] == host && offers[other].gpu == offer.gpu;
            if let Some(other) = (0..rank).find(|&other| offer.gpu.is_some() && is_same(other)) {
                return Ok(Decision::Hosts(format!(
                    "ranks {other} and {rank} on {host} have parts of the same GPU {}",
                    offer.gpu.as_deref().unwrap_or_default()
                )));
            }
        }
        let nodes = match divides.then(|| ranks_of_nodes(hosts)).transpose() {
            Ok(nodes) => nodes.unwrap_or_default(),
            Err(reason) => return Ok(Decision::CannotDivide(reason)),
        };
        let named = nodes.into_iter().map(|ranks| {
            let id = UniqueId::new()?;
            Ok((ranks, id.0.to_vec()))
        });
        let created = named
            .collect::<Result<_, NcclError>>()
            .and_then(|nodes| Ok((UniqueId::new()?, nodes)));
        Ok(match (leader, created) {
            (Some(version), Ok((id, nodes))) => Decision::Nccl {
                version,
                id: id.0.to_vec(),
                nodes,
            },
            (_, Err(problem)) => Decision::Hosts(problem.to_string()),
            (None, _) => Decision::Hosts("no rank has NCCL".to_owned()),
        })
    }

    /// Waits for the computation of a vector.
    fn wait_for(vector: &Tensor<1>) {
        if vector.dims() != [0] {
            drop(vector.clone().narrow(0, 0, 1).into_data());
        }
    }

    /// The error of the connections, if a rank was lost; otherwise NCCL's.
    fn explained(error: NcclError, ranks: &Ranks) -> Error {
        let (pulse, began) = (ranks.pulse(), Instant::now());
        while began.elapsed() < EXPLANATION {
            if let Err(lost) = pulse.check() {
                return lost.into();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Error::Nccl(error.to_string())
    }
}

#[cfg(test)]
mod tests;
