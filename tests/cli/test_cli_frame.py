"""What holds for every verb: parsing, exit codes, one JSON document, errors without tracebacks, no secrets."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.places import ROOT

from dv_maintenance import cli
from dv_maintenance.cli.output import Output
from dv_maintenance.errors import ConflictError, DamagedTableError, RefusedError, VerificationError
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64())])
VERBS = ["health", "read", "plan", "apply", "purge", "vacuum", "manifest", "history", "watch", "doctor", "demo"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(argv)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0
    assert f"dvm {verb}" in out
    assert "--json" in out


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["dance"],
        ["health"],
        ["health", "t", "--nonsense"],
        ["health", "t", "--version", "-1"],
        ["health", "t", "u"],
        ["apply", "t", "--set", "novalue"],
        ["apply", "t", "--engine", "flink"],
        ["vacuum", "t", "--retention", "soon"],
        ["health", "no/such/table"],
        ["health", "t", "--format", "csv"],
        ["health", ""],
    ],
)
def test_a_line_that_makes_no_sense_ends_with_2_and_one_document(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *argv, "--json")
    assert code == 2
    body = json.loads(out)
    assert body["message"]
    assert body["done"] == "nothing was changed"
    assert "Traceback" not in err


def test_a_usage_error_without_json_leaves_stdout_empty(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "health", "no/such/table")
    assert (code, out) == (2, "")
    assert err.startswith("dvm: ")


@pytest.mark.parametrize(
    "argv",
    [
        ["health", "t", "--storage-option", "hunter2secret"],
        ["health", "t", "--storage-optoin", "key=hunter2secret"],
        ["health", "t", "--storage-optoin=key=hunter2secret"],
        ["health", "/no/such/table", "--storage-option", "key=hunter2secret"],
        ["doctor", "/no/such/table", "--storage-option", "key=hunter2secret"],
    ],
)
def test_a_storage_option_is_never_echoed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = run(capsys, *argv, "--json")
    assert "hunter2" not in out + err


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def verb(args: Any, out: Any) -> int:
        out.hide(["hunter2secret"])
        raise error

    monkeypatch.setattr("dv_maintenance.cli.parser._load", lambda _path: verb)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (VerificationError("rows differ"), 1),
        (RefusedError("unsafe"), 3),
        (ConflictError("lost every race"), 4),
        (DamagedTableError("bad log"), 5),
        (ZeroDivisionError("surprise"), 1),
    ],
)
def test_exit_codes(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(error, monkeypatch)
    got, out, err = run(capsys, "health", "t", "--json")
    assert got == code
    assert json.loads(out)["error"] == type(error).__name__
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_a_file_that_vanishes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As when somebody drops the table while it is purged."""
    fail_with(FileNotFoundError("Object at location /t/a not found\n\nDebug source:\nNotFound"), monkeypatch)
    code, out, err = run(capsys, "health", "t", "--json")
    assert (code, json.loads(out)["done"]) == (1, "unknown; dvm history TABLE lists the commits")
    assert err.startswith(
        "dvm: t: a file is gone that was there before: Object at location /t/a not found. Done so far"
    )


def test_errors_that_quote_a_secret_lose_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(ValueError("denied for hunter2secret"), monkeypatch)
    _, out, err = run(capsys, "health", "t", "--json")
    assert "hunter2" not in out + err


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(ZeroDivisionError("surprise"), monkeypatch)
    monkeypatch.setenv("DVM_DEBUG", "1")
    code, _, err = run(capsys, "health", "t")
    assert code == 1
    assert "Traceback" in err


def test_interrupting_says_what_stands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stop = KeyboardInterrupt()
    again = "Next: dvm history TABLE lists them; run the command again only for what is left"
    fail_with(stop, monkeypatch)
    stands = "Done so far: earlier commits stand; no commit is half done"
    assert run(capsys, "health", "t") == (130, "", f"dvm: interrupted. {stands}. {again}\n")
    stop.add_note("2 steps committed in version 7; not committed: step-3")
    done = "Done so far: 2 steps committed in version 7; not committed: step-3"
    assert run(capsys, "health", "t") == (130, "", f"dvm: interrupted. {done}. {again}\n")


