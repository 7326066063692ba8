//! The SysTick timer as embassy's time driver, and as the interrupt that sends messages.
//!
//! Limits: a tick is a millisecond, and at most eight timers are pending at a time.

use core::cell::{Cell, RefCell};
use core::task::Waker;

use cortex_m::peripheral::syst::SystClkSource;
use cortex_m::peripheral::{SCB, SYST};
use cortex_m_rt::exception;
use critical_section::Mutex;
use embassy_time_driver::{Driver, TICK_HZ};
use embassy_time_queue_utils::Queue;
use evenkeel_actor::ActorRef;

use crate::cases::Msg;

#[cfg(machine = "microbit")]
const CORE_HZ: u32 = 16_000_000;
#[cfg(machine = "mps2-an505")]
const CORE_HZ: u32 = 20_000_000;

struct SysTickDriver {
    ticks: Mutex<Cell<u64>>,
    queue: Mutex<RefCell<Queue>>,
}

embassy_time_driver::time_driver_impl!(static DRIVER: SysTickDriver = SysTickDriver {
    ticks: Mutex::new(Cell::new(0)),
    queue: Mutex::new(RefCell::new(Queue::new())),
});

/// The actor that gets a message at every tick.
static LISTENER: Mutex<RefCell<Option<ActorRef<Msg>>>> = Mutex::new(RefCell::new(None));

/// Starts the timer.
pub(crate) fn start(mut timer: SYST) {
    timer.set_clock_source(SystClkSource::Core);
    timer.set_reload(CORE_HZ / TICK_HZ as u32 - 1);
    timer.clear_current();
    timer.enable_counter();
    timer.enable_interrupt();
}

/// Sets the actor that the interrupt handler sends a message at every tick; `None` turns it off.
pub(crate) fn listen(listener: Option<ActorRef<Msg>>) {
    // Drops the previous listener outside the critical section: it may be the last reference to its actor.
    drop(critical_section::with(|token| LISTENER.replace(token, listener)));
}

impl Driver for SysTickDriver {
    fn now(&self) -> u64 {
        critical_section::with(|token| self.ticks.borrow(token).get())
    }

    fn schedule_wake(&self, at: u64, waker: &Waker) {
        // The next tick checks the queue in any case.
        critical_section::with(|token| self.queue.borrow_ref_mut(token).schedule_wake(at, waker));
    }
}

#[exception]
fn SysTick() {
    let listener = critical_section::with(|token| {
        let now = DRIVER.ticks.borrow(token).get() + 1;
        DRIVER.ticks.borrow(token).set(now);
        DRIVER.queue.borrow_ref_mut(token).next_expiration(now);
        LISTENER.borrow_ref(token).clone()
    });
    if let Some(listener) = listener {
        listener.tell(Msg::Tick(SCB::vect_active()));
    }
}
