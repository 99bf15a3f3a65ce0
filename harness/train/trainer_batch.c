/* A batch's way from its source to the device. */
#include "harness/train/trainer_impl.h"

/* Lists the rows that have targets. With none at all the head runs on one row that does not count. */
static void list_rows(trainer *t, const int32_t *targets, int64_t count)
{
    int64_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        if (targets[i] == LOSS_IGNORE) continue;
        t->rows[used] = (int32_t)i;
        t->row_targets[used++] = targets[i];
    }
    if (used == 0) {
        t->rows[used] = 0;
        t->row_targets[used++] = LOSS_IGNORE;
    }
    t->row_count = used;
}

static status upload_targets(trainer *t, const batch_view *b, int64_t targets)
{
    if (!t->slots[0].program->masked) {
        dtype host_target = t->target_type == DTYPE_I32 ? DTYPE_I32 : DTYPE_F32;
        return device_upload(t->stream, t->target.data, b->targets, host_target, t->target_type, targets);
    }
    list_rows(t, b->targets, targets);
    TRY(device_upload(t->stream, t->index.data, t->rows, DTYPE_I32, DTYPE_I32, t->row_count));
    return device_upload(t->stream, t->target.data, t->row_targets, DTYPE_I32, DTYPE_I32, t->row_count);
}

status trainer_upload(trainer *t, const batch_view *b)
{
    dtype host_input = t->input_type == DTYPE_I32 ? DTYPE_I32 : DTYPE_F32;
    int64_t inputs = b->count * t->input_sample, targets = b->count * t->target_sample;
    t->batch_bytes = inputs * dtype_size(t->input_type) + targets * dtype_size(t->target_type);
    ledger_acquire(&t->ledger, LEDGER_BATCH, t->batch_bytes, t->batch_bytes);
    TRY(device_upload(t->stream, t->input.data, b->inputs, host_input, t->input_type, inputs));
    return upload_targets(t, b, targets);
}

void trainer_drop_batch(trainer *t)
{
    ledger_release(&t->ledger, LEDGER_BATCH, t->batch_bytes, t->batch_bytes);
    t->batch_bytes = 0;
}

/* What is on loan was copied by the call that copies it, unless the device does so behind the host. */
status trainer_return_batch(trainer *t, batch_source *source, bool ended)
{
    const device_info *info = device_get_info(t->device);
    bool behind = info->real && !info->host_addressable;
    if (!t->has_batch || (behind && !ended)) return STATUS_OK;
    if (behind && !t->loss_here) TRY(device_stream_synchronize(t->stream));
    batch_source_return(source, &t->batch);
    t->has_batch = false;
    return STATUS_OK;
}
