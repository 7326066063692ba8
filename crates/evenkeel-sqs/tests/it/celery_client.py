"""Runs a Celery worker with the server as its SQS broker, and checks the results of its tasks.

Arguments: the server's host and port, an access key id and its secret, and the scenario.
"""

import os
import subprocess
import sys
import tempfile
import time
from urllib.parse import quote

from celery import Celery, group
from celery.exceptions import Reject

address, key, secret, scenario = sys.argv[1:5]
# Shorter than the first run of `requeue_late`.
VISIBILITY_SECS = 1 if scenario == "late-requeue" else 60
directory = os.environ.get("CELERY_RESULTS") or tempfile.mkdtemp(prefix="evenkeel-celery-")
os.makedirs(directory, exist_ok=True)
app = Celery("jobs", broker=f"sqs://{quote(key)}:{quote(secret, safe='')}@{address}//", backend=f"file://{directory}")
app.conf.update(
    broker_transport_options={
        "is_secure": False, "region": "us-east-1", "visibility_timeout": VISIBILITY_SECS,
        "wait_time_seconds": 2,
        "polling_interval": 0.1,
    },
    task_default_queue="celery-jobs",
    task_acks_late=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def add(a, b):
    return a + b


@app.task(bind=True, max_retries=2)
def retry_twice(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return f"done at attempt {self.request.retries + 1}"


@app.task(acks_late=True)
def requeue_late():
    """Is rejected once its message is visible again; succeeds when it runs again."""
    marker = os.path.join(directory, "rejected")
    if not os.path.exists(marker):
        time.sleep(2 * VISIBILITY_SECS)
        open(marker, "w").close()
        raise Reject("once more", requeue=True)
    return "done"


def runs_tasks():
    results = group(add.s(n, n) for n in range(50))()
    slow = retry_twice.delay()
    later = add.apply_async((1, 2), countdown=1)
    assert results.get(timeout=60) == [2 * n for n in range(50)]
    assert slow.get(timeout=60) == "done at attempt 3"
    assert later.get(timeout=60) == 3


def requeues_late(worker):
    assert requeue_late.delay().get(timeout=60) == "done"
    assert add.delay(1, 2).get(timeout=60) == 3
    assert worker.poll() is None, f"the worker ended with {worker.returncode}"


def main():
    environment = {**os.environ, "CELERY_RESULTS": directory}
    # The worker is this script again.
    worker = subprocess.Popen(
        [sys.executable, __file__, address, key, secret, scenario, "worker"], env=environment, stdout=sys.stderr
    )
    try:
        if scenario == "late-requeue":
            requeues_late(worker)
        else:
            runs_tasks()
    finally:
        worker.terminate()
        worker.wait(30)
    print("all as expected")


if __name__ == "__main__":
    if sys.argv[5:] == ["worker"]:
        app.worker_main(["worker", "--pool=solo", "--loglevel=WARNING", "--without-gossip", "--without-mingle"])
    else:
        main()
