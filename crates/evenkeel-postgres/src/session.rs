//! Session of a connection: its owner, role, settings and access.
//!
//! Guarantee: a statement runs only in the session of its own owner. Reset and setup precede the statement in one batch
//! without a Sync in between, so the server skips the statement if one of them fails; each is committed before the
//! statement, so a statement that fails does not roll it back.

use bytes::BytesMut;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend::{self, BindError};

use crate::error::PgError;

/// Most settings of a session; PostgreSQL limits the expressions of one SELECT.
pub const SETTINGS_MAX: usize = 256;
/// First version that commits `DISCARD ALL` at once, even if other statements follow before the Sync.
const COMMITS_DISCARD_ALL: u32 = 15;
const SET_READ_ONLY: &str = "SET default_transaction_read_only = on";
const SET_READ_WRITE: &str = "SET default_transaction_read_only = off";

/// Session that statements run in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Identifies the tenant: session state never passes from one owner to another.
    pub owner: u64,
    /// Role to switch to.
    pub role: Option<String>,
    /// Settings to apply, such as `app.tenant`.
    pub settings: Vec<(String, String)>,
    pub access: AccessMode,
}

/// Kind of transactions that a session begins by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// Writing statements are errors (25006), unless the client makes its transaction writable itself.
    ReadOnly,
    ReadWrite,
}

/// Session of a connection, and the changes to make before its next statement.
#[derive(Debug)]
pub(crate) struct SessionState {
    /// Session that the connection was lent for last.
    current: Option<Session>,
    change: Change,
    /// `default_transaction_read_only` as last reported; `None` if the server does not report it.
    read_only: Option<bool>,
    /// Its value after a reset.
    read_only_initial: Option<bool>,
    server_version: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    None,
    /// Role and settings are to be applied: the connection is new, or a command of the client may have changed them.
    Setup,
    /// Another owner's state is to be discarded first.
    Reset,
}

/// Commands that precede a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prologue {
    pub(crate) resets: bool,
    sets_up: bool,
    sets_access: Option<bool>,
    commits: bool,
}

impl SessionState {
    pub(crate) fn new(read_only: Option<bool>, server_version: u32) -> Self {
        Self { current: None, change: Change::None, read_only, read_only_initial: read_only, server_version }
    }

    /// Returns the owner that the connection was lent to last.
    pub(crate) fn owner(&self) -> Option<u64> {
        self.current.as_ref().map(|session| session.owner)
    }

    /// Begins a session; the next statement is preceded by the commands that it needs.
    pub(crate) fn begin(&mut self, session: &Session) {
        let Some(current) = &mut self.current else {
            self.change = Change::Setup;
            self.current = Some(session.clone());
            return;
        };
        current.access = session.access;
        if current != session {
            self.change = Change::Reset;
            *current = session.clone();
        }
    }

    /// Records that a client's command may have changed the role or a setting; both are applied again.
    pub(crate) fn mark_changed(&mut self) {
        if self.change == Change::None {
            self.change = Change::Setup;
        }
    }

    /// Records `default_transaction_read_only` as the server reports it.
    pub(crate) fn set_read_only(&mut self, read_only: bool) {
        self.read_only = Some(read_only);
    }

    /// Returns the commands that must precede the next statement; `None` if it needs none.
    pub(crate) fn prologue(&self) -> Option<Prologue> {
        let current = self.current.as_ref()?;
        let resets = self.change == Change::Reset;
        let sets_up = self.change != Change::None && (current.role.is_some() || !current.settings.is_empty());
        let read_only = current.access == AccessMode::ReadOnly;
        let before = if resets { self.read_only_initial } else { self.read_only };
        let sets_access = (before != Some(read_only)).then_some(read_only);
        let commits =
            sets_up || sets_access.is_some() || (resets && self.server_version < COMMITS_DISCARD_ALL);
        (resets || commits).then_some(Prologue { resets, sets_up, sets_access, commits })
    }

    /// Writes the commands of a prologue and returns their number.
    pub(crate) fn write(&self, prologue: Prologue, output: &mut BytesMut) -> Result<u8, PgError> {
        let mut commands = 0;
        if prologue.resets {
            write_command("DISCARD ALL", &[], output)?;
            commands += 1;
        }
        if !prologue.commits {
            return Ok(commands);
        }
        write_command("BEGIN", &[], output)?;
        commands += 1;
        // A SET is cheaper than a SELECT.
        if let Some(read_only) = prologue.sets_access {
            write_command(if read_only { SET_READ_ONLY } else { SET_READ_WRITE }, &[], output)?;
            commands += 1;
        }
        if prologue.sets_up {
            let values = self.values();
            let calls: Vec<String> = (0..values.len() / 2)
                .map(|index| format!("pg_catalog.set_config(${}, ${}, false)", index * 2 + 1, index * 2 + 2))
                .collect();
            write_command(&format!("SELECT {}", calls.join(", ")), &values, output)?;
            commands += 1;
        }
        write_command("COMMIT", &[], output)?;
        Ok(commands + 1)
    }

    /// Returns names and values of the parameters to set, in turn.
    fn values(&self) -> Vec<&str> {
        let current = self.current.iter();
        let mut values: Vec<&str> = current
            .clone()
            .flat_map(|session| &session.settings)
            .flat_map(|(name, value)| [name.as_str(), value.as_str()])
            .collect();
        // Last, because the role may lack the right to change a setting.
        values.extend(current.flat_map(|session| &session.role).flat_map(|role| ["role", role.as_str()]));
        values
    }

    /// Records that the server has executed the prologue.
    ///
    /// It reports access itself, before ReadyForQuery: the statement behind the prologue may have changed it again.
    pub(crate) fn confirm(&mut self) {
        self.change = Change::None;
    }
}

