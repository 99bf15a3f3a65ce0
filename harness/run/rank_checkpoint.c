#include "harness/run/rank_tensors.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static checkpoint_subject subject_of(const rank_checkpoint *c)
{
    return (checkpoint_subject){.model = c->whole,
                                .type = trainer_params(c->trainer)->type,
                                .model_options = &c->model_binding,
                                .optimizer = &c->config->optimizer,
                                .cut = c->cut};
}

static int64_t deadline_of(const rank_checkpoint *c)
{
    return clock_now_ns() + c->config->shared.stall_timeout_ns;
}

static status load(rank_checkpoint *c, checkpoint_progress *progress)
{
    checkpoint_subject subject = subject_of(c);
    rank_tensors tensors = rank_tensors_of(c, &subject);
    checkpoint_sink sink = rank_tensors_sink(&tensors);
    TRY(checkpoint_load(c->file, &subject, &sink));
    *progress = checkpoint_get_info(c->file)->progress;
    c->batches_tracked = progress->batches_tracked - progress->step;
    trainer_set_skipped(c->trainer, progress->step - progress->optimizer_step);
    for (int d = 0; d < c->device_count; d++)
        trainer_set_skipped(c->devices[d], progress->step - progress->optimizer_step);
    if (c->rank == 0) checkpoint_log_load(c->file, &subject);
    checkpoint_close(&c->file);
    return STATUS_OK;
}

status rank_checkpoint_open(rank_checkpoint *c, checkpoint_progress *progress)
{
    const checkpoint_options *o = &c->config->checkpoint;
    *progress = (checkpoint_progress){0};
    c->written_step = -1;
    c->model_binding = (option_binding){.table = &model_option_table, .storage = &c->model};
    if (o->save && c->rank == 0) TRY(checkpoint_probe(o->save));
    return c->file ? load(c, progress) : STATUS_OK;
}

void rank_checkpoint_close(rank_checkpoint *c)
{
    checkpoint_close(&c->file);
    for (int i = 0; i < 2; i++) free(c->states[i]);
}

status rank_checkpoint_gather(rank_checkpoint *c, int param, float *values)
{
    const nn_param *p = &c->whole->params[param];
    checkpoint_subject subject = subject_of(c);
    rank_tensors tensors = rank_tensors_of(c, &subject);
    checkpoint_tensor t = {.kind = CHECKPOINT_PARAM,
                           .index = param,
                           .type = DTYPE_F32,
                           .elements = p->elements,
                           .bytes = p->elements * dtype_size(DTYPE_F32)};
    return rank_tensors_gather(&tensors, &t, values);
}

/* ---- optimizer state of other ranks ------------------------------------------------------------ */

/* Elements per exchange. */
enum { CHUNK = 8 << 20 };

/* Returns the part of `p` within [begin, begin + CHUNK). */
static piece clip(piece p, int64_t begin)
{
    int64_t first = p.offset > begin ? p.offset : begin, last = p.offset + p.count;
    if (last > begin + CHUNK) last = begin + CHUNK;
    return (piece){first, last > first ? last - first : 0};
}

/* Packs this rank's pieces of a chunk, each as (offset, count, elements). */
static status pack_chunk(const rank_checkpoint *c, const device_memory *state, piece_list owned,
                         int64_t begin, char *out, size_t *bytes)
{
    const param_set *set = trainer_params(c->trainer);
    size_t size = (size_t)dtype_size(set->type);
    *bytes = 0;
    for (int i = 0; i < owned.count; i++) {
        piece p = clip(owned.pieces[i], begin);
        if (p.count == 0) continue;
        memcpy(out + *bytes, &p, sizeof p);
        *bytes += sizeof p;
        /* In an arena of shards a piece begins earlier than in the whole arena. */
        int64_t cut = set->shards ? owned.pieces[i].offset - set->shards->pieces[i].offset : 0;
        const char *from = (const char *)state->data + (size_t)(p.offset - cut) * size;
        TRY(device_download(trainer_stream(c->trainer), out + *bytes, from, set->type, set->type, p.count));
        *bytes += (size_t)p.count * size;
    }
    return device_stream_synchronize(trainer_stream(c->trainer));
}

static void unpack_chunk(const rendezvous_blob *blob, size_t size, char *to)
{
    const char *at = blob->data, *end = at + blob->bytes;
    while (at < end) {
        piece p;
        memcpy(&p, at, sizeof p);
        at += sizeof p;
        memcpy(to + (size_t)p.offset * size, at, (size_t)p.count * size);
        at += (size_t)p.count * size;
    }
}

static status gather_state(rank_checkpoint *c, int index, piece_list owned, char *packed,
                           rendezvous_blob *blobs)
{
    const param_set *set = trainer_params(c->trainer);
    size_t size = (size_t)dtype_size(set->type);
    if (c->rank == 0 && !c->states[index]) {
        c->states[index] = calloc((size_t)set->arena_elements, size);
        if (!c->states[index]) return fail(STATUS_SYSTEM, "no memory to gather the optimizer's state");
    }
    for (int64_t begin = 0; begin < set->arena_elements; begin += CHUNK) {
        size_t bytes = 0;
        TRY(pack_chunk(c, optimizer_state(trainer_optimizer(c->trainer), index), owned, begin, packed,
                       &bytes));
        TRY(rendezvous_allgather(c->rendezvous, "optimizer state", packed, bytes, deadline_of(c), blobs));
        for (int r = 0; r < c->world && c->rank == 0; r++) unpack_chunk(&blobs[r], size, c->states[index]);
    }
    return STATUS_OK;
}

