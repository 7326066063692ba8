//! Tests of each transition of the state word in isolation; the loom models check concurrent transitions.

use super::*;

#[test]
fn the_first_raised_flag_grants_the_run_permit() {
    let state = word(0);
    assert_eq!((state.raise(USER), state.flags()), (Notify::Schedule, SCHEDULED | USER));
    assert_eq!((state.raise(USER), state.flags()), (Notify::NotNeeded, SCHEDULED | USER));
    assert_eq!((state.raise(SYSTEM), state.flags()), (Notify::NotNeeded, SCHEDULED | USER | SYSTEM));
}

#[test]
fn a_suspended_cell_is_scheduled_only_for_system_work_and_wake_ups() {
    let state = word(SUSPENDED);
    assert_eq!((state.raise(USER), state.flags()), (Notify::NotNeeded, SUSPENDED | USER));
    assert_eq!(state.raise_always(WOKEN), Notify::Schedule);
    assert_eq!(word(SUSPENDED).raise(SYSTEM), Notify::Schedule);
}

#[test]
fn a_closed_cell_can_still_be_scheduled() {
    assert_eq!(word(CLOSED).raise(USER), Notify::Schedule);
}

#[test]
fn a_dead_cell_is_never_scheduled_and_never_changes() {
    for flags in [DEAD, DEAD | CLOSED | SCHEDULED, DEAD | SCHEDULED | USER | SYSTEM] {
        for flag in [USER, SYSTEM, WOKEN] {
            let state = word(flags);
            assert_eq!((state.raise(flag), state.raise_always(flag)), (Notify::Dead, Notify::Dead));
            assert_eq!(state.flags(), flags);
        }
    }
}

#[test]
fn a_dead_cell_has_no_work_left() {
    assert_eq!(word(SCHEDULED | DEAD | USER | SYSTEM).release(0), ReleaseOutcome::Released);
}

#[test]
fn raise_always_writes_even_if_the_flag_is_set() {
    let state = word(SCHEDULED | WOKEN);
    assert_eq!((state.raise_always(WOKEN), state.flags()), (Notify::NotNeeded, SCHEDULED | WOKEN));
}

#[test]
fn a_run_that_leaves_no_work_releases_the_permit() {
    let state = word(SCHEDULED);
    assert_eq!((state.release(0), state.flags()), (ReleaseOutcome::Released, 0));
    assert_eq!(state.raise(USER), Notify::Schedule, "the next flag grants the permit again");
}

#[test]
fn work_that_arrived_during_a_run_keeps_the_permit() {
    for flag in [USER, SYSTEM, WOKEN, WAITERS] {
        let state = word(SCHEDULED | flag);
        assert_eq!((state.release(0), state.flags()), (ReleaseOutcome::Kept, SCHEDULED | flag));
    }
}

#[test]
fn a_suspension_begins_and_ends_in_the_transition_that_ends_the_run() {
    let state = word(SCHEDULED | USER);
    assert_eq!((state.release(SUSPENDED), state.flags()), (ReleaseOutcome::Released, SUSPENDED | USER));
    let state = word(SCHEDULED | SUSPENDED | USER);
    assert_eq!((state.release(0), state.flags()), (ReleaseOutcome::Kept, SCHEDULED | USER));
    let state = word(SCHEDULED | SYSTEM);
    assert_eq!(
        (state.release(SUSPENDED), state.flags()),
        (ReleaseOutcome::Kept, SCHEDULED | SUSPENDED | SYSTEM)
    );
}

#[test]
fn a_suspended_cell_with_private_messages_is_runnable_when_it_resumes() {
    let state = word(SCHEDULED);
    assert_eq!(
        (state.release(SUSPENDED | USER), state.flags()),
        (ReleaseOutcome::Released, SUSPENDED | USER)
    );
    assert_eq!(state.raise(SYSTEM), Notify::Schedule);
    state.lower(SYSTEM);
    assert_eq!(state.release(0), ReleaseOutcome::Kept);
}

#[test]
fn releasing_a_released_permit_changes_nothing() {
    let state = word(CLOSED);
    assert_eq!((state.release(0), state.flags()), (ReleaseOutcome::Released, CLOSED));
}

#[test]
fn flags_are_set_and_lowered_one_by_one() {
    let state = word(SCHEDULED | USER | SYSTEM);
    state.lower(USER);
    assert_eq!(state.flags_relaxed(), SCHEDULED | SYSTEM);
    state.set(CLOSED);
    assert_eq!(state.flags_relaxed(), SCHEDULED | SYSTEM | CLOSED);
}

#[test]
fn registering_a_waiter_reports_whether_the_cell_is_scheduled() {
    let running = word(SCHEDULED);
    let idle = word(0);
    assert!(running.register_waiter());
    assert!(!idle.register_waiter());
    assert_eq!((running.flags(), idle.flags()), (SCHEDULED | WAITERS, WAITERS));
}

#[test]
fn a_reused_slot_starts_with_a_fresh_state() {
    let state = word(SCHEDULED | USER | SUSPENDED);
    state.mark_dead();
    assert_eq!(state.flags(), SCHEDULED | USER | SUSPENDED | DEAD | CLOSED);
    state.reset_as_scheduled();
    assert_eq!(state.flags(), SCHEDULED);
}

fn word(flags: u32) -> CellState {
    let state = CellState::new();
    state.set(flags);
    state
}
