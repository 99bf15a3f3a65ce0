/* --save and --load. A rank has all tensors of the run's model, on one device or on several, or only the
 * tensors of its stage. */
#include "harness/rank/state.h"

#include "common/base/log.h"
#include "common/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors of the whole model ----------------------------------------------------------------- */

typedef struct rank_tensors {
    const rank_state *rank;                   /* borrowed */
    checkpoint_subject subject;               /* the whole model */
    checkpoint_arenas arenas[NN_MOST_STAGES]; /* [device_count] arenas of this rank's devices */
} rank_tensors;

/* Bytes per broadcast. */
enum { PIECE = 32 << 20 };
_Static_assert((int)PIECE <= (int)RENDEZVOUS_BLOB_MAX, "a piece is one contribution");

static rank_tensors tensors_of(const rank_state *s)
{
    rank_tensors x = {.rank = s,
                      .subject = {.model = s->model,
                                  .type = trainer_params(s->devices[0].trainer)->type,
                                  .model_options = &s->checkpoint.model_binding,
                                  .optimizer = &s->config->optimizer,
                                  .cut = s->checkpoint.cut}};
    for (int d = 0; d < s->device_count; d++) {
        trainer *t = s->devices[d].trainer;
        x.arenas[d] = checkpoint_arenas_of(trainer_params(t), trainer_stream(t), trainer_optimizer(t));
    }
    return x;
}

/* Finds the tensor in the model of a device. Returns false if only other stages have the tensor. */
static bool find_own(const rank_tensors *x, int device, const checkpoint_tensor *t, checkpoint_tensor *own)
{
    const nn_model *whole = x->subject.model, *stage = x->arenas[device].set->model;
    *own = *t;
    if (stage == whole) return true;
    own->index = t->kind == CHECKPOINT_BUFFER ? nn_find_buffer(stage, whole->buffers[t->index].name)
                                              : nn_find_param(stage, whole->params[t->index].name);
    return own->index != NN_NONE;
}

/* Writes a tensor to this rank's devices that have the tensor (checkpoint_sink). */
static status write_tensor(void *context, const checkpoint_tensor *t, dtype type, const void *values)
{
    rank_tensors *x = context;
    for (int d = 0; d < x->rank->device_count; d++) {
        checkpoint_sink arenas = checkpoint_arenas_sink(&x->arenas[d]);
        checkpoint_tensor own;
        if (find_own(x, d, t, &own)) TRY(arenas.write(arenas.context, &own, type, values));
    }
    return STATUS_OK;
}

static status read_own(rank_tensors *x, const checkpoint_tensor *t, void *values)
{
    checkpoint_tensor own;
    int device = 0;
    while (device < x->rank->device_count && !find_own(x, device, t, &own)) device++;
    if (device == x->rank->device_count)
        return fail(STATUS_INTERNAL, "%s is not a tensor of this rank", t->name);
    checkpoint_source arenas = checkpoint_arenas_source(&x->arenas[device]);
    return arenas.read(arenas.context, &own, values);
}

/* Passes a tensor from rank `from`, which is not rank 0, to rank 0. */
static status pass(const rank_state *s, int from, int64_t bytes, char *values)
{
    for (int64_t at = 0; at < bytes; at += PIECE) {
        size_t size = bytes - at < PIECE ? (size_t)(bytes - at) : PIECE;
        rendezvous_blob blob;
        TRY(rendezvous_broadcast(s->rendezvous, "tensors of stages", from, values ? values + at : NULL, size,
                                 rank_deadline(s), &blob));
        if (blob.bytes != size)
            return fail(STATUS_PROTOCOL, "rank %d sent %zu bytes of a tensor, not %zu", from, blob.bytes,
                        size);
        if (s->place->rank == 0) memcpy(values + at, blob.data, size);
    }
    return STATUS_OK;
}

/* Copies a tensor to rank 0 (checkpoint_source). All ranks call this function for the same tensors; `values`
 * is NULL on the other ranks. While rank 0 saves, each other rank calls send_tensors(). */
static status gather_tensor(void *context, const checkpoint_tensor *t, void *values)
{
    rank_tensors *x = context;
    const rank_place *p = x->rank->place;
    const nn_cut *cut = x->subject.cut;
    int from = cut ? checkpoint_stage_of(&x->subject, t) * (p->world / cut->count) : 0;
    if (from == 0) return p->rank == 0 ? read_own(x, t, values) : STATUS_OK;
    if (p->rank != from) return pass(x->rank, from, t->bytes, values);
    void *own = malloc((size_t)t->bytes);
    status rc = own ? read_own(x, t, own) : fail(STATUS_SYSTEM, "no memory to send %s", t->name);
    if (rc == STATUS_OK) rc = pass(x->rank, from, t->bytes, own);
    free(own);
    return rc;
}

/* Sends the tensors in the order in which rank 0 reads them. */
static status send_tensors(rank_tensors *x)
{
    const checkpoint_subject *s = &x->subject;
    checkpoint_contents contents;
    TRY(checkpoint_contents_make(s->model, s->type, s->optimizer, &contents));
    status rc = STATUS_OK;
    for (int i = 0; i < contents.count && rc == STATUS_OK; i++)
        if (contents.tensors[i].kind != CHECKPOINT_BATCHES) rc = gather_tensor(x, &contents.tensors[i], NULL);
    checkpoint_contents_free(&contents);
    return rc;
}

