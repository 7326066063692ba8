//! The binary on a real file system that fills up: a tmpfs that only the server's mount namespace has.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::statvfs;
use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, read};

const MIB: u64 = 1 << 20;
/// Turns a test that would hang into one that fails.
const ATTEMPTS_MAX: usize = 60;

#[test]
fn a_drained_queue_returns_its_disk_space_although_nothing_can_be_sent() {
    let Some(disk) = SmallDisk::new("drained", "640m") else { return };
    let server = disk.start();
    create_queue(&server);
    let sent = disk.send_until_full(&server);
    assert!(sent > 500, "{sent} messages were accepted");
    disk.drain(&server, sent);
    let accepted = (0..ATTEMPTS_MAX).any(|_| {
        wait_a_second(&server);
        send(&server, 1).status == 200
    });
    assert!(accepted, "the empty queue rejects messages: {} MiB are free", disk.free(&server) / MIB);
    // One journal file of up to 64 MiB stays.
    let free = (0..ATTEMPTS_MAX).map(|_| {
        wait_a_second(&server);
        disk.free(&server) / MIB
    });
    let last = free.take(10).collect::<Vec<_>>();
    assert!(last.iter().any(|free| 540 <= *free), "{last:?} MiB of 640 are free with one message");
}

#[test]
fn a_reserve_below_the_minimum_is_raised_and_is_enough_for_background_writes() {
    let Some(disk) = SmallDisk::new("raised", "400m") else { return };
    disk.dir.write("evenkeel.toml", "[queue]\nreserve_bytes = 52428800\n");
    let checked = disk.dir.run(&["check", "evenkeel.toml"]);
    let shown = "reserve_bytes = 134217728  # evenkeel.toml:2, raised from 52428800 to the minimum";
    assert!(checked.out.contains(shown), "{checked:?}");
    let server = disk.start_after("raised [queue] reserve_bytes to the minimum");
    create_queue(&server);
    for _ in 0..3 {
        let sent = disk.send_until_full(&server);
        assert!(sent > 0 && disk.free(&server) > 16 * MIB, "{} bytes are free", disk.free(&server));
        disk.drain(&server, sent);
        assert!(disk.free(&server) > 16 * MIB, "{} bytes are free", disk.free(&server));
        let accepted = (0..ATTEMPTS_MAX).any(|_| {
            wait_a_second(&server);
            send(&server, 1).status == 200
        });
        assert!(accepted, "the empty queue rejects messages: {} bytes are free", disk.free(&server));
        disk.drain(&server, 1);
    }
}

#[test]
fn a_receive_on_a_full_disk_delivers_or_is_rejected() {
    let Some(disk) = SmallDisk::new("receive", "640m") else { return };
    let server = disk.start();
    create_queue(&server);
    // More than the queue keeps in memory.
    let sent = 1_000;
    (0..sent).for_each(|_| assert_eq!(send(&server, 100_000).status, 200));
    let filler = disk.fill(&server);
    assert_ne!(send(&server, 1).status, 200);
    let mut delivered = 0;
    for _ in 0..100 {
        let answer = sqs(&server, "ReceiveMessage", &json!({"QueueUrl": "q", "MaxNumberOfMessages": 10}));
        match answer.status {
            200 => {
                let messages = answer.json()["Messages"].as_array().map_or(0, Vec::len);
                assert!(messages > 0, "empty after {delivered} of {sent} messages: {answer:?}");
                delivered += messages;
            }
            status => assert_eq!(status, 503, "{answer:?}"),
        }
    }
    fs::remove_file(filler).unwrap();
    let recovered = (0..ATTEMPTS_MAX).any(|_| {
        wait_a_second(&server);
        send(&server, 1).status == 200
    });
    assert!(recovered, "{} bytes are free", disk.free(&server));
    let left = json!({"QueueUrl": "q", "AttributeNames": ["All"]});
    let left = sqs(&server, "GetQueueAttributes", &left).json();
    let count = |name: &str| left["Attributes"][name].as_str().unwrap().parse::<usize>().unwrap();
    let messages = count("ApproximateNumberOfMessages") + count("ApproximateNumberOfMessagesNotVisible");
    assert!(sent < messages, "{messages} of more than {sent} messages are left");
}

#[test]
fn a_server_started_on_a_full_disk_delivers_and_accepts_messages_once_there_is_space() {
    let Some(disk) = SmallDisk::new("start", "640m") else { return };
    let server = disk.start();
    create_queue(&server);
    (0..50).for_each(|_| assert_eq!(send(&server, 100_000).status, 200));
    // The namespace, and with it the tmpfs, must outlive the server.
    let mut holder = disk.hold(&server);
    let filler = disk.fill(&server);
    let root = PathBuf::from(format!("/proc/{}/root", holder.id()));
    server.signal("KILL");
    server.wait();
    let filler = root.join(filler.strip_prefix("/proc").unwrap().components().skip(2).collect::<PathBuf>());
    // Room for the records of the start.
    let left = fs::metadata(&filler).unwrap().len() - MIB;
    File::options().write(true).open(&filler).unwrap().set_len(left).unwrap();
    let server = ServerProcess::spawn(&mut disk.serve_in(holder.id()));
    let rejected = send(&server, 1);
    assert!(rejected.status == 503 && rejected.body.contains("disk is full"), "{rejected:?}");
    let receive = json!({"QueueUrl": "q", "WaitTimeSeconds": 20, "VisibilityTimeout": 0});
    assert_eq!(sqs(&server, "ReceiveMessage", &receive).status, 200);
    fs::remove_file(filler).unwrap();
    disk.drain(&server, 50);
    let accepted = (0..ATTEMPTS_MAX).any(|_| {
        wait_a_second(&server);
        send(&server, 1).status == 200
    });
    assert!(accepted, "{} bytes are free", disk.free(&server));
    drop(server);
    holder.kill().unwrap();
    holder.wait().unwrap();
}

