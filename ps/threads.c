#include "ps/threads.h"

#include "common/base/least.h"
#include "common/device/cpu/parallel.h"
#include "common/device/sim/device_sim.h"
#include "common/sim/price.h"

#include <stdatomic.h>

/* Elements of a range, so few that the device does not start threads for a range. */
enum { RANGE = 8192 };

/* ---- bytes ------------------------------------------------------------------------------------ */

bool ps_has_bytes(const device *d)
{
    return device_get_info(d)->real;
}

void ps_charge_pass(device *d, double bytes, int threads)
{
    simulation *s = sim_device_simulation(d);
    if (!s) return;
    double rate =
        sim_profile_get(s->profile, SIM_MEMORY_BANDWIDTH) * sim_profile_at(s->profile, SIM_ELEMENTWISE, 1);
    sim_time duration =
        threads ? sim_price_sum(s->profile, bytes, threads) : sim_duration(bytes, rate * SIM_GB_PER_S);
    sim_actor_spend(sim_device_actor(d), duration);
}

/* Returns the bytes per sample of the keys and values of all attention layers. */
static int64_t cache_bytes(const nn_program *program)
{
    int64_t bytes = 0;
    for (int i = 0; i < program->op_count; i++) {
        const op_desc *op = &program->ops[i].desc;
        const attention_attributes *a = &op->u.attention;
        if (op->kind == OP_attention_forward)
            bytes += 2 * a->sequence * a->heads * a->width * (int64_t)dtype_size(op->type);
    }
    return bytes;
}

int64_t ps_returned_bytes(device *d, const nn_program *program, int64_t output_bytes)
{
    const simulation *s = sim_device_simulation(d);
    if (!s || s->config.gathered == SIM_GATHERS_LOSSES) return 0;
    return output_bytes + (s->config.gathered == SIM_GATHERS_CACHES ? cache_bytes(program) : 0);
}

/* ---- ranges ----------------------------------------------------------------------------------- */

typedef struct range_job {
    piece_list pieces;
    ps_range_function function;
    void *context;
    atomic_bool *failed; /* The thread that sets it writes `error`. */
    error_record *error;
} range_job;

/* Processes elements [first, end) of the pieces in their order. */
static void run_part(const void *argument, int thread, int64_t first, int64_t end)
{
    const range_job *j = argument;
    for (int i = 0; i < j->pieces.count && end > 0; i++) {
        int64_t count = j->pieces.pieces[i].count, last = least(end, count);
        for (int64_t at = first > 0 ? first : 0; at < last; at += RANGE) {
            if (j->function(j->context, thread, i, at, least(last - at, RANGE)) == STATUS_OK) continue;
            if (!atomic_exchange(j->failed, true)) error_copy(j->error);
            error_clear();
            return;
        }
        first -= count;
        end -= count;
    }
}

status ps_run_ranges(int threads, piece_list pieces, ps_range_function function, void *context)
{
    atomic_bool failed = false;
    error_record error;
    range_job job = {pieces, function, context, &failed, &error};
    cpu_parallel(threads, piece_list_elements(pieces), RANGE, run_part, &job);
    return failed ? error_adopt(&error) : STATUS_OK;
}
