/* Recorded passes of engines that work on the host in the middle of them (--cuda-graph): a parameter server's ranks wait
 * for parameters before their first use and hand over gradients as they become ready, and a mirror copies both. A record
 * cut at every parameter would be as many launches as without. So parameters are grouped, in the order of their first
 * use, and gradients, in the order in which they become ready, up to so many bytes: the record is cut in front of the
 * first use in a group, where all of it is waited for, and behind a group's last gradient, where all are handed over. */
#include "common/base/log.h"
#include "harness/train/trainer_impl.h"

#include <stdlib.h>

static const double MIB = 1048576;

/* Params in `order` close a group where they come to `limit` bytes. A group is found by its first where `by_first`, else
 * by its last. */
static int cut(trainer_cut_list *list, const param_set *set, int count, double limit, bool by_first)
{
    int begin = 0, groups = 0;
    double bytes = 0;
    for (int i = 0; i < count; i++) {
        bytes += (double)set->pieces[list->params[i]].count * dtype_size(set->type);
        if (bytes < limit && i + 1 < count) continue;
        list->groups[list->params[by_first ? begin : i]] = (trainer_group){begin, i + 1};
        begin = i + 1;
        bytes = 0;
        groups++;
    }
    return groups;
}

static status open_list(trainer_cut_list *list, int params)
{
    list->params = calloc((size_t)params + 1, sizeof *list->params);
    list->groups = calloc((size_t)params + 1, sizeof *list->groups);
    return list->params && list->groups ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the cuts of recorded passes");
}

/* Parameters in the order of the first use. */
static int list_needs(const nn_program *p, int *params)
{
    int count = 0;
    for (int i = 0; i < p->op_count; i++)
        for (int n = 0; n < p->ops[i].need_count; n++) params[count++] = p->needs[p->ops[i].need_first + n];
    return count;
}

static int list_readies(const nn_program *p, int *params)
{
    for (int i = 0; i < p->ready_count; i++) params[i] = p->ready_order[i];
    return p->ready_count;
}

status trainer_cuts_open(trainer *t)
{
    const nn_program *p = t->slots[0].program;
    double limit = t->config.graph_group_mib * MIB;
    TRY(open_list(&t->cuts.needs, p->model->param_count));
    TRY(open_list(&t->cuts.readies, p->model->param_count));
    int forward = cut(&t->cuts.needs, t->params, list_needs(p, t->cuts.needs.params), limit, true);
    int backward = cut(&t->cuts.readies, t->params, list_readies(p, t->cuts.readies.params), limit, false);
    log_debug("recorded passes are cut %d times forward and %d times backward", forward, backward);
    t->cuts.on = true;
    return STATUS_OK;
}

void trainer_cuts_close(trainer *t)
{
    free(t->cuts.needs.params);
    free(t->cuts.needs.groups);
    free(t->cuts.readies.params);
    free(t->cuts.readies.groups);
}

static status tell_group(trainer *t, const trainer_cut_list *list, int param, status (*tell)(sync_engine *e, int param))
{
    trainer_group g = list->groups[param];
    if (g.begin == g.end) return STATUS_OK;
    TRY(sync_leave_record(&t->engine->context));
    for (int i = g.begin; i < g.end; i++) TRY(tell(t->engine, list->params[i]));
    return sync_enter_record(&t->engine->context);
}

status trainer_need(trainer *t, int param)
{
    if (!t->cuts.on) return t->engine->type->need(t->engine, param);
    return tell_group(t, &t->cuts.needs, param, t->engine->type->need);
}

status trainer_ready(trainer *t, int param)
{
    if (!t->cuts.on) return t->engine->type->ready(t->engine, param);
    return tell_group(t, &t->cuts.readies, param, t->engine->type->ready);
}
