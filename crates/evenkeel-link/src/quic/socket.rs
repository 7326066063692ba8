//! UDP sockets of paths.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

use super::error::BindError;
use super::target::{PathBinding, PathTarget, RemoteAddress};

/// Socket and the address that it was asked to bind, for error messages.
pub(crate) type BoundSocket = (UdpSocket, SocketAddr);

/// Buffers that are asked for; the system's limits may allow less.
const BUFFER_LEN: usize = 4 << 20;

/// Opens the socket of an outgoing path.
pub(super) fn bind_path(target: &PathTarget) -> Result<BoundSocket, BindError> {
    let local = |address: IpAddr| open(&target.binding, SocketAddr::new(address, 0));
    match (&target.binding, &target.remote) {
        (PathBinding::Local(address), _) => local(*address),
        (_, RemoteAddress::Socket(SocketAddr::V4(_))) => local(Ipv4Addr::UNSPECIFIED.into()),
        (_, RemoteAddress::Socket(SocketAddr::V6(_))) => local(Ipv6Addr::UNSPECIFIED.into()),
        // A name may have addresses of both families; a system without IPv6 has no socket for both.
        (_, RemoteAddress::Name { .. }) => {
            local(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| local(Ipv4Addr::UNSPECIFIED.into()))
        }
    }
}

/// Opens the socket on which connections are accepted.
pub(crate) fn bind_listener(address: SocketAddr) -> Result<BoundSocket, BindError> {
    open(&PathBinding::Any, address)
}

/// Checks that the routing table has a way to `remote`; sends nothing.
///
/// noq logs errors of single packets and goes on, so a missing route would look like a silent peer.
pub(super) fn check_route(binding: &PathBinding, remote: SocketAddr) -> io::Result<()> {
    let local: IpAddr = match (binding, remote) {
        (PathBinding::Local(address), _) => *address,
        (_, SocketAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        (_, SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Binding works: the path's own socket is bound in the same way.
    let Ok((socket, _)) = open(binding, SocketAddr::new(local, 0)) else { return Ok(()) };
    socket.connect(remote)
}

/// Writes an IPv4 address that a socket for both families reports as IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn open(binding: &PathBinding, local: SocketAddr) -> Result<BoundSocket, BindError> {
    let failed = |source| BindError::Address { address: local, source };
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP)).map_err(failed)?;
    if local.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED) {
        // Serves both families where the system allows it; IPv6 alone otherwise.
        let _ = socket.set_only_v6(false);
    }
    if let PathBinding::Interface(name) = binding {
        bind_device(&socket, name)?;
    }
    // A smaller buffer costs throughput only.
    let _ = socket.set_recv_buffer_size(BUFFER_LEN);
    let _ = socket.set_send_buffer_size(BUFFER_LEN);
    socket.bind(&local.into()).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    Ok((socket.into(), local))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn bind_device(socket: &Socket, name: &str) -> Result<(), BindError> {
    const ENODEV: i32 = 19;
    socket.bind_device(Some(name.as_bytes())).map_err(|source| match source.raw_os_error() {
        Some(ENODEV) => BindError::NoInterface { name: name.to_owned() },
        _ => BindError::Interface { name: name.to_owned(), source },
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn bind_device(_socket: &Socket, name: &str) -> Result<(), BindError> {
    Err(BindError::Interface { name: name.to_owned(), source: io::ErrorKind::Unsupported.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_interface_is_named() {
        let error = bind_path(&"nosuch0=198.51.100.7:7443".parse().unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "no interface is named \"nosuch0\"");
    }

    #[test]
    fn a_socket_is_bound_to_its_interface_or_address() {
        let (socket, _) = bind_path(&"lo=127.0.0.1:7443".parse().unwrap()).unwrap();
        let device = socket2::SockRef::from(&socket).device().unwrap();
        assert_eq!(device.as_deref(), Some(&b"lo"[..]));
        let (socket, _) = bind_path(&"127.0.0.2=127.0.0.1:7443".parse().unwrap()).unwrap();
        assert_eq!(socket.local_addr().unwrap().ip(), IpAddr::from([127, 0, 0, 2]));
    }

    #[test]
    fn a_foreign_local_address_is_named() {
        let error = bind_path(&"192.0.2.1=198.51.100.7:7443".parse().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("cannot bind to UDP 192.0.2.1:0: "), "{error}");
    }

    #[test]
    fn the_family_follows_the_remote_address() {
        let family = |target: &str| bind_path(&target.parse().unwrap()).unwrap().1.is_ipv4();
        assert!(family("127.0.0.1:7443"));
        assert!(!family("[::1]:7443"));
    }

    #[test]
    fn a_route_through_the_wrong_interface_is_missing() {
        let lo = PathBinding::Interface("lo".to_owned());
        assert!(check_route(&lo, "127.0.0.1:7443".parse().unwrap()).is_ok());
        assert!(check_route(&lo, "[2001:db8::7]:7443".parse().unwrap()).is_err());
    }
}
