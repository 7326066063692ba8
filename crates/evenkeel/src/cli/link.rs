//! `evenkeel link …`: links two sites over several network paths.

mod connect;
mod keys;
mod listen;
mod process;
mod relay;
mod run_file;
mod status;

use clap::{Args, Subcommand};

use super::CliError;

const EXAMPLES: &str = "\
Examples:
  evenkeel link keys --out edge-keys                    on both sites: create a key pair and print its fingerprint
  evenkeel link listen --keys core-keys --peer sha256:... --path 0.0.0.0:7443 --allow 127.0.0.1:8000
  evenkeel link connect --keys edge-keys --peer sha256:... --path wan0=198.51.100.7:7443 --path wan1=203.0.113.7:7443 \\
      --forward 127.0.0.1:9000=127.0.0.1:8000
  evenkeel link connect ... --forward udp:127.0.0.1:5353=10.0.0.5:53    forward UDP, allowed by --allow udp:10.0.0.5:53
  evenkeel link relay --keys relay-keys --listen 0.0.0.0:7500 --next 198.51.100.7:7443 --peer sha256:...
  evenkeel link status                                  show the paths of the links on this machine
";

/// Link two sites over several network paths and forward TCP connections and UDP datagrams between them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct LinkArgs {
    #[command(subcommand)]
    action: LinkCommand,
}

#[derive(Debug, Subcommand)]
enum LinkCommand {
    Keys(keys::KeysArgs),
    Listen(listen::ListenArgs),
    Connect(connect::ConnectArgs),
    Relay(relay::RelayArgs),
    Status(status::StatusArgs),
}

pub(super) fn run(args: LinkArgs) -> Result<(), CliError> {
    match args.action {
        LinkCommand::Keys(args) => keys::run(&args),
        LinkCommand::Listen(args) => listen::run(args),
        LinkCommand::Connect(args) => connect::run(args),
        LinkCommand::Relay(args) => relay::run(args),
        LinkCommand::Status(args) => status::run(&args),
    }
}
