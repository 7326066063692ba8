//! Actors on a microcontroller: runs four test cases and prints a line for each.
//!
//! Exits with success when all pass, and with failure at the first that fails.
#![no_std]
#![no_main]

extern crate alloc;

mod cases;
mod heap;
mod systick;

use core::num::NonZeroUsize;
use core::time::Duration;

use embassy_executor::Spawner;
use evenkeel_actor::guardian::{Backoff, Supervision};
use evenkeel_actor::runtime::embassy::EmbassyRuntime;
use evenkeel_actor::{ActorSystemConfig, ActorSystemRunner, ShutdownReport};
use semihosting::{println, process};

const SHUTDOWN_WITHIN: Duration = Duration::from_secs(1);

#[embassy_executor::main]
async fn main(spawner: Spawner) {
    heap::init();
    let peripherals = cortex_m::Peripherals::take().expect("the peripherals are taken once");
    systick::start(peripherals.SYST);
    let config = ActorSystemConfig {
        workers: Some(NonZeroUsize::MIN),
        actors_max: 16,
        timers_max: 32,
        dead_letters_max: 4,
        labels_max: 8,
        supervision: Supervision::default().with_backoff(Backoff::NONE),
        ..ActorSystemConfig::default()
    };
    let runtime = EmbassyRuntime::new(spawner.make_send());
    let system =
        ActorSystemRunner::new(config).start(runtime).expect("the runtime has capacity for two tasks");
    cases::three_actors_handle_a_hundred_messages_each(&system).await;
    println!("ok: three actors handled a hundred messages each");
    cases::a_receive_timeout_arrives(&system).await;
    println!("ok: a receive timeout arrived");
    cases::a_failed_actor_is_restarted(&system).await;
    println!("ok: a failed actor was restarted");
    cases::an_interrupt_handler_sends_messages(&system).await;
    println!("ok: an interrupt handler sent messages to an actor");
    println!("heap: {} of {} bytes in use", heap::used(), heap::LEN);
    let report = system.graceful_shutdown(SHUTDOWN_WITHIN).await;
    assert_eq!(report, ShutdownReport { drained: true, abandoned: 0 });
    process::exit(0);
}