def test_what_a_library_prints_stays_out_of_the_document(tmp_path: Path) -> None:
    # A child process (as the JVM is) that writes to the stdout it inherited.
    script = (
        "import os, sys; from dv_maintenance.cli import main, parser\n"
        "def verb(args, out):\n"
        "    print('from python'); sys.stdout.flush(); os.system('echo from a child')\n"
        "    out.result({'a': 1}, lambda: 'text'); return 0\n"
        "parser._load = lambda path: verb\n"
        "sys.exit(main(['health', 't', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(done.stdout) == {"a": 1}
    assert "from a child" in done.stderr
    assert "from python" in done.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_leaves_early_is_no_failure(options: list[str], tmp_path: Path) -> None:
    script = (
        "import sys; from dv_maintenance.cli import main, parser\n"
        "def verb(args, out):\n"
        "    out.result({'a': 'x' * 1_000_000}, lambda: 'x' * 1_000_000); return 0\n"
        "parser._load = lambda path: verb\n"
        f"sys.exit(main(['health', 't', *{options}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.wait(30) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_it_in_order(number: signal.Signals, code: int, tmp_path: Path) -> None:
    script = (
        "import signal, sys, threading; from dv_maintenance.cli import main, parser\n"
        # If the tests run as a background job, the shell ignores SIGINT for them and for their children. Tests before
        # this one may have left SIGTERM ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler); signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "def verb(args, out):\n"
        "    print('ready', file=sys.stderr, flush=True); threading.Event().wait(30); return 0\n"
        "parser._load = lambda path: verb\n"
        "sys.argv[1:] = ['health', 't', '--json']\n"
        "sys.exit(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True
    )
    assert process.stderr
    assert process.stderr.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert json.loads(out)["message"] == "interrupted"
    assert err.startswith("dvm: interrupted.")
    assert "Traceback" not in err


def ended(command: str, table: Path) -> subprocess.CompletedProcess[str]:
    """The command in a shell, with ``dvm`` and ``$T`` for a table."""
    script = table.parent / "dvm.py"
    script.write_text("import sys; from dv_maintenance.cli import main; sys.exit(main())")
    return subprocess.run(
        ["sh", "-c", f'dvm() {{ {sys.executable} {script} "$@"; }}; {command}'],
        env={**os.environ, "T": str(table), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    DeltaBuilder(str(tmp_path / "orders")).create(SCHEMA).append(pa.table({"id": [1, 2]}, SCHEMA))
    return tmp_path / "orders"


@pytest.mark.parametrize("closed", [">&-", ">&- --json", ">&- 2>&- <&-"])
def test_standard_streams_may_be_closed(closed: str, orders: Path) -> None:
    """The work was done, and then it was an AttributeError. Files that were opened took the numbers of the streams."""
    done = ended(f"dvm checkpoint $T {closed}", orders)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list(orders.glob("_delta_log/*.checkpoint.parquet"))) == 1
    assert ended(f"dvm health nowhere {closed}", orders).returncode == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has such a device")
@pytest.mark.parametrize("options", ["", "--json"])
def test_a_full_disk_takes_no_result(options: str, orders: Path) -> None:
    done = ended(f"dvm health $T {options} > /dev/full", orders)
    assert done.returncode == 1
    assert done.stderr.startswith(f"dvm: {orders}: the result could not be printed: No space left on device")
    assert done.stderr.count("\n") == 1
    assert ended("dvm health nowhere 2> /dev/full", orders).returncode == 2
    plan = orders.parent / "plan.json"
    plan.write_text("old")
    done = ended(f"ulimit -f 0; dvm plan $T -o {plan}", orders)
    assert (done.returncode, plan.read_text()) == (2, "old")
    assert "cannot write" in done.stderr
    assert '"steps"' in ended(f"dvm plan $T -o {plan} && dvm plan $T -o /dev/stdout", orders).stdout
    assert '"steps"' in plan.read_text()
    assert sorted(each.name for each in orders.parent.iterdir()) == ["dvm.py", "orders", "plan.json"]
    done = ended("ulimit -f 0; dvm read $T -o rows.parquet", orders)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot write rows.parquet: File too large. Next: free some space" in done.stderr


def test_no_working_folder_and_no_folder_for_temporary_files(orders: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = ended(f"cd {tmp_path}/gone && rmdir ../gone && dvm read t", orders)
    assert (done.returncode, "the working folder no longer exists" in done.stderr) == (2, True), done.stderr
    script = (
        "import sys, tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc/nowhere']; "
        "from dv_maintenance.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", script, "read", orders], capture_output=True, text=True, check=False)
    assert (done.returncode, "point TMPDIR to a folder" in done.stderr) == (1, True), done.stderr
    done = subprocess.run([sys.executable, "-c", script, "doctor"], capture_output=True, text=True, check=False)
    assert "no folder, not writable" in done.stdout


def test_control_characters_do_not_act_on_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name in a file of tables may have them."""
    monkeypatch.setenv("TERM", "xterm")
    shown = io.StringIO()
    for on_screen, expected in [(False, "a\x1b[2J\tb\n"), (True, "a\\x1b[2J\tb\n")]:
        monkeypatch.setattr(shown, "isatty", lambda on_screen=on_screen: on_screen, raising=False)
        Output(shown, json=False).text("a\x1b[2J\tb")
        assert shown.getvalue() == expected, "a file gets what there is"
        shown.seek(shown.truncate(0))
    Output(shown, json=False).note("a\rb")
    assert capsys.readouterr().err == "a\\x0db\n"
