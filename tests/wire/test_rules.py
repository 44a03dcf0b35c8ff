"""Every rule of every decoder, broken alone: the message says what is wrong (H25)."""

import struct

import pytest
from tests.golden import frames
from tests.golden.codecs import CODECS

from remora.base.ids import ResourceType, make_id, make_provisional
from remora.errors import Error, PeerError, Status, UsageError
from remora.wire import bulk, commands, queue
from remora.wire.bootstrap import Reject
from remora.wire.command_buffer_calls import MAX_INLINE_STREAM, MAX_SLOTS, MAX_STREAM, CommandBufferUpload
from remora.wire.control import Request, decode_control, encode_control
from remora.wire.executable_calls import MAX_ARTIFACT, MAX_INLINE_ARTIFACT, MAX_MANIFEST, MAX_WORDS, ExecutableLoad
from remora.wire.file_calls import FileOpen
from remora.wire.layout import Reader, Writer, is_id, pad8
from remora.wire.memory_calls import MAX_PLACEMENTS
from remora.wire.profile import MAX_NAME, MAX_RECORDS
from remora.wire.sharing_calls import MAX_SEGMENT, PLACE_SIZE, decode_place, encode_place
from remora.wire.status import MAX_MESSAGE, read_status


def change(lane, name, *places):
    """A golden frame with (offset, struct format, value) written over it."""
    data = bytearray(frames.golden(lane, name))
    for offset, code, value in places:
        struct.pack_into("<" + code, data, offset, value)
    return bytes(data)


