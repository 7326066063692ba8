//! Runs the examples unchanged.

#[path = "../../examples/await_tcp.rs"]
mod await_tcp;
#[path = "../../examples/credits.rs"]
mod credits;
#[path = "../../examples/ping_pong.rs"]
mod ping_pong;
#[path = "../../examples/stash_until_connected.rs"]
mod stash_until_connected;
#[path = "../../examples/virtual_time.rs"]
mod virtual_time;
#[path = "../../examples/worker_pool.rs"]
mod worker_pool;

#[test]
fn ping_pong_runs_to_its_end() {
    ping_pong::main().unwrap();
}

#[test]
fn actors_that_send_to_each_other_by_credit_never_wait() {
    credits::main().unwrap();
}

#[test]
fn the_worker_pool_survives_its_failures() {
    worker_pool::main().unwrap();
}

#[test]
fn requests_wait_for_the_connection() {
    stash_until_connected::main().unwrap();
}

#[test]
fn the_actor_receives_its_echo_over_tcp() {
    await_tcp::main().unwrap();
}

#[test]
fn hours_pass_in_virtual_time() {
    virtual_time::main().unwrap();
}
