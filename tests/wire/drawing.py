"""The parts of docs/wire.md that are drawn from the code: `python -m tests.wire.drawing` draws them anew, a test compares."""

import re
from pathlib import Path

from remora.base.frontier import MAX_FRONTIER
from remora.session import session, transfers
from remora.session.state import FRAMES, SENDER, TRANSITIONS, Role, State, Stimulus
from remora.wire import (
    bootstrap,
    bulk,
    catalog,
    command_buffer,
    command_buffer_calls,
    commands,
    control,
    executable_calls,
    execute,
    export_calls,
    extension,
    file_calls,
    file_commands,
    layout,
    memory_calls,
    profile,
    profile_calls,
    queue,
    sharing_calls,
    status,
)

PAGE = Path(__file__).parents[2] / "docs" / "wire.md"
MODULES = {
    module.__name__.rpartition(".")[2].replace("_", " "): module
    for module in (
        layout,
        bootstrap,
        catalog,
        status,
        control,
        executable_calls,
        export_calls,
        command_buffer_calls,
        file_calls,
        profile_calls,
        profile,
        memory_calls,
        sharing_calls,
        queue,
        commands,
        execute,
        file_commands,
        extension,
        command_buffer,
        bulk,
    )
}
LANES = {bootstrap: "control", control: "control", profile: "control", queue: "queue"}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def states():
    """The diagram of TRANSITIONS; FAIL and CLOSE, which lead out of every living state, are said in one line each."""
    ends = (Stimulus.CLOSE, Stimulus.FAIL)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.IDLE.name}"]
    for before, row in TRANSITIONS.items():
        lines += [
            f"    {before.name} --> {after.name}: {stimulus.value}" for stimulus, after in row.items() if stimulus not in ends
        ]
    living = [state for state, row in TRANSITIONS.items() if row]
    assert all(TRANSITIONS[state][stimulus] for state in living for stimulus in ends)
    lines += [
        f"    {state.name} --> {TRANSITIONS[state][stimulus].name}: {stimulus.value}" for state in living for stimulus in ends
    ]
    return "\n".join([*lines, "```"])


def transitions():
    rows = [
        [state.name, *(row[stimulus].name if stimulus in row else "" for stimulus in Stimulus)]
        for state, row in TRANSITIONS.items()
    ]
    return table(["state", *(stimulus.value for stimulus in Stimulus)], rows)


def name_of(kind):
    """(name, lane) of a frame kind."""
    for module, lane in LANES.items():
        for name, value in vars(module).items():
            if value == kind and name in module.__all__ and name.isalpha() and type(value) is int:
                return name, lane
    raise AssertionError(f"the kind {kind:#x} has no name")


def frames():
    rows = []
    for kind in sorted(SENDER):
        name, lane = name_of(kind)
        senders = "both" if SENDER[kind] == set(Role) else next(iter(SENDER[kind])).value
        rows.append([f"{kind:#04x}", name, lane, senders, ", ".join(state.name for state in State if kind in FRAMES[state])])
    return table(["kind", "frame", "lane", "sent by", "taken in the receiver's state"], rows)


def limits():
    rows = [
        ("a control frame", layout.MAX_CONTROL_FRAME, "bytes"),
        ("a queue frame", layout.MAX_QUEUE_FRAME, "bytes"),
        ("a bulk frame", layout.MAX_BULK_FRAME, "bytes"),
        ("data inside UPDATE, READ and RESULT", commands.MAX_INLINE, "bytes"),
        ("bindings of a dispatch", commands.MAX_BINDINGS, ""),
        ("constants of a dispatch", commands.MAX_CONSTANTS, "bytes"),
        ("axes of a session, waits of a command", MAX_FRONTIER, ""),
        ("ids in a RELEASE", queue.MAX_RELEASE, ""),
        ("names in an ADVANCE", queue.MAX_NAMES, ""),
        ("open requests", control.MAX_REQUESTS, ""),
        ("a manifest", executable_calls.MAX_MANIFEST, "bytes"),
        ("an artifact inside a request", executable_calls.MAX_INLINE_ARTIFACT, "bytes"),
        ("an artifact", executable_calls.MAX_ARTIFACT, "bytes"),
        ("specialization constants", executable_calls.MAX_WORDS, "32-bit words"),
        ("exports in one answer", export_calls.PIECE, ""),
        ("a recording inside a request", command_buffer_calls.MAX_INLINE_STREAM, "bytes"),
        ("a recording, or the payload of an EXECUTE", command_buffer_calls.MAX_STREAM, "bytes"),
        ("the payload inside an EXECUTE", execute.MAX_EXECUTE, "bytes"),
        ("entries of a binding table", command_buffer_calls.MAX_SLOTS, ""),
        ("the name of a file", file_calls.MAX_FILE_NAME, "bytes"),
        ("the label of a registered file", file_calls.MAX_LABEL, "bytes"),
        ("a piece of a client's file", file_commands.PIECE, "bytes"),
        ("records of a recording", command_buffer.MAX_RECORDS, ""),
        ("data of a recorded UPDATE", command_buffer.MAX_UPDATE, "bytes"),
        ("the text of a label", command_buffer.MAX_LABEL, "bytes"),
        ("records in a RECORDS", profile.MAX_RECORDS, ""),
        ("the name or label of a record", profile.MAX_NAME, "bytes"),
        ("RECORDS of a profile that are not TAKEN", profile.WINDOW, ""),
        ("placements of a VIRTUAL_MAP", memory_calls.MAX_PLACEMENTS, ""),
        ("pages of a device", catalog.MAX_PAGE, "bytes"),
        ("a chunk of a transfer", bulk.CHUNK, "bytes"),
        ("a transfer", bulk.MAX_TRANSFER, "bytes"),
        ("bytes of a transfer before its CREDIT, more within the staging of ACCEPT", transfers.FREE, "bytes"),
        ("transfers that have begun without CREDIT", transfers.MAX_STAGED, ""),
        ("the least that is lent", bulk.MIN_LENT, "bytes"),
        ("connections of a bulk lane", bootstrap.MAX_BULK, ""),
        ("devices of a catalog", catalog.MAX_DEVICES, ""),
        ("queues of a device", catalog.MAX_QUEUES, ""),
        ("targets of a device", catalog.MAX_TARGETS, ""),
        ("heaps of a device", catalog.MAX_HEAPS, ""),
        ("the message of a status", status.MAX_MESSAGE, "bytes"),
        ("the origin of a status", status.MAX_ORIGIN, "bytes"),
        ("control bytes that a peer leaves unread while it goes on asking", session.MAX_UNREAD, "bytes"),
    ]
    return table(["at most", "", ""], [[what, f"{value:,}", unit] for what, value, unit in rows])


def layout_of(name):
    """What a module says about its layout, line for line."""
    return "```text\n" + MODULES[name].__doc__.strip() + "\n```"


PARTS = {
    "states": states,
    "transitions": transitions,
    "frames": frames,
    "limits": limits,
} | {f"layout {name}": lambda name=name: layout_of(name) for name in MODULES}


def draw(text):
    """The page with every part drawn from the code."""

    def part(match):
        return f"<!-- drawn: {match[1]} -->\n\n{PARTS[match[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- drawn: ([a-z ]+) -->\n.*?<!-- end -->", part, text, flags=re.DOTALL)


def main():
    PAGE.write_text(draw(PAGE.read_text()))


if __name__ == "__main__":
    main()
