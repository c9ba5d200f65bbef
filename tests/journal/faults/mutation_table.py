"""Fault class 19: the safety lines of the journal, each with the test that must go red without it.

A row takes one rule out of a copy of the journal, or turns it round, and names the test that notices. Text that is no
longer found in its file is an error of this table: whoever changes a safety line changes its row.
"""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """One piece of text of one file of the journal, and what stands there instead."""

    file: str
    old: str
    new: str


class Mutation(NamedTuple):
    """A rule that is taken out, and who must notice: a test's file and name below tests/journal."""

    rule: str
    killer: str
    edits: tuple[Edit, ...]


def row(rule: str, killer: str, file: str, old: str, new: str) -> Mutation:
    """A rule that stands in one place."""
    return Mutation(rule, killer, (Edit(file, old, new),))


FAULTS = "test_faults.py::"
DAMAGE = "test_damage.py::"
WRITER = "test_writer.py::"
PACKING = "test_packing.py::"
CRASH = "faults/test_recorded.py::test_a_crash_at_any_call_loses_nothing_acknowledged"
MISPLACED = "faults/test_misplaced.py::test_what_belongs_elsewhere_is_refused_by_name"
ELSEWHERE = "faults/test_misplaced.py::test_a_whole_frame_elsewhere_is_misplaced_for_whoever_looks"
TAMPER = "faults/test_tamper.py::test_an_edit_with_good_checksums_is_found"

