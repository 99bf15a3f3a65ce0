#include "harness/run/rank_tensors.h"

#include "common/base/log.h"
#include "common/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

status rank_load(rank_state *s, checkpoint_progress *progress)
{
    rank_checkpoint *c = &s->checkpoint;
    const char *save = s->config->checkpoint.save;
    *progress = (checkpoint_progress){0};
    c->written_step = -1;
    c->model_binding = (option_binding){.table = &model_option_table, .storage = &c->model};
    if (save && s->place->rank == 0) TRY(checkpoint_probe(save));
    if (!c->file) return STATUS_OK;
    rank_tensors tensors = rank_tensors_of(s);
    TRY(checkpoint_load(c->file, &tensors.subject, &(checkpoint_sink){&tensors, rank_tensors_write}));
    *progress = checkpoint_get_info(c->file)->progress;
    c->batches_tracked = progress->batches_tracked - progress->step;
    for (int d = 0; d < s->device_count; d++)
        trainer_set_skipped(s->devices[d].trainer, progress->step - progress->optimizer_step);
    if (s->place->rank == 0) checkpoint_log_load(c->file, &tensors.subject);
    checkpoint_close(&c->file);
    return STATUS_OK;
}

void rank_checkpoint_close(rank_checkpoint *c)
{
    checkpoint_close(&c->file);
    for (int i = 0; i < 2; i++) free(c->states[i]);
}

status rank_gather_param(rank_state *s, int param, float *values)
{
    const nn_param *p = &s->model->params[param];
    rank_tensors tensors = rank_tensors_of(s);
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
static status pack_chunk(trainer *t, const device_memory *state, piece_list owned, int64_t begin, char *out,
                         size_t *bytes)
{
    const param_set *set = trainer_params(t);
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
        TRY(device_download(trainer_stream(t), out + *bytes, from, set->type, set->type, p.count));
        *bytes += (size_t)p.count * size;
    }
    return device_stream_synchronize(trainer_stream(t));
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

static status gather_state(rank_state *s, int index, piece_list owned, char *packed, rendezvous_blob *blobs)
{
    trainer *t = s->devices[0].trainer;
    const param_set *set = trainer_params(t);
    void **state = &s->checkpoint.states[index];
    size_t size = (size_t)dtype_size(set->type);
    bool writes = s->place->rank == 0;
    if (writes && !*state) {
        *state = calloc((size_t)set->arena_elements, size);
        if (!*state) return fail(STATUS_SYSTEM, "no memory to gather the optimizer's state");
    }
    for (int64_t begin = 0; begin < set->arena_elements; begin += CHUNK) {
        size_t bytes = 0;
        TRY(pack_chunk(t, optimizer_state(trainer_optimizer(t), index), owned, begin, packed, &bytes));
        TRY(rendezvous_allgather(s->rendezvous, "optimizer state", packed, bytes, rank_deadline(s), blobs));
        for (int r = 0; r < s->place->world && writes; r++) unpack_chunk(&blobs[r], size, *state);
    }
    return STATUS_OK;
}

/* Finds whether rank 0 lacks a part of the optimizer state, because other ranks update these parameters. */
static status state_is_spread(rank_state *s, piece_list owned, bool *out)
{
    int64_t all = s->model->parameter_elements;
    double partial = piece_list_elements(owned) < all;
    TRY(rendezvous_sum(s->rendezvous, "state owners", &partial, 1, rank_deadline(s)));
    *out = partial == s->place->world;
    return STATUS_OK;
}

static status gather_states(rank_state *s)
{
    trainer *t = s->devices[0].trainer;
    int world = s->place->world;
    piece_list owned = {0};
    bool spread = false;
    int states = optimizer_state_count(&s->config->optimizer);
    sync_reduced_gradients(trainer_engine(t), &owned);
    if (states == 0 || world == 1 || s->checkpoint.cut || s->device_count > 1) return STATUS_OK;
    TRY(state_is_spread(s, owned, &spread));
    if (!spread) return STATUS_OK;
    size_t size = (size_t)dtype_size(trainer_params(t)->type);
    char *packed = malloc((size_t)CHUNK * size + ((size_t)owned.count + 1) * sizeof(piece));
    rendezvous_blob *blobs = calloc((size_t)world, sizeof *blobs);
    status rc =
        packed && blobs ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to gather the optimizer's state");
    for (int i = 0; i < states && rc == STATUS_OK; i++) rc = gather_state(s, i, owned, packed, blobs);
    free(packed);
    free(blobs);
    return rc;
}

/* ---- saving ------------------------------------------------------------------------------------ */

static status write_file(rank_state *s, int64_t steps, batch_position next)
{
    const rank_checkpoint *c = &s->checkpoint;
    rank_tensors tensors = rank_tensors_of(s);
    for (int i = 0; i < 2; i++) {
        if (!c->states[i]) continue;
        tensors.arenas[0].states[i] = c->states[i];
        tensors.arenas[0].states_on_host = true;
    }
    checkpoint_progress progress = {.step = steps,
                                    .optimizer_step = steps - trainer_skipped(s->devices[0].trainer),
                                    .epoch = next.epoch,
                                    .epoch_step = next.epoch_step,
                                    .batches_tracked = c->batches_tracked + steps,
                                    .seed = s->config->run.seed};
    return checkpoint_save(s->config->checkpoint.save, &tensors.subject, &progress,
                           &(checkpoint_source){&tensors, rank_tensors_gather});
}

/* Checks parameters and buffers. A value that is not finite never replaces a checkpoint. */
static status check_values(const rank_state *r, trainer *t, int64_t steps, bool *finite)
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
    if (r->config->optimizer.on_nonfinite == NONFINITE_STOP)
        return fail(STATUS_NONFINITE, "step %" PRId64 ": %s is not finite: %s is not written", steps, name,
                    r->config->checkpoint.save);
    log_warn("step %" PRId64 ": %s is not finite: %s is not written", steps, name,
             r->config->checkpoint.save);
    return STATUS_OK;
}

status rank_save(rank_state *s, int64_t steps, batch_position next)
{
    bool finite = true, first = s->place->rank == 0, cut = s->checkpoint.cut != NULL;
    TRY(gather_states(s));
    for (int d = 0; d < s->device_count && (first || cut) && finite; d++)
        TRY(check_values(s, s->devices[d].trainer, steps, &finite));
    double unfit = !finite;
    TRY(rendezvous_sum(s->rendezvous, "checkpoint", &unfit, 1, rank_deadline(s)));
    if (unfit == 0 && first) {
        TRY(write_file(s, steps, next));
        s->checkpoint.written_step = steps;
    } else if (unfit == 0 && cut) {
        rank_tensors tensors = rank_tensors_of(s);
        TRY(rank_tensors_send(&tensors));
    }
    return rendezvous_barrier(s->rendezvous, "checkpoint", rank_deadline(s));
}
