"""An S3 server in this process, and the environment that leads to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer

KEYS = {"AWS_ACCESS_KEY_ID": "an-id-of-tests", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests", "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server(bucket: str = "bucket") -> Iterator[str]:
    """Yields the address of a fresh server that has one bucket."""
    import boto3

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = dict(os.environ)
    os.environ.update(KEYS, AWS_ENDPOINT_URL=f"http://{host}:{port}", AWS_EC2_METADATA_DISABLED="true")
    try:
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=bucket)
        yield os.environ["AWS_ENDPOINT_URL"]
    finally:
        server.stop()
        os.environ.clear()
        os.environ.update(before)
