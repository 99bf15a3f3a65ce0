/* Copies a batch to the device before its step begins (--prefetch).
 *
 * A separate copy stream copies one batch ahead into separate device memory. When the step begins, the
 * compute stream copies the batch to the memory that programs read:
 *
 *      host  --- copy stream --->  prefetch.tensors  --- compute stream --->  data.tensors
 *                  signals `copied`                   signals `taken`
 *
 * The fence `copied` makes the compute stream wait for the batch. The fence `taken` makes the next copy
 * wait until prefetch.tensors is free. The rank's thread always enqueues the signal before the wait, so
 * streams that share a hardware queue of the GPU cannot block each other.
 *
 * The copy by the compute stream stays within the device and costs about a fiftieth of the copy over the bus.
 * In return, every batch has the same address, so programs, recorded passes, engines and peers need the
 * address only once. */
#include "harness/train/trainer_impl.h"

#include "common/trace/trace.h"

/* Returns the first of the two marks of a copy. There are marks for the copies of all steps under way and for
 * the copy of the next batch. */
static int mark_of(uint64_t number)
{
    enum { COPIES = TRAINER_DEPTH * TRAINER_KEPT_BATCHES + 1 };
    return (int)(number % COPIES) * 2;
}

/* ---- open and close ----------------------------------------------------------------------------- */

status trainer_prefetch_open(trainer *t)
{
    trainer_prefetch *p = &t->data.prefetch;
    bool loads = trainer_loads(t) != TRAINER_LOADS_NOTHING;
    bool nothing = trainer_batch_bytes(t, 1) == 0; /* true for a middle stage of a pipeline */
    if (!t->config.prefetch || !loads || nothing || !device_get_info(t->device)->copy_engine)
        return STATUS_OK;
    TRY(trainer_open_tensors(t, DEVICE_MEMORY_PRIVATE, &p->tensors));
    TRY(device_stream_open(t->device, DEVICE_STREAM_COPY, &p->stream));
    TRY(device_fence_open(t->device, &p->copied));
    TRY(device_fence_open(t->device, &p->taken));
    int64_t bytes = trainer_batch_bytes(t, trainer_largest_batch(t));
    ledger_acquire(&t->ledger, LEDGER_BATCH, bytes, bytes);
    p->on = true;
    return STATUS_OK;
}

/* Signals `taken`, so that a copy that waits for the compute stream can end. After a failure the compute
 * stream may never take the batch. */
void trainer_prefetch_close(trainer *t)
{
    trainer_prefetch *p = &t->data.prefetch;
    if (p->taken && trainer_has_values(t)) device_fence_reach(p->taken, p->number);
    error_record why; /* the earlier error, if there is one, is kept */
    error_copy(&why);
    if (p->stream && trainer_has_values(t) && device_stream_synchronize(p->stream) != STATUS_OK) {
        error_clear();
        error_adopt(&why);
    }
    device_stream_close(&p->stream);
    device_fence_close(&p->copied);
    device_fence_close(&p->taken);
    trainer_close_tensors(t, &p->tensors);
}

/* ---- copies ----------------------------------------------------------------------------------- */

/* Returns the batch to its source if the copy of the batch has ended. A virtual device reads no data. */
static void return_buffer(trainer *t)
{
    trainer_prefetch *p = &t->data.prefetch;
    if (!p->lent || (trainer_has_values(t) && !device_fence_reached(p->copied, p->number))) return;
    batch_source_return(p->source, &p->batch);
    p->lent = false;
}

static status return_buffer_now(trainer *t)
{
    trainer_prefetch *p = &t->data.prefetch;
    if (p->lent && trainer_has_values(t)) TRY(device_stream_synchronize(p->stream));
    return_buffer(t);
    return STATUS_OK;
}

static status copy(trainer *t, int64_t step)
{
    trainer_prefetch *p = &t->data.prefetch;
    TRY(batch_source_next(p->source, step, &p->batch));
    p->lent = true;
    p->step = step;
    p->number++;
    TRY(device_stream_wait(p->stream, p->taken, p->number - 1));
    TRY(device_mark(p->stream, mark_of(p->number)));
    TRY(trainer_copy_batch(t, p->stream, &p->batch, &p->tensors, &p->rows));
    TRY(device_mark(p->stream, mark_of(p->number) + 1));
    TRY(device_stream_signal(p->stream, p->copied, p->number));
    p->ahead = true;
    return_buffer(t);
    return STATUS_OK;
}

status trainer_prefetch_fetch(trainer *t, batch_source *source, int64_t step, bool last)
{
    trainer_prefetch *p = &t->data.prefetch;
    if (p->ahead && (p->step != step || p->source != source)) { /* Drops the batch. */
        p->ahead = false;
        TRY(device_stream_signal(t->stream, p->taken, p->number));
    }
    if (!p->ahead) {
        TRY(return_buffer_now(t));
        p->source = source;
        TRY(copy(t, step));
    }
    p->next = last ? -1 : step + 1;
    t->current.batch = p->batch;
    return STATUS_OK;
}

static status move(trainer *t, const device_memory *to, const device_memory *from, dtype type, int64_t count)
{
    return device_convert(t->stream, to->data, type, from->data, type, count, 1);
}

status trainer_prefetch_take(trainer *t)
{
    trainer_prefetch *p = &t->data.prefetch;
    const trainer_tensors *to = &trainer_current_live(t)->tensors, *from = &p->tensors;
    int64_t targets = p->rows > 0 ? p->rows : p->batch.count * t->exchange.targets_each;
    TRY(device_stream_wait(t->stream, p->copied, p->number));
    TRY(move(t, &to->input, &from->input, t->data.input_type, p->batch.count * t->data.input_sample));
    TRY(move(t, &to->target, &from->target, t->exchange.target_type, targets));
    TRY(move(t, &to->index, &from->index, DTYPE_I32, p->rows));
    trainer_hold_batch(t, trainer_batch_bytes(t, p->batch.count));
    t->data.row_count = p->rows;
    p->ahead = false;
    return device_stream_signal(t->stream, p->taken, p->number);
}

status trainer_prefetch_next(trainer *t)
{
    trainer_prefetch *p = &t->data.prefetch;
    if (!p->on) return STATUS_OK;
    TRY(step_log_enter(&t->log, STEP_PHASE_PREFETCH));
    return_buffer(t);
    if (p->ahead || p->lent || p->next < 0 || !batch_source_ready(p->source, p->next)) return STATUS_OK;
    return copy(t, p->next);
}

status trainer_prefetch_flush(trainer *t)
{
    return t->data.prefetch.on ? return_buffer_now(t) : STATUS_OK;
}

int64_t trainer_prefetch_time(const trainer *t, uint64_t number)
{
    const trainer_prefetch *p = &t->data.prefetch;
    int64_t begin = device_mark_ns(p->stream, mark_of(number));
    int64_t end = device_mark_ns(p->stream, mark_of(number) + 1);
    trace_async(t->config.sync.trace, "batch to the device", TRACE_NO_INDEX, (int64_t)number, begin, end);
    return end - begin;
}
