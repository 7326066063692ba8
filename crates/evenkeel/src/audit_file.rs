//! `audit.log` in the data directory: one JSON line per administrative change, made or refused.
//!
//! Guarantees: only the file's owner may read it. A record is written and flushed to the system before the change is
//! reported to its caller; it is not synced to disk. If it cannot be written, that is logged and counted, and the change
//! stands: a full disk must not keep an administrator from removing a tenant.
//!
//! Limits: 4 files of at most 16 MiB, the oldest is deleted. Of callers that are not administrators, at most 60 records a
//! minute each are written, so that they cannot push others out of the files; the rest is counted in a record. The file may
//! be moved or deleted while it is open: the next record begins another.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_server::audit_trail::{Actor, AuditRecord};
use evenkeel_server::unix_seconds::UnixSeconds;
use evenkeel_telemetry::Counter;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use serde_json::{Value as Json, json};

const FILE: &str = "audit.log";
/// Size at which a new file is begun.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Files beside the current one.
const OLD_FILES_MAX: usize = 3;
/// Records per minute of a caller that is not an administrator.
const RECORDS_PER_MINUTE_MAX: u64 = 60;
/// Minimum interval between log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The audit log of a data directory.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    bytes_max: u64,
    errors: Counter,
    state: Mutex<FileState>,
}

/// The open file.
#[derive(Debug)]
struct OpenFile {
    file: File,
    bytes: u64,
    /// Device and inode, which tell whether the path still leads to this file.
    id: (u64, u64),
}

#[derive(Debug, Default)]
struct FileState {
    file: Option<OpenFile>,
    /// The minute that `counts` is about.
    minute: u64,
    /// Records of this minute by caller; administrators are not counted.
    counts: HashMap<String, u64>,
    logged_at: Option<Instant>,
}

impl AuditFile {
    /// `errors` counts records that could not be written.
    pub fn new(data_dir: &Path, errors: Counter) -> Self {
        Self { path: data_dir.join(FILE), bytes_max: FILE_BYTES_MAX, errors, state: Mutex::default() }
    }

    /// Writes the record of a request.
    pub fn record(&self, record: &AuditRecord) {
        let now = UnixSeconds::now();
        let mut state = self.state.lock();
        for suppressed in state.begin_minute(now.0 / 60) {
            self.write(&mut state, &suppressed);
        }
        if state.may_write(&record.actor) {
            self.write(&mut state, &to_json(record, now));
        }
    }

    /// Writes a record of a change that was not requested over the network: by a command or by a signal.
    pub fn record_local(&self, actor: &str, action: &str, request: Json, error: Option<String>) {
        let record = json!({
            "time": UnixSeconds::now().to_rfc3339(), "actor": actor, "action": action, "request": request,
            "result": if error.is_some() { "refused" } else { "done" }, "error": error,
        });
        self.write(&mut self.state.lock(), &without_nulls(record));
    }

    fn write(&self, state: &mut FileState, record: &Json) {
        let line = format!("{record}\n");
        if let Err(error) = self.append(state, line.as_bytes()) {
            // The next record opens the file again.
            state.file = None;
            self.errors.count();
            let now = Instant::now();
            if state.logged_at.is_none_or(|at| LOG_INTERVAL <= now.duration_since(at)) {
                state.logged_at = Some(now);
                let path = self.path.display();
                tracing::error!(target: "evenkeel", %path, %error, "could not write an audit record; the change it is about is not affected");
            }
        }
    }

    fn append(&self, state: &mut FileState, line: &[u8]) -> io::Result<()> {
        // An operator or logrotate may have moved or deleted the file.
        if state.file.as_ref().is_some_and(|open| !self.is_current(open)) {
            state.file = None;
        }
        let open = match &mut state.file {
            Some(open) => open,
            closed => closed.insert(self.open()?),
        };
        let added = line.len() as u64;
        if 0 < open.bytes && self.bytes_max < open.bytes + added {
            self.rotate()?;
            *open = self.open()?;
        }
        if let Err(error) = open.file.write_all(line) {
            // On a full disk a part of the line may have been written.
            open.file.set_len(open.bytes)?;
            return Err(error);
        }
        open.bytes += added;
        Ok(())
    }

