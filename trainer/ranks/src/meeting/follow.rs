//! A follower's side of a meeting: it looks for the leader until the deadline.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Identity, hello_of, ports_after};
use crate::Settings;
use crate::address;
use crate::budgets::HANDSHAKE_SECONDS;
use crate::door::Ranks;
use crate::error::{RanksError, Result};
use crate::handshake::{self, Failed, Hello, Timed};
use crate::launcher::Launch;
use crate::ranks_file::RanksFile;
use crate::token::Token;

/// How long a follower tries to connect to one address.
const CONNECT: Duration = Duration::from_secs(2);

/// Pause before a follower's second attempt; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);

const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Finds the leader and waits for the other ranks.
pub(super) fn follow(
    launch: &Launch,
    identity: &Identity,
    directory: Option<&Path>,
    settings: &Settings,
    deadline: Instant,
) -> Result<Ranks> {
    let mut pause = FIRST_PAUSE;
    let mut last_reason = "no attempt".to_owned();
    let mut tried = String::new();
    loop {
        let (launch, addresses) = match candidates(launch, directory)? {
            Ok(found) => found,
            Err(reason) => {
                last_reason = reason;
                (launch.clone(), Vec::new())
            }
        };
        // Most ports of a range are free: that says less than an answer from one of them.
        let mut is_answered = false;
        for address in &addresses {
            // A handshake may last longer than the rest of the time, but only one.
            if Instant::now() >= deadline {
                break;
            }
            tried = address.to_string();
            let hello = hello_of(&launch, identity);
            match attempt(*address, &launch, &hello, deadline) {
                Ok((connection, hosts)) => {
                    let streams = vec![(0, connection.stream)];
                    return Ranks::connected(launch.rank, hosts, streams, settings.clone());
                }
                Err(Failed::Unreachable(reason)) => {
                    if !is_answered {
                        last_reason = format!("{address}: {reason}");
                    }
                }
                Err(Failed::Stranger(reason)) => {
                    is_answered = true;
                    last_reason = format!("{address}: {reason}");
                }
                Err(Failed::Refused(refusal)) => {
                    // A file of an earlier run has another token.
                    let is_old_file = refusal.is_token && launch.leader.is_none();
                    if !refusal.is_other_run && !is_old_file {
                        return Err(RanksError::Refused {
                            address: address.to_string(),
                            reason: refusal.reason,
                        });
                    }
                    is_answered = true;
                    last_reason = format!("{address}: {}", refusal.reason);
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let address = match &launch.leader {
                Some(leader) => {
                    let ports = ports_after(leader.port);
                    format!("{} port {} to {}", leader.host, ports.start(), ports.end())
                }
                None => tried,
            };
            return Err(RanksError::NoLeader {
                address,
                seconds: settings.meeting_seconds,
                reason: last_reason,
            });
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Where the leader may be, with the token of its file; or why that is not known yet.
fn candidates(
    launch: &Launch,
    directory: Option<&Path>,
) -> Result<std::result::Result<(Launch, Vec<SocketAddr>), String>> {
    let mut launch = launch.clone();
    if let Some(leader) = &launch.leader {
        let ips = match address::to_connect_to(&launch, leader) {
            Ok(ips) => ips,
            Err(reason) => return Ok(Err(reason)),
        };
        let addresses = ports_after(leader.port)
            .flat_map(|port| ips.iter().map(move |ip| SocketAddr::new(*ip, port)));
        let addresses = addresses.collect();
        return Ok(Ok((launch, addresses)));
    }
    let directory = directory.ok_or(RanksError::NoAddress {
        launcher: launch.launcher.name(),
    })?;
    match RanksFile::read(directory)? {
        Some(file) if file.run_id == launch.run_id => match file.address.parse() {
            Ok(address) => {
                launch.token = Some(Token::new(file.token));
                Ok(Ok((launch, vec![address])))
            }
            Err(_) => Ok(Err("ranks.json has an invalid address".to_owned())),
        },
        Some(_) => Ok(Err("ranks.json is of another run".to_owned())),
        None => Ok(Err(format!(
            "{} does not exist yet",
            RanksFile::path(directory).display()
        ))),
    }
}

fn attempt(
    address: SocketAddr,
    launch: &Launch,
    hello: &Hello,
    deadline: Instant,
) -> std::result::Result<(Timed, Vec<String>), Failed> {
    let stream = TcpStream::connect_timeout(&address, CONNECT)
        .map_err(|error| Failed::Unreachable(error.to_string()))?;
    // On one host, a connection to a free port of the system's own range can meet itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(Failed::Stranger("nothing listens there".to_owned()));
    }
    let handshake = Instant::now() + Duration::from_secs(HANDSHAKE_SECONDS);
    let mut connection = Timed::new(stream, handshake)?;
    handshake::introduce(&mut connection, launch, hello)?;
    // The leader decides when the meeting has failed, and tells the reason.
    connection.set_deadline(deadline + Duration::from_secs(HANDSHAKE_SECONDS));
    let hosts = handshake::wait_for_begin(&mut connection, launch.world_size)?;
    Ok((connection, hosts))
}