MUTATIONS = (
    # What is durable, and when.
    row("each write is durable when it returns", f"{CRASH}[new]", "files.py",
        "_SYNCED = os.O_DSYNC | os.O_CLOEXEC", "_SYNCED = os.O_CLOEXEC"),
    row("a new folder's name is made durable", f"{CRASH}[new]", "files.py",
        "        folder.mkdir(exist_ok=True)\n        self.fsync_folder(folder.parent)", "        folder.mkdir(exist_ok=True)"),
    row("the entries of a folder are synced", f"{CRASH}[new]", "files.py",
        "        try:\n            os.fsync(descriptor)", "        try:\n            pass"),
    row("a file is synced when it is asked to be", f"{CRASH}[frame in memory]", "files.py",
        "    def fsync(self, descriptor: int) -> None:\n        os.fsync(descriptor)",
        "    def fsync(self, descriptor: int) -> None:\n        pass"),
    row("half a write is a failed write", f"{FAULTS}test_a_write_that_fails_loses_nothing[short-once]", "files.py",
        "    if taken != len(data):", "    if taken > len(data):"),
    row("a segment's new name is durable before events go into it", f"{CRASH}[new]", "rotation.py",
        "            self.files.fsync_folder(self.folder)\n", ""),
    row("a segment has its head before it has its name", f"{CRASH}[new]", "rotation.py",
        "        try:\n            write_frames(self.files, descriptor, data, 0, direct=is_direct)",
        "        early = self.folder / segment_file_name(header.segment_no, header.first_seq)\n"
        "        self.files.rename(spare, early)\n        spare = early\n"
        "        try:\n            write_frames(self.files, descriptor, data, 0, direct=is_direct)"),
    row("what is found is durable before it is read", f"{CRASH}[frame in memory]", "opening.py",
        "        view.sync()\n", ""),
    row("names that are found are durable before they are relied on", f"{CRASH}[name in memory]", "opening.py",
        "        files.fsync_folder(folder)\n", ""),
    row("the copy of a torn tail has its name before the tail is zeroed",
        "faults/test_recorded.py::test_what_a_start_cuts_is_somewhere_whole_at_every_moment", "quarantine.py",
        "        files.fsync_folder(folder)\n", ""),
    row("a torn tail is zeroed", "faults/test_recorded.py::test_nothing_stale_is_left_behind_a_start", "quarantine.py",
        "            write_all(files, descriptor, bytes(min(_PIECE_BYTES, end - at)), at)", "            pass"),
    row("spares are filled with zeros", "test_spare.py::test_a_spare_is_all_zeros_and_has_its_full_length", "spare.py",
        "            write_all(self._files, descriptor, _PIECE[: size - at], at)", "            pass"),
    row("leftover spares are removed", "faults/test_misplaced.py::test_a_spare_with_a_head_and_no_events_is_what_a_crash_leaves",
        "writer.py", "            appender.spares.remove_leftovers()\n", ""),
    row("a spare with events in it is refused",
        "faults/test_misplaced.py::test_a_segment_that_lost_its_name_is_refused_and_not_removed", "opening.py",
        "        _refuse_nameless(files, folder, len(found.views) + 1)\n", ""),
    # One writer.
    row("one writer holds the lock", f"{WRITER}test_a_second_writer_is_refused_and_takes_nothing", "files.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)", "            pass"),
    row("a forked child lets go", f"{WRITER}test_a_forked_child_lets_go_of_its_parents_journal", "fork.py",
        "os.register_at_fork(after_in_child=_in_child)", "_in_child"),
    row("a run's journal takes no other run's events", f"{WRITER}test_another_run_cannot_go_on_with_this_journal",
        "writer.py", "        if self._run_id not in (None, run_id):", "        if False:"),
    row("commit is refused while others append", "test_grouping.py", "writer.py",
        "        if self._group is not None:\n            self._refuse_while_grouped()\n", ""),
    # When a write fails.
    row("a failed descriptor is never written again", f"{FAULTS}test_a_write_that_fails_loses_nothing[5-once]",
        "appending.py", "                current = self.advance(length, stamp, error)", "                continue"),
    row("the failed bytes are declared void",
        f"{FAULTS}test_a_failed_write_goes_to_the_next_segment_behind_a_poison_frame", "writing.py",
        "if head.fault is not None else []", "if head.fault is None else []"),
    row("a second failure in a row freezes", f"{FAULTS}test_a_write_that_fails_loses_nothing[30-for good]",
        "appending.py", "            if self._failures_in_row > _FAILURES_MAX:", "            if self._failures_in_row > 50:"),
    row("a name in doubt freezes", "faults/test_answers.py::test_a_segment_whose_name_is_in_doubt_freezes_the_journal", "rotation.py",
        "            raise RenameFailed(error) from error", "            raise"),
    row("a frozen journal refuses", f"{FAULTS}test_an_interrupted_switch_never_goes_back_to_the_failed_segment",
        "appending.py", "        self.failure = JournalFailed(what,", "        _ = JournalFailed(what,"),
    row("an interrupted write freezes", f"{WRITER}test_a_write_that_is_interrupted_freezes_the_journal",
        "appending.py", '            self.freeze("a write was interrupted", error)\n', ""),
    row("an interrupted rotation freezes", f"{FAULTS}test_an_interrupted_switch_never_goes_back_to_the_failed_segment",
        "appending.py", '                self.freeze("a rotation was interrupted", interruption)\n', ""),
    row("a state that cannot be captured freezes", f"{WRITER}test_a_state_that_cannot_be_captured_freezes_the_journal",
        "appending.py",
        '            self.freeze("the state at the head of the next segment cannot be captured", error)\n', ""),
    row("the tail moves only behind a write that returned", f"{FAULTS}test_a_write_that_fails_loses_nothing[5-once]",
        "appending.py", '            self._reached("commit")\n',
        '            self._reached("commit")\n            current.tail.advance(header, chain, alignment)\n'),
    row("events are told durable behind their write", "test_grouping.py", "grouping.py",
        "            failed = False\n            try:", "            group.written = True\n            failed = False\n            try:"),
    row("who waits hears of a failure",
        "faults/test_answers.py::test_a_task_that_waits_for_the_write_in_flight_hears_that_it_failed", "grouping.py",
        "            groups = [group, *self._groups]", "            groups = [*self._groups]"),
    # Frames and headers.
    row("a segment header has a checksum",
        "faults/test_misplaced.py::test_every_bit_of_a_segment_header_is_under_its_checksum", "frame.py",
        "    if data[:8] != fmt.SEGMENT_MAGIC or crc32c(data[:_CRC_AT]) != crc:", "    if data[:8] != fmt.SEGMENT_MAGIC:"),
    row("an entry header has a checksum", f"{DAMAGE}test_no_flipped_bit_loses_or_changes_an_event", "frame.py",
        "    if header.magic != ENTRY_MAGIC or crc32c(data[at : at + _CRC_AT]) != header.header_crc:",
        "    if header.magic != ENTRY_MAGIC:"),
    row("a body has a checksum", f"{DAMAGE}test_no_flipped_bit_loses_or_changes_an_event", "segment.py",
        "        if crc32c(body) != header.body_crc:", "        if False:"),
    row("a newer segment is refused", "faults/test_parsers.py", "frame.py",
        "    if _is_newer(header):", "    if False:"),
    row("a segment header stays within its bounds", "faults/test_parsers.py", "frame.py",
        "    return header if _is_within(header) else Flaw.UNREADABLE", "    return header"),
    row("a newer frame is refused", "faults/test_parsers.py", "frame.py",
        "    if header.version != VERSION or header.header_bytes != HEADER_BYTES or header.flags & ~_FLAGS_KNOWN:",
        "    if False:"),
    row("an unknown kind is refused", "faults/test_parsers.py", "frame.py",
        "        return Flaw.NEWER if header.count or not header.flags & EntryFlag.SKIPPABLE else header",
        "        return header"),
    row("a frame stays within its bounds", "faults/test_parsers.py", "frame.py",
        "    return header if within else Flaw.ORDER", "    return header"),
    row("a body holds as many events as its header says", "faults/test_parsers.py", "frame.py",
        "    return events if len(events) == frame.header.count else None", "    return events"),
    row("a frame names its own place", f"{ELSEWHERE}[of this segment]", "segment.py",
        "        return header.offset == offset and header.segment_no == own.segment_no and header.run_id == own.run_id",
        "        return header.segment_no == own.segment_no and header.run_id == own.run_id"),
    row("a header that is found is in its own place", f"{ELSEWHERE}[of this segment]", "segment.py",
        "        return header if isinstance(header, Flaw) or header.offset == offset else Flaw.MISPLACED",
        "        return header"),
    row("a frame names its segment", f"{ELSEWHERE}[of another segment]", "segment.py",
        "        return header.offset == offset and header.segment_no == own.segment_no and header.run_id == own.run_id",
        "        return header.offset == offset and header.run_id == own.run_id"),
    row("a frame names its run", f"{ELSEWHERE}[of another run]", "segment.py",
        "        return header.offset == offset and header.segment_no == own.segment_no and header.run_id == own.run_id",
        "        return header.offset == offset and header.segment_no == own.segment_no"),
    row("frames follow each other", "faults/test_parsers.py::test_a_frame_outside_the_bounds_is_damage", "segment.py",
        "        if header.first_seq != tail.next_seq or header.previous_offset != tail.previous_offset:", "        if False:"),
    row("the chain is checked", f"{TAMPER}[an event in a sealed segment]", "segment.py",
        "        return frame if header.previous_chain == tail.chain else Flaw.CHAIN", "        return frame"),
    row("nothing counts behind a declared end",
        f"{FAULTS}test_a_batch_whose_write_failed_but_arrived_counts_once", "segment.py",
        "        if view.limit is not None and tail.offset >= view.limit:", "        if False:"),
    row("a missing segment is an error", f"{MISPLACED}[a middle segment missing]", "segment.py",
        "        if segment.segment_no != place:", "        if False:"),
    row("a file holds the segment of its name", f"{MISPLACED}[an older segment over the newest]", "segment.py",
        "        if (header.segment_no, header.first_seq) != (self.name.segment_no, seq):", "        if False:"),
    row("the newest segment is never a packed one", f"{PACKING}test_a_packed_segment_without_a_successor_means_that_one_is_missing", "segment.py",
        "    if names and is_packed(names[-1].path):", "    if False:"),
    # Torn or corrupt.
    row("a later frame proves an earlier one", f"{DAMAGE}test_sectors_lost_from_an_acknowledged_write_are_refused[2500]",
        "scan.py", "        later = later or _holds_later_frame(view, tail, chunk, at)\n", ""),
    row("a last frame elsewhere is no torn write",
        "faults/test_misplaced.py::test_the_last_write_in_the_wrong_place_is_not_taken_for_a_torn_one", "scan.py",
        "            header = view.own_header_at(offset)", "            header = view.header_at(offset)"),
    row("bytes farther than a write reaches are damage", "faults/test_parsers.py", "scan.py",
        "        stray=rest.nonzero_end > _reach(view, tail),", "        stray=False,"),
    row("a file has the length it was made with", f"{DAMAGE}test_a_file_cut_at_any_byte_is_refused_and_read_up_to_there",
        "scan.py", "        resized=view.size != view.header.segment_bytes,", "        resized=False,"),
    row("an older file has its length too",
        "faults/test_misplaced.py::test_what_an_opening_does_not_read_is_held_by_its_ends", "opening.py",
        "        if previous is not None and previous.size != previous.header.segment_bytes:", "        if False:"),
    row("nothing may follow a seal",
        "faults/test_misplaced.py::test_bytes_behind_the_seal_of_the_newest_segment_are_damage", "scan.py",
        "        sealed=tail.sealed,", "        sealed=False,"),
    row("a whole frame elsewhere is damage", f"{MISPLACED}", "scan.py",
        "        misplaced=walk.flaw in (Flaw.MISPLACED, Flaw.ORDER, Flaw.BEYOND),", "        misplaced=False,"),
    row("a broken chain is damage", f"{TAMPER}", "scan.py",
        "        unchained=walk.flaw is Flaw.CHAIN,", "        unchained=False,"),
    row("a newer frame is no damage", "faults/test_parsers.py", "scan.py",
        "        newer=walk.flaw is Flaw.NEWER,", "        newer=False,"),
    row("damage refuses a start", f"{DAMAGE}test_a_flip_in_a_journal_at_rest_is_named_with_its_place", "opening.py",
        "    if stop.decision not in (Decision.END, Decision.TORN):\n        raise refusal(newest, stop)\n", ""),
    row("older segments are read too", f"{MISPLACED}[two frames swapped in a sealed segment]", "opening.py",
        "    _scan_older(views)\n", ""),
    row("damage in an older segment refuses a start", f"{MISPLACED}[two frames swapped in a sealed segment]",
        "opening.py", "        if stop.decision is not Decision.END:\n            raise refusal(view, stop)\n", ""),
    row("segments are held against their links", f"{MISPLACED}", "opening.py", "    check_links(views)\n", ""),
    row("a segment follows its predecessor's number and run",
        "faults/test_tamper.py::test_a_segment_of_another_run_in_a_good_chain_is_found", "scan.py",
        "    if (header.previous_segment_no, header.run_id) != (previous.header.segment_no, previous.header.run_id):",
        "    if False:"),
    row("a link is the end of its predecessor", f"{TAMPER}", "scan.py",
        "    if found != (header.previous_length, header.previous_last_seq, header.previous_chain):", "    if False:"),
    row("the first segment has no predecessor", "faults/test_tamper.py", "scan.py",
        "        if header.segment_no != 1 or header.previous_chain != NO_CHAIN:", "        if False:"),
    row("a clean stop leaves a proof", f"{WRITER}test_a_clean_stop_is_told_from_a_crash", "writer.py",
        "            self._appender.watermark()\n", ""),
    # Readers, verify, repair.
    row("an event is returned once", f"{FAULTS}test_a_reader_that_saw_the_void_frame_first_returns_its_events_once",
        "reader.py", "or header.last_seq <= self._after_seq:", "or False:"),
    row("a live writer's last write is looked at twice", "test_between_reads.py", "scan.py",
        "    if not isinstance(walk.look(), Flaw):\n        return None\n", ""),
    row("backwards is verified too", "faults/test_tamper.py::test_the_last_entries_are_not_read_past_an_edit", "reader.py",
        "                    if isinstance(frame, Flaw) or frame.chain != chain:", "                    if isinstance(frame, Flaw):"),
    row("verify demands zeros as padding", f"{DAMAGE}test_no_flipped_bit_loses_or_changes_an_event", "verification.py",
        "        if not view.is_zero(end, walk.tail.offset - end):", "        if False:"),
    row("verify holds seals against their frames", "faults/test_tamper.py", "verification.py",
        '    if found != expected:\n        what = "the seal', '    if False:\n        what = "the seal'),
    row("verify reckons the running maxima", "faults/test_tamper.py", "verification.py",
        "    if header.wall_ns_max != wall_ns or header.epoch_max != epoch or header.step_max != step:", "    if False:"),
    row("verify decodes the events", "faults/test_parsers.py", "verification.py",
        "            events = events_of(view, frame)", "            events = []"),
    row("verify walks a segment again once", "faults/test_parsers.py", "verification.py",
        " and walked_to != view.limit:", ":"),
    row("a place that is none is not read", "faults/test_parsers.py", "segment.py",
        "        if not 0 <= offset <= self.size:", "        if False:"),
    row("repair takes the lock", "test_upkeep.py", "repairing.py",
        '    locks = take_locks(files, folder, "Stop the other process first; `verify` works without.")', "    locks = ()"),
    row("the folder is locked too", "faults/test_outsiders.py::test_removing_the_lock_file_lets_no_second_writer_in",
        "locking.py", "        held.append(files.lock(folder))\n", ""),
    row("repair cuts a torn tail and nothing else", "test_upkeep.py", "repairing.py",
        "    if report.verdict is not Verdict.TORN_TAIL or verifier.stop is None or verifier.view is None:",
        "    if verifier.stop is None or verifier.view is None:"),
    # Packed segments.
    row("a packed segment is read back before the plain one goes", f"{PACKING}test_a_segment_whose_packed_form_differs_is_left_alone", "packing.py",
        "            if not self._same(source, aside):", "            if False:"),
    row("a packed segment's name is durable before the plain one goes", f"{PACKING}test_a_power_cut_at_any_operation_of_packing_leaves_one_good_copy", "packing.py",
        "            self._files.fsync_folder(self._folder)\n            self._files.unlink(path)",
        "            self._files.unlink(path)"),
    row("the newest segment is not packed", f"{PACKING}test_a_power_cut_at_any_operation_of_packing_leaves_one_good_copy", "packing.py",
        "        for name in names[:-1]:", "        for name in names:"),
    row("an older packed copy is compared again", f"{PACKING}test_a_packed_form_that_a_crash_spoilt_is_made_again", "packing.py",
        "            if not (is_there and self._same(source, target)):", "            if not is_there:"),
    row("a packed piece has a checksum", f"{PACKING}test_no_flipped_bit_of_a_packed_segment_goes_unseen", "packed.py",
        "        if crc32c(packed) != row.crc:", "        if False:"),
    row("a packed segment's table has a checksum", f"{PACKING}test_no_flipped_bit_of_a_packed_segment_goes_unseen", "packed.py",
        "        if crc32c(table[: -_CRC.size]) != _CRC.unpack_from(tail, _TRAILER.size)[0]:", "        if False:"),
    row("a packed segment's table describes it", f"{PACKING}test_a_table_with_a_good_checksum_must_describe_its_segment", "packed.py",
        "        if not fits:", "        if False:"),
    row("a packed segment is never cut", f"{PACKING}test_nothing_is_set_aside_in_a_packed_segment", "quarantine.py",
        "    if is_packed(segment.path):", "    if False:"),
)  # fmt: skip
