"""`support.terminal`: lines for whoever started the job, also if nobody can read them any longer."""

import contextlib
import io
import os
import sys

import pytest

from patches.support import terminal

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def place(monkeypatch):
    """Puts this process into a place of a job; it is alone without a call."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["/a/folder/distributed.py"])
    return lambda *values: [
        monkeypatch.setenv(name, str(value)) for name, value in zip(NAMES, values)
    ]


# Who speaks


def test_rank_zero_alone_prints_and_warns(place, capsys):
    for rank in (0, 1):
        place(rank, 2, rank, 2)
        terminal.print_once("a", 1, sep="-")
        terminal.warn("careful")
    assert capsys.readouterr() == ("a-1\n", "distributed.py: warning: careful\n")


@pytest.mark.parametrize(
    "values, says",
    [
        ((), "distributed.py: error: no\n"),
        ((0, 4, 0, 4), "distributed.py: error: no\n"),
        ((1, 4, 1, 4), ""),
        ((2, 4, 0, 2), "distributed.py: error: n2: no\n"),
        ((3, 4, 1, 2), ""),
        ((1, 2, 3, 1), "distributed.py: error: n2: no\n"),  # alone on its host, on another GPU
    ],
)
def test_first_process_of_each_host_says_why_the_job_ends(place, values, says, monkeypatch, capsys):
    monkeypatch.setattr(terminal.socket, "gethostname", lambda: "n2")
    place(*values)
    with pytest.raises(SystemExit) as ended:
        terminal.exit_with_error("no")
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", says)


# A reader that is gone


@pytest.fixture
def opened(monkeypatch):
    """A function that makes a file sys.stdout and sys.stderr, as they are after `outlive_reader`."""
    made = []

    def use(file, held="", encoding="utf-8"):
        made.append(open(file, "w", encoding=encoding))  # noqa: SIM115
        made[0].write(held)
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, made[0])
        terminal.outlive_reader()
        assert sys.stdout is not made[0] and sys.stderr is not made[0]

    yield use
    for stream in made:
        with contextlib.suppress(OSError):  # what it holds cannot be written
            stream.close()


def test_reader_that_is_there_gets_all_lines_at_once(opened, tmp_path):
    log = tmp_path / "log"
    opened(log, "before\n")
    print("Grüße")
    assert log.read_text("utf-8") == "before\nGrüße\n"
    sys.stdout.write("half")
    sys.stdout.flush()
    assert log.read_text("utf-8") == "before\nGrüße\nhalf"


@pytest.mark.parametrize("held", ["", "a line that the old stream still holds\n"])
def test_lines_for_a_reader_that_has_gone_are_lost_and_the_job_goes_on(opened, held):
    """A13: `| head` ends, and each line was a BrokenPipeError."""
    reads, writes = os.pipe()
    os.close(reads)
    opened(writes, held)
    for _ in range(3):
        terminal.print_once("Epoch: [0]")
        terminal.warn("x" * 100000)
    sys.stdout.flush()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("held", ["", "a line that the old stream still holds\n"])
def test_lines_for_a_full_disk_are_lost_and_the_job_goes_on(opened, held):
    """A13: OSError 28 in the middle of an epoch."""
    opened("/dev/full", held)
    for _ in range(3):
        terminal.print_once("Epoch: [0]")
        print("\n".join(map(str, range(10000))))
    sys.stderr.flush()


def test_lines_are_kept_again_when_there_is_a_reader_again(opened, tmp_path):
    """A13: what was lost does not come later, and what comes later is not lost."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    opened(tmp_path / "pipe")
    os.close(reader)
    print("lost")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    print("kept")
    assert os.read(reader, 100) == b"kept\n"
    os.close(reader)


@pytest.mark.parametrize(
    "encoding, line, kept",
    [
        ("utf-8", "Grüße \udcff.jpg", b"Gr\xc3\xbc\xc3\x9fe \\udcff.jpg\n"),
        ("ascii", "Grüße", b"Gr\\xfc\\xdfe\n"),
    ],
)
def test_name_that_the_terminal_has_no_characters_for_is_no_error(
    opened, encoding, line, kept, tmp_path
):
    """A13: nor does a file name end the job."""
    opened(tmp_path / "log", encoding=encoding)
    terminal.print_once(line)
    assert (tmp_path / "log").read_bytes() == kept


def test_streams_that_were_closed_before_are_left_alone(monkeypatch, tmp_path):
    """A13: `>&-` leaves None; a closed file, and one of a test or notebook, are no files to write
    to.
    """
    with open(tmp_path / "log", "w") as closed:
        pass
    for stream in (None, closed, io.StringIO()):
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, stream)
        terminal.outlive_reader()
        assert sys.stdout is stream and sys.stderr is stream
        if stream is not closed:
            terminal.print_once("Epoch: [0]")
            terminal.warn("careful")
