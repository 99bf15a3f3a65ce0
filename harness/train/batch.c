#include "harness/train/trainer_impl.h"

/* ---- memory ----------------------------------------------------------------------------------- */

trainer_load trainer_loads(const trainer *t)
{
    if (!t->needs.whole_batch) return TRAINER_LOADS_OWN;
    return t->config.sync.rank == 0 ? TRAINER_LOADS_ALL : TRAINER_LOADS_NOTHING;
}

int64_t trainer_largest_batch(const trainer *t)
{
    int64_t batch = t->config.batch;
    for (int i = 0; i < t->slot_count; i++)
        if (t->lives[0].slots[i].batch > batch) batch = t->lives[0].slots[i].batch;
    return trainer_loads(t) == TRAINER_LOADS_ALL ? batch * t->config.sync.world : batch;
}

int64_t trainer_batch_bytes(const trainer *t, int64_t samples)
{
    return samples * (t->exchange.input_bytes + t->exchange.target_bytes);
}

status trainer_open_tensors(trainer *t, device_memory_kind kind, trainer_tensors *out)
{
    int64_t batch = trainer_largest_batch(t);
    size_t inputs = (size_t)(batch * t->exchange.input_bytes);
    size_t targets = (size_t)(batch * t->exchange.target_bytes);
    if (inputs) TRY(ledger_blame(LEDGER_BATCH, device_allocate(t->device, kind, inputs, &out->input)));
    if (targets) TRY(ledger_blame(LEDGER_BATCH, device_allocate(t->device, kind, targets, &out->target)));
    if (!t->lives[0].slots[0].program->masked) return STATUS_OK;
    size_t rows = (size_t)(batch * t->exchange.targets_each) * sizeof(int32_t);
    return ledger_blame(LEDGER_BATCH, device_allocate(t->device, DEVICE_MEMORY_PRIVATE, rows, &out->index));
}

void trainer_close_tensors(trainer *t, trainer_tensors *tensors)
{
    device_free(t->device, &tensors->input);
    device_free(t->device, &tensors->target);
    device_free(t->device, &tensors->index);
}

/* ---- copies ----------------------------------------------------------------------------------- */

/* Lists the rows that have targets, and returns the number of rows. If no row has a target, lists one row
 * that does not count, so that the head has an input. */
static int64_t list_rows(trainer *t, const int32_t *targets, int64_t count)
{
    int64_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        if (targets[i] == LOSS_IGNORE) continue;
        t->data.rows[used] = (int32_t)i;
        t->data.row_targets[used++] = targets[i];
    }
    if (used == 0) {
        t->data.rows[used] = 0;
        t->data.row_targets[used++] = LOSS_IGNORE;
    }
    return used;
}

static status copy_targets(trainer *t, device_stream *s, const batch_view *b, const trainer_tensors *to,
                           int64_t *rows)
{
    int64_t targets = b->count * t->exchange.targets_each;
    *rows = 0;
    if (targets == 0) return STATUS_OK;
    if (!t->lives[0].slots[0].program->masked) {
        dtype host_target = t->exchange.target_type == DTYPE_I32 ? DTYPE_I32 : DTYPE_F32;
        return device_upload(s, to->target.data, b->targets, host_target, t->exchange.target_type, targets);
    }
    *rows = list_rows(t, b->targets, targets);
    TRY(device_upload(s, to->index.data, t->data.rows, DTYPE_I32, DTYPE_I32, *rows));
    return device_upload(s, to->target.data, t->data.row_targets, DTYPE_I32, DTYPE_I32, *rows);
}

status trainer_copy_batch(trainer *t, device_stream *s, const batch_view *b, const trainer_tensors *to,
                          int64_t *rows)
{
    dtype host_input = t->data.input_type == DTYPE_I32 ? DTYPE_I32 : DTYPE_F32;
    if (t->data.input_sample > 0)
        TRY(device_upload(s, to->input.data, b->inputs, host_input, t->data.input_type,
                          b->count * t->data.input_sample));
    return copy_targets(t, s, b, to, rows);
}

void trainer_hold_batch(trainer *t, int64_t bytes)
{
    t->current.batch_bytes = bytes;
    ledger_acquire(&t->ledger, LEDGER_BATCH, bytes, bytes);
}

status trainer_upload(trainer *t, const batch_view *b)
{
    trainer_hold_batch(t, trainer_batch_bytes(t, b->count));
    return trainer_copy_batch(t, t->stream, b, &trainer_current_live(t)->tensors, &t->data.row_count);
}

void trainer_drop_batch(trainer *t)
{
    ledger_release(&t->ledger, LEDGER_BATCH, t->current.batch_bytes, t->current.batch_bytes);
    t->current.batch_bytes = 0;
}

/* ---- the source ------------------------------------------------------------------------------- */

status trainer_borrow_batch(trainer *t, batch_source *source, int64_t step, bool last)
{
    if (t->current.has_batch) return STATUS_OK;
    if (t->data.prefetch.on)
        TRY(trainer_prefetch_fetch(t, source, step, last));
    else
        TRY(batch_source_next(source, step, &t->current.batch));
    t->current.has_batch = true;
    return STATUS_OK;
}

status trainer_return_batch(trainer *t, batch_source *source, bool ended)
{
    bool behind = trainer_is_asynchronous(t); /* the copy may end after the call that began it */
    if (!t->current.has_batch || ((behind || t->data.prefetch.on) && !ended)) return STATUS_OK;
    t->current.has_batch = false;
    if (t->data.prefetch.on) return trainer_prefetch_next(t);
    if (behind) TRY(device_mark_wait(t->stream, trainer_current_mark(t, STEP_MARK_LOADED)));
    batch_source_return(source, &t->current.batch);
    return STATUS_OK;
}
