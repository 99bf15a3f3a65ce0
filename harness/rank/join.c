/* How the ranks of a job, which are processes, find each other: rendezvous, token, handshakes. */
#include "harness/rank/state.h"

#include "common/base/random.h"
#include "common/net/key.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool rank_stop_requested(void *table)
{
    return job_stop_requested(table) != 0;
}

status rank_open_meeting(const run_config *config, rank_slot *slot, const char *inputs,
                         rendezvous_options options, rendezvous **out)
{
    text_buffer text = {0};
    run_config_text(config, &text);
    text_append(&text, "%s", inputs ? inputs : "");
    if (text.out_of_memory) return fail(STATUS_SYSTEM, "no memory for the text of the configuration");
    options.program = program_identity;
    options.config_hash = random_mix(random_fnv1a64(text.data));
    options.config_text = text.data;
    options.connect_limit_ns = config->run.connect_timeout_ns;
    options.slot = slot;
    if (slot) rank_slot_enter(slot, RANK_RENDEZVOUS, clock_now_ns());
    status rc = rendezvous_open(&options, out);
    text_free(&text);
    return rc;
}

status rank_open_rendezvous(const run_config *config, const rank_place *place, int members,
                            const char *inputs, const error_record *failure, rendezvous **out)
{
    char url[288];
    snprintf(url, sizeof url, "%s", place->rendezvous);
    /* Makes the name of the rendezvous depend on the key, so that no other user can take the name in
     * advance. */
    if (members > place->world && place->key)
        snprintf(url, sizeof url, "%s-%016" PRIx64, place->rendezvous, net_key_number(place->key, "members"));
    rendezvous_options options = {.url = url,
                                  .rank = place->rank,
                                  .world = members,
                                  .token = place->token,
                                  .key = place->key,
                                  .failure = failure,
                                  .table = place->table,
                                  .exchanges_status = !place->has_launcher,
                                  .stall_limit_ns = config->shared.stall_timeout_ns,
                                  .canceled = place->has_launcher ? NULL : rank_stop_requested,
                                  .context = place->table};
    return rank_open_meeting(config, status_table_slot(place->table, place->rank), inputs, options, out);
}

/* Draws a new token for the job. A job manager derives its token from environment variables, which other
 * users may see, and the names of sockets follow from the token. */
static status draw_token(rank_state *s)
{
    uint64_t drawn = random_token();
    rendezvous_blob got;
    s->token = s->place->token;
    /* If servers run in separate processes, the launcher has drawn the token. */
    if (s->place->servers > 0) return STATUS_OK;
    TRY(rendezvous_broadcast(s->rendezvous, "token", 0, &drawn, sizeof drawn,
                             clock_now_ns() + s->config->run.connect_timeout_ns, &got));
    if (got.bytes != sizeof s->token)
        return fail(STATUS_PROTOCOL, "rank 0 sent a token of %zu bytes", got.bytes);
    memcpy(&s->token, got.data, sizeof s->token);
    return STATUS_OK;
}

static status open_inputs(rank_state *s, run_config *config, text_buffer *inputs)
{
    TRY(run_config_open_checkpoint(config, &s->checkpoint.file));
    TRY(run_config_build(config, &s->set, &s->model, &s->checkpoint.model));
    TRY(rank_batches_open(config, s->place, s->set, s->model, &s->batches));
    return rank_describe_inputs(s, inputs);
}

/* The other ranks receive the error of a rank that cannot open its inputs. If there is a launcher, the
 * launcher ends the other ranks. */
status rank_join(rank_state *s, run_config *config)
{
    text_buffer inputs = {0};
    error_record failure = {0};
    status rc = open_inputs(s, config, &inputs);
    bool failed = rc != STATUS_OK;
    if (failed && s->place->has_launcher) return rc;
    error_copy(&failure);
    error_clear();
    rc = rank_open_rendezvous(config, s->place, s->place->world, inputs.data, failed ? &failure : NULL,
                              &s->rendezvous);
    if (failed) {
        error_clear();
        rc = error_adopt(&failure);
    }
    text_free(&inputs);
    return rc == STATUS_OK ? draw_token(s) : rc;
}

status rank_gather_handshakes(const run_config *c, rendezvous *r, int members, sync_blob mine, sync_blob *all)
{
    rendezvous_blob *got = calloc((size_t)members, sizeof *got);
    if (!got) return fail(STATUS_SYSTEM, "no memory for the handshakes of %d ranks and servers", members);
    status rc = rendezvous_allgather(r, "handshakes", mine.data, mine.bytes,
                                     clock_now_ns() + c->run.connect_timeout_ns, got);
    for (int m = 0; m < members && rc == STATUS_OK; m++)
        all[m] = (sync_blob){(void *)got[m].data, got[m].bytes};
    free(got);
    return rc;
}

static status connect_device(const rank_state *s, rendezvous *r, int members, trainer *t)
{
    sync_blob mine, *all = calloc((size_t)members, sizeof *all);
    if (!all) return fail(STATUS_SYSTEM, "no memory for the handshakes of %d ranks", members);
    status rc = sync_handshake(trainer_engine(t), &mine);
    if (rc == STATUS_OK) rc = rank_gather_handshakes(s->config, r, members, mine, all);
    if (rc == STATUS_OK) rc = trainer_connect(t, all);
    free(all);
    return rc;
}

/* Servers in separate processes join a second rendezvous, only for the handshakes. */
status rank_exchange_handshakes(rank_state *s)
{
    rendezvous *members = NULL;
    int count = s->place->world + s->place->servers;
    if (s->place->servers > 0) TRY(rank_open_rendezvous(s->config, s->place, count, NULL, NULL, &members));
    status rc = STATUS_OK;
    for (int d = 0; d < s->device_count && rc == STATUS_OK; d++)
        rc = connect_device(s, members ? members : s->rendezvous, count, s->devices[d].trainer);
    rendezvous_close(&members);
    return rc;
}