/* Finds whether rank 0 lacks a part of the optimizer state, because other ranks update these parameters. */
static status state_is_spread(rank_checkpoint *c, piece_list owned, bool *out)
{
    int64_t all = trainer_params(c->trainer)->model->parameter_elements;
    double partial = piece_list_elements(owned) < all;
    TRY(rendezvous_sum(c->rendezvous, "state owners", &partial, 1, deadline_of(c)));
    *out = partial == c->world;
    return STATUS_OK;
}

static status gather_states(rank_checkpoint *c)
{
    sync_engine *e = trainer_engine(c->trainer);
    piece_list owned = {0};
    bool spread = false;
    int states = optimizer_state_count(&c->config->optimizer);
    sync_reduced_gradients(e, &owned);
    if (states == 0 || c->world == 1 || c->cut || c->device_count > 0) return STATUS_OK;
    TRY(state_is_spread(c, owned, &spread));
    if (!spread) return STATUS_OK;
    size_t size = (size_t)dtype_size(trainer_params(c->trainer)->type);
    char *packed = malloc((size_t)CHUNK * size + ((size_t)owned.count + 1) * sizeof(piece));
    rendezvous_blob *blobs = calloc((size_t)c->world, sizeof *blobs);
    status rc =
        packed && blobs ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to gather the optimizer's state");
    for (int i = 0; i < states && rc == STATUS_OK; i++) rc = gather_state(c, i, owned, packed, blobs);
    free(packed);
    free(blobs);
    return rc;
}

/* ---- saving ------------------------------------------------------------------------------------ */

static status write_file(rank_checkpoint *c, int64_t steps, batch_position next)
{
    checkpoint_subject subject = subject_of(c);
    rank_tensors tensors = rank_tensors_of(c, &subject);
    for (int i = 0; i < 2; i++) {
        if (!c->states[i]) continue;
        tensors.arenas[0].states[i] = c->states[i];
        tensors.arenas[0].states_on_host = true;
    }
    checkpoint_source source = rank_tensors_source(&tensors);
    checkpoint_progress progress = {.step = steps,
                                    .optimizer_step = steps - trainer_skipped(c->trainer),
                                    .epoch = next.epoch,
                                    .epoch_step = next.epoch_step,
                                    .batches_tracked = c->batches_tracked + steps,
                                    .seed = c->config->run.seed};
    return checkpoint_save(c->config->checkpoint.save, &subject, &progress, &source);
}

/* Sends the tensors of this rank's stage to rank 0, which writes them. */
static status send_tensors(rank_checkpoint *c)
{
    checkpoint_subject subject = subject_of(c);
    rank_tensors tensors = rank_tensors_of(c, &subject);
    return rank_tensors_send(&tensors);
}

/* Checks parameters and buffers. A value that is not finite never replaces a checkpoint. */
static status check_values(rank_checkpoint *c, trainer *t, int64_t steps, bool *finite)
{
    param_set *set = trainer_params(t);
    optimizer *o = trainer_optimizer(t);
    device_stream *s = trainer_stream(t);
    double sum = 0;
    const char *name;
    piece_list params = param_set_pieces(set, 0, set->model->param_count);
    TRY(optimizer_sum_squares(o, s, param_set_values(set), params, &sum));
    for (int i = 0; i < set->model->buffer_count; i++)
        TRY(optimizer_sum_squares(o, s, set->buffers.data, (piece_list){&set->buffer_pieces[i], 1}, &sum));
    *finite = isfinite(sum);
    if (*finite) return STATUS_OK;
    TRY(sync_find_nonfinite(o, s, set, param_set_values(set), params, &name));
    if (!name) name = "a buffer";
    if (c->config->optimizer.on_nonfinite == NONFINITE_STOP)
        return fail(STATUS_NONFINITE, "step %" PRId64 ": %s is not finite: %s is not written", steps, name,
                    c->config->checkpoint.save);
    log_warn("step %" PRId64 ": %s is not finite: %s is not written", steps, name,
             c->config->checkpoint.save);
    return STATUS_OK;
}

status rank_checkpoint_save(rank_checkpoint *c, int64_t steps, batch_position next)
{
    bool finite = true;
    TRY(gather_states(c));
    if (c->rank == 0 || c->cut) TRY(check_values(c, c->trainer, steps, &finite));
    for (int d = 0; d < c->device_count && c->rank == 0 && finite; d++)
        TRY(check_values(c, c->devices[d], steps, &finite));
    double unfit = !finite;
    TRY(rendezvous_sum(c->rendezvous, "checkpoint", &unfit, 1, deadline_of(c)));
    if (unfit == 0 && c->rank == 0) {
        TRY(write_file(c, steps, next));
        c->written_step = steps;
    } else if (unfit == 0 && c->cut) {
        TRY(send_tensors(c));
    }
    return rendezvous_barrier(c->rendezvous, "checkpoint", deadline_of(c));
}
