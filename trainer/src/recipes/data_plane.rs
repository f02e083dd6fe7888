//! The way in which the ranks of a run add their gradients: NCCL between GPUs, otherwise the hosts.
//!
//! NCCL is used if all ranks can use it. A collective has no time limit and cannot be stopped, so
//! none begins before all ranks have computed their gradients and decided to continue; a rank that is
//! lost later is found by its connection, and the others end themselves.

use burn::tensor::{Device, Tensor};
use tooltune_kernels::gradient_sum::GradientSum;
#[cfg(feature = "cuda")]
use tooltune_kernels::nccl::Communicator;
use tooltune_ranks::Ranks;

use crate::config;
use crate::error::Error;

/// How gradients are added.
#[derive(Debug, Default)]
pub struct DataPlane {
    #[cfg(feature = "cuda")]
    communicator: Option<Communicator>,
    #[cfg(feature = "cuda")]
    waiting: by_nccl::Waiting,
    description: Option<String>,
}

impl DataPlane {
    /// How the ranks of GPUs add their gradients; `None` for a process that runs alone and for CPUs.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }
}

#[cfg(not(feature = "cuda"))]
impl DataPlane {
    /// Decides together with the other ranks. A build without CUDA adds on the hosts.
    ///
    /// # Errors
    ///
    /// None in this build.
    pub fn open(_: &mut Ranks, _: &Device, _: config::Device) -> Result<Self, Error> {
        Ok(Self::default())
    }

    /// An empty sum for this data plane.
    pub(super) fn gradient_sum(&self, n_values: usize, n_parts: usize) -> GradientSum {
        GradientSum::new(n_values, n_parts)
    }

    /// Waits until this rank's gradients are computed, if another rank's GPU will wait for them.
    pub(super) fn wait(&self, _: &GradientSum) {}

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

    /// Whether NCCL connects the GPUs.
    pub(super) fn connects_gpus(&self) -> bool {
        false
    }

    /// Ends the connections between GPUs. All ranks call it after their last step.
    ///
    /// # Errors
    ///
    /// None in this build.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

fn add_on_hosts(sum: GradientSum, like: &Tensor<1>, ranks: &mut Ranks) -> Result<Tensor<1>, Error> {
    let mut add_all = |sums: &mut [i64]| Ok(ranks.add_all(sums)?);
    sum.finish::<Error>(like, Some(&mut add_all))
}

#[cfg(feature = "cuda")]
mod by_nccl {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use serde::{Deserialize, Serialize};
    use tooltune_kernels::gpu;
    use tooltune_kernels::nccl::{self, NcclError, UniqueId, version_name};
    use tooltune_ranks::RanksError;
    use tooltune_ranks::local::{OTHER_RANK_STATUS, STOPPED_STATUS};

    use super::*;
    use crate::eval::served::{from_bytes, to_bytes, unreadable};

    /// How long an error of NCCL waits for the loss of a rank, which explains it.
    const EXPLANATION: Duration = Duration::from_secs(3);

    /// How long a thread may wait for the GPUs of other ranks after the run has failed.
    const BLOCKED: Duration = Duration::from_secs(20);

    /// Whether a thread of this process waits for the GPUs of other ranks.
    #[derive(Debug, Clone, Default)]
    pub(super) struct Waiting(Arc<AtomicBool>);

    impl Waiting {
        /// Runs `work`, which waits.
        fn during<T>(&self, work: impl FnOnce() -> T) -> T {
            self.0.store(true, Ordering::SeqCst);
            let result = work();
            self.0.store(false, Ordering::SeqCst);
            result
        }

        /// Ends this process when a thread has waited too long for the GPU of a rank that was lost:
        /// nothing else ends a collective reliably. The last checkpoint is complete, and a newer
        /// state cannot be read from the GPU. Otherwise that thread ends the process itself.
        fn end_process(&self, error: &RanksError, status: i32) {
            let mut since = Instant::now();
            while since.elapsed() < BLOCKED {
                std::thread::sleep(Duration::from_millis(100));
                if !self.0.load(Ordering::SeqCst) {
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
        Nccl { version: i32, id: Vec<u8> },
        /// The hosts add, for this reason.
        Hosts(String),
    }

    impl DataPlane {
        /// Decides together with the other ranks, and connects the GPUs if NCCL is used.
        ///
        /// # Errors
        ///
        /// A rank was lost, or NCCL cannot connect the GPUs.
        pub fn open(
            ranks: &mut Ranks,
            device: &Device,
            name: config::Device,
        ) -> Result<Self, Error> {
            let world_size = ranks.world_size();
            let index = match name {
                config::Device::Cuda(index) if world_size > 1 => index,
                _ => return Ok(Self::default()),
            };
            let offer = Offer {
                version: nccl::version().map_err(|error| error.to_string()),
                gpu: gpu::pci_address(index),
            };
            let decision = match ranks.gather(&to_bytes(&offer))? {
                Some(offers) => to_bytes(&decide(&offers, ranks.hosts())?),
                None => Vec::new(),
            };
            let decision: Decision = from_bytes(&ranks.broadcast(decision)?)?;
            let (version, id) = match decision {
                Decision::Hosts(reason) => {
                    return Ok(Self {
                        description: Some(format!(
                            "the hosts of {world_size} ranks add gradients, without NCCL: {reason}"
                        )),
                        ..Self::default()
                    });
                }
                Decision::Nccl { version, id } => (version, id),
            };
            let id = id.try_into().map(UniqueId);
            let id = id.map_err(|_| unreadable())?;
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
            Ok(Self {
                communicator: Some(communicator),
                waiting,
                description: Some(format!(
                    "NCCL {version} adds the gradients of {world_size} GPUs"
                )),
            })
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
                communicator.warm_up(n_values)?;
                let shared = communicator.broadcast(vectors.map(Tensor::clone))?;
                wait_for(&shared[0]);
                Ok(Some(shared))
            });
            shared.map_err(|error| explained(error, ranks))
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
        pub(in super::super) fn close(&mut self) -> Result<(), Error> {
            let closed = match self.communicator.take() {
                Some(communicator) => self.waiting.during(|| communicator.close()),
                None => Ok(()),
            };
            closed.map_err(|error| Error::Nccl(error.to_string()))
        }
    }

    /// NCCL, if all ranks have the same version and different GPUs.
    fn decide(offers: &[Vec<u8>], hosts: &[String]) -> Result<Decision, Error> {
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
        let created = UniqueId::new();
        Ok(match (leader, created) {
            (Some(version), Ok(id)) => Decision::Nccl {
                version,
                id: id.0.to_vec(),
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
        let pulse = ranks.pulse();
        let began = Instant::now();
        while began.elapsed() < EXPLANATION {
            if let Err(lost) = pulse.check() {
                return lost.into();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Error::Nccl(error.to_string())
    }
}