U64 = 0xFFFF_FFFF_FFFF_FFFF
BUFFER = make_id(ResourceType.BUFFER, 3, 12)
BROKEN = [
    ("bootstrap", "hello", [(5, "B", 1)], "unknown flags"),
    ("bootstrap", "hello", [(4, "B", 0x09)], "unknown bootstrap frame 0x9"),
    ("bootstrap", "hello", [(16, "I", 8)], "unknown capability bits 0x8"),
    ("bootstrap", "hello", [(20, "I", 0x8000_0001)], "unknown capability bits 0x80000000"),
    ("bootstrap", "hello", [(25, "B", 0)], "0 connections of the bulk lane; 1 to 8"),
    ("bootstrap", "hello", [(25, "B", 9)], "9 connections of the bulk lane; 1 to 8"),
    ("bootstrap", "hello", [(26, "B", 1)], "reserved bytes"),
    ("bootstrap", "hello", [(28, "I", 17)], "17 axes, the limit is 16"),
    ("bootstrap", "hello", [(28, "I", 16)], "announces 16 items"),
    ("bootstrap", "hello", [(32, "H", 300)], "a text of 300 bytes, the limit is 256"),
    ("bootstrap", "hello", [(32, "H", 200)], "ends 186 bytes early"),
    ("bootstrap", "hello", [(34, "B", 0xFF)], "not UTF-8"),
    ("bootstrap", "hello", [(34, "B", 0)], "a NUL"),
    ("bootstrap", "hello", [(47, "B", 1)], "reserved bytes"),
    ("bootstrap", "hello_axes", [(48, "Q", 5)], "strictly ascending"),
    ("bootstrap", "accept", [(16, "Q", 0)], "session id 0"),
    ("bootstrap", "accept", [(48 + 4 + 8, "Q", 1)], "starts at epoch 0"),
    ("bootstrap", "accept", [(45, "B", 0)], "0 connections of the bulk lane"),
    ("bootstrap", "accept", [(46, "H", 1)], "reserved bytes"),
    ("bootstrap", "accept", [(84, "I", 0)], "window of 0"),
    ("bootstrap", "accept", [(88, "I", (4 << 20) - 1)], "a staging budget of 4194303 bytes"),
    ("bootstrap", "accept", [(88, "I", (1 << 30) + 1)], "a staging budget of 1073741825 bytes"),
    ("bootstrap", "accept", [(92, "H", 0)], "a catalog of 0 devices"),
    ("bootstrap", "accept", [(92, "H", 65)], "a catalog of 65 devices"),
    ("bootstrap", "join_queue", [(16, "Q", 0)], "session id 0"),
    ("bootstrap", "join_queue", [(40, "Q", 10)], "no lane 10"),
    ("bootstrap", "join_queue", [(40, "Q", 0)], "no lane 0"),
    ("bootstrap", "joined", [(24, "Q", U64)], "no lane"),
    ("bootstrap", "reject", [(16, "H", 0)], "code 0"),
    ("bootstrap", "reject", [(16, "H", 17)], "code 17"),
    ("control", "ping", [(5, "B", 1)], "unknown flags"),
    ("control", "ping", [(6, "H", 1)], "unknown flags"),
    ("control", "ping", [(4, "B", 0x1F)], "unknown control frame 0x1f"),
    ("control", "request_inline", [(8, "I", 0)], "request id 0"),
    ("control", "request_inline", [(12, "H", 0x2F)], "unknown method 0x2f"),
    ("control", "request_inline", [(14, "H", 1)], "reserved bytes"),
    ("control", "request_inline", [(16, "Q", 7)], "no provisional id of an executable"),
    ("control", "request_inline", [(24, "Q", 5)], "from the source 0 with the transfer 5"),
    ("control", "request_bulk", [(0, "I", 88)], "not exactly one frame"),
    ("control", "request_inline", [(32, "Q", 0)], "an artifact of 0 bytes"),
    ("control", "request_bulk", [(32, "Q", MAX_ARTIFACT + 1)], "outside the limits"),
    ("control", "request_bulk", [(40, "I", MAX_MANIFEST + 1)], "outside the limits"),
    ("control", "request_bulk", [(24, "Q", 0)], "from the source 1 with the transfer 0"),
    ("control", "request_bulk", [(24, "Q", 0), (46, "H", 0)], "it goes over bulk"),
    ("control", "request_bulk", [(46, "H", 3)], "from the source 3"),
    ("control", "request_bulk", [(46, "H", 0)], "from the source 0 with the transfer 4"),
    ("control", "request_digest", [(24, "Q", 4)], "from the source 2 with the transfer 4"),
    ("control", "request_digest", [(46, "H", 0)], "it goes over bulk"),
    ("control", "request_digest", [(40, "I", 40)], "early"),
    ("control", "request_specialized", [(61, "H", MAX_WORDS + 1)], "1025 words of specialization constants"),
    ("control", "request_specialized", [(61, "H", 1000)], "announces 1000 items"),
    ("control", "request_segment", [(16, "Q", 0)], "segment id 0"),
    ("control", "response_segment", [(16, "Q", 0)], "a segment of 0 bytes"),
    ("control", "response_segment", [(16, "Q", MAX_SEGMENT + 1)], "a segment of 281474976710657 bytes"),
    ("control", "request_global", [(16, "Q", frames.NEW_KERNELS)], "no id of an executable"),
    ("control", "request_global", [(16, "Q", BUFFER)], "no id of an executable"),
    ("control", "request_global", [(24, "H", 1025)], "a text of 1025 bytes, the limit is 1024"),
    ("control", "response_global", [(16, "Q", frames.KERNELS)], "no id of a buffer"),
    ("control", "response_global", [(16, "Q", 0)], "no id of a buffer"),
    ("control", "request_exports", [(16, "Q", frames.NEW_KERNELS)], "no id of an executable"),
    ("control", "request_exports", [(28, "I", 1)], "reserved bytes"),
    ("control", "response_exports", [(16, "I", (1 << 16) + 1)], "2 of 65537 exports in one answer"),
    ("control", "response_exports", [(16, "I", 1)], "2 of 1 exports"),
    ("control", "response_exports", [(20, "I", 257)], "257 of 300 exports in one answer; 256 of 65536 are the most"),
    ("control", "response_exports", [(20, "I", 200)], "announces 200 items"),
    ("control", "response_exports", [(20, "I", 1)], "bytes"),
    ("control", "response_exports", [(40, "H", 1025)], "a text of 1025 bytes"),
    ("control", "response_exports_none", [(20, "I", 1)], "1 of 0 exports"),
    ("control", "response_absent", [(16, "Q", 7)], "no id of an executable"),
    ("control", "request_recording", [(16, "Q", 7)], "no provisional id of a command buffer"),
    ("control", "request_recording", [(24, "Q", 5)], "bytes too many"),
    ("control", "request_recording", [(32, "Q", 9)], "a recording of 9 bytes"),
    ("control", "request_recording", [(32, "Q", 8)], "bytes too many"),
    ("control", "request_recording", [(40, "I", MAX_SLOTS + 1)], "65537 slots"),
    ("control", "request_recording", [(46, "H", 1)], "reserved bytes"),
    ("control", "request_recording_bulk", [(32, "Q", MAX_STREAM + 8)], "outside the limits"),
    ("control", "request_recording_bulk", [(32, "Q", 0)], "outside the limits"),
    ("control", "request_recording_bulk", [(24, "Q", 0)], "it goes over bulk"),
    ("control", "request_file", [(16, "Q", 7)], "no provisional id of a file"),
    ("control", "request_file", [(26, "B", 0)], "there is no such way"),
    ("control", "request_file", [(26, "B", 4)], "there is no such way"),
    ("control", "request_file", [(27, "B", 1)], "there is no such way"),
    ("control", "request_file_fresh", [(27, "B", 2)], "there is no such way"),
    ("control", "request_file", [(28, "I", 1)], "reserved bytes"),
    ("control", "request_file", [(32, "H", 4097)], "a text of 4097 bytes, the limit is 4096"),
    ("control", "request_file_fresh", [(32, "H", 0), (34, "3s", b"")], "a file without a name"),
    ("control", "request_file_register", [(16, "Q", 7)], "no provisional id of a file"),
    ("control", "request_file_register", [(26, "B", 0)], "there is no such way"),
    ("control", "request_file_register", [(26, "B", 4)], "there is no such way"),
    ("control", "request_file_register", [(27, "B", 1)], "reserved bytes"),
    ("control", "request_file_register", [(28, "I", 1)], "reserved bytes"),
    ("control", "request_file_register", [(48, "H", 257)], "a text of 257 bytes, the limit is 256"),
    ("control", "response_file_registered", [(16, "Q", BUFFER)], "no id of a file"),
    ("control", "response_file", [(16, "Q", BUFFER)], "no id of a file"),
    ("control", "response_recorded", [(16, "Q", frames.KERNELS)], "no id of a command buffer"),
    ("control", "request_profile_begin", [(16, "I", 0)], "the profile 0"),
    ("control", "request_profile_begin", [(22, "H", 1)], "reserved bytes"),
    ("control", "request_profile_flush", [(16, "I", 0)], "the profile 0"),
    ("control", "request_profile_flush", [(20, "I", 1)], "reserved bytes"),
    ("control", "request_profile_end", [(16, "I", 0)], "the profile 0"),
    ("control", "request_profile_end", [(23, "B", 1)], "reserved bytes"),
    ("control", "request_clock", [(12, "H", 0x61)], "ends 4 bytes early"),
    ("control", "response_clock", [(12, "H", 0x60)], "has 16 bytes too many"),
    ("control", "records", [(8, "I", 0)], "RECORDS 3 of the profile 0"),
    ("control", "records", [(12, "H", 11)], "5 records and 11 names"),
    ("control", "records", [(12, "H", 10)], "a NUL"),
    ("control", "records", [(14, "H", 0)], "0 records"),
    ("control", "records", [(14, "H", MAX_RECORDS + 1)], "65 records"),
    ("control", "records", [(14, "H", 6)], "ends .* early"),
    ("control", "records", [(14, "H", 4)], "64 bytes too many"),
    ("control", "records", [(16, "Q", 0)], "RECORDS 0"),
    ("control", "records", [(32, "H", MAX_NAME + 1)], "a text of 257 bytes"),
    ("control", "records", [(32 + 9 + 2, "B", 0)], "a NUL"),
    ("control", "records_unnamed", [(32, "B", 14)], "the kind 14"),
    ("control", "records_unnamed", [(33, "B", 2)], "flags 0x2"),
    ("control", "records_unnamed", [(36, "H", 1)], "the name 1; 0 of 0"),
    ("control", "records_unnamed", [(38, "H", 1)], "the name 1; 0 of 0"),
    ("control", "records_unnamed", [(64, "Q", 1041)], "from 1041 to 1040 to 1040"),
    ("control", "records_unnamed", [(80, "Q", 1039)], "from 1040 to 1040 to 1039"),
    ("control", "taken", [(8, "I", 0)], "TAKEN 3 of the profile 0"),
    ("control", "taken", [(12, "I", 1)], "reserved bytes"),
    ("control", "taken", [(16, "Q", 0)], "TAKEN 0"),
    ("control", "request_reserve", [(16, "Q", BUFFER)], "no provisional id of it"),
    ("control", "request_physical", [(16, "Q", frames.NEW_BUFFER)], "no provisional id of it"),
    ("control", "request_physical", [(34, "B", 1)], "reserved bytes"),
    ("control", "request_map", [(16, "Q", frames.NEW_BUFFER)], "no id of a reservation"),
    ("control", "request_map", [(24, "I", 0)], "a request to map 0 ranges"),
    ("control", "request_map", [(24, "I", MAX_PLACEMENTS + 1)], "a request to map 4097 ranges"),
    ("control", "request_map", [(24, "I", 3)], "announces 3 items"),
    ("control", "request_map", [(24, "I", 1)], "bytes too many"),
    ("control", "request_map", [(28, "I", 1)], "reserved bytes"),
    ("control", "request_map", [(40, "Q", BUFFER)], "no id of physical memory"),
    ("control", "request_unmap", [(16, "Q", frames.PHYSICAL)], "no id of a reservation"),
    ("control", "request_protect", [(16, "Q", frames.PHYSICAL)], "no id of a reservation"),
    ("control", "request_protect", [(40, "B", 2)], "the access 2"),
    ("control", "request_protect", [(41, "B", 1)], "reserved bytes"),
    ("control", "request_close_reservation", [(16, "Q", frames.KERNELS)], "no id of a reservation or"),
    ("control", "response_reserved", [(16, "Q", frames.PHYSICAL)], "no id of a buffer"),
    ("control", "response_mapped", [(12, "H", 0x51)], "ends 8 bytes early"),
    ("bootstrap", "accept", [(118, "I", 4097)], "pages of 4097 bytes"),
    ("control", "response_loaded", [(14, "B", 2)], "neither good nor bad"),
    ("control", "response_loaded", [(15, "B", 1)], "reserved bytes"),
    ("control", "response_loaded", [(16, "Q", BUFFER)], "no id of an executable"),
    ("queue", "command_barrier", [(7, "B", 1)], "reserved bits"),
    ("queue", "command_barrier", [(16, "Q", 0)], "epoch 0"),
    ("queue", "command_barrier", [(6, "B", 1)], "1 waits in 24 bytes"),
    ("queue", "command_dispatch", [(6, "B", 17)], "17 waits"),
    ("queue", "command_barrier", [(5, "B", 99)], "unknown op 99"),
    ("queue", "command_fill", [(5, "B", 1)], "a BARRIER with a body"),
    ("queue", "command_barrier_waits", [(24, "Q", frames.OTHER_AXIS)], "strictly ascending"),
    ("queue", "command_barrier_waits", [(32, "Q", 0)], "epochs from 1"),
    ("queue", "command_fill", [(52, "B", 3)], "a pattern of 3"),
    ("queue", "command_fill", [(52, "B", 1)], "a pattern of 1"),
    ("queue", "command_fill", [(40, "Q", 15)], "a FILL of 15 bytes"),
    ("queue", "command_fill", [(55, "B", 1)], "a FILL"),
    ("queue", "command_barrier", [(5, "B", 3)], "an UPDATE shorter"),
    ("queue", "command_update", [(40, "Q", 9)], "announces 9 bytes and brings 8"),
    ("queue", "command_update", [(40, "Q", commands.MAX_INLINE + 1)], "an UPDATE"),
    ("queue", "command_update", [(55, "B", 1)], "an UPDATE"),
    ("queue", "command_copy", [(5, "B", 5)], "the body of a READ has 24 bytes, not 40"),
    ("queue", "command_read", [(40, "Q", commands.MAX_INLINE + 1)], "it is a DOWNLOAD"),
    ("queue", "command_read", [(5, "B", 4)], "the body of a COPY has 40 bytes"),
    ("queue", "command_read", [(5, "B", 6)], "the body of a UPLOAD or DOWNLOAD has 32 bytes"),
    ("queue", "command_read", [(5, "B", 2)], "the body of a FILL has 32 bytes"),
    ("queue", "command_read", [(5, "B", 8)], "a DISPATCH shorter"),
    ("queue", "command_upload", [(48, "Q", 0)], "transfer id 0"),
    ("queue", "command_dispatch_bare", [(52, "I", 1)], "a DISPATCH with"),
    ("queue", "command_dispatch_bare", [(50, "H", 65)], "65 bindings"),
    ("queue", "command_dispatch_bare", [(48, "H", 257)], "257 bytes of constants"),
    ("queue", "command_dispatch", [(127, "B", 1)], "padding that is not zero"),
    ("queue", "command_read", [(5, "B", 12)], "the body of a FILE_READ or FILE_WRITE has 48 bytes, not 24"),
    ("queue", "command_file_read", [(64, "Q", 1)], "both a file and a transfer, or neither"),
    ("queue", "command_file_read", [(48, "Q", 0)], "both a file and a transfer, or neither"),
    ("queue", "command_file_read", [(56, "Q", (1 << 63) - 64)], "no file has them"),
    ("queue", "command_file_read", [(40, "Q", 1 << 63)], "no file has them"),
    ("queue", "command_file_bridged", [(40, "Q", 0)], "a transfer 5 of 0 bytes"),
    ("queue", "command_file_bridged", [(56, "Q", 1)], "at 1 of the client's file"),
    ("queue", "command_file_bridged", [(64, "Q", U64 - 5)], "of the client's file"),
    ("queue", "command_execute", [(24, "Q", 0), (52, "I", 8)], "a payload of 176 bytes and 168 bytes here"),
    ("queue", "command_execute", [(52, "I", 8)], "with a stream of 8 bytes beside it"),
    ("queue", "command_execute", [(52, "I", 7)], "a stream of 7 bytes"),
    ("queue", "command_execute", [(40, "I", MAX_SLOTS + 1)], "65537 slots"),
    ("queue", "command_execute", [(40, "I", 1)], "a payload of 144 bytes"),
    ("queue", "command_execute", [(44, "I", 6)], "6 patches"),
    ("queue", "command_execute", [(44, "I", 1)], "96 bytes behind its patches"),
    ("queue", "command_execute", [(32, "Q", 1)], "a payload of 168 bytes and 168 bytes here"),
    ("queue", "command_execute", [(104, "I", 4)], "strictly ascending by record"),
    ("queue", "command_execute", [(104 + 4, "B", 4)], "flags 0x4"),
    ("queue", "command_execute", [(104 + 5, "B", 1)], "a patch of record 0"),
    ("queue", "command_execute", [(104 + 4, "B", 0)], "a grid or constants that it does not change"),
    ("queue", "command_execute", [(128 + 4, "B", 0)], "a grid or constants that it does not change"),
    ("queue", "command_execute", [(128 + 6, "H", 3)], "3 bindings"),
    ("queue", "command_execute", [(152 + 4, "I", 1)], "reserved bits"),
    ("queue", "command_execute", [(152, "I", 1)], "strictly ascending"),
    ("queue", "command_execute", [(223, "B", 1)], "a patch of record 4"),
    ("queue", "command_execute_bare", [(44, "I", 1)], "1 patches"),
    ("queue", "command_execute_bare", [(32, "Q", 1)], "a transfer of nothing"),
    ("queue", "command_execute_bulk", [(32, "Q", 0)], "a payload of 98328 bytes and 0 bytes here"),
    ("queue", "command_execute_bulk", [(48, "I", MAX_STREAM)], "a payload of"),
    ("queue", "command_read", [(5, "B", 9)], "an EXECUTE shorter"),
    ("queue", "allocate", [(5, "B", 2)], "unknown flags"),
    ("queue", "command_copy", [(5, "B", 10)], "the body of a ALLOCA or DEALLOCA has 8 bytes, not 40"),
    ("queue", "command_barrier", [(5, "B", 14)], "a DISPATCH_INDIRECT shorter"),
    ("queue", "command_indirect", [(52, "I", 1)], r"with the grid \(1, 0, 0\) beside"),
    ("queue", "command_indirect", [(68, "I", 1)], "a DISPATCH with 2 bindings"),
    ("queue", "command_barrier", [(5, "B", 16)], "an EXTENSION shorter"),
    ("queue", "command_extension", [(36, "I", 1)], "an EXTENSION with 2 buffers"),
    ("queue", "command_extension", [(34, "H", 65)], "an EXTENSION with 65 buffers"),
    ("queue", "command_extension", [(32, "H", 0)], "a namespace of 0"),
    ("queue", "command_extension", [(28, "I", 9)], "a payload of 9 bytes"),
    ("queue", "command_extension", [(28, "I", 0)], "a payload of 0 bytes"),
    ("queue", "command_extension", [(88, "B", 0xFF)], "namespace is not UTF-8"),
    ("queue", "command_extension", [(98, "B", 1)], "padding that is not zero"),
    ("queue", "command_extension", [(105, "B", 1)], "padding that is not zero"),
    ("queue", "command_dealloca", [(5, "B", 1)], "a BARRIER with a body"),
    ("queue", "allocate", [(8, "Q", BUFFER)], "no provisional id of a buffer"),
    ("queue", "release", [(5, "B", 1)], "a RELEASE of 2 ids"),
    ("queue", "release", [(6, "H", 0)], "a RELEASE of 0 ids"),
    ("queue", "release", [(6, "H", 4097)], "a RELEASE of 4097 ids"),
    ("queue", "advance", [(5, "B", 2)], "flags 0x2"),
    ("queue", "advance", [(16, "Q", 0)], "ADVANCE to epoch 0"),
    ("queue", "advance", [(6, "H", 4097)], "4097 names"),
    ("queue", "advance", [(6, "H", 4096)], "announces 4096 items"),
    ("queue", "advance_failed", [(16, "Q", 0)], "ADVANCE to epoch 0"),
    ("queue", "advance_names", [(24, "Q", BUFFER)], "no ids of a buffer"),
    ("queue", "advance_names", [(32, "Q", frames.NEW_BUFFER)], "no ids of a buffer"),
    ("queue", "result", [(5, "B", 8)], "8 bytes of padding"),
    ("queue", "result", [(6, "H", 1)], "flags 0x1"),
    ("queue", "result", [(16, "Q", 0)], "epoch 0"),
    ("queue", "result_padded", [(31, "B", 1)], "a RESULT"),
    ("queue", "event_create", [(5, "B", 5)], "the action 5"),
    ("queue", "event_create", [(5, "B", 1)], "the device 1"),
    ("queue", "event_create", [(16, "Q", 1)], "the number 1"),
    ("queue", "event_wait", [(16, "Q", 0)], "the number 0"),
    ("queue", "event_wait", [(5, "B", 1)], "the number 3"),
    ("queue", "event_wait", [(8, "Q", frames.EVENT)], "no provisional id of an event"),
    ("queue", "state_set", [(5, "B", 3)], "the state 3"),
    ("queue", "state_set", [(5, "B", 2)], "ends .* early"),
    ("queue", "state_failed", [(5, "B", 1)], "with the state 1"),
    ("queue", "state_set", [(6, "H", 1)], "the action 1"),
    ("queue", "state_set", [(16, "Q", 0)], "the number 0"),
    ("queue", "state_set", [(8, "Q", frames.EVENT)], "no provisional id of an event"),
    ("queue", "unnamed", [(5, "B", 1)], "unknown flags"),
    ("queue", "unnamed", [(8, "Q", BUFFER)], "no provisional id of a buffer"),
    ("bulk", "start", [(5, "B", 1)], "flags 0x1"),
    ("bulk", "start", [(6, "H", 1)], "flags 0x0, 0x1"),
    ("bulk", "start", [(8, "Q", 0)], "the transfer 0"),
    ("bulk", "start", [(0, "I", 23)], "a bulk frame of 23 bytes"),
    ("bulk", "start", [(0, "I", 0xFFFF_FFFF)], "a bulk frame of 4294967295 bytes"),
    ("bulk", "start", [(0, "I", 25)], "and 1 bytes"),
    ("bulk", "start", [(16, "Q", bulk.MAX_TRANSFER + 1)], "with the value"),
    ("bulk", "start", [(4, "B", 0x48)], "unknown bulk frame 0x48"),
    ("bulk", "lend", [(16, "Q", bulk.MAX_TRANSFER + 1)], "0x45 with the value"),
    ("bulk", "lend", [(0, "I", 32)], "0x45 with the value 4096 and 8 bytes"),
    ("bulk", "lend", [(24, "Q", 0)], "of the segment 0"),
    ("bulk", "lend", [(32, "Q", bulk.MIN_LENT - 1)], "a LEND of 262143 bytes"),
    ("bulk", "lend", [(32, "Q", bulk.MAX_TRANSFER + 1)], "a LEND of 281474976710657 bytes"),
    ("bulk", "return", [(16, "Q", bulk.MAX_TRANSFER + 1)], "0x46 with the value"),
    ("bulk", "return", [(0, "I", 25)], "and 1 bytes"),
    ("bulk", "gone", [(16, "Q", 1)], "0x47 with the value 1"),
    ("bulk", "gone", [(0, "I", 25)], "and 1 bytes"),
    ("bulk", "data", [(16, "Q", 1)], "with the value 1"),
    ("bulk", "data", [(16, "Q", bulk.MAX_TRANSFER)], "with the value"),
    ("bulk", "data", [(0, "I", 24)], "and 0 bytes"),
    ("bulk", "abort", [(16, "Q", 1)], "with the value 1"),
    ("bulk", "abort", [(0, "I", 24 + bulk.MAX_ABORT + 1)], "0x43"),
]


