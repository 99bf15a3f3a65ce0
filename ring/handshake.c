/* The handshake: the settings that must be equal on all ranks, as lines of text. Ranks compare the lines
 * before the first step, and an error shows the first line that differs. */
#include "ring/engine_impl.h"

#include "common/net/shm.h"

#include <inttypes.h>
#include <string.h>

enum { HANDSHAKE_VERSION = 1 };

static bool needs_one_host(const ring_engine *e)
{
    if (strcmp(e->settings.collective, "nccl") == 0) return e->settings.options.join != RING_JOIN_NONE;
    return strcmp(e->settings.collective, "shm") == 0;
}

static const char BOOTSTRAP_KEY[] = "nccl=";

/* Appends NCCL's id after the lines that must be equal. Only rank 0 has an id, so other ranks append
 * zeros. */
static status append_bootstrap(ring_engine *e)
{
    if (e->base.context.rank == 0) TRY(collective_nccl_bootstrap(e->bootstrap));
    text_append(&e->handshake, "%s", BOOTSTRAP_KEY);
    collective_bootstrap_write(e->bootstrap, &e->handshake);
    text_append(&e->handshake, "\n");
    return STATUS_OK;
}

status ring_make_handshake(ring_engine *e)
{
    const sync_context *c = &e->base.context;
    const param_set *set = c->params;
    const nn_model *m = set->model;
    text_buffer *out = &e->handshake;
    char dims[64];
    text_append(out, "version=%d\nworld=%d\n", HANDSHAKE_VERSION, c->world);
    text_append(out, "host=%016" PRIx64 "\n", needs_one_host(e) ? shm_host_id() : 0);
    ring_settings_write(&e->settings, out);
    text_append(out, "model=%s\nparameters=%d\nbuffers=%d\n", m->name, m->param_count, m->buffer_count);
    for (int i = 0; i < m->param_count; i++)
        text_append(out, "parameter %d: %s %s %s at %" PRId64 "\n", i, m->params[i].name,
                    shape_format(dims, sizeof dims, m->params[i].shape), dtype_name(set->type),
                    set->pieces[i].offset);
    for (int i = 0; i < m->buffer_count; i++)
        text_append(out, "buffer %d: %s %" PRId64 " at %" PRId64 "\n", i, m->buffers[i].name,
                    m->buffers[i].elements, set->buffer_pieces[i].offset);
    e->handshake_common = out->length;
    if (e->stream) TRY(append_bootstrap(e));
    return out->out_of_memory ? fail(STATUS_SYSTEM, "no memory for a handshake") : STATUS_OK;
}

status ring_take_bootstrap(ring_engine *e, const sync_blob *first)
{
    const char *hex = (const char *)first->data + e->handshake_common + strlen(BOOTSTRAP_KEY);
    if (collective_bootstrap_read(hex, e->bootstrap)) return STATUS_OK;
    return fail(STATUS_PROTOCOL, "rank 0's handshake has no NCCL id");
}

static int line_length(const sync_blob *blob, size_t at)
{
    const char *text = (const char *)blob->data + at;
    const char *end = memchr(text, '\n', blob->bytes - at);
    return (int)(end ? end - text : (ptrdiff_t)(blob->bytes - at));
}

static status differ(int rank, const sync_blob *theirs, const sync_blob *ours, size_t at)
{
    const char *found = (const char *)theirs->data + at, *expected = (const char *)ours->data + at;
    int found_length = line_length(theirs, at), expected_length = line_length(ours, at);
    if (expected_length > 5 && memcmp(expected, "host=", 5) == 0)
        return fail(STATUS_CONFIG,
                    "rank %d and rank 0 run on different hosts, but collectives over shared memory need one "
                    "host; use --collective mpi, with ranks that mpirun has started: mpirun -x HARNESS_KEY "
                    "-x MASTER_ADDR -x MASTER_PORT --host A:4,B:4 harness --mode ring --collective mpi",
                    rank);
    return fail(STATUS_PROTOCOL, "ranks differ: rank %d has '%.*s', rank 0 has '%.*s'", rank,
                found_length < 160 ? found_length : 160, found, expected_length < 160 ? expected_length : 160,
                expected);
}

status ring_compare_handshakes(const ring_engine *e, const sync_blob *handshakes)
{
    const sync_blob *first = &handshakes[0];
    for (int r = 1; r < e->base.context.world; r++) {
        const sync_blob *other = &handshakes[r];
        if (other->data == first->data && other->bytes == first->bytes)
            continue; /* Virtual ranks share one handshake in memory. */
        size_t shorter = other->bytes < e->handshake_common ? other->bytes : e->handshake_common, at = 0,
               line = 0;
        const char *a = first->data, *b = other->data;
        while (at < shorter && a[at] == b[at]) {
            if (a[at] == '\n') line = at + 1;
            at++;
        }
        if (at < shorter || first->bytes != other->bytes) return differ(r, other, first, line);
    }
    return STATUS_OK;
}
