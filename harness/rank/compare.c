/* Compares the ranks' inputs before the first step, and the parameters of replicas later. */
#include "common/base/random.h"
#include "harness/rank/state.h"

#include <inttypes.h>
#include <stdio.h>

#ifndef PROGRAM_IDENTITY /* the commit is not known */
#include "harness/rank/program_identity.h"
#endif

const char program_identity[] = PROGRAM_IDENTITY;

status rank_describe_inputs(const rank_state *s, text_buffer *out)
{
    static const char *const names[DATA_PARTS] = {"training data", "test data"};
    bool evaluates = s->batches.evaluation && s->config->run.eval_every.count >= 0;
    const checkpoint *file = s->checkpoint.file;
    uint64_t hash;
    if (s->place->world == 1) return STATUS_OK;
    for (int part = 0; part <= evaluates; part++)
        if ((hash = dataset_hash(s->set, (data_part)part)) != 0)
            text_append(out, "%s = %" PRId64 " samples, XXH3 %016" PRIx64 "\n", names[part],
                        dataset_describe(s->set)->samples[part], hash);
    text_append(out, "model = %s, %" PRId64 " parameters in %d tensors\n", s->model->name,
                s->model->parameter_elements, s->model->param_count);
    if (file) {
        TRY(checkpoint_hash(file, &hash));
        text_append(out, "checkpoint = step %" PRId64 ", XXH3 %016" PRIx64 "\n",
                    checkpoint_get_info(file)->progress.step, hash);
    }
    return out->out_of_memory ? fail(STATUS_SYSTEM, "no memory for the description of the inputs")
                              : STATUS_OK;
}

status rank_compare_replicas(rank_state *s)
{
    int world = s->place->world;
    bool saves = s->config->checkpoint.save != NULL;
    int replicas = run_config_replicas(s->config, s->place->job); /* ranks of a stage are consecutive */
    rendezvous_blob all[JOB_MOST_RANKS];
    sync_requirements needs = {0};
    uint64_t own = 0, hash;
    TRY(run_config_requirements(s->config, s->place->engine, world, &needs));
    if (!needs.replicates || world == 1) return STATUS_OK;
    for (int d = 0; d < s->device_count; d++) {
        trainer *t = s->devices[d].trainer;
        TRY(param_set_hash(trainer_params(t), trainer_stream(t), &hash));
        own = random_mix(own) ^ hash; /* equals the hash if there is one device */
    }
    TRY(rendezvous_allgather(s->rendezvous, "parameters", &own, sizeof own, rank_deadline(s), all));
    for (int r = 0; r < world && !s->out->late.code; r++) {
        const uint64_t *other = all[r].data, *first = all[r / replicas * replicas].data;
        if (all[r].bytes != sizeof own) return fail(STATUS_PROTOCOL, "rank %d sent no hash of parameters", r);
        if (*other == *first) continue;
        s->out->late.code = STATUS_PROTOCOL;
        snprintf(s->out->late.message, sizeof s->out->late.message,
                 "parameters after step %" PRId64 ": rank %d has XXH3 %016" PRIx64 ", rank %d has %016" PRIx64
                 "%s%s%s",
                 s->next_step, r, *other, r / replicas * replicas, *first, saves ? ": " : "",
                 saves ? s->checkpoint.path : "", saves ? " is not written" : "");
    }
    return STATUS_OK;
}
