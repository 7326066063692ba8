//! Redundant flows: every chunk takes the two best paths.

use super::*;

/// Opens a redundant flow that the peer knows.
fn open(pair: &mut Pair) -> FlowId {
    let flow = pair.open(FlowLane::Redundant);
    pair.run(Duration::from_millis(50));
    pair.sent.clear();
    flow
}

fn chunks(pair: &Pair, path: PathId) -> usize {
    pair.sent.iter().filter(|sent| **sent == (path, StreamKey::Bonded)).count()
}

#[test]
fn every_chunk_takes_both_paths_and_arrives_once() {
    let mut pair = Pair::new();
    let flow = open(&mut pair);
    let data: Vec<u8> = (0..200_000_u32).map(|index| (index / 7) as u8).collect();
    assert_eq!(pair.write(0, flow, data.clone()), data.len());
    assert!(pair.read(1, flow) == data);
    assert!(chunks(&pair, A) > 10);
    assert_eq!(chunks(&pair, A), chunks(&pair, B));
    assert_eq!(pair.ends[1].status(pair.now).totals.duplicate_bytes, data.len() as u64);
}

#[test]
fn a_path_that_dies_delays_nothing() {
    for dead in [A, B] {
        let mut pair = Pair::new();
        let flow = open(&mut pair);
        pair.cut(dead, Cut::All);
        for _ in 0..20 {
            // More than a dead connection takes before it has no room.
            pair.write(0, flow, vec![7; 10_000]);
            assert_eq!(pair.read(1, flow).len(), 10_000, "at once");
        }
    }
}

#[test]
fn data_without_a_second_copy_gets_one_when_a_path_comes_back() {
    let mut pair = Pair::new();
    let flow = open(&mut pair);
    let now = pair.now;
    pair.ends[0].handle_path_down(now, B);
    pair.cut(A, Cut::Frames);
    pair.write(0, flow, vec![7; 50_000]);
    assert_eq!(pair.read(1, flow).len(), 0, "they are on their way on A");
    pair.ends[0].handle_path_up(now, B);
    pair.run(Duration::from_millis(500));
    assert_eq!(pair.read(1, flow).len(), 50_000, "copies took B");
}

#[test]
fn a_third_path_takes_nothing_while_two_are_better() {
    let mut pair = Pair::new();
    let now = pair.now;
    pair.ends[0].add_path(now, PathId(2), "third").unwrap();
    let flow = open(&mut pair);
    assert_eq!(pair.ends[0].paths.best_two(pair.now), [A, B]);
    pair.write(0, flow, vec![7; 50_000]);
    assert_eq!(chunks(&pair, PathId(2)), 0);
}
