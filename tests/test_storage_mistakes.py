"""First mistakes with storage: what is said of each, and that nothing secret is in it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pyarrow as pa
import pytest
from support.served import served

from dv_maintenance import cli
from dv_maintenance.errors import StorageError
from dv_maintenance.storage.diagnosis import diagnose
from dv_maintenance.storage.failures import Cause, storage_errors
from dv_maintenance.testing.delta_builder import DeltaBuilder

KEY, SECRET = "AKIAEXAMPLE", "wJalrXUtnFEMI"
OPTIONS = [f"aws_access_key_id={KEY}", f"aws_secret_access_key={SECRET}", "aws_region=us-east-1"]
HERE = "aws_endpoint=http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A store whose answer is in the bucket's name: status, then code."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, code = self.path.split("/")[1].split("?")[0].split("-")[:2]
            body = f"<Error><Code>{code}</Code><Message>{SECRET} of {KEY}</Message></Error>".encode()
            self.send_response(int(status))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with served(Answers) as url:
        yield int(url.rsplit(":", 1)[1])


# The URI, options, the exit code, what is said, and what to do.
MISTAKES = [
    (
        "s3://403-AccessDenied/t",
        [HERE],
        1,
        "HTTP 403 Forbidden (AccessDenied)",
        "check that these credentials",
    ),
    ("s3://403-InvalidAccessKeyId/t", [HERE], 1, "HTTP 403 Forbidden (InvalidAccessKeyId)", "does not know the key"),
    ("s3://403-SignatureDoesNotMatch/t", [HERE], 1, "(SignatureDoesNotMatch)", "check the secret key"),
    ("s3://401-ExpiredToken/t", [HERE], 1, "HTTP 401 Unauthorized (ExpiredToken)", "get new credentials"),
    (
        "s3://404-NoSuchBucket/t",
        [HERE],
        1,
        "HTTP 404 Not Found (NoSuchBucket)",
        "check the bucket's",
    ),
    ("s3://400-AuthorizationHeaderMalformed/t", [HERE], 1, "HTTP 400 Bad Request", "set AWS_REGION"),
    ("s3://301-PermanentRedirect/t", [HERE], 1, "the bucket is in another region", "set AWS_REGION"),
    ("s3://b/t", ["aws_endpoint=https://127.0.0.1:{port}"], 1, "127.0.0.1:{port} does not speak TLS", "write http://"),
    (
        "s3://b/t",
        ["aws_endpoint=http://127.0.0.1:{port}", "aws_allow_http=false"],
        1,
        "reached without TLS",
        "allow_http",
    ),
    (
        "s3://b/t",
        ["aws_endpoint=http://127.0.0.1:9", "aws_allow_http=true"],
        1,
        "127.0.0.1:9 refused the connection",
        "check the endpoint",
    ),
    ("s3://b/t", ["aws_regoin=x"], 2, "unknown storage option 'aws_regoin'", "check its spelling"),
    ("s3://", [], 2, "the URI names no bucket", "use a path, or a URI"),
    ("az://container/t", None, 2, "the storage account is missing", "AZURE_STORAGE_ACCOUNT_NAME"),
    (
        "gs://b/t",
        ["google_service_account=/nowhere.json"],
        2,
        "No such file or directory",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ),
    ("ftp://host/t", None, 2, "ftp:// is not supported", "begins with s3://"),
    ("hdfs://namenode/t", None, 2, "hdfs:// is not supported", "begins with s3://"),
    ("s3:/bucket/t", None, 2, "a local path, since a URI has two slashes", "write s3://BUCKET/PATH"),
    ("/nowhere/at/all", None, 2, "nothing exists at this path", "check the path"),
    ("unity.main.sales.orders", None, 2, "nothing exists at this path", "let DVM_CATALOGS name the file"),
    ("{file}", None, 2, "it is a file", "give the folder that has the table's log"),
    ("{empty}", None, 2, "the folder is empty", "check the path"),
    ("{parquet}", None, 2, "a folder of Parquet files", "dvm convert"),
    ("{tables}", None, 2, "a folder of tables: a, b", "dvm scan"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("places")
    for name in ("empty", "parquet", "tables"):
        (root / name).mkdir()
    (root / "parquet" / "x.parquet").write_bytes(b"PAR1")
    (root / "file").write_text("x")
    for name in "ab":
        DeltaBuilder(str(root / "tables" / name)).create(pa.schema([("id", pa.int64())]))
    return {name: str(root / name) for name in ("file", "empty", "parquet", "tables")}


@pytest.mark.parametrize(("uri", "options", "code", "said", "step"), MISTAKES)
def test_what_is_wrong_is_said(
    uri: str,
    options: list[str] | None,
    code: int,
    said: str,
    step: str,
    port: int,
    places: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_PROFILE", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    given = [] if options is None else [*(OPTIONS if uri.startswith("s3") else []), *options]
    if options == [HERE]:
        given.append("aws_allow_http=true")
    words = [word for each in given for word in ("--storage-option", each.format(port=port))]
    table = uri.format(**places)
    assert cli.main(["health", table, *words]) == code
    error = capsys.readouterr().err
    assert said.format(port=port) in error
    assert step in error
    assert table.rstrip("/:").rpartition("://")[2] in error, "which table"
    assert KEY not in error
    assert SECRET not in error
    assert "Traceback" not in error


def test_without_credentials() -> None:
    """As a machine answers that has no role, or no such service."""
    text = (
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1.6s - HTTP error: error "
        'sending request\n\nDebug source:\nGeneric {\n    store: "S3",\n}'
    )
    found = diagnose(ValueError(text))
    assert found.what == "no credentials were found"
    assert "AWS_ACCESS_KEY_ID" in str(found.next_step)
    assert "google_service_account" in str(diagnose(ValueError(text.replace("S3", "GCS"))).next_step)
    assert "azure_storage_account_key" in str(diagnose(ValueError(text.replace("S3", "MicrosoftAzure"))).next_step)


@pytest.mark.parametrize(
    ("number", "said", "step"),
    [
        (errno.EROFS, "Read-only file system (EROFS)", "mount the file system for writing"),
        (errno.ENOSPC, "No space left on device (ENOSPC)", "free some space"),
        (errno.EACCES, "Permission denied (EACCES)", "check the permissions of this user"),
        (errno.EMFILE, "Too many open files (EMFILE)", "raise the limit of open files"),
    ],
)
def test_a_disk(number: int, said: str, step: str) -> None:
    with pytest.raises(StorageError) as found, storage_errors("part-1.parquet"):
        raise OSError(number, "whatever", "/secret/path")
    assert str(found.value).startswith(f"storage failed on part-1.parquet: {said}. Next: {step}")


def test_a_cause_has_no_answer_of_the_store() -> None:
    text = (
        f"Error performing GET http://h/b in 1ms - Server returned non-2xx status code: 403 Forbidden: <Key>{KEY}</Key>"
    )
    said = str(Cause(ValueError(f"{text}\n\nDebug source:\n{SECRET}")))
    assert said.endswith("status code: 403 Forbidden")


def test_what_a_disk_answers_to_a_put_is_named() -> None:
    """A put on a read-only mount said "GenericError": obstore quotes the number in its text only."""
    text = (
        "Generic LocalFileSystem error: Unable to open file /lake/t/_delta_log/x#1: Read-only file system "
        "(os error 30)\n\nDebug source:\nGeneric {}"
    )
    said = ("Read-only file system (EROFS)", "mount the file system for writing", True)
    assert diagnose(RuntimeError(text)) == said
