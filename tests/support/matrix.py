"""Which checks run in which job: by backend, number of ranks, and hosts.

A file `*_checks.py`, in the folder of its subject, holds functions `check_...`. `test_checks.py`
starts each job once, for all checks that are listed for it, because the ranks of a job need time to
start and each framework needs time for its first step. A check runs where it can fail:

- What depends on a backend runs on each of the three. What does not, runs on one. Where Keras does
  the rest after the reduction, the other backends run `SOME` of a file's checks.
- Two ranks show most. Three show orders, several ranks without batches, and numbers that are no
  power of two. What depends on more than three is tested by the engine's own tests (C++), up to
  eight on a host.
- Hosts matter below Python. The engine's own tests take all algorithms between hosts. Of each kind
  of reduction (collectives, gradients, uneven data, sparse rows) some checks run on several hosts,
  which EASYDDL_HOSTS makes of one machine.
- Every run has the jobs of `GATE`, which try each mechanism once: on TensorFlow some checks of each
  kind, on JAX and PyTorch their own files and the same kinds, on PyTorch what no backend changes.
- The stage `full` has those of `FULL`. The soak has some of the pairs that are left, and what XLA
  compiles for long. The stage `longest` has all checks on JAX, and other numbers of ranks.

`python tests/support/matrix.py` prints the table.
"""

import collections
import dataclasses

import mpi

# What differs by the backend, by the number of ranks, or by what lies between them.
LINE_ERRORS = "check_an_error_at_any_line_of_an_update"

SOME = {
    "equality": (
        "check_dense_sgd",
        "check_convnet_adam_clipnorm",
        "check_dense_adam_accumulating",
        "check_momenta_become_subnormal",
        "check_custom_loop_in_eager_mode",
        "check_custom_loop_in_a_graph",
    ),
    "uneven": (
        "check_few_batches",
        "check_batches_of_different_sizes",
        "check_all_stop_after_the_same_step",
    ),
    "sparse": (
        "check_uneven_batches",
        "check_several_dtypes_and_numbers_of_rows",
        "check_sixteen_bits_between_hosts",
        "check_bad_rows_are_an_error_on_all_ranks",
    ),
    "shared_rows": (
        "check_lengths_that_differ_by_rank",
        "check_ranks_without_batches",
        "check_each_occurrence_of_an_index_is_a_sum_of_its_own",
        "check_ranks_whose_graphs_differ",
    ),
    "reduction": (
        "check_buckets_of_every_size",
        "check_half_precision_is_summed_in_single",
        "check_sixteen_bits_between_hosts",
        "check_several_dtypes_at_once",
        "check_gradients_that_some_ranks_lack",
        "check_several_models_in_turn_and_together",
        "check_a_callback_that_reduces_from_a_thread",
        "check_ranks_that_differ_in_bucket_bytes",
        "check_a_step_that_failed_on_all_ranks_can_be_followed_by_another",
        "check_many_fits_leave_nothing_behind",
        "check_optimizers_that_are_dropped_leave_nothing_behind",
        LINE_ERRORS,
    ),
    "presence": (
        "check_heads_in_turn",
        "check_an_expert_that_one_rank_uses",
        "check_ranks_that_have_joined",
        "check_steps_that_accumulate",
    ),
    "sync_batch_norm": (
        "check_equal_and_unequal_batches",
        "check_one_layer_in_two_branches",
        "check_a_fit_after_one_that_was_interrupted",
        "check_ranks_without_batches",
    ),
    "checkpoint": (
        "check_it_goes_on_in_the_middle_of_an_epoch",
        "check_files_of_all_kinds",
        "check_a_loaded_model_goes_on_with_hooks_in_place",
    ),
    "metrics": (
        "check_unequal_last_batches",
        "check_a_metric_of_ones_own_that_is_registered",
        "check_evaluate_returns_what_keras_does",
        "check_several_outputs",
        "check_callbacks_between_see_what_all_have",
    ),
    "keras": (
        "check_every_callback",
        "check_frozen_layers_and_unused_weights",
    ),
    "comparison": (
        "check_what_is_right_prints_nothing",
        "check_optimizers_that_differ_are_an_error",
        "check_layers_that_differ_are_a_warning",
        "check_steps_that_count_the_batches_of_all_ranks",
        "check_layers_that_were_adapted_after_the_split",
        "check_weights_that_the_root_alone_has_loaded",
        "check_arrays_in_attributes_of_layers_are_compared",
        "check_another_order_within_datasets_is_an_error",
        "check_another_order_within_datasets_of_tensorflow_is_an_error",
        "check_class_weights_that_differ",
        "check_variables_outside_of_the_model",
    ),
    "data_in_fit": (
        "check_augmentations_differ_and_orders_do_not",
        "check_orders_of_a_dataset_of_ones_own_are_those_of_one_process",
        "check_generators_draw_the_same_on_all_ranks",
        "check_numbers_are_the_same_again_after_an_error",
        "check_caches_in_files",
        "check_a_saved_dataset_that_nothing_splits",
        "check_vocabularies_of_a_map",
    ),
    "prediction": ("check_arrays", "check_one_rank_fails"),
    "failed_fits": (
        "check_the_begin_of_a_fit",
        "check_a_later_batch",
        "check_the_end_of_an_epoch",
        "check_all_ranks_raise_and_try_again",
        "check_a_fit_within_a_callback",
    ),
}

