"""Fault class 19, training: what keeps masks in force, a verdict honest, and a seed from doing harm."""

from __future__ import annotations

from tests.journal.faults.mutating import GONE, NEVER, line, without
from tests.journal.faults.mutation_rows import Mutation

MASKS = "trainer/pruning/test_masks.py::"
COMPACTION = "trainer/pruning/test_compaction.py::"
PRUNED_RUN = "trainer/pruning/test_pruning_in_a_run.py::"
REFUSED_ORDER = f"{PRUNED_RUN}test_an_order_that_does_not_fit_changes_nothing"
HELD = "trainer/pruning/test_held_masks.py::"
SHAKEN = f"{HELD}test_what_an_update_does_to_masked_weights_is_undone"
ANSWERS = "core/pruning/test_analysis.py::test_an_impossible_answer_is_refused_with_its_reason"
RULES = "core/pruning/test_rules.py::"
GATES = "trainer/seeds/test_seeds_in_a_run.py::test_a_move_that_its_gate_refuses_changes_nothing"
TRAINING_STAGE = "trainer/seeds/test_training_stage.py::"

TRAINING: tuple[Mutation, ...] = (
    # Masks.
    Mutation("masked weights are assigned, not multiplied", "masked-weights-assigned",
        line("parameter.index_copy_(dim, indices, parameter.index_select(dim, indices) * 0.0)"),
        f"{MASKS}test_a_masked_coordinate_that_is_no_number_becomes_zero"),
    Mutation("gradients of masked weights are set to 0", "masked-gradients-zeroed", GONE,
        f"{MASKS}test_the_gradient_norm_counts_live_coordinates_only"),
    Mutation("moments and averages of masked weights are set to 0", "masked-moments-zeroed", GONE,
        f"{MASKS}test_each_part_of_a_mask_is_needed[nothing]"),
    Mutation("a set of masks is compared with the model before anything changes", "masks-fit-before-change", GONE,
        f"{MASKS}test_a_set_with_one_mask_that_does_not_fit_changes_nothing"),
    Mutation("masks are held after the update of a step", "masks-held-after-update", NEVER, f"{SHAKEN}[Shaken]"),
    Mutation("masks are held after each of several updates", "masks-held-after-each-update", NEVER,
        f"{SHAKEN}[ShakenUpdates]"),
    Mutation("no masked gradient reaches the norm or a moment", "masked-gradients-out-of-norm", NEVER,
        f"{HELD}test_a_masked_unit_that_others_read_gets_no_moment"),
    Mutation("the masks of an order have its hash", "masks-have-ordered-hash", NEVER,
        f"{REFUSED_ORDER}[another hash]"),
    Mutation("masks that the newer weights do not allow are refused", "newer-weights-asked", NEVER,
        f"{REFUSED_ORDER}[needed by now]"),
    Mutation("the weights are put back after the check", "checked-weights-put-back", GONE,
        f"{REFUSED_ORDER}[needed by now]"),
    Mutation("masks are for the shape that was analysed", "masks-fit-analysed-shape", NEVER,
        f"{REFUSED_ORDER}[another shape]"),
    Mutation("the masks of a checkpoint fit the model, or nothing of it is restored", "masks-of-checkpoint-fit", GONE,
        f"{HELD}test_a_checkpoint_whose_masks_do_not_fit_its_model_is_refused_before_any_change"),
    # Compaction.
    Mutation("only zeros are removed", "only-zeros-removed", NEVER,
        f"{COMPACTION}test_what_cannot_be_removed_changes_nothing"),
    Mutation("the smaller model is compared with the masked one", "smaller-model-compared", NEVER,
        f"{COMPACTION}test_a_smaller_model_with_other_outputs_is_refused"),
    Mutation("a compaction that failed is undone", "failed-compaction-undone", GONE,
        f"{COMPACTION}test_what_cannot_be_removed_changes_nothing"),
    # Analyses and verdicts.
    Mutation("an answer is about the checkpoint that was asked for", "answer-of-asked-checkpoint", NEVER,
        f"{ANSWERS}[another checkpoint]"),
    Mutation("a verdict is judged again by what was measured", "verdict-judged-again", NEVER,
        f"{ANSWERS}[a hidden drop]"),
    Mutation("the parameters of an answer are counted again", "budget-counted-again", NEVER,
        f"{ANSWERS}[more than the budget]"),
    Mutation("an analysis that was cancelled does not answer for the next one", "late-analysis-ignored", without(1),
        f"{RULES}test_an_analysis_that_was_cancelled_may_not_answer_for_the_next_one"),
    Mutation("a verdict of no masks nothing", "no-go-masks-nothing", NEVER,
        f"{RULES}test_a_verdict_of_no_masks_nothing"),
    Mutation("masks that were rejected are not ordered again", "rejected-masks-stay-away", NEVER,
        f"{RULES}test_masks_that_were_rejected_are_not_ordered_again"),
    Mutation("an accuracy that is no number rejects the masks", "accuracy-that-is-no-number-rejects",
        line("if drop > limit:"),
        "core/pruning/test_window.py::test_an_accuracy_that_is_no_number_goes_back"),
    # Seeds.
    Mutation("a seed that fails the sanity check does not germinate", "insane-seed-refused", NEVER,
        f"{GATES}[a seed that is not the identity]"),
    Mutation("a gate that fails stops the move", "gate-stops-move", NEVER,
        f"{GATES}[too early]"),
    Mutation("a new seed is the identity", "new-seed-is-identity", NEVER,
        "trainer/seeds/test_sanity.py::test_a_seed_that_may_not_germinate_is_refused[not the identity]"),
    Mutation("a seed that trains sends no gradient to the host", "seed-sends-no-gradient", line("inner = h"),
        f"{TRAINING_STAGE}test_the_host_is_untouched_by_a_bit"),
    Mutation("a seed that trains takes no random numbers from the host", "seed-takes-no-draws", GONE,
        f"{TRAINING_STAGE}test_the_host_is_untouched_by_a_bit"),
)  # fmt: skip