@pytest.mark.parametrize(("lane", "name", "places", "message"), BROKEN)
def test_h25_rule(lane, name, places, message):
    with pytest.raises(PeerError, match=message) as caught:
        CODECS[lane].decode(change(lane, name, *places))
    assert caught.value.code is Status.PROTOCOL


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes(PLACE_SIZE - 1), "a place of 15 bytes; it has 16"),
        (encode_place(0, 8), "a place at 8 of the segment 0"),
        (encode_place(1, MAX_SEGMENT + 1), "a place at 281474976710657 of the segment 1"),
    ],
)
def test_h25_a_place_that_is_none_is_refused(data, message):
    with pytest.raises(PeerError, match=message):
        decode_place(data)


def test_h20_a_place_is_read_as_it_was_written():
    assert decode_place(encode_place(3, 4096)) == (3, 4096)
    assert decode_place(bytes(PLACE_SIZE)) is None


def test_h25_a_lend_of_another_size_is_refused():
    with pytest.raises(PeerError, match="a LEND says 15 bytes of what it lends, not 16"):
        bulk.decode_lend(bytes(15))


def test_h25_words_behind_the_message_are_refused():
    data = frames.golden("control", "ping")
    with pytest.raises(PeerError, match="has 8 bytes too many"):
        CODECS["control"].decode(struct.pack("<I", len(data) + 8) + data[4:] + bytes(8))


