//! Actors on a microcontroller: four cases, one line each.
//!
//! Ends with success when all have passed, and with failure at the first that has not.
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
use evenkeel_actor::{ActorSystemConfig, ActorSystemRunner, Shutdown};
use semihosting::{println, process};

const SHUTDOWN_WITHIN: Duration = Duration::from_secs(1);

#[embassy_executor::main]
async fn main(spawner: Spawner) {
    heap::init();
    let peripherals = cortex_m::Peripherals::take().expect("nobody took them before");
    systick::start(peripherals.SYST);
    let config = ActorSystemConfig {
        workers: NonZeroUsize::MIN,
        actors_max: 16,
        timers_max: 32,
        dead_letters_max: 4,
        labels_max: 8,
        supervision: Supervision::default().with_backoff(Backoff::NONE),
        ..ActorSystemConfig::default()
    };
    let runtime = EmbassyRuntime::new(spawner.make_send());
    let system = ActorSystemRunner::new(config).start(runtime).expect("two tasks have a place");
    cases::three_actors_handle_a_hundred_messages_each(&system).await;
    println!("ok: three actors handled a hundred messages each");
    cases::silence_is_told(&system).await;
    println!("ok: an actor was told of silence");
    cases::a_failed_actor_starts_again(&system).await;
    println!("ok: a failed actor started again");
    cases::an_interrupt_handler_tells(&system).await;
    println!("ok: the handler of an interrupt told an actor");
    println!("heap: {} of {} bytes in use", heap::used(), heap::LEN);
    let end = system.graceful_shutdown(SHUTDOWN_WITHIN).await;
    assert_eq!(end, Shutdown { drained: true, abandoned: 0 });
    process::exit(0);
}