/* ---- loading ----------------------------------------------------------------------------------- */

/* Fails if servers in separate processes keep the state of the optimizer, because no message contains this
 * state. */
static status check_state(const rank_state *s)
{
    const run_config *c = s->config;
    const checkpoint *file = s->checkpoint.file;
    bool save = c->checkpoint.save != NULL, load = file && !checkpoint_get_info(file)->foreign;
    sync_requirements needs = {0};
    TRY(run_config_requirements(c, s->place->engine, s->place->world, &needs));
    if (!needs.keeps_state || optimizer_state_count(&c->optimizer) == 0 || (!save && !load)) return STATUS_OK;
    return fail(
        STATUS_CONFIG,
        "--%s: expected --server-placement rank, --server-optimizer off or an optimizer without state, "
        "got %s on servers in separate processes",
        save ? "save" : "load", optimizer_names[c->optimizer.kind]);
}

status rank_load(rank_state *s, checkpoint_progress *progress)
{
    rank_checkpoint *c = &s->checkpoint;
    const checkpoint_options *o = &s->config->checkpoint;
    *progress = (checkpoint_progress){0};
    c->written_step = -1;
    TRY(check_state(s));
    c->model_binding = (option_binding){.table = &model_option_table, .storage = &c->model};
    if (o->save) checkpoint_path(o, 0, c->path, sizeof c->path);
    if (o->save && s->place->rank == 0) TRY(checkpoint_probe(c->path));
    if (!c->file) return STATUS_OK;
    rank_tensors tensors = tensors_of(s);
    TRY(checkpoint_load(c->file, &tensors.subject, &(checkpoint_sink){&tensors, write_tensor}));
    *progress = checkpoint_get_info(c->file)->progress;
    c->batches_tracked = progress->batches_tracked - progress->step;
    for (int d = 0; d < s->device_count; d++)
        trainer_set_skipped(s->devices[d].trainer, progress->step - progress->optimizer_step);
    if (s->place->rank == 0) checkpoint_log_load(c->file, &tensors.subject);
    checkpoint_close(&c->file);
    return STATUS_OK;
}

status rank_gather_param(rank_state *s, int param, float *values)
{
    const nn_param *p = &s->model->params[param];
    rank_tensors tensors = tensors_of(s);
    checkpoint_tensor t = {.kind = CHECKPOINT_PARAM,
                           .index = param,
                           .type = DTYPE_F32,
                           .elements = p->elements,
                           .bytes = p->elements * dtype_size(DTYPE_F32)};
    return gather_tensor(&tensors, &t, values);
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

static status gather_states(rank_state *s)
{
    trainer *t = s->devices[0].trainer;
    int world = s->place->world;
    piece_list owned = {0};
    int states = optimizer_state_count(&s->config->optimizer);
    sync_reduced_gradients(trainer_engine(t), &owned);
    if (states == 0 || world == 1 || s->checkpoint.cut || s->device_count > 1) return STATUS_OK;
    /* Rank 0 lacks a part of the optimizer state if each rank updates only some of the parameters. */
    double partial = piece_list_elements(owned) < s->model->parameter_elements;
    TRY(rendezvous_sum(s->rendezvous, "state owners", &partial, 1, rank_deadline(s)));
    if (partial < world) return STATUS_OK;
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
    rank_tensors tensors = tensors_of(s);
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
    return checkpoint_save(c->path, &tensors.subject, &progress,
                           &(checkpoint_source){&tensors, gather_tensor});
}

/* Checks that parameters and buffers are finite. If one is not, the old checkpoint must not be replaced. */
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
                    r->checkpoint.path);
    log_warn("step %" PRId64 ": %s is not finite: %s is not written", steps, name, r->checkpoint.path);
    return STATUS_OK;
}

status rank_save(rank_state *s, int64_t steps, batch_position next, bool *lost)
{
    bool finite = true, first = s->place->rank == 0, cut = s->checkpoint.cut != NULL;
    checkpoint_path(&s->config->checkpoint, next.epoch, s->checkpoint.path, sizeof s->checkpoint.path);
    TRY(gather_states(s));
    for (int d = 0; d < s->device_count && (first || cut) && finite; d++)
        TRY(check_values(s, s->devices[d].trainer, steps, &finite));
    double unfit = !finite;
    TRY(rendezvous_sum(s->rendezvous, "checkpoint", &unfit, 1, rank_deadline(s)));
    status written = unfit == 0 && first ? write_file(s, steps, next) : STATUS_OK;
    if (written == STATUS_IO || written == STATUS_CANNOT_CREATE) {
        error_copy(&s->out->late);
        error_clear();
    } else if (unfit == 0 && first) {
        TRY(written);
        s->checkpoint.written_step = steps;
        if (strcmp(s->checkpoint.path, s->config->checkpoint.save) != 0)
            rank_print(s, "step %" PRId64 ": saved in %s", steps, s->checkpoint.path);
    } else if (unfit == 0 && cut) {
        rank_tensors tensors = tensors_of(s);
        TRY(send_tensors(&tensors));
    }
    double failures = s->out->late.code != STATUS_OK;
    TRY(rendezvous_sum(s->rendezvous, "saved", &failures, 1, rank_deadline(s)));
    *lost = failures > 0;
    return STATUS_OK;
}
