"""Makes a fit or an evaluation one of all ranks: what hooks the model, and checks it at the end."""

from easyddl import backends
from easyddl.collectives import objects
from easyddl.runtime import notices, world
from easyddl.steps.batch_weight import BatchWeight
from easyddl.training.agreement import layer_arrays, replicas
from easyddl.training.fit import epoch_end
from easyddl.training.metrics import metrics_hook
from easyddl.training.state import adapted_layers, layer_state, model_state
from easyddl.training.step import compiled_step, loss_weight, optimizer_classes


def begin(fit):
    """Hooks the model of a fit until the fit ends. Collective.

    Args:
        fit: `FitContext`.
    """
    first, model = fit.first, fit.model
    backends.require().check_model(model)
    is_shared = world.size() > 1
    if is_shared and fit.last and adapted_layers.sync_from_root(model, fit.last.root_rank):
        compiled_step.drop_constants(model)
    step = compiled_step.for_fit(model, first.reduction, first.scalar_losses)
    fit.step = fit.at_end.enter_context(step)
    fit.join.goes_on = first.uneven == "join"
    optimizer_classes.watch()
    for optimizer in model_state.optimizers(model):
        step.hook(optimizer)
    fit.at_end.callback(metrics_hook.hook(model, fit))
    if is_shared:
        if first.check_replicas is not False:
            fit.arrays_before = layer_arrays.checksums_of(model)
        backend = backends.require()
        fit.wrap_train_step(lambda each: backend.noting_variables(each, step.note_variables))
        fit.wrap_train_step(lambda train_step: layer_state.merging_train_step(train_step, model))
    fit.wrap_train_step(fit.join.announcing)
    # Create the meter on all ranks, because the compiled steps must be the same.
    _ = fit.meter


def begin_steps(fit, steps):
    """Wraps the train function that Keras has created for a fit. Collective.

    Args:
        fit: `FitContext`.
        steps: Integer. This rank's number of steps in an epoch; `None` if it is unknown.
    """
    fit.step.save_train_function()
    fit.step_ends.begin_fit(fit.model)
    if world.size() == 1:
        return
    by_rank = objects.allgather_object(steps)
    if fit.first.uneven == "error":
        epoch_end.require_equal_steps(by_rank)
    fit.set_steps(by_rank)
    fit.watch_steps()
    if fit.last is None:
        notices.tell(
            "warning: there is no DDLGlobalVariablesCallback, so each rank starts from its own "
            "weights. Pass ddl.DDLGlobalVariablesCallback() as the last callback."
        )


def end(fit):
    """Checks the trained model of a fit that has ended well. Collective."""
    # Steps may train nothing: without trainable weights, or in a `train_step` of one's own.
    if fit.has_steps and not fit.join.has_gradients and fit.has_moved_weights():
        notices.tell(
            "warning: no Keras optimizer applied gradients in the steps of model.fit(). "
            "Therefore no gradients were averaged, and every rank trained alone. Apply the "
            "gradients with a Keras optimizer within `train_step`."
        )
    if fit.first.check_replicas is not False:
        replicas.compare_after_fit(fit.model, fit.arrays_before, fit.step.used_variables())


def begin_evaluation(evaluation, first, is_in_fit):
    """Hooks the model of an evaluation until it ends. Collective outside of fits.

    Args:
        evaluation: `EvaluationContext`.
        first: The `DDLCallback` of the evaluation, or of the fit that it belongs to.
        is_in_fit: Boolean. Whether a fit of the same model is active.
    """
    model = evaluation.model
    if not is_in_fit and world.size() > 1 and first.check_replicas is not False:
        replicas.check_predictions(model, "before evaluate()")
    weight = BatchWeight(backends.require().is_current)  # not used in an evaluation
    evaluation.at_end.callback(loss_weight.hook(model, weight, first.scalar_losses))
    evaluation.at_end.callback(metrics_hook.hook(model))
    if loss_weight.changes_test_function(model):
        model.test_function = None
        evaluation.at_end.callback(setattr, model, "test_function", None)
