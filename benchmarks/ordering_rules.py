"""The ordering rules of the pipeline: what each says, where it stands in the code, which tests defend it.

A rule is a piece of text that stands exactly once in its file, what it becomes when the rule is removed, and
the tests that must turn red then. See `ordering_mutations.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final


class TextNotFoundError(Exception):
    """A rule's text does not stand exactly once in its file."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, and how to break it."""

    name: str
    file: str
    text: str  # with the rule
    broken: str  # without it
    tests: tuple[str, ...]
    gpus: int = 0  # how many must be there for its absence to do damage

    def check_in(self, root: Path) -> str:
        """The file's content. Raises TextNotFoundError."""
        content = (root / self.file).read_text()
        found = content.count(self.text)
        if found != 1:
            raise TextNotFoundError(
                f"rule {self.name!r}: its text stands {found} times in {self.file}, not once:\n{self.text}"
            )
        return content

    def remove_from(self, root: Path) -> None:
        """Rewrite the file without the rule. Raises TextNotFoundError, or SyntaxError."""
        broken = self.check_in(root).replace(self.text, self.broken)
        compile(broken, self.file, "exec")
        (root / self.file).write_text(broken)


unit: Final = "tests/unit/dflash"
contract: Final = "tests/contract/test_transports.py"
resume: Final = "tests/integration/test_resume.py"
streams: Final = "tests/gpu/test_transports_cuda.py"
sharing: Final = "tests/gpu/test_sharing_cuda.py"
replica_link: Final = "tests/gpu/test_replica_link_cuda.py"
handing_over: Final = "tests/gpu/test_handing_over_cuda.py"
carrier: Final = "dflash/transport/carrier.py"
cuda_carrier: Final = "dflash/transport/cuda_carrier.py"
paths: Final = "dflash/transport/paths.py"


def whole(*choices: str) -> tuple[str, ...]:
    """The contract's main test on logical devices, for these combinations."""
    test = "test_every_batch_arrives_once_whole_in_order_and_at_home"
    return tuple(f"{contract}::{test}[logical-{choice}/depth 2]" for choice in choices)


def on_streams(*tests: str) -> tuple[str, ...]:
    """Tests of races that only streams can have."""
    return tuple(f"{streams}::{test}" for test in tests)


