#include "harness/launch/bind.h"

#include <math.h>
#include <stdlib.h>

const char *const bind_names[] = {"none", "core", NULL};
const char *const bound_names[] = {"none", "core", "starter", NULL};

static int cores_that_take_part(const processors *p)
{
    int kept_at_work = p->limit > 0 ? (int)ceil(p->limit) : p->core_count;
    return kept_at_work < p->core_count ? kept_at_work : p->core_count;
}

void bind_choose(const processors *p, bind_group g, int member, cpu_set_t *out)
{
    int cores = cores_that_take_part(p), count = 0;
    for (int c = 0; c < cores; c++) count += CPU_COUNT(&p->cores[c].processors);
    int64_t wanted = (int64_t)g.members * g.threads;
    /* With fewer cores than threads a rank has processors for its threads, not cores. */
    int64_t each = wanted <= cores ? g.threads : ((int64_t)g.threads * cores + count - 1) / count;
    if (each > cores) each = cores;
    CPU_ZERO(out);
    for (int64_t i = 0; i < each; i++)
        CPU_OR(out, out, &p->cores[((int64_t)member * each + i) % cores].processors);
}

status bind_plan(bind_mode mode, bind_group g, cpu_set_t **sets)
{
    processors p;
    *sets = NULL;
    if (mode == BIND_NONE) return STATUS_OK;
    TRY(processors_open("", NULL, &p));
    cpu_set_t *all = calloc((size_t)g.members, sizeof *all);
    for (int m = 0; all && m < g.members; m++) bind_choose(&p, g, m, &all[m]);
    processors_close(&p);
    *sets = all;
    return all ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the processors of %d ranks", g.members);
}

status bind_self(bind_mode mode, bind_group g, int local_rank, bound_by *out)
{
    processors p;
    status rc = STATUS_OK;
    *out = BOUND_BY_NONE;
    TRY(processors_open("", NULL, &p));
    if (p.restricted) {
        *out = BOUND_BY_STARTER;
    } else if (mode == BIND_CORE) {
        cpu_set_t set;
        bind_choose(&p, g, local_rank, &set);
        *out = BOUND_BY_HARNESS;
        if (sched_setaffinity(0, sizeof set, &set) != 0)
            rc = fail_errno(STATUS_SYSTEM, "local rank %d cannot be bound", local_rank);
    }
    processors_close(&p);
    return rc;
}
