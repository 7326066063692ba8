//! Authorizer of client statements: SQLite asks it about each action while it compiles a statement.
//!
//! Denied are actions that reach other files, change the file's format, or change the connection for the next tenant.
//! A pragma is denied unless it is on a list of those that only read.

use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

/// The engine's own temporary table, with which a connection is reset between tenants; clients cannot name it.
pub(super) const SESSION_TABLE: &str = "evenkeel_session";

/// Pragmas that read, and whose argument names a table, an index or a number of rows.
const PRAGMAS_WITH_ARGUMENT: [&str; 10] = [
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "integrity_check",
    "quick_check",
    "table_info",
    "table_list",
    "table_xinfo",
];

/// Pragmas that read if they have no value, and otherwise set something.
///
/// The full-text and R-tree modules read `data_version` and `page_size` themselves.
const PRAGMAS_WITHOUT_VALUE: [&str; 17] = [
    "application_id",
    "auto_vacuum",
    "collation_list",
    "compile_options",
    "data_version",
    "encoding",
    "foreign_keys",
    "freelist_count",
    "function_list",
    "journal_mode",
    "max_page_count",
    "module_list",
    "page_count",
    "page_size",
    "pragma_list",
    "schema_version",
    "user_version",
];

/// State that a connection shares with its authorizer.
#[derive(Clone, Debug, Default)]
pub(super) struct Authorizer(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    caller: Caller,
    /// Reason of the latest denial.
    denial: Option<String>,
}

/// Origin of the statement that SQLite compiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Caller {
    #[default]
    Client,
    /// A client's `VACUUM`, which attaches an unnamed temporary database while it runs.
    ClientVacuum,
    /// The engine itself.
    Engine,
}

impl Authorizer {
    /// Sets the origin of the statements that follow.
    pub(super) fn set_caller(&self, caller: Caller) {
        let mut state = self.0.lock();
        state.caller = caller;
        state.denial = None;
    }

    /// Returns the reason of a denial since the caller was set.
    pub(super) fn take_denial(&self) -> Option<String> {
        self.0.lock().denial.take()
    }

    /// Decides about one action.
    pub(super) fn authorize(&self, context: &AuthContext<'_>) -> Authorization {
        let mut state = self.0.lock();
        if state.caller == Caller::Engine {
            return Authorization::Allow;
        }
        match denial(context, state.caller) {
            None => Authorization::Allow,
            Some(reason) => {
                state.denial = Some(reason);
                Authorization::Deny
            }
        }
    }
}

/// Returns the reason why an action is denied.
fn denial(context: &AuthContext<'_>, caller: Caller) -> Option<String> {
    match context.action {
        AuthAction::Attach { filename: "" } if caller == Caller::ClientVacuum => None,
        AuthAction::Attach { .. } if caller == Caller::ClientVacuum => {
            Some("VACUUM INTO is not allowed".to_owned())
        }
        AuthAction::Attach { .. } => Some("ATTACH is not allowed".to_owned()),
        AuthAction::Detach { .. } => Some("DETACH is not allowed".to_owned()),
        AuthAction::Function { function_name } => function_denial(function_name),
        AuthAction::Pragma { pragma_name, pragma_value } => pragma_denial(pragma_name, pragma_value),
        // An `ATTACH` or `DETACH` of an expression has no file name, and is reported as unknown.
        AuthAction::Unknown { code: rusqlite::ffi::SQLITE_ATTACH, .. } => {
            Some("ATTACH is not allowed".to_owned())
        }
        AuthAction::Unknown { code: rusqlite::ffi::SQLITE_DETACH, .. } => {
            Some("DETACH is not allowed".to_owned())
        }
        AuthAction::Unknown { code, .. } => Some(format!("action {code} is not allowed")),
        _ => concerns_session_table(context).then(|| format!("the name temp.{SESSION_TABLE} is reserved")),
    }
}

fn function_denial(name: &str) -> Option<String> {
    if name.eq_ignore_ascii_case("load_extension") || name.eq_ignore_ascii_case("fts3_tokenizer") {
        return Some(format!("the function {name} is not allowed"));
    }
    let counts_other_tenants = name.eq_ignore_ascii_case("total_changes");
    counts_other_tenants.then(|| {
        format!(
            "the function {name} is not allowed, because it counts changes of other tenants; use changes()"
        )
    })
}