# TensorFlow traces it for as long as half of the others together.
MANY_LAYERS = "check_many_layers"
# They take longer than all others of their file together.
COMPILED_STEPS = ("check_a_compiled_step", "check_compiled_steps_of_uneven_ranks")

# On JAX variables have no values here. The gate of PyTorch has all checks of this file.
COMPILED_WRAPPER = "fit:check_compile_wraps_a_distributed_optimizer"

# One of each kind: equality with one process, uneven data, metrics, checkpoints, the exchange.
KINDS = (
    "equality:check_dense_sgd",
    "equality:check_convnet_adam_clipnorm",
    "equality:check_dense_adam_accumulating",
    "uneven:check_few_batches",
    "uneven:check_batches_of_different_sizes",
    "metrics:check_unequal_last_batches",
    "metrics:check_callbacks_between_see_what_all_have",
    "metrics:check_metrics_that_last",
    "checkpoint:check_files_of_all_kinds",
    "reduction:check_gradients_that_some_ranks_lack",
    "reduction:check_several_models_in_turn_and_together",
)

# All collectives, in their order: the layout comes first, which shows in what the others find.
WORLD = ("layout", "shared_memory", "collectives", "objects", "variables", "disagreement")


def of(*files, without=()):
    """All checks of some files, as `FILE:CHECK`."""
    checks = {file: mpi.checks_of(mpi.checks_file(file)) for file in files}
    return tuple(f"{f}:{check}" for f in files for check in checks[f] if check not in without)


def some(*files):
    """Those of `SOME`."""
    return tuple(f"{file}:{check}" for file in files for check in SOME[file])


@dataclasses.dataclass(frozen=True)
class Job:
    """The ranks that run some checks one after the other.

    Attributes:
        backend: String.
        ranks: Integer.
        checks: Tuple of strings, `FILE:CHECK`.
        hosts: String. The host of each rank, as in EASYDDL_HOSTS; empty for one host.
        mark: String. Tells a job from others with the same backend, ranks and hosts: the
            marker, if it is empty.
        environment: Tuple of pairs. What the ranks' environment has besides.
        marker: String. The marker of pytest's that its tests have: "gate" for those of every run,
            "soak", "longest", or none for the stage `full`.
    """

    backend: str
    ranks: int
    checks: tuple
    hosts: str = ""
    mark: str = ""
    environment: tuple = ()
    marker: str = ""

    @property
    def name(self):
        mark = self.mark or self.marker
        parts = (self.backend, str(self.ranks), self.hosts.replace(",", ""), mark)
        return "-".join(filter(None, parts))

    def ranks_alike(self, other):
        """Whether another job has the same ranks."""
        return (self.ranks, self.variables) == (other.ranks, other.variables)

    @property
    def variables(self):
        """The environment of the ranks, besides that of all tests."""
        hosts = {"EASYDDL_HOSTS": self.hosts} if self.hosts else {}
        return {"KERAS_BACKEND": self.backend, **hosts, **dict(self.environment)}


