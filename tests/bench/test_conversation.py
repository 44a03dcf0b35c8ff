"""How the benchmark talks to a program that is not remora: answers, errors, silence, death, and nothing left afterwards.

The program is a fake: these are tests of the protocol, not of a peer.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from time import monotonic

import pytest

from remora.bench.peers import conversation
from remora.bench.peers.compare import QUICK, Effort, measure
from remora.bench.peers.conversation import Conversation, marked
from remora.bench.peers.environments import command
from remora.bench.peers.metrics import METRICS
from remora.bench.peers.table import Contestant
from remora.errors import BrokenError, DeadlineError, PeerError, UnsupportedError

pytestmark = pytest.mark.timeout(180)

PATIENCE = 100.0
PROGRAMS = Path(conversation.__file__).parent / "programs"
TINY = Effort(5, 0.01, {1 << 20: (2, 0.01)}, (1, 0.01))


@pytest.fixture(autouse=True)
def small_arrays(monkeypatch):
    """The whole job in a moment."""
    monkeypatch.setenv("REMORA_BENCH_ARRAY_MIB", "1")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(source, **fields) -> a contestant whose program is this source, with speak.py beside it."""
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))

    def make(source, **fields):
        file = tmp_path / "fake_peer.py"
        file.write_text("import os, sys, time\nimport speak\n" + textwrap.dedent(source))
        monkeypatch.setattr("remora.bench.peers.environments.program_path", lambda peer: file)
        return Contestant("fake", "a fake", "fake_peer", **fields)

    return make


@pytest.fixture
def talk(program):
    """talk(source) -> the running program."""
    with_all = []

    def start(source):
        talking = Conversation(command(Path("/nowhere"), program(source)), {})
        with_all.append(talking)
        return talking

    yield start
    for talking in with_all:
        talking.close()


ECHO = """
    import json
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "child":
            import subprocess
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            speak.say(pid=child.pid)
        elif request["do"] == "say":
            print(request["text"], flush=True)
        elif request["do"] == "die":
            sys.exit("the last words")
        elif request["do"] == "hang":
            time.sleep(600)
"""


def test_an_answer_comes_back(talk):
    talking = talk(ECHO)
    assert talking.ask({"do": "say", "text": '{"value": 3}'}, PATIENCE) == {"value": 3}
    assert talking.ask({"do": "say", "text": '{"a": 1}\n{"b": 2}'}, PATIENCE) == {"a": 1}
    assert talking.line(PATIENCE) == {"b": 2}


@pytest.mark.parametrize("text", ["hello", "[1, 2]", "{", "\ufffd"])
def test_what_is_no_object_is_the_programs_fault(talk, text):
    with pytest.raises(PeerError, match="no JSON object"):
        talk(ECHO).ask({"do": "say", "text": text}, PATIENCE)


def test_an_endless_line_is_the_programs_fault(talk, monkeypatch):
    monkeypatch.setattr(conversation, "MAX_LINE", 1000)
    with pytest.raises(PeerError, match="1000 bytes"):
        talk(ECHO).ask({"do": "say", "text": "x" * 5000}, PATIENCE)


def test_an_error_is_told_and_the_program_goes_on(talk):
    talking = talk(ECHO)
    with pytest.raises(UnsupportedError, match="not here"):
        talking.ask({"do": "say", "text": '{"error": "not here"}'}, PATIENCE)
    assert talking.ask({"do": "say", "text": "{}"}, PATIENCE) == {}


def test_an_end_shows_the_last_words(talk):
    with pytest.raises(BrokenError, match="exit code 1: the last words"):
        talk(ECHO).ask({"do": "die"}, PATIENCE)


def test_silence_ends_at_the_deadline_and_abort_ends_the_program(talk):
    talking = talk(ECHO)
    with pytest.raises(DeadlineError, match=r"0\.1 s"):
        talking.ask({"do": "hang"}, 0.1)
    begin = monotonic()
    talking.abort()
    talking.close()
    talking.close()
    assert monotonic() - begin < PATIENCE


def test_what_a_program_started_ends_with_it_in_whatever_session(talk):
    talking = talk(ECHO)
    child = talking.ask({"do": "child"}, PATIENCE)["pid"]
    assert child in marked(talking._mark)
    talking.close()
    assert marked(talking._mark) == []
    try:
        state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        state = "gone"
    assert state in {"gone", "Z", "X"}


def test_its_folder_is_its_own_and_goes(talk):
    talking = talk("speak.say(here=os.getcwd(), temporary=os.environ['TMPDIR'], home=os.environ['HOME'])\nsys.stdin.read()")
    places = talking.line(PATIENCE)
    assert places["here"] == places["temporary"] == places["home"]
    assert Path(places["here"]).is_dir()
    talking.close()
    assert not Path(places["here"]).exists()


