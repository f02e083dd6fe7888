//! The addresses of the leader: for its listener, and for followers that connect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use crate::error::{RanksError, Result};
use crate::launcher::{Launch, LeaderAddress};

/// Host name of this machine.
pub fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// Addresses of this host on which other ranks can reach it, best first. Never all interfaces.
///
/// # Errors
///
/// - `TOOLTUNE_RANKS_ADDRESS` or the launcher's address cannot be resolved.
/// - No address of this host is known that other hosts can reach.
pub(crate) fn to_listen_on(launch: &Launch) -> Result<Vec<IpAddr>> {
    let listen_error = |address: &str, reason: String| RanksError::Listen {
        address: address.to_owned(),
        reason,
    };
    if let Some(own) = &launch.listen_on {
        let ips = resolve(own).map_err(|reason| listen_error(own, reason))?;
        if ips.iter().any(IpAddr::is_unspecified) {
            let reason = "it means all interfaces".to_owned();
            return Err(listen_error(own, reason));
        }
        return Ok(ips);
    }
    if launch.is_on_one_host() {
        return Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    }
    let mut ips = Vec::new();
    let mut problem = "no address of this host is known".to_owned();
    if let Some(leader) = &launch.leader {
        match resolve(&leader.host) {
            Ok(resolved) => ips = resolved,
            Err(reason) => problem = reason,
        }
    }
    // Some launchers give "localhost" to the leader, and some hosts map their own name to 127.0.1.1.
    let (loopback, mut ips): (Vec<IpAddr>, Vec<IpAddr>) =
        ips.into_iter().partition(IpAddr::is_loopback);
    ips.extend(own_addresses());
    if ips.is_empty() {
        // A host without a network can still have several ranks.
        ips = loopback;
    }
    ips.retain(|ip| !ip.is_unspecified());
    if ips.is_empty() {
        let host = launch.leader.as_ref().map_or("this host", |l| &l.host);
        return Err(listen_error(host, problem));
    }
    Ok(ips)
}

/// Addresses at which a follower may find the leader, or why there are none yet.
pub(crate) fn to_connect_to(
    launch: &Launch,
    leader: &LeaderAddress,
) -> std::result::Result<Vec<IpAddr>, String> {
    if launch.is_on_one_host() && launch.listen_on.is_none() {
        return Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    }
    if let Some(own) = launch
        .listen_on
        .as_ref()
        .filter(|_| launch.is_on_one_host())
    {
        return resolve(own);
    }
    let mut ips = resolve(&leader.host)?;
    // A follower on the leader's host may see a loopback address where the leader does not listen.
    if ips.iter().any(IpAddr::is_loopback) {
        ips.extend(own_addresses());
    }
    Ok(ips)
}

fn resolve(host: &str) -> std::result::Result<Vec<IpAddr>, String> {
    let addresses = (host, 0).to_socket_addrs();
    let addresses = addresses.map_err(|error| format!("cannot resolve {host}: {error}"))?;
    let ips = distinct(addresses.map(|address| address.ip()));
    if ips.is_empty() {
        return Err(format!("{host} has no address"));
    }
    Ok(ips)
}

/// Addresses of this host: first the address of the default route, then the addresses of its name.
fn own_addresses() -> Vec<IpAddr> {
    // Connecting a UDP socket sends nothing; it only chooses a route. The targets are of ranges for
    // documentation.
    let targets = [
        (
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        ),
        (
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        ),
    ];
    let mut ips: Vec<IpAddr> = Vec::new();
    for (any, target) in targets {
        let route = UdpSocket::bind(SocketAddr::new(any, 0)).and_then(|socket| {
            socket.connect(SocketAddr::new(target, 9))?;
            socket.local_addr()
        });
        ips.extend(route.ok().map(|address| address.ip()));
    }
    ips.extend(resolve(&host_name()).unwrap_or_default());
    ips.retain(|ip| !ip.is_loopback() && !ip.is_unspecified());
    distinct(ips)
}

fn distinct(ips: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut distinct = Vec::new();
    for ip in ips {
        if !distinct.contains(&ip) {
            distinct.push(ip);
        }
    }
    distinct
}