SHORT = [
    (queue.COMMAND, queue.decode_command, "a COMMAND shorter"),
    (queue.ALLOCATE, queue.decode_allocate, "ALLOCATE of 8 bytes"),
    (queue.RELEASE, queue.decode_release, "a RELEASE shorter"),
    (queue.ADVANCE, queue.decode_advance, "an ADVANCE shorter"),
    (queue.RESULT, queue.decode_result, "a RESULT shorter"),
    (queue.EVENT, queue.decode_event, "EVENT of 8 bytes"),
    (queue.STATE, queue.decode_state, "a STATE shorter"),
    (queue.UNNAMED, queue.decode_unnamed, "8 bytes early"),
]


@pytest.mark.parametrize(("kind", "decode", "message"), SHORT)
def test_h25_queue_frame_of_nothing_but_a_header(kind, decode, message):
    with pytest.raises(PeerError, match=message):
        decode(memoryview(struct.pack("<IBBH", 8, kind, 0, 0) + bytes(64)), 0, 8)


def test_h25_frames_shorter_than_a_header():
    with pytest.raises(PeerError, match="shorter"):
        decode_control(memoryview(bytes(7)))
    with pytest.raises(PeerError, match="shorter"):
        queue.decode_unnamed(memoryview(bytes(7)), 0, 7)
    with pytest.raises(PeerError, match="shorter"):
        bulk.decode_bulk(bytes(23))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 0, "0 queues"),
        (0, 17, "17 queues"),
        (2, 65, "65 targets"),
        (4, 17, "17 heaps"),
    ],
)
def test_h25_h04_catalog_counts(place, value, message):
    data = frames.golden("bootstrap", "accept")
    at = data.index(b"\x03\0cpu") + 5 + place
    with pytest.raises(PeerError, match=message):
        CODECS["bootstrap"].decode(data[:at] + struct.pack("<H", value) + data[at + 2 :])