fn pragma_denial(name: &str, value: Option<&str>) -> Option<String> {
    let is_in = |list: &[&str]| list.iter().any(|allowed| allowed.eq_ignore_ascii_case(name));
    if is_in(&PRAGMAS_WITH_ARGUMENT) {
        return None;
    }
    match (is_in(&PRAGMAS_WITHOUT_VALUE), value) {
        (true, None) => None,
        (true, Some(_)) => Some(format!("PRAGMA {name} can be read, but not set")),
        (false, _) => Some(format!("PRAGMA {name} is not allowed")),
    }
}

fn concerns_session_table(context: &AuthContext<'_>) -> bool {
    let database = match context.action {
        AuthAction::AlterTable { database_name, .. } => Some(database_name),
        _ => context.database_name,
    };
    let is_session_table = |name: &str| name.eq_ignore_ascii_case(SESSION_TABLE);
    database == Some("temp") && names(&context.action).into_iter().flatten().any(is_session_table)
}

/// Returns the names of tables, indexes, triggers and views that an action concerns.
fn names<'a>(action: &AuthAction<'a>) -> [Option<&'a str>; 2] {
    match *action {
        AuthAction::CreateIndex { index_name, table_name }
        | AuthAction::CreateTempIndex { index_name, table_name }
        | AuthAction::DropIndex { index_name, table_name }
        | AuthAction::DropTempIndex { index_name, table_name } => [Some(index_name), Some(table_name)],
        AuthAction::CreateTrigger { trigger_name, table_name }
        | AuthAction::CreateTempTrigger { trigger_name, table_name }
        | AuthAction::DropTrigger { trigger_name, table_name }
        | AuthAction::DropTempTrigger { trigger_name, table_name } => [Some(trigger_name), Some(table_name)],
        AuthAction::CreateView { view_name }
        | AuthAction::CreateTempView { view_name }
        | AuthAction::DropView { view_name }
        | AuthAction::DropTempView { view_name } => [Some(view_name), None],
        AuthAction::CreateTable { table_name }
        | AuthAction::CreateTempTable { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::DropTempTable { table_name }
        | AuthAction::CreateVtable { table_name, .. }
        | AuthAction::DropVtable { table_name, .. }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::Analyze { table_name }
        | AuthAction::Read { table_name, .. }
        | AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name } => [Some(table_name), None],
        _ => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(action: AuthAction<'_>, caller: Caller) -> Option<String> {
        denial(&AuthContext { action, database_name: None, accessor: None }, caller)
    }

    #[test]
    fn a_pragma_may_only_read() {
        let denied = |pragma_name, pragma_value| {
            denied(AuthAction::Pragma { pragma_name, pragma_value }, Caller::Client)
        };
        for (name, value) in [("table_info", Some("t")), ("USER_VERSION", None), ("journal_mode", None)] {
            assert_eq!(denied(name, value), None, "{name}");
        }
        for (name, value) in [
            ("user_version", Some("1")),
            ("journal_mode", Some("delete")),
            ("writable_schema", Some("1")),
            ("database_list", None),
            ("unheard_of", None),
        ] {
            assert!(denied(name, value).is_some_and(|reason| reason.contains(name)), "{name}");
        }
    }

    #[test]
    fn only_a_vacuum_may_attach_and_only_an_unnamed_database() {
        let unnamed = AuthAction::Attach { filename: "" };
        let named = AuthAction::Attach { filename: "/tmp/copy" };
        let expression = AuthAction::Unknown { code: rusqlite::ffi::SQLITE_ATTACH, arg1: None, arg2: None };
        assert_eq!(denied(unnamed, Caller::ClientVacuum), None);
        assert_eq!(denied(named, Caller::ClientVacuum).as_deref(), Some("VACUUM INTO is not allowed"));
        for action in [unnamed, named, expression] {
            assert_eq!(denied(action, Caller::Client).as_deref(), Some("ATTACH is not allowed"));
        }
    }

    #[test]
    fn an_unknown_action_is_denied() {
        assert!(denied(AuthAction::Unknown { code: 99, arg1: None, arg2: None }, Caller::Client).is_some());
    }
}