WIDE = (("JAX_ENABLE_X64", "1"),)  # JAX has 64-bit numbers only so
WIRE = (("EASYDDL_WIRE_DTYPE", "bfloat16"),)  # between hosts
XLA = (("EASYDDL_TEST_JIT_COMPILE", "1"),)  # steps as XLA compiles them, as on a GPU

GATE = (
    Job(
        "tensorflow",
        2,
        (
            *KINDS,
            "equality:check_custom_loop_in_a_graph",
            "uneven:check_all_stop_after_the_same_step",
            "sparse:check_uneven_batches",
            "reduction:check_half_precision_is_summed_in_single",
            "presence:check_a_head_that_is_used_later",
            "presence:check_a_later_trace_that_differs",
            "sync_batch_norm:check_equal_and_unequal_batches",
            "checkpoint:check_it_goes_on_in_the_middle_of_an_epoch",
            "metrics:check_several_outputs",
            "metrics:check_evaluate_returns_what_keras_does",
            COMPILED_WRAPPER,
            "fit:check_mixed_precision_skips_on_all_ranks",
            "keras:check_frozen_layers_and_unused_weights",
            "prediction:check_arrays",
            "prediction:check_one_rank_fails",
            "comparison:check_layers_that_were_adapted_after_the_split",
        ),
        marker="gate",
    ),
    # First what looks at the modules of a process that has imported nothing else.
    Job(
        "jax",
        2,
        (*of("jax"), *KINDS, "presence:check_a_later_trace_that_differs", COMPILED_WRAPPER),
        marker="gate",
    ),
    Job(
        "torch",
        3,
        (
            *of("fit", "threads"),
            *of("torch", without=COMPILED_STEPS),
            *KINDS,
            *some("presence"),
        ),
        marker="gate",
    ),
    Job(
        "torch",
        2,
        of("comparison", "epoch_logs", "model_files", "torch_buffers", "failed_fits"),
        marker="gate",
    ),
    Job("torch", 3, of(*WORLD), mark="world", marker="gate"),
    Job(
        "torch",
        3,
        (*of(*WORLD), "reduction:check_sixteen_bits_between_hosts"),
        hosts="a,a,b",
        marker="gate",
    ),
)


def beyond_gate(job):
    """A job without the checks that a job of every run has with the same ranks."""
    same = [gate for gate in GATE if gate.ranks_alike(job)]
    seen = {check for gate in same for check in gate.checks}
    return dataclasses.replace(job, checks=tuple(c for c in job.checks if c not in seen))