@pytest.mark.parametrize("alignment", [0, 3, 96])
def test_h25_heap_alignment_is_a_power_of_two(alignment):
    data = frames.golden("bootstrap", "accept")
    at = data.index(b"\x04\0host") + 6 + 16
    with pytest.raises(PeerError, match=f"alignment {alignment}, no power of two"):
        CODECS["bootstrap"].decode(data[:at] + struct.pack("<Q", alignment) + data[at + 8 :])


NEW = make_provisional(ResourceType.EXECUTABLE, 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (ExecutableLoad(NEW, 0, ("cpu", "x"), bytes(MAX_MANIFEST + 1), 1, b"x"), "describe fewer kernels"),
        (ExecutableLoad(NEW, 0, ("cpu", "x"), b"", 0, b""), "an artifact of 0 bytes"),
        (ExecutableLoad(NEW, 0, ("cpu", "x"), b"", MAX_ARTIFACT + 1, b"", 1), "are possible"),
        (ExecutableLoad(NEW, 0, ("cpu", "x"), b"", MAX_INLINE_ARTIFACT + 1, bytes(MAX_INLINE_ARTIFACT + 1)), "over bulk"),
        (ExecutableLoad(NEW, 0, ("cpu", "x"), b"", 5, b"x"), "with 1 bytes here"),
        (ExecutableLoad(NEW, 0, ("cpu", "x"), b"", 1, b"x", 3), "the transfer 3"),
        (ExecutableLoad(NEW, 0, ("cpu", "x"), b"", 1, b"", 3, bytes(32)), "a digest of 32 bytes"),
        (ExecutableLoad(NEW, 0, ("cpu", "x"), b"", 1, b"", 0, bytes(31)), "a digest of 31 bytes"),
        (ExecutableLoad(NEW, 0, ("cpu", "x"), b"", 1, b"x", constants=(0,) * (MAX_WORDS + 1)), "put them in a buffer"),
        (CommandBufferUpload(frames.NEW_RECORDING, 0, 0, MAX_STREAM + 8, b"", 3), "record several command buffers"),
        (CommandBufferUpload(frames.NEW_RECORDING, 0, 0, MAX_INLINE_STREAM + 8, bytes(MAX_INLINE_STREAM + 8)), "over bulk"),
        (CommandBufferUpload(frames.NEW_RECORDING, 0, 0, 8, bytes(16)), "with 16 bytes here"),
        (FileOpen(frames.NEW_FILE, 0, 1, False, ""), "a name of 0 bytes"),
        (FileOpen(frames.NEW_FILE, 0, 1, False, "x" * 4097), "a name of 4097 bytes"),
        (FileOpen(frames.NEW_FILE, 0, 1, False, "a\0b"), "without NUL"),
        (FileOpen(frames.NEW_FILE, 0, 1, False, "a\udc80"), "not Unicode text"),
    ],
)
def test_h19_a_request_that_no_peer_takes_is_not_sent(body, message):
    with pytest.raises(UsageError, match=message):
        encode_control(Request(1, body))