def test_a_program_that_is_not_there_is_an_error():
    with pytest.raises(BrokenError, match="install it again"):
        Conversation(["/nowhere/python"], {})


# -- one row --------------------------------------------------------------------------------------------------------------------

CLIENT = """
    class Client(speak.Work):
        def __init__(self):
            self.server, ready = speak.start(__file__, "server")
            self.server_pids = [self.server.pid]
            self.memory = b""
        def small(self):
            self.server.stdin.write("x")
            self.server.stdin.flush()
            if not self.server.stdout.read(1):
                raise OSError("the server is gone")
        def pipeline(self, count):
            %(pipeline)s
        def prepare(self, size):
            self.memory = bytes(size)
        def upload(self):
            pass
        def download(self):
            pass
        def whole(self, left, right):
            import array
            pattern = [4.0 * index + 1 for index in range(speak.PATTERN)]
            return array.array("f", pattern) * (len(left) // 4 // speak.PATTERN)
        def close(self):
            self.server.kill()

    def serve():
        speak.own_standard_output()
        speak.die_with_parent()
        speak.say(ready=True)
        while sys.stdin.read(1):
            speak._lines.write("x")
            speak._lines.flush()

    with speak.importing():
        import json
    serve() if "server" in sys.argv else speak.client(Client)
"""


def test_a_row_has_every_cell_or_says_why_not(program):
    contestant = program(CLIENT % {"pipeline": "pass"}, left_out={"import": "there is none"})
    row = measure(contestant, Path("/nowhere"), TINY)
    assert set(row.values) | set(row.missing) == {metric.key for metric in METRICS}
    assert set(row.values) & set(row.missing) == set()
    assert row.missing["import"] == "there is none"
    assert set(row.missing) == {"import"} | {f"{what}_{size}_mib" for what in ("upload", "download") for size in (64, 512)}
    assert 0 < row.values["rtt_p50"] <= row.values["rtt_p99"]
    assert 0 <= row.values["noticed"] < 15_000


def test_what_fails_costs_its_cell_and_no_more(program):
    row = measure(program(CLIENT % {"pipeline": "raise ValueError('no')"}), Path("/nowhere"), TINY)
    assert row.missing["pipelined"] == "ValueError: no"
    assert "end_to_end" in row.values


def test_a_program_that_dies_is_started_again_for_the_rest(program):
    row = measure(program(CLIENT % {"pipeline": "os._exit(3)"}), Path("/nowhere"), TINY)
    assert "exit code 3" in row.missing["pipelined"]
    assert "end_to_end" in row.values
    assert "noticed" in row.values


def test_a_wrong_sum_is_no_number(program):
    row = measure(program((CLIENT % {"pipeline": "pass"}).replace("index + 1", "index + 2")), Path("/nowhere"), TINY)
    assert row.missing["end_to_end"] == "ValueError: the sum is wrong"


def test_a_program_that_never_runs_says_so_everywhere(program):
    row = measure(program("sys.exit('no such library')"), Path("/nowhere"), TINY)
    assert row.values == {}
    assert set(row.missing) == {metric.key for metric in METRICS}
    assert "no such library" in row.missing["rtt_p50"]


def test_a_peer_that_is_not_installed_says_how(tmp_path):
    row = measure(Contestant("name", "Title", "rpyc_peer", requirements=("rpyc",)), tmp_path, QUICK)
    assert "--install-peers name" in row.missing["rtt_p50"]


# -- the programs that need nothing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["sockets_peer tcp", "sockets_peer unix", "remora_peer tcp", "remora_peer shm"])
def test_floors_and_remora_answer_every_request(words):
    program, carrier = words.split()
    contestant = Contestant("it", "it", program, (carrier,))
    row = measure(contestant, Path("/nowhere"), TINY)
    assert set(row.missing) == {f"{what}_{size}_mib" for what in ("upload", "download") for size in (64, 512)}


def test_a_program_may_be_alone_with_lo():
    code = "import speak, socket; speak.be_alone(); s = socket.create_server(('127.0.0.1', 0)); print(open('/proc/net/dev').read())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(PROGRAMS)}, capture_output=True, text=True, check=False
    )
    if "namespace of its own" in done.stderr:
        pytest.skip("needs network namespaces: run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)")
    assert done.returncode == 0, done.stderr
    names = {line.split(":")[0].strip() for line in done.stdout.splitlines() if ":" in line}
    assert "lo" in names
    assert not any(name.startswith(("eth", "en")) for name in names)