/// Writes a command for the unnamed statement, with bound text parameters.
fn write_command(sql: &str, params: &[&str], output: &mut BytesMut) -> Result<(), PgError> {
    let invalid = |reason: String| PgError::InvalidStatement { reason, sqlstate: "22021" };
    frontend::parse("", sql, [], output).map_err(|error| invalid(error.to_string()))?;
    let write_value = |value: &&str, output: &mut BytesMut| {
        output.extend_from_slice(value.as_bytes());
        Ok(IsNull::No)
    };
    frontend::bind("", "", [], params, write_value, [], output).map_err(|error| match error {
        BindError::Conversion(error) => invalid(error.to_string()),
        BindError::Serialization(error) => invalid(error.to_string()),
    })?;
    frontend::execute("", 0, output).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u64 = 1;
    const BOB: u64 = 2;

    fn session(owner: u64, access: AccessMode) -> Session {
        Session { owner, role: None, settings: Vec::new(), access }
    }

    fn state(server_version: u32) -> SessionState {
        SessionState::new((14 <= server_version).then_some(false), server_version)
    }

    fn sql(state: &SessionState) -> String {
        let mut output = BytesMut::new();
        let Some(prologue) = state.prologue() else { return String::new() };
        state.write(prologue, &mut output).unwrap();
        let commands = ["DISCARD ALL", "BEGIN", "SET default", "SELECT", "COMMIT"];
        let text = String::from_utf8_lossy(&output).into_owned();
        commands.into_iter().filter(|command| text.contains(command)).collect::<Vec<_>>().join(" ")
    }

    fn confirm(state: &mut SessionState) {
        let access = state.prologue().and_then(|prologue| prologue.sets_access);
        state.confirm();
        // As the server does, if it knows how to.
        if let Some(read_only) = access.filter(|_| state.read_only_initial.is_some()) {
            state.set_read_only(read_only);
        }
    }

    #[test]
    fn a_new_connection_without_role_and_settings_needs_no_prologue() {
        let mut state = state(15);
        state.begin(&session(ALICE, AccessMode::ReadWrite));
        assert_eq!(state.prologue(), None);
    }

    #[test]
    fn the_same_owner_needs_no_reset_and_another_owner_does() {
        let mut state = state(15);
        state.begin(&session(ALICE, AccessMode::ReadWrite));
        confirm(&mut state);
        state.begin(&session(ALICE, AccessMode::ReadWrite));
        assert_eq!(sql(&state), "");
        state.begin(&session(BOB, AccessMode::ReadWrite));
        assert_eq!(sql(&state), "DISCARD ALL");
        confirm(&mut state);
        assert_eq!(sql(&state), "");
    }

    #[test]
    fn a_reset_that_was_not_confirmed_is_repeated() {
        let mut state = state(15);
        state.begin(&session(ALICE, AccessMode::ReadWrite));
        confirm(&mut state);
        state.begin(&session(BOB, AccessMode::ReadWrite));
        state.begin(&session(BOB, AccessMode::ReadWrite));
        assert_eq!(sql(&state), "DISCARD ALL");
    }

    #[test]
    fn a_change_of_role_or_settings_resets_the_session_of_the_same_owner() {
        let mut state = state(15);
        state.begin(&session(ALICE, AccessMode::ReadWrite));
        confirm(&mut state);
        let role = Session { role: Some("r".to_owned()), ..session(ALICE, AccessMode::ReadWrite) };
        state.begin(&role);
        assert_eq!(sql(&state), "DISCARD ALL BEGIN SELECT COMMIT");
        confirm(&mut state);
        state.begin(&role);
        assert_eq!(sql(&state), "");
    }

    #[test]
    fn role_and_settings_are_applied_again_after_a_command_that_may_have_changed_them() {
        let mut state = state(15);
        state.begin(&session(ALICE, AccessMode::ReadWrite));
        confirm(&mut state);
        state.mark_changed();
        assert_eq!(sql(&state), "");
        let settings = vec![("app.tenant".to_owned(), "bob".to_owned())];
        state.begin(&Session { settings, ..session(BOB, AccessMode::ReadWrite) });
        state.mark_changed();
        assert_eq!(sql(&state), "DISCARD ALL BEGIN SELECT COMMIT");
        confirm(&mut state);
        state.mark_changed();
        assert_eq!(sql(&state), "BEGIN SELECT COMMIT");
    }

    #[test]
    fn access_is_set_only_if_it_differs_from_the_reported_value() {
        let mut state = state(15);
        state.begin(&session(ALICE, AccessMode::ReadOnly));
        assert_eq!(sql(&state), "BEGIN SET default COMMIT");
        confirm(&mut state);
        assert_eq!(sql(&state), "");
        state.set_read_only(false);
        assert_eq!(sql(&state), "BEGIN SET default COMMIT");
        state.begin(&session(ALICE, AccessMode::ReadWrite));
        assert_eq!(sql(&state), "");
    }

    #[test]
    fn servers_that_do_not_report_access_get_it_before_every_statement() {
        let mut state = state(13);
        state.begin(&session(ALICE, AccessMode::ReadWrite));
        for _ in 0..2 {
            assert_eq!(sql(&state), "BEGIN SET default COMMIT");
            confirm(&mut state);
        }
    }

    #[test]
    fn older_servers_commit_a_reset_explicitly() {
        let mut state = state(14);
        state.begin(&session(ALICE, AccessMode::ReadWrite));
        confirm(&mut state);
        state.begin(&session(BOB, AccessMode::ReadWrite));
        assert_eq!(sql(&state), "DISCARD ALL BEGIN COMMIT");
    }
}