def test_status_texts_are_cut_at_a_character():
    data = CODECS["bootstrap"].encode(Reject(Error("ä" * MAX_MESSAGE, origin="\0x")))
    error = CODECS["bootstrap"].decode(data).error
    assert error.message == "ä" * (MAX_MESSAGE // 2)
    assert error.origin == " x"


def test_h25_unknown_status_codes_are_refused():
    known = set(Status) - {Status.OK}
    for code in set(range(200)) | {0xFFFF}:
        body = Writer().u16(code).u16(0).text("", 1).text("why", 9).frame(0)[8:]
        if code in known:
            assert read_status(Reader(memoryview(body), "a test")).code == code
        else:
            with pytest.raises(PeerError, match=f"the code {code}, .*: why"):
                read_status(Reader(memoryview(body), "a test"))


def test_ids_by_type_and_maker():
    assert is_id(BUFFER, ResourceType.BUFFER, provisional=False)
    assert not is_id(BUFFER, ResourceType.BUFFER, provisional=True)
    assert not is_id(BUFFER, ResourceType.FILE, provisional=False)
    assert not is_id(BUFFER | 1 << 48, ResourceType.BUFFER, provisional=False)
    assert is_id(frames.NEW_BUFFER, ResourceType.BUFFER, provisional=True)
    assert not is_id(frames.NEW_BUFFER - 7, ResourceType.BUFFER, provisional=True)


def test_pad8():
    assert [pad8(size) for size in (0, 1, 7, 8, 9)] == [0, 8, 8, 8, 16]