cpu_rules: Final = (
    Rule(
        "a drafter waits for the copy of what it received",
        carrier,
        '        wait_measured(ready, "copy_wait", probe, fields)\n',
        "        return\n",
        (
            *whole("per_drafter/pinned/least_depth", "per_drafter/peer/round_robin"),
            f"{unit}/transport/test_carrier.py",
        ),
    ),
    Rule(
        "a move waits for the arrival of what it moves",
        carrier,
        "            after.wait()\n",
        "            pass\n",
        whole("shared/pinned/round_robin", "shared/peer/round_robin"),
    ),
    Rule(
        "the moment of a copy is reached after the copy",
        "dflash/links.py",
        "            job.moment.finish(self._run(job))\n",
        "            job.moment.finish()\n            self._run(job)\n",
        (*whole("per_drafter/peer/least_depth"), f"{unit}/test_links.py"),
    ),
    Rule(
        "a copy starts after what it comes after",
        "dflash/links.py",
        "                job.after.wait()\n",
        "                pass\n",
        (f"{unit}/test_links.py",),
    ),
    Rule(
        "a link makes one copy at a time",
        "dflash/links.py",
        "        with self._busy:\n",
        "        if True:\n",
        (f"{unit}/test_links.py",),
    ),
    Rule(
        "an abort cuts pacing short",
        "dflash/links.py",
        "        self._stopped.set()\n",
        "        pass\n",
        (f"{unit}/test_links.py",),
    ),
    Rule(
        "a send buffer is used again when its last copy has ended",
        paths,
        '            wait_measured(buffer.copied, "copy_wait", probe, facts(item))\n',
        "            pass\n",
        (*whole("per_drafter/pinned/least_depth"), f"{unit}/transport/test_paths.py"),
    ),
    Rule(
        "an upload starts after the download into its slab",
        paths,
        "into=None, after=landed, fields=fields)",
        "into=None, after=None, fields=fields)",
        (*whole("per_drafter/pinned/least_depth"), f"{unit}/transport/test_paths.py"),
    ),
    Rule(
        "an item homed elsewhere is moved",
        paths,
        "        if shipment.resident is device:\n",
        "        if True:\n",
        (*whole("shared/peer/round_robin"), f"{unit}/transport/test_paths.py"),
    ),
    Rule(
        "what is handed over is taken when it has been made",
        carrier,
        "        ready.wait()\n",
        "        pass\n",
        (f"{unit}/transport/test_handing_over.py",),
    ),
    Rule(
        "states handed over are ready at their own moment",
        paths,
        "        item.ready = item.ready or device.record()\n",
        "        item.ready = device.record()\n",
        (f"{unit}/transport/test_handing_over.py",),
    ),
    Rule(
        "dispatch reserves under its lock",
        "dflash/transport/dispatch.py",
        "        with self._lock:\n            chosen =",
        "        if True:\n            chosen =",
        (f"{unit}/transport/test_dispatch.py",),
    ),
    Rule(
        "dispatch releases under its lock",
        "dflash/transport/dispatch.py",
        "        with self._lock:\n            self._reserved_tokens[drafter] -= tokens",
        "        if True:\n            self._reserved_tokens[drafter] -= tokens",
        (f"{unit}/transport/test_dispatch.py",),
    ),
    Rule(
        "what is taken weighs on its home until it is done",
        "dflash/transport/transport.py",
        "        self._path.unload(item, drafter, probe)\n",
        "        self._path.unload(item, drafter, probe)\n"
        "        self._dispatch.release(item.home, shipment_of(item).tokens)\n"
        "        shipment_of(item).tokens = 0\n",
        (f"{unit}/transport/test_transport.py",),
    ),
    Rule(
        "a writer looks again for room after it was woken",
        "dflash/channel.py",
        "                while len(self._items) >= self.capacity",
        "                if len(self._items) >= self.capacity",
        (f"{unit}/test_channel.py",),
    ),
    Rule(
        "a reader looks again for an item after it was woken",
        "dflash/channel.py",
        "                while not self._items and not self._ended():",
        "                if not self._items and not self._ended():",
        (f"{unit}/test_channel.py",),
    ),
    Rule(
        "a channel's first error stays",
        "dflash/channel.py",
        "            if self._error is None:\n                self._error = error\n",
        "            self._error = error\n",
        (f"{unit}/test_channel.py",),
    ),
    Rule(
        "the last close wakes who waits",
        "dflash/channel.py",
        "                self._closed = True\n                self._wake_all()\n",
        "                self._closed = True\n",
        (f"{unit}/test_channel.py::test_the_last_close_wakes_every_waiting_reader",),
    ),
    Rule(
        "the first cause reaches everybody",
        "dflash/pipeline.py",
        "            self._first = self._first or error\n",
        "            self._first = error\n",
        (f"{unit}/test_pipeline.py",),
    ),
    Rule(
        "batches of a window are sent after all of the window before",
        "dflash/window.py",
        "            while self._error is None and batch.window.step > self._open_step:\n",
        "            while False:\n",
        (f"{unit}/test_window_turns.py",),
    ),
    Rule(
        "a window trains after the step of the window before",
        "dflash/window_progress.py",
        "self._condition.wait_for(lambda: self._error is not None or self._step == window.step)\n",
        "pass\n",
        (f"{unit}/test_window_progress.py",),
    ),
    Rule(
        "an item is done when the device has finished with it",
        "dflash/stages.py",
        "        _wait_for_device(flight, self.probe)\n        if flight is not None and",
        "        if flight is not None and",
        (f"{unit}/test_stages.py",),
    ),
    Rule(
        "a target dispatches one batch ahead of its device",
        "dflash/stages.py",
        "            self._turns.sent(batch)\n            _wait_for_device(previous, self.probe)\n",
        "            self._turns.sent(batch)\n",
        (f"{unit}/test_stages.py",),
    ),
    Rule(
        "a window's turn passes on when its batch was sent",
        "dflash/stages.py",
        "self._transport.send(item, self.index, self.probe)\n            self._turns.sent(batch)\n",
        "self._turns.sent(batch)\n            self._transport.send(item, self.index, self.probe)\n",
        (f"{unit}/test_stages.py",),
    ),
    Rule(
        "a window completes after every drafter's device reached its end",
        "dflash/replicas.py",
        "            for moment in late:\n                moment.wait()\n",
        "            pass\n",
        (f"{unit}/test_replicas.py",),
    ),
    Rule(
        "gradients live until the device that sums them is done",
        "dflash/replicas.py",
        "                *gradients, figures = self._sum(brought)\n",
        "                *gradients, figures = self._sum(brought)\n"
        "                taken.clear()\n                brought.clear()\n",
        (f"{unit}/test_replicas.py",),
    ),
    Rule(
        "the next window trains behind the leader's step",
        "dflash/replicas.py",
        "        self.leader.settled = stepped\n",
        "",
        (f"{unit}/test_replicas.py",),
    ),
    Rule(
        "after a step that was not finite none changes the weights",
        "dflash/replicas.py",
        "            sound = sound & self._sound\n",
        "            pass\n",
        (f"{unit}/test_replicas.py",),
    ),
    Rule(
        "a window is told when its step is made",
        "dflash/window_end.py",
        "        self.moment.wait()\n",
        "",
        (f"{unit}/test_window_books.py", f"{unit}/test_replicas.py"),
    ),
    Rule(
        "windows are told in their order",
        "dflash/window_books.py",
        "if self._open or not end.moment.done():",
        "if not end.moment.done():",
        (f"{unit}/test_window_books.py",),
    ),
    Rule(
        "a checkpoint is of steps that are made",
        "dflash/trainer.py",
        "                self.books.settle()  # raises for a step that was not made\n",
        "",
        (f"{resume}::test_a_checkpoint_waits_for_the_step_that_it_keeps",),
    ),
    Rule(
        "in lockstep a round ends when the step is made",
        "dflash/stages.py",
        "                    stepped.wait()\n",
        "                    pass\n",
        (f"{unit}/test_stages.py",),
    ),
    Rule(
        "sums are ordered behind the arrival of what they add",
        "dflash/replicas.py",
        "            arrived.order_stream()\n",
        "            pass\n",
        (f"{unit}/test_replicas.py",),
    ),
    Rule(
        "weights are not written while those of the step before are still read",
        "dflash/replicas.py",
        "replica.settled.order_stream()",
        "pass",
        (f"{unit}/test_replicas.py",),
    ),
    Rule(
        "a batch is trained behind the arrival of the weights",
        "dflash/stages.py",
        "            self._replica.await_weights()\n",
        "            pass\n",
        (f"{unit}/test_stages.py",),
    ),
    Rule(
        "lockstep: targets wait until all batches of the round are trained",
        "dflash/schedule.py",
        "        self._wait(probe, lambda: not self._untrained)\n",
        "        pass\n",
        (f"{unit}/test_schedule.py",),
    ),
    Rule(
        "lockstep: drafters wait until all targets have forwarded",
        "dflash/schedule.py",
        "        self._wait(probe, lambda: self._untrained > 0 or not self._with_data)\n",
        "        pass\n",
        (f"{unit}/test_schedule.py",),
    ),
    Rule(
        "a logical device computes one thing at a time",
        "dflash/devices.py",
        "            self._turn.acquire()\n",
        "            pass\n",
        (f"{unit}/test_devices.py",),
    ),
    Rule(
        "auto takes the way through the host where none was proven",
        paths,
        'self._ways.get((source.name, home.name), "pinned")',
        'self._ways.get((source.name, home.name), "peer")',
        (f"{unit}/transport/test_paths.py",),
    ),
    Rule(
        "a pair whose pattern arrived wrong is never used for peer copies",
        "dflash/routes.py",
        "        if not edge.correct:\n",
        "        if False:\n",
        (f"{unit}/test_routes.py",),
    ),
    Rule(
        "a trace waits until nobody computes",
        "dflash/compiling.py",
        "            while self._tracing or self._working:\n",
        "            while False:\n",
        (f"{unit}/test_compiling.py::test_a_trace_waits_for_work_and_goes_before_new_work",),
    ),
    Rule(
        "nobody begins to compute while somebody traces",
        "dflash/compiling.py",
        "            while self._tracing or (yielding and self._traces_waiting):\n",
        "            while False:\n",
        (f"{unit}/test_compiling.py::test_a_trace_waits_for_work_and_goes_before_new_work",),
    ),
)

