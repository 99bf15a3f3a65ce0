#include "common/sync/average.h"

#include "common/base/least.h"
#include "common/device/cpu/parallel.h"
#include "common/device/sim/device_sim.h"
#include "common/reduce/reduce.h"
#include "common/sim/price.h"

#include <stdatomic.h>

/* Number of elements of a range. A range is so small that the device starts no threads to process it. */
enum { RANGE = 8192 };

/* ---- ranges ----------------------------------------------------------------------------------- */

typedef struct range_job {
    piece_list pieces;
    sync_range_function function;
    void *context;
    atomic_bool *failed; /* The first thread that fails sets `failed` and writes `error`. */
    error_record *error;
} range_job;

/* Processes elements [first, end) of the list of pieces. Elements are counted over all pieces. */
static void run_part(const void *argument, int thread, int64_t first, int64_t end)
{
    const range_job *j = argument;
    for (int i = 0; i < j->pieces.count && end > 0; i++) {
        piece whole = j->pieces.pieces[i];
        int64_t last = least(end, whole.count);
        for (int64_t at = first > 0 ? first : 0; at < last; at += RANGE) {
            piece range = {whole.offset + at, least(last - at, RANGE)};
            if (j->function(j->context, thread, i, (piece_list){&range, 1}) == STATUS_OK) continue;
            if (!atomic_exchange(j->failed, true)) error_copy(j->error);
            error_clear();
            return;
        }
        first -= whole.count;
        end -= whole.count;
    }
}

status sync_run_ranges(const sync_staging *on, int threads, piece_list pieces, sync_range_function function,
                       void *context)
{
    if (!on->on_host) return function(context, 0, 0, pieces);
    atomic_bool failed = false;
    error_record error;
    range_job job = {pieces, function, context, &failed, &error};
    cpu_parallel(threads, piece_list_elements(pieces), RANGE, run_part, &job);
    return failed ? error_adopt(&error) : STATUS_OK;
}

/* ---- averages --------------------------------------------------------------------------------- */

status sync_bring(const sync_staging *on, dtype type, void *to, const void *data, bool local,
                  int64_t elements, double divisor)
{
    if (local && data == to && divisor == 1) return STATUS_OK;
    if (local) return device_convert(on->stream, to, type, data, type, elements, divisor);
    TRY(device_upload(on->stream, to, data, type, type, elements));
    return divisor == 1 ? STATUS_OK : device_convert(on->stream, to, type, to, type, elements, divisor);
}

static status average_on_gpu(const sync_average *a, int index, piece p)
{
    const sync_staging *on = a->on;
    void *out = a->out + p.offset * dtype_size(a->type);
    for (int r = 0; r < a->count; r++) {
        const char *data = a->source(a->context, r, index, p.offset);
        TRY(sync_bring(on, a->type, r == 0 ? out : a->landing, data, r == a->local, p.count, a->before));
        if (r > 0) TRY(device_add(on->stream, out, out, a->landing, a->type, p.count));
    }
    return a->after == 1 ? STATUS_OK
                         : device_convert(on->stream, out, a->type, out, a->type, p.count, a->after);
}

status sync_average_ranges(void *average, int thread, int first, piece_list ranges)
{
    const sync_average *a = average;
    int64_t size = dtype_size(a->type);
    if (a->on->on_host) {
        piece p = ranges.pieces[0];
        const void **sources = a->sources + (int64_t)thread * a->count;
        for (int r = 0; r < a->count; r++) sources[r] = a->source(a->context, r, first, p.offset);
        reduce_average(a->type, a->out + p.offset * size, sources, a->count, p.count, a->before, a->after);
        return STATUS_OK;
    }
    for (int i = 0; a->on->separate && i < ranges.count; i++)
        TRY(average_on_gpu(a, first + i, ranges.pieces[i]));
    sync_spend_pass(a->on->device, (double)(piece_list_elements(ranges) * size * (a->count + 1)), a->threads);
    return STATUS_OK;
}

/* ---- virtual time ----------------------------------------------------------------------------- */

void sync_spend_pass(device *d, double bytes, int threads)
{
    simulation *s = sim_device_simulation(d);
    if (!s) return;
    double rate =
        sim_profile_get(s->profile, SIM_MEMORY_BANDWIDTH) * sim_profile_at(s->profile, SIM_ELEMENTWISE, 1);
    sim_time duration =
        threads ? sim_price_sum(s->profile, bytes, threads) : sim_duration(bytes, rate * SIM_GB_PER_S);
    sim_actor_spend(sim_device_actor(d), duration);
}

void sync_spend_update(device *d, double bytes, int threads)
{
    const simulation *s = sim_device_simulation(d);
    bool recorded = s && s->update_factor > 0 && (threads == 0 || sim_device_is_host(d));
    sync_spend_pass(d, recorded ? bytes * s->update_factor : bytes, threads);
}

int sync_summing_threads(device *d, bool beside_gpu, int threads)
{
    return beside_gpu && sim_device_simulation(d) && !sim_device_is_host(d) ? 0 : threads;
}

void sync_spend_copies(device *d, double bytes)
{
    double rate = sim_profile_get(sim_device_simulation(d)->profile, SIM_PCIE);
    sim_actor_spend(sim_device_actor(d), sim_duration(bytes, rate * SIM_GB_PER_S));
}

void sync_add_values(const device *d, double *sums, const double *values, int64_t count)
{
    for (int64_t i = 0; device_get_info(d)->real && i < count; i++) sums[i] += values[i];
}
