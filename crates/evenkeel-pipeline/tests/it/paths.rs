//! Path choice: what health checks measure decides how requests spread over the paths of a node.

use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::path::Probe;
use evenkeel_policy::time::Duration;

use crate::driver::{Driver, with_paths};
use evenkeel_pipeline::PipelineOptions;

const NODE: NodeId = NodeId(0);

#[test]
fn requests_follow_the_round_trips_that_health_checks_measure() {
    let mut driver = driver(&[20, 20]);
    probe(&mut driver, [10, 40], 60);
    let share = share_of_second(&mut driver);
    assert!((19..=22).contains(&share), "a path of four times the round trip gets a fifth, not {share} %");
}

#[test]
fn a_degraded_path_gets_less_than_its_loss_alone_costs_it() {
    let mut driver = driver(&[10, 10]);
    probe(&mut driver, [10, 10], 60);
    let share = share_of_second(&mut driver);
    assert!((48..=52).contains(&share), "{share} %");
    // One in four checks is lost: by that alone it would keep three quarters of its weight, 43 % of the requests.
    for round in 0..240 {
        driver.advance(Duration::from_millis(25));
        let rtt = Duration::from_millis(10);
        let second = if round % 4 == 0 { Probe::Lost } else { Probe::Answered { rtt } };
        driver.pipeline.handle_probe(driver.now, NODE, Some(PathId(0)), Probe::Answered { rtt });
        driver.pipeline.handle_probe(driver.now, NODE, Some(PathId(1)), second);
        driver.drain_events();
    }
    let share = share_of_second(&mut driver);
    assert!((1..=10).contains(&share), "{share} %");
}

fn driver(rtts: &[u64]) -> Driver {
    let mut driver = Driver::new(PipelineOptions::default());
    driver.add_spec(&with_paths(64, rtts));
    driver
}

/// Answers a health check over each path every 100 ms, after the given milliseconds.
fn probe(driver: &mut Driver, rtts: [u64; 2], rounds: u32) {
    for _ in 0..rounds {
        driver.advance(Duration::from_millis(100));
        for (path, rtt) in (0..).map(PathId).zip(rtts) {
            let rtt = Duration::from_millis(rtt);
            driver.pipeline.handle_probe(driver.now, NODE, Some(path), Probe::Answered { rtt });
            driver.drain_events();
        }
    }
}

/// Returns the percentage of 100 requests that use the second path.
fn share_of_second(driver: &mut Driver) -> usize {
    let mut sent = 0;
    for _ in 0..100 {
        let request = driver.submit(0);
        sent += usize::from(driver.in_flight[&request].path == Some(PathId(1)));
        driver.end(request, 500);
    }
    sent
}
