/* What begins and ends to live on a rank under `dp`, told to the ledger. */
#include "ps/dp/dp_impl.h"

#include "common/memory/plan.h"

static ledger *ledger_of(const dp_engine *e)
{
    return e->base.context.ledger;
}

/* Brings what the ledger holds of `class` on this account to `bytes`. */
static void hold(const dp_engine *e, ledger_class class, int64_t *account, int64_t bytes)
{
    if (bytes > *account)
        ledger_acquire(ledger_of(e), class, bytes - *account, bytes - *account);
    else
        ledger_release(ledger_of(e), class, *account - bytes, *account - bytes);
    *account = bytes;
}

static int64_t all_outputs(const dp_engine *e)
{
    return e->loaded * e->base.context.exchange->output_bytes;
}

static int64_t all_wide_outputs(const dp_engine *e)
{
    return e->loaded * e->base.context.exchange->wide_output_bytes;
}

static int64_t own_output(const dp_engine *e)
{
    return dp_mine(e)->samples * e->base.context.exchange->output_bytes;
}

static int64_t param_bytes(const dp_engine *e)
{
    return e->base.context.params->logical_bytes;
}

void dp_lives_begin_batch(dp_engine *e)
{
    if (!dp_is_root(e))
        hold(e, LEDGER_REPLICAS, &e->replica, 0); /* an evaluation's, or the last micro-batch's buffers */
    if (e->accumulates) return;
    hold(e, LEDGER_GRADIENTS, &e->gradients, 0);
    hold(e, LEDGER_GRADIENTS, &e->results_held, 0);
}

void dp_lives_replicate(dp_engine *e)
{
    if (!dp_is_root(e))
        hold(e, LEDGER_REPLICAS, &e->replica, param_bytes(e) + e->base.context.params->buffer_bytes);
}

/* ---- outputs and loss ------------------------------------------------------------------------- */

void dp_lives_gather(dp_engine *e)
{
    if (dp_is_root(e) && dp_one_loss(e)) hold(e, LEDGER_OUTPUTS, &e->outputs_held, all_outputs(e));
}

void dp_lives_log_softmax(dp_engine *e)
{
    if (dp_is_root(e) && dp_one_loss(e) && !dp_lean(e))
        hold(e, LEDGER_OUTPUTS, &e->outputs_held, all_outputs(e) + all_wide_outputs(e));
}

void dp_lives_loss_gradients(dp_engine *e)
{
    if (dp_is_root(e) && dp_one_loss(e) && !dp_lean(e))
        hold(e, LEDGER_OUTPUTS, &e->outputs_held, all_outputs(e) + 3 * all_wide_outputs(e));
}

/* The gradient of this rank's part ends to live with the program's value for it: the program tells that. */
static void hand_over_gradient(const dp_engine *e, int64_t held)
{
    int64_t own = own_output(e);
    if (held > 0) ledger_release(ledger_of(e), LEDGER_OUTPUTS, held, held);
    ledger_acquire(ledger_of(e), LEDGER_OUTPUTS, own, plan_align(own));
}

void dp_lives_end_loss(dp_engine *e)
{
    if (!dp_is_root(e) || !dp_one_loss(e)) return;
    hold(e, LEDGER_OUTPUTS, &e->outputs_held, (dp_lean(e) ? 1 : 2) * all_outputs(e));
    hand_over_gradient(e, own_output(e));
    e->outputs_held -= own_output(e);
}

void dp_lives_take_gradient(dp_engine *e)
{
    hand_over_gradient(e, 0);
}

/* ---- parameters and gradients ------------------------------------------------------------------ */

void dp_lives_gradient_ready(dp_engine *e, int param)
{
    int64_t bytes = e->base.context.params->pieces[param].count * (int64_t)e->element;
    hold(e, LEDGER_OUTPUTS, &e->outputs_held, 0);
    if (!dp_is_root(e)) hold(e, LEDGER_REPLICAS, &e->replica, e->replica - bytes);
    if (!e->accumulates) hold(e, LEDGER_GRADIENTS, &e->gradients, e->gradients + bytes);
}

void dp_lives_begin_reduce(dp_engine *e)
{
    int64_t chunk = dp_lean(e) ? 0 : e->reduce.largest_bytes;
    if (!dp_is_root(e)) hold(e, LEDGER_REPLICAS, &e->replica, e->base.context.params->buffer_bytes);
    hold(e, LEDGER_GRADIENTS, &e->gradients, param_bytes(e));
    if (dp_is_root(e) && !dp_lean(e)) hold(e, LEDGER_GRADIENTS, &e->results_held, param_bytes(e));
    hold(e, LEDGER_BUCKETS, &e->chunk_held, dp_is_root(e) ? 2 * chunk : chunk);
}

void dp_lives_reduced(dp_engine *e)
{
    hold(e, LEDGER_BUCKETS, &e->chunk_held, 0);
}

void dp_lives_end_reduce(dp_engine *e)
{
    if (!dp_is_root(e)) {
        hold(e, LEDGER_REPLICAS, &e->replica, 0);
        hold(e, LEDGER_GRADIENTS, &e->gradients, 0);
        return;
    }
    if (e->policy.keep_grads) {
        hold(e, LEDGER_GRADIENTS, &e->kept_held, param_bytes(e));
        hold(e, LEDGER_GRADIENTS, &e->results_held, 0);
        hold(e, LEDGER_GRADIENTS, &e->gradients, 0);
    } else if (!dp_lean(e)) {
        hold(e, LEDGER_GRADIENTS, &e->gradients, 0);
    }
}
