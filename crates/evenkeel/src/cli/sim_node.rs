//! `evenkeel sim-node`: its flags, and its run until somebody ends it.

use super::{CliError, exit_usage};
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
  evenkeel sim-node --model llama --model qwen --queue 0        503 instead of a queue
  evenkeel sim-node --fault mid-stream-cut --fault-rate 0.1     a tenth of the answers break off

  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"llama\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}'
  curl http://127.0.0.1:8000/sim/fault -d '{\"kind\": \"reset\"}'     set a fault;  {\"kind\": null}  clears it
";

const MS_MAX: u64 = FIRST_TOKEN_MAX.as_secs() * 1_000;
const RATE_MAX: i64 = TOKENS_PER_SECOND_MAX as i64;

/// A simulated OpenAI-compatible model server: slots, streams, usage, metrics, faults.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SimNodeArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Sequences worked on at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=SLOTS_MAX as i64))]
    slots: u32,
    /// Requests that may wait for a slot; one more gets 503
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = value_parser!(u32).range(0..=QUEUE_MAX as i64))]
    queue: u32,
    /// Time to first token of an empty prompt
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u64).range(0..=MS_MAX))]
    ttft_ms: u64,
    /// How fast prompts are read, which makes long ones wait longer for their first token
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=RATE_MAX))]
    prefill_tokens_per_second: u32,
    /// How fast a sequence that is alone gets its tokens
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u32).range(1..=RATE_MAX))]
    tokens_per_second: u32,
    /// How much longer a token takes per further sequence, as a share of a lone one's time
    #[arg(long, value_name = "F", default_value_t = 0.05)]
    batch_slowdown: f64,
    /// How long answers are on average
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u32).range(1..=CONTEXT_MAX as i64))]
    output_tokens: u32,
    /// Tokens of a prompt and its answer together
    #[arg(long, value_name = "N", default_value_t = 32_768, value_parser = value_parser!(u32).range(16..=CONTEXT_MAX as i64))]
    context: u32,
    /// Connections kept open at once
    #[arg(long, value_name = "N", default_value_t = 4_096, value_parser = value_parser!(u32).range(1..=CONNECTIONS_MAX as i64))]
    connections: u32,
    /// A model to serve; may be given several times
    #[arg(long = "model", value_name = "NAME", default_value = "sim")]
    models: Vec<String>,
    /// What answers and faults are drawn from
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// What is wrong with it
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(FaultKind::ALL.map(|(name, _)| name)))]
    fault: Option<String>,
    /// The share of requests that feel the fault
    #[arg(long, value_name = "F", default_value_t = 1.0, requires = "fault")]
    fault_rate: f64,
    /// How many requests a 500-burst, or one phase of flapping, lasts
    #[arg(long, value_name = "N", default_value_t = 5, requires = "fault", value_parser = value_parser!(u32).range(1..))]
    fault_count: u32,
    /// How late a slow first token comes
    #[arg(long, value_name = "N", default_value_t = 60_000, requires = "fault", value_parser = value_parser!(u64).range(0..=MS_MAX))]
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

/// Runs an engine until it is interrupted or told to end.
pub(super) fn run(args: SimNodeArgs) -> Result<(), CliError> {
    let options = args.options();
    if let Err(setting) = options.check() {
        exit_usage(setting);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let models = options.models.join(", ");
        let slots = options.slots;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let node = SimNode::bind(options).await?;
        println!("sim-node at http://{}: {models}; {slots} slots", node.address());
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        node.shutdown().await;
        Ok(())
    })
}
