//! `evenkeel sim-node`: runs a simulated model server until a signal stops it.

use super::{CliError, exit_with_usage_error};
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use evenkeel_sim_node::{
    CONNECTIONS_MAX, CONTEXT_MAX, FIRST_TOKEN_MAX, Fault, FaultKind, QUEUE_MAX, SLOTS_MAX, SimNode,
    SimOptions, TOKENS_PER_SECOND_MAX,
};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

const EXAMPLES: &str = "\
Examples:
  evenkeel sim-node --listen 127.0.0.1:8000 --slots 8 --ttft-ms 50 --tokens-per-second 50 --model llama
  evenkeel sim-node --model llama --model qwen --queue 0        respond 503 instead of queueing
  evenkeel sim-node --fault mid-stream-cut --fault-rate 0.1     cut a tenth of the responses

Requests to the server of the first example:
  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"llama\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}'
  curl http://127.0.0.1:8000/sim/fault -d '{\"kind\": \"reset\"}'     set a fault; {\"kind\": null} clears it
";

const DELAY_MS_MAX: u64 = FIRST_TOKEN_MAX.as_secs() * 1_000;
const SPEED_MAX: i64 = TOKENS_PER_SECOND_MAX as i64;

/// Run a simulated OpenAI-compatible model server with fault injection
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SimNodeArgs {
    /// Address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Maximum number of sequences generated concurrently
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=SLOTS_MAX as i64))]
    slots: u32,
    /// Maximum number of queued requests; further ones get 503
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = value_parser!(u32).range(0..=QUEUE_MAX as i64))]
    queue: u32,
    /// Time to first token without prefill, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u64).range(0..=DELAY_MS_MAX))]
    ttft_ms: u64,
    /// Prefill speed, in prompt tokens per second; adds to the time to first token
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=SPEED_MAX))]
    prefill_tokens_per_second: u32,
    /// Generation speed of a single sequence, in tokens per second
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u32).range(1..=SPEED_MAX))]
    tokens_per_second: u32,
    /// Slowdown by concurrency: with n sequences, a token takes 1 + F * (n - 1) times as long
    #[arg(long, value_name = "F", default_value_t = 0.05)]
    batch_slowdown: f64,
    /// Average completion length, in tokens
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u32).range(1..=CONTEXT_MAX as i64))]
    output_tokens: u32,
    /// Context window, in tokens: prompt and completion together
    #[arg(long, value_name = "N", default_value_t = 32_768, value_parser = value_parser!(u32).range(16..=CONTEXT_MAX as i64))]
    context: u32,
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = 4_096, value_parser = value_parser!(u32).range(1..=CONNECTIONS_MAX as i64))]
    connections: u32,
    /// Model to serve; repeatable
    #[arg(long = "model", value_name = "NAME", default_value = "sim")]
    models: Vec<String>,
    /// Seed of completions and faults
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// Fault to inject
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(FaultKind::ALL.map(|(name, _)| name)))]
    fault: Option<String>,
    /// Fraction of requests that get the fault
    #[arg(long, value_name = "F", default_value_t = 1.0, requires = "fault")]
    fault_rate: f64,
    /// Number of requests per burst (`500-burst`) or per up or down phase (`flapping`)
    #[arg(long, value_name = "N", default_value_t = 5, requires = "fault", value_parser = value_parser!(u32).range(1..))]
    fault_count: u32,
    /// Delay of the first token (`slow-first-token`), in milliseconds
    #[arg(long, value_name = "N", default_value_t = 60_000, requires = "fault", value_parser = value_parser!(u64).range(0..=DELAY_MS_MAX))]
    fault_ms: u64,
}

impl SimNodeArgs {
    pub(super) fn options(self) -> SimOptions {
        let fault = self.fault.as_deref().and_then(FaultKind::by_name).map(|kind| Fault {
            kind,
            rate: self.fault_rate,
            count: self.fault_count,
            delay: Duration::from_millis(self.fault_ms),
        });
        SimOptions {
            listen: self.listen,
            models: self.models,
            slots: self.slots,
            queue_max: self.queue,
            first_token: Duration::from_millis(self.ttft_ms),
            prefill_per_second: self.prefill_tokens_per_second,
            tokens_per_second: self.tokens_per_second,
            batch_slowdown: self.batch_slowdown,
            output_tokens: self.output_tokens,
            context_max: self.context,
            connections_max: self.connections,
            seed: self.seed,
            fault,
        }
    }
}

/// Runs a simulated node until SIGINT or SIGTERM.
pub(super) fn run(args: SimNodeArgs) -> Result<(), CliError> {
    let options = args.options();
    if let Err(error) = options.check() {
        exit_with_usage_error(error);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let models = options.models.join(", ");
        let slots = options.slots;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let node = SimNode::bind(options).await?;
        println!("sim-node listening on http://{}: {models}; {slots} slots", node.address());
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        node.shutdown().await;
        Ok(())
    })
}
