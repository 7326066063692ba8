//! LiteLLM's proxy, from its Python package: no database, no log, no telemetry.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::process::Command;

use super::{Setup, StartedProcess, free_port, log, missing, target};
use crate::chat::MODEL;
use crate::load::Target;
use bench_support::Process;

pub(super) fn litellm(setup: &Setup) -> io::Result<StartedProcess> {
    if !setup.litellm.is_file() {
        return Err(missing(&setup.litellm));
    }
    let address = free_port()?;
    let key = random_key()?;
    let file = setup.directory.join("litellm.yaml");
    fs::write(&file, config(&setup.nodes))?;
    let mut command = Command::new(&setup.litellm);
    command.arg("--config").arg(&file).args(["--host", "127.0.0.1", "--port"]);
    command.arg(address.port().to_string()).args(["--num_workers", "1", "--telemetry", "False"]);
    // LiteLLM does not start without a key or with a key that is easy to guess.
    command.env("LITELLM_MASTER_KEY", &key);
    // Read prices from the package instead of the network.
    command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").env("LITELLM_LOG", "ERROR");
    command.env("LITELLM_MODE", "PRODUCTION").env_remove("DATABASE_URL").current_dir(&setup.directory);
    let process = Process::start(&mut command, &log(&setup.directory))?;
    let target = Target { keys: vec![key], ..target(vec![address]) };
    Ok(StartedProcess { target, process: Some(process) })
}

fn random_key() -> io::Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold("sk-".to_owned(), |key, byte| format!("{key}{byte:02x}")))
}

fn config(nodes: &[SocketAddr]) -> String {
    let models: String = (nodes.iter())
        .map(|node| {
            format!(
                "- model_name: {MODEL}\n  litellm_params: {{ model: openai/{MODEL}, api_base: 'http://{node}/v1', api_key: none }}\n"
            )
        })
        .collect();
    format!(
        "model_list:\n{models}router_settings: {{ routing_strategy: simple-shuffle, num_retries: 0 }}\n\
         litellm_settings: {{ telemetry: false }}\n"
    )
}
