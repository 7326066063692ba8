//! Unmodified clients of SQS: boto3, Celery and Dramatiq workers, the AWS SDK for JavaScript and sqs-consumer.

use std::process::Command;

use evenkeel_server::tenant::{TenantSettings, TenantState};

use crate::external_client::{node, node_packages, python, python_of, run};
use crate::harness::{Setup, SqsServer, StoreKind, account, tenant};

#[test]
fn boto3_keeps_order_and_deduplicates_on_fifo_queues() {
    for store in [StoreKind::Memory, StoreKind::Disk] {
        let server = SqsServer::with(&format!("fifo-{store:?}"), Setup { store, ..Setup::default() });
        run(unsigned(python("sqs_fifo_client.py").arg(server.url())));
    }
}

#[test]
fn boto3_uses_handles_after_their_visibility_timeout() {
    for store in [StoreKind::Memory, StoreKind::Disk] {
        let server = SqsServer::with(&format!("late-{store:?}"), Setup { store, ..Setup::default() });
        run(unsigned(python("sqs_late_client.py").arg(server.url())));
    }
}

#[test]
fn boto3_performs_every_operation_and_gets_the_documented_errors() {
    let server = SqsServer::start("boto3");
    run(unsigned(python("sqs_client.py").arg(server.url())));
}

#[test]
fn boto3_performs_every_operation_signed_by_a_tenant_with_a_disk_store() {
    let setup = Setup { store: StoreKind::Disk, tenants: vec![tenant("acme")], ..Setup::default() };
    let server = SqsServer::with("boto3-signed", setup);
    let pair = server.credentials("acme");
    run(python("sqs_client.py")
        .args([server.url(), "acme".to_owned(), account("acme").to_string()])
        .env("AWS_ACCESS_KEY_ID", &pair.access_key_id)
        .env("AWS_SECRET_ACCESS_KEY", pair.secret_access_key.expose()));
}

/// The last version of boto3 that uses the query protocol only.
const BOTO3_QUERY: &str = "target/boto3-query";

#[test]
fn boto3_of_the_query_protocol_performs_every_operation_and_gets_the_documented_errors() {
    let server = SqsServer::start("boto3-query");
    run(unsigned(python_of(BOTO3_QUERY, "sqs_client.py").arg(server.url())));
    run(unsigned(python_of(BOTO3_QUERY, "sqs_fifo_client.py").arg(server.url())));
}

#[test]
fn boto3_of_the_query_protocol_performs_every_operation_signed_and_presigned() {
    let setup = Setup { store: StoreKind::Disk, tenants: vec![tenant("acme")], ..Setup::default() };
    let server = SqsServer::with("boto3-query-signed", setup);
    let pair = server.credentials("acme");
    for script in ["sqs_client.py", "sqs_presigned_client.py"] {
        run(python_of(BOTO3_QUERY, script)
            .args([server.url(), "acme".to_owned(), account("acme").to_string()])
            .env("AWS_ACCESS_KEY_ID", &pair.access_key_id)
            .env("AWS_SECRET_ACCESS_KEY", pair.secret_access_key.expose()));
    }
}

#[test]
fn requests_of_the_query_protocol_need_a_valid_recent_signature_of_an_active_tenant() {
    check_signatures("keys-query", python_of(BOTO3_QUERY, "sqs_keys_client.py"));
}

#[test]
fn the_aws_sdk_for_javascript_2_performs_every_operation() {
    run_node("aws-sdk", "sqs_query_client.cjs");
}

#[test]
fn only_requests_with_a_valid_recent_signature_of_an_active_tenant_are_served() {
    check_signatures("keys", python("sqs_keys_client.py"));
}

#[track_caller]
fn check_signatures(name: &str, mut script: Command) {
    let disabled = TenantSettings { state: TenantState::Disabled, ..tenant("off") };
    let limited = TenantSettings { rpm: Some(1), ..tenant("slow") };
    let setup = Setup { tenants: vec![tenant("acme"), disabled, limited], ..Setup::default() };
    let server = SqsServer::with(name, setup);
    script.arg(server.url());
    for name in ["acme", "off", "slow"] {
        let pair = server.credentials(name);
        script.args([&pair.access_key_id, pair.secret_access_key.expose()]);
    }
    run(&mut script);
}

#[test]
fn a_tenant_neither_sees_nor_uses_the_queues_of_another() {
    let limited = TenantSettings { queues_max: Some(2), ..tenant("limited") };
    let setup = Setup {
        store: StoreKind::Disk,
        tenants: vec![tenant("acme"), tenant("mallory"), limited],
        ..Setup::default()
    };
    let server = SqsServer::with("owners", setup);
    server.create_shared("common");
    let mut script = python("sqs_owners_client.py");
    script.arg(server.url());
    for name in ["acme", "mallory", "limited"] {
        let pair = server.credentials(name);
        script.args([&account(name).to_string(), &pair.access_key_id, pair.secret_access_key.expose()]);
    }
    run(&mut script);
}

#[test]
fn a_celery_worker_runs_the_tasks_sent_to_it() {
    run_celery("tasks");
}

/// Celery answers `Reject(requeue=True)` with `ChangeMessageVisibility`; an error there ends the worker.
#[test]
fn a_celery_worker_survives_a_task_that_is_requeued_after_its_visibility_timeout() {
    run_celery("late-requeue");
}

#[test]
fn a_dramatiq_worker_runs_delays_retries_and_dead_letters_jobs() {
    let setup = Setup { store: StoreKind::Disk, tenants: vec![tenant("acme")], ..Setup::default() };
    let server = SqsServer::with("dramatiq", setup);
    let pair = server.credentials("acme");
    run(python("dramatiq_client.py")
        .arg(server.url())
        .env("AWS_ACCESS_KEY_ID", &pair.access_key_id)
        .env("AWS_SECRET_ACCESS_KEY", pair.secret_access_key.expose()));
}

#[test]
fn the_aws_sdk_for_javascript_sends_receives_deletes_and_names_errors() {
    run_node("@aws-sdk/client-sqs", "sqs_client.cjs");
}

#[test]
fn sqs_consumer_handles_each_message_once_dead_letters_failures_and_stops_gracefully() {
    run_node("sqs-consumer", "sqs_consumer_client.cjs");
}

/// Sets credentials that any SDK accepts; a server without tenants does not check them.
fn unsigned(command: &mut Command) -> &mut Command {
    command.env("AWS_ACCESS_KEY_ID", "any").env("AWS_SECRET_ACCESS_KEY", "any")
}

/// Runs a script that signs as a tenant, against its own server.
#[track_caller]
fn run_node(package: &str, script: &str) {
    let setup = Setup { store: StoreKind::Disk, tenants: vec![tenant("acme")], ..Setup::default() };
    let server = SqsServer::with(script, setup);
    let pair = server.credentials("acme");
    let arguments = [server.url(), pair.access_key_id, pair.secret_access_key.expose().clone()];
    run(node(script).args(arguments).arg(node_packages(package)));
}

#[track_caller]
fn run_celery(scenario: &str) {
    let setup = Setup { store: StoreKind::Disk, tenants: vec![tenant("acme")], ..Setup::default() };
    let server = SqsServer::with(&format!("celery-{scenario}"), setup);
    let pair = server.credentials("acme");
    let arguments = [server.address.to_string(), pair.access_key_id, pair.secret_access_key.expose().clone()];
    let mut script = python("celery_client.py");
    run(script.args(arguments).arg(scenario).env("CELERY_RESULTS", server.file("results")));
}