gpu_rules: Final = (
    Rule(
        "the source of a copy is kept from the allocator",
        cuda_carrier,
        "            source.record_stream(lane.src)\n",
        "            pass\n",
        on_streams("test_a_source_freed_while_the_copy_runs_arrives_whole"),
    ),
    Rule(
        "a copy starts behind the forward",
        cuda_carrier,
        "            behind.order_stream()\n",
        "",
        on_streams(
            "test_a_copy_starts_when_the_states_have_been_computed",
            "test_a_drafter_reads_only_what_has_arrived[pinned]",
        ),
    ),
    Rule(
        "an upload starts after the download into its slab",
        paths,
        "into=None, after=landed, fields=fields)",
        "into=None, after=None, fields=fields)",
        on_streams("test_a_drafter_reads_only_what_has_arrived[pinned]"),
    ),
    Rule(
        "a drafter's stream waits for the copy",
        cuda_carrier,
        "        ready.order_stream()\n        if timing",
        "        if timing",
        on_streams("test_a_drafter_reads_only_what_has_arrived"),
    ),
    Rule(
        "received memory is kept from the allocator while the drafter reads it",
        cuda_carrier,
        "        taps.record_stream(torch.cuda.current_stream(device.torch_device))\n        self._await",
        "        self._await",
        on_streams("test_received_memory_is_not_written_while_the_drafter_still_reads"),
    ),
    Rule(
        "a slab is written again when its upload has ended",
        paths,
        '            wait_measured(buffer.copied, "copy_wait", probe, facts(item))\n',
        "            pass\n",
        on_streams("test_a_slab_is_not_overwritten_during_its_upload"),
    ),
    Rule(
        "a move waits for the arrival of what it moves",
        cuda_carrier,
        "                after.order_stream()\n",
        "                pass\n",
        on_streams("test_an_item_homed_elsewhere_is_moved_after_it_has_arrived"),
    ),
    Rule(
        "the source of a move lasts until it has been moved",
        cuda_carrier,
        "        moment.wait()\n        return out\n",
        "        return out\n",
        (f"{handing_over}::test_the_source_of_a_move_lasts_until_it_has_been_moved",),
    ),
    Rule(
        "a copy runs on streams of its own",
        cuda_carrier,
        "        with torch.cuda.stream(lane.dst), torch.cuda.stream(lane.src):\n",
        "        if True:\n",
        on_streams("test_a_slow_copy_holds_up_neither_stages_stream"),
    ),
    Rule(
        "a copy's stream of the destination is its own, too",
        cuda_carrier,
        "        with torch.cuda.stream(lane.dst), torch.cuda.stream(lane.src):\n",
        "        with torch.cuda.stream(lane.src or lane.dst):\n",
        on_streams("test_a_copy_waits_for_nothing_that_its_thread_has_on_the_destination"),
        gpus=2,
    ),
    Rule(
        "what is handed over is read when it has been made",
        cuda_carrier,
        "        ready.order_stream()\n        taps.record_stream",
        "        taps.record_stream",
        (f"{sharing}::test_a_state_handed_over_is_read_only_when_its_forward_has_ended",),
    ),
    Rule(
        "what is handed over is kept from the allocator while the drafter reads it",
        cuda_carrier,
        "(device.torch_device))\n\n    def new_slab",
        "(device.torch_device)) if False else None\n\n    def new_slab",
        (f"{sharing}::test_memory_handed_over_is_not_reused_while_the_drafter_still_reads",),
    ),
    Rule(
        "a stage's thread has a stream of its own",
        "dflash/cuda.py",
        "        torch.cuda.set_stream(open_stream(self.torch_device))",
        "        pass",
        on_streams("test_threads_get_their_device_and_a_stream_of_their_own"),
    ),
    Rule(
        "gradients and weights travel when they are whole",
        "dflash/replica_link.py",
        "            moment.order_stream()\n",
        "",
        (f"{replica_link}::test_gradients_are_brought_when_they_are_whole[False]",),
        gpus=2,
    ),
    Rule(
        "gradients leave for host memory when they are whole",
        "dflash/replica_link.py",
        "        after.wait()\n        with self._other.active():\n            on_host",
        "        with self._other.active():\n            on_host",
        (f"{replica_link}::test_gradients_are_brought_when_they_are_whole[True]",),
        gpus=2,
    ),
)