/// A server's data directory on a tmpfs.
struct SmallDisk {
    dir: TestDir,
    size: &'static str,
}

impl SmallDisk {
    /// Returns `None` where mounts are not permitted.
    fn new(name: &str, size: &'static str) -> Option<Self> {
        let dir = TestDir::new(&format!("small-disk-{name}"));
        fs::create_dir(dir.file("data")).unwrap();
        let disk = Self { dir, size };
        let mounted = disk.mounted(Command::new("true")).stderr(Stdio::null()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(disk);
        }
        assert!(std::env::var_os("CI").is_none(), "tests on a small file system must run in CI");
        eprintln!("SKIPPED: no permission to mount a tmpfs in a namespace");
        None
    }

    /// Returns a command that runs another one with a new tmpfs in `data`.
    fn mounted(&self, inner: Command) -> Command {
        let mut command = Command::new("unshare");
        let script = format!("mount -t tmpfs -o size={} none data && exec \"$0\" \"$@\"", self.size);
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
        inherit(&mut command, &inner);
        command.current_dir(self.dir.file(""));
        command
    }

    fn serve(&self) -> Command {
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--data-dir", "data"];
        if self.dir.file("evenkeel.toml").exists() {
            args.extend(["--config", "evenkeel.toml"]);
        }
        self.dir.command(&args)
    }

    fn start(&self) -> ServerProcess {
        ServerProcess::spawn(&mut self.mounted(self.serve()))
    }

    fn start_after(&self, message: &str) -> ServerProcess {
        ServerProcess::spawn_after(&mut self.mounted(self.serve()), message)
    }

    /// Starts a process that keeps the server's mount namespace.
    fn hold(&self, server: &ServerProcess) -> std::process::Child {
        let mut command = enter(server.pid());
        command.args(["sh", "-c", "echo && exec sleep 600"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The line says that it has entered the namespace.
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        child
    }

    /// Returns a command that serves in the namespace of a process.
    fn serve_in(&self, pid: u32) -> Command {
        let serve = self.serve();
        let mut command = enter(pid);
        command.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]).arg(self.dir.file(""));
        command.current_dir(self.dir.file(""));
        inherit(&mut command, &serve);
        command
    }

    fn data(&self, server: &ServerProcess) -> PathBuf {
        let data = self.dir.file("data");
        PathBuf::from(format!("/proc/{}/root", server.pid())).join(data.strip_prefix("/").unwrap())
    }

    fn free(&self, server: &ServerProcess) -> u64 {
        let disk = statvfs(self.data(server)).unwrap();
        disk.f_bavail * disk.f_frsize
    }

    /// Fills the disk to the last byte.
    fn fill(&self, server: &ServerProcess) -> PathBuf {
        let path = self.data(server).join("filler");
        let mut file = File::create(&path).unwrap();
        for block in [1 << 20, 4_096] {
            while file.write_all(&vec![b'x'; block]).is_ok() {}
        }
        assert_eq!(self.free(server), 0);
        path
    }

    /// Sends messages of 100 kB until the disk is full; returns how many were accepted.
    fn send_until_full(&self, server: &ServerProcess) -> usize {
        for sent in 0..10_000 {
            let answer = send(server, 100_000);
            if answer.status != 200 {
                assert!(answer.status == 503 && answer.body.contains("disk is full"), "{answer:?}");
                return sent;
            }
        }
        panic!("the disk is never full: {} bytes are free", self.free(server));
    }

    fn drain(&self, server: &ServerProcess, messages: usize) {
        let mut left = messages;
        while left > 0 {
            let receive = json!({"QueueUrl": "q", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20});
            let received = sqs(server, "ReceiveMessage", &receive);
            let body = received.json();
            let messages =
                body["Messages"].as_array().unwrap_or_else(|| panic!("{left} are left: {received:?}"));
            let entries = messages.iter().enumerate().map(
                |(id, message)| json!({"Id": id.to_string(), "ReceiptHandle": message["ReceiptHandle"]}),
            );
            let delete = json!({"QueueUrl": "q", "Entries": entries.collect::<Value>()});
            let deleted = sqs(server, "DeleteMessageBatch", &delete);
            let failed = &deleted.json()["Failed"];
            assert!(failed.as_array().is_none_or(Vec::is_empty), "{} free: {deleted:?}", self.free(server));
            left -= messages.len();
        }
    }
}

/// Returns a command that runs its further arguments in the namespaces of a process.
fn enter(pid: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string(), "--user", "--mount", "--preserve-credentials"]);
    command
}

/// Appends another command, with its environment.
fn inherit(command: &mut Command, inner: &Command) {
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

fn create_queue(server: &ServerProcess) {
    for name in ["q", "empty"] {
        assert_eq!(sqs(server, "CreateQueue", &json!({"QueueName": name})).status, 200);
    }
}

fn send(server: &ServerProcess, size: usize) -> RawResponse {
    sqs(server, "SendMessage", &json!({"QueueUrl": "q", "MessageBody": "x".repeat(size)}))
}

/// Lets a second pass at the server: a receive from a queue that is empty.
fn wait_a_second(server: &ServerProcess) {
    sqs(server, "ReceiveMessage", &json!({"QueueUrl": "empty", "WaitTimeSeconds": 1}));
}

fn sqs(server: &ServerProcess, operation: &str, body: &Value) -> RawResponse {
    let target = format!("X-Amz-Target: AmazonSQS.{operation}\r\n");
    read(server.send("POST", "/", &target, body))
}
