import subprocess
import sys


def unisono(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "unisono", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_doctor_prints_the_version_on_stdout():
    done = unisono("doctor")
    assert done.returncode == 0
    assert done.stdout.startswith("unisono ")


def test_an_unknown_subcommand_is_a_usage_error_on_stderr():
    done = unisono("docter")
    assert done.returncode == 2
    assert "doctor" in done.stderr
    assert done.stdout == ""