FULL = (
    Job(
        "tensorflow",
        2,
        of("fit", "fidelity", "metrics", "keras", "checkpoint", "sparse", "shared_rows", "presence")
        + of("progress", "data_in_fit", "global_batch", "epoch_logs", "model_files", "failed_fits")
        + some("comparison")
        + of("sync_batch_norm", without=[MANY_LAYERS]),
    ),
    Job("tensorflow", 3, of("equality", "reduction", "uneven", "prediction", "presence")),
    Job("tensorflow", 3, some("equality", "sparse", "shared_rows") + of("threads"), hosts="a,a,b"),
    Job("tensorflow", 1, some("checkpoint")),
    Job("tensorflow", 2, of("workers"), mark="forks"),  # it forks: with few threads before
    Job("tensorflow", 2, of(*WORLD), mark="world"),
    Job("tensorflow", 5, of(*WORLD), hosts="a,a,a,b,b"),
    # First what looks at the modules of a process that has imported nothing else.
    Job(
        "jax",
        2,
        of("jax", "fit", "replicas", "threads", "comparison", "model_files")
        + some("equality", "failed_fits")
        + (f"reduction:{LINE_ERRORS}", "epoch_logs:check_entries_by_which_callbacks_decide"),
    ),
    Job("jax", 2, of("fidelity"), mark="x64", environment=WIDE),
    Job("jax", 4, of(*WORLD), hosts="a,b,c,d"),
    Job(
        "torch",
        3,
        of("fit", "fidelity", "sync_batch_norm", "threads", "comparison")
        + of("epoch_logs", "model_files")
        + of("torch", without=COMPILED_STEPS)
        + of("torch_buffers", "presence")
        + some("failed_fits")
        + (f"reduction:{LINE_ERRORS}",),
    ),
    Job("torch", 3, some("uneven"), hosts="a,b,b"),
    # Most of their gradients are the same in bfloat16.
    Job("tensorflow", 3, some("reduction", "sparse"), hosts="a,b,c", mark="wire", environment=WIRE),
    Job("jax", 2, some("reduction"), hosts="a,b", mark="wire", environment=WIRE),
    Job(
        "torch",
        2,
        some("equality")
        + of("torch_buffers", "presence")
        + tuple(f"torch:{check}" for check in COMPILED_STEPS),
    ),
)
FULL = tuple(map(beyond_gate, FULL))

SOAK = (
    Job("tensorflow", 3, some("reduction"), hosts="a,b,b", marker="soak"),
    Job("tensorflow", 4, of(*WORLD), hosts="a,b,a,b", marker="soak"),
    Job("tensorflow", 3, some("data_in_fit", "comparison"), marker="soak"),
    Job("jax", 3, some("data_in_fit", "comparison"), marker="soak"),
    Job(
        "tensorflow",
        2,
        (
            *some("equality", "uneven"),
            "equality:check_custom_loop_compiled_by_xla",
            "sync_batch_norm:check_equal_and_unequal_batches",
            "sync_batch_norm:check_ranks_without_batches",
        ),
        mark="xla",
        environment=XLA,
        marker="soak",
    ),
    Job(
        "jax",
        2,
        (
            *some("reduction", "uneven", "metrics", "keras", "checkpoint", "prediction"),
            "sync_batch_norm:check_equal_and_unequal_batches",
        ),
        marker="soak",
    ),
    Job("torch", 2, of("equality", "prediction"), marker="soak"),
    Job(
        "torch",
        3,
        of("metrics") + some("data_in_fit") + ("keras:check_every_optimizer", "keras:check_lora"),
        marker="soak",
    ),
)

LONGEST = (
    Job("tensorflow", 1, of("fidelity"), marker="longest"),
    # The other pairs of FULL's.
    Job("tensorflow", 3, of("fidelity"), marker="longest"),
    Job("jax", 3, of("fidelity"), mark="x64", environment=WIDE, marker="longest"),
    Job("torch", 2, of("fidelity"), marker="longest"),
    Job("tensorflow", 2, (f"sync_batch_norm:{MANY_LAYERS}",), marker="longest"),
    Job(
        "jax",
        2,
        of("equality", "reduction", "uneven", "metrics", "keras", "checkpoint", "prediction"),
        marker="longest",
    ),
    Job("jax", 3, some("sync_batch_norm"), marker="longest"),
    Job(
        "jax",
        4,
        some("equality"),
        mark="buckets",  # one for every gradient
        environment=(("EASYDDL_BUCKET_BYTES", "1"),),
        marker="longest",
    ),
    Job("jax", 8, of(*WORLD), marker="longest"),
)

JOBS = {job.name: job for job in (*GATE, *FULL, *SOAK, *LONGEST)}


def table():
    """The jobs as lines of text."""
    lines = []
    for job in JOBS.values():
        counts = collections.Counter(check.partition(":")[0] for check in job.checks)
        files = ", ".join(f"{file} {count}" for file, count in counts.items())
        lines.append(f"{job.name:<24}{job.marker:<9}{files}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
