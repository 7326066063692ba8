//! Each transition of the word, alone; what threads make of them together is in the models.

use super::*;

#[test]
fn raising_a_flag_gives_the_run_right_to_the_first_and_to_nobody_after() {
    let state = word(0);
    assert_eq!((state.raise(USER), state.flags()), (Notify::Schedule, SCHEDULED | USER));
    assert_eq!((state.raise(USER), state.flags()), (Notify::Already, SCHEDULED | USER));
    assert_eq!((state.raise(SYSTEM), state.flags()), (Notify::Already, SCHEDULED | USER | SYSTEM));
}

#[test]
fn user_messages_schedule_no_suspended_cell_and_urgent_ones_do() {
    let state = word(SUSPENDED);
    assert_eq!((state.raise(USER), state.flags()), (Notify::Already, SUSPENDED | USER));
    assert_eq!(state.raise_unlocked(SIGNAL), Notify::Schedule);
    assert_eq!(word(SUSPENDED).raise(SYSTEM), Notify::Schedule);
}

#[test]
fn closing_keeps_no_cell_from_being_scheduled() {
    assert_eq!(word(CLOSED).raise(USER), Notify::Schedule);
}

#[test]
fn a_dead_cell_is_never_scheduled_and_never_changes() {
    for flags in [DEAD, DEAD | CLOSED | SCHEDULED, DEAD | SCHEDULED | USER | SYSTEM] {
        for flag in [USER, SYSTEM, SIGNAL] {
            let state = word(flags);
            assert_eq!((state.raise(flag), state.raise_unlocked(flag)), (Notify::Dead, Notify::Dead));
            assert_eq!(state.flags(), flags);
        }
    }
}

#[test]
fn nothing_is_left_to_do_in_a_dead_cell() {
    assert_eq!(word(SCHEDULED | DEAD | USER | SYSTEM).release(0), Release::Gone);
}

#[test]
fn an_announcement_writes_even_what_is_set() {
    let state = word(SCHEDULED | SIGNAL);
    assert_eq!((state.raise_unlocked(SIGNAL), state.flags()), (Notify::Already, SCHEDULED | SIGNAL));
}

#[test]
fn a_run_that_leaves_nothing_gives_the_right_back() {
    let state = word(SCHEDULED);
    assert_eq!((state.release(0), state.flags()), (Release::Gone, 0));
    assert_eq!(state.raise(USER), Notify::Schedule, "the next one is given it again");
}

#[test]
fn what_arrived_during_a_run_keeps_the_right() {
    for flag in [USER, SYSTEM, SIGNAL, WAITERS] {
        let state = word(SCHEDULED | flag);
        assert_eq!((state.release(0), state.flags()), (Release::Kept, SCHEDULED | flag));
    }
}

#[test]
fn a_suspension_begins_and_ends_in_the_transition_that_ends_the_run() {
    let state = word(SCHEDULED | USER);
    assert_eq!((state.release(SUSPENDED), state.flags()), (Release::Gone, SUSPENDED | USER));
    let state = word(SCHEDULED | SUSPENDED | USER);
    assert_eq!((state.release(0), state.flags()), (Release::Kept, SCHEDULED | USER));
    let state = word(SCHEDULED | SYSTEM);
    assert_eq!((state.release(SUSPENDED), state.flags()), (Release::Kept, SCHEDULED | SUSPENDED | SYSTEM));
}

#[test]
fn a_suspended_cell_that_holds_messages_back_has_them_to_do_when_it_goes_on() {
    let state = word(SCHEDULED);
    assert_eq!((state.release(SUSPENDED | USER), state.flags()), (Release::Gone, SUSPENDED | USER));
    assert_eq!(state.raise(SYSTEM), Notify::Schedule);
    state.lower(SYSTEM);
    assert_eq!(state.release(0), Release::Kept);
}

#[test]
fn a_right_that_is_gone_already_is_given_back_without_a_write() {
    let state = word(CLOSED);
    assert_eq!((state.release(0), state.flags()), (Release::Gone, CLOSED));
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
fn who_waits_for_room_learns_whether_anybody_will_look() {
    let running = word(SCHEDULED);
    let idle = word(0);
    assert!(running.await_room());
    assert!(!idle.await_room());
    assert_eq!((running.flags(), idle.flags()), (SCHEDULED | WAITERS, WAITERS));
}

#[test]
fn a_slot_taken_again_has_a_word_without_a_past() {
    let state = word(SCHEDULED | USER | SUSPENDED);
    state.mark_dead();
    assert_eq!(state.flags(), SCHEDULED | USER | SUSPENDED | DEAD | CLOSED);
    state.renew();
    assert_eq!(state.flags(), SCHEDULED);
}

fn word(flags: u32) -> CellState {
    let state = CellState::new();
    state.set(flags);
    state
}