    fn is_current(&self, open: &OpenFile) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|metadata| id_of(&metadata) == open.id)
    }

    /// Opens the file for its owner only; rejects a symbolic link. Completes the last line, which a crash may have cut.
    fn open(&self) -> io::Result<OpenFile> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&self.path, flags, Mode::RUSR | Mode::WUSR)?);
        let metadata = file.metadata()?;
        let mut bytes = metadata.len();
        let mut last = [b'\n'];
        if let Some(position) = bytes.checked_sub(1) {
            file.read_exact_at(&mut last, position)?;
        }
        if last != [b'\n'] {
            file.write_all(b"\n")?;
            bytes += 1;
        }
        Ok(OpenFile { file, bytes, id: id_of(&metadata) })
    }

    fn rotate(&self) -> io::Result<()> {
        for number in (0..OLD_FILES_MAX).rev() {
            match fs::rename(self.numbered(number), self.numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Returns the path of the current file, or of an older one.
    fn numbered(&self, number: usize) -> PathBuf {
        if number == 0 { self.path.clone() } else { self.path.with_extension(format!("log.{number}")) }
    }
}

fn id_of(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl FileState {
    /// Begins to count another minute; returns records about what was suppressed in the last.
    fn begin_minute(&mut self, minute: u64) -> Vec<Json> {
        if self.minute == minute {
            return Vec::new();
        }
        let last = UnixSeconds(self.minute * 60);
        self.minute = minute;
        let over = self.counts.drain().filter(|(_, count)| RECORDS_PER_MINUTE_MAX < *count);
        over.map(|(caller, count)| {
            let suppressed = count - RECORDS_PER_MINUTE_MAX;
            json!({"time": last.to_rfc3339(), "actor": caller, "action": "suppressed", "count": suppressed})
        })
        .collect()
    }

    fn may_write(&mut self, actor: &Actor) -> bool {
        let caller = match actor {
            Actor::Admin { .. } => return true,
            Actor::Unknown => "unknown".to_owned(),
            Actor::Tenant { name, .. } => format!("tenant {name}"),
        };
        let count = self.counts.entry(caller).or_default();
        *count += 1;
        *count <= RECORDS_PER_MINUTE_MAX
    }
}

fn to_json(record: &AuditRecord, now: UnixSeconds) -> Json {
    let (actor, tenant, key) = match &record.actor {
        Actor::Unknown => ("unknown", None, None),
        Actor::Admin { key } => ("admin", None, Some(key)),
        Actor::Tenant { name, key } => ("tenant", Some(name), key.as_ref()),
    };
    let result = match record.status {
        None => "client disconnected",
        Some(status) if status.is_success() => "done",
        Some(_) => "refused",
    };
    without_nulls(json!({
        "time": now.to_rfc3339(), "actor": actor, "tenant": tenant, "key": key, "address": record.address.to_canonical(),
        "action": record.action, "request": record.request, "before": record.before, "result": result,
        "status": record.status.map(|status| status.as_u16()), "error": record.error, "request_id": record.request_id,
    }))
}

fn without_nulls(mut record: Json) -> Json {
    if let Json::Object(fields) = &mut record {
        fields.retain(|_, value| !value.is_null());
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use std::os::unix::fs::PermissionsExt as _;

    /// A directory that is removed on drop.
    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("evenkeel-audit-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn record(actor: Actor) -> AuditRecord {
        AuditRecord {
            actor,
            address: [192, 0, 2, 1].into(),
            request_id: "req-1".to_owned(),
            action: "DELETE /api/tenants/acme".to_owned(),
            request: None,
            before: None,
            status: Some(StatusCode::OK),
            error: None,
        }
    }

    fn admin() -> Actor {
        Actor::Admin { key: "12345678".to_owned() }
    }

    fn lines(path: &Path) -> Vec<Json> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_record_is_a_line_that_only_the_owner_may_read() {
        let dir = TempDir::new("line");
        AuditFile::new(&dir.0, Counter::default()).record(&record(admin()));
        let file = dir.0.join(FILE);
        let written = &lines(&file)[0];
        assert_eq!((&written["actor"], &written["result"]), (&json!("admin"), &json!("done")), "{written}");
        assert_eq!(
            (&written["address"], &written["key"]),
            (&json!("192.0.2.1"), &json!("12345678")),
            "{written}"
        );
        assert!(written.get("error").is_none(), "{written}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn full_files_are_rotated_and_the_oldest_is_deleted() {
        let dir = TempDir::new("rotate");
        let log = AuditFile { bytes_max: 2_000, ..AuditFile::new(&dir.0, Counter::default()) };
        for _ in 0..100 {
            log.record(&record(admin()));
        }
        let mut names: Vec<String> = fs::read_dir(&dir.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["audit.log", "audit.log.1", "audit.log.2", "audit.log.3"]);
        for name in names {
            assert!(fs::metadata(dir.0.join(&name)).unwrap().len() <= 2_000, "{name}");
        }
    }

    #[test]
    fn a_record_follows_a_line_that_was_cut_on_a_line_of_its_own() {
        let dir = TempDir::new("cut");
        fs::write(dir.0.join(FILE), "{\"time\":").unwrap();
        let log = AuditFile::new(&dir.0, Counter::default());
        log.record(&record(admin()));
        log.record(&record(admin()));
        let text = fs::read_to_string(dir.0.join(FILE)).unwrap();
        let lines: Vec<bool> = text.lines().map(|line| serde_json::from_str::<Json>(line).is_ok()).collect();
        assert_eq!(lines, [false, true, true], "{text}");
    }

    #[test]
    fn a_file_that_was_moved_or_deleted_is_begun_again() {
        let dir = TempDir::new("moved");
        let log = AuditFile::new(&dir.0, Counter::default());
        log.record(&record(admin()));
        fs::rename(dir.0.join(FILE), dir.0.join("moved")).unwrap();
        log.record(&record(admin()));
        assert_eq!((lines(&dir.0.join("moved")).len(), lines(&dir.0.join(FILE)).len()), (1, 1));
        fs::remove_file(dir.0.join(FILE)).unwrap();
        log.record(&record(admin()));
        assert_eq!((lines(&dir.0.join(FILE)).len(), log.errors.get()), (1, 0));
    }

    #[test]
    fn a_record_that_cannot_be_written_is_counted_and_the_next_one_is_written() {
        let dir = TempDir::new("error");
        let log = AuditFile::new(&dir.0, Counter::default());
        fs::create_dir(dir.0.join(FILE)).unwrap();
        log.record(&record(admin()));
        assert_eq!(log.errors.get(), 1);
        fs::remove_dir(dir.0.join(FILE)).unwrap();
        log.record(&record(admin()));
        assert_eq!((log.errors.get(), lines(&dir.0.join(FILE)).len()), (1, 1));
    }

    #[test]
    fn other_callers_than_administrators_cannot_fill_the_log() {
        let mut state = FileState::default();
        state.begin_minute(1);
        let written = (0..100).filter(|_| state.may_write(&Actor::Unknown)).count();
        assert_eq!(written as u64, RECORDS_PER_MINUTE_MAX);
        assert!((0..100).all(|_| state.may_write(&admin())));
        let tenant = Actor::Tenant { name: "acme".to_owned(), key: None };
        assert!(state.may_write(&tenant), "each caller has its own limit");
        let suppressed = state.begin_minute(2);
        assert_eq!((suppressed.len(), &suppressed[0]["count"]), (1, &json!(40)), "{suppressed:?}");
        assert!(state.may_write(&Actor::Unknown));
    }
}
