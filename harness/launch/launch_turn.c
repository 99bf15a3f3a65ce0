/* Whose turn it is. The turn goes on when every rank of the job that has it is parked again or has ended,
 * so that nothing of one job runs while another one's block is measured. */
#include "harness/launch/launch_impl.h"

static bool has_ended(const launcher *l, int job, int rank)
{
    return l->jobs[job].ranks[rank].end != END_NOT_YET;
}

static bool all_parked(const launcher *l, int job, uint32_t blocks_done)
{
    rank_status s;
    const launch_job *j = l->jobs[job].job;
    for (int r = 0; r < j->world - j->servers; r++) {
        status_table_read(l->jobs[job].table, r, &s);
        if (has_ended(l, job, r)) continue;
        if (s.state != RANK_SLEEPING || s.blocks_done < blocks_done) return false;
    }
    return true;
}

static void grant(launcher *l, int job)
{
    int64_t now_ns = clock_now_ns();
    l->turn = job;
    for (int r = 0; r < l->jobs[job].job->world; r++) l->jobs[job].ranks[r].changed_ns = now_ns;
    job_turn_grant(l->jobs[job].table, ++l->blocks[job]);
}

void launch_turns_advance(launcher *l)
{
    if (!l->options.take_turns || l->stop_signal || l->ending) return;
    int jobs = l->options.job_count;
    if (l->turn < 0) { /* the first block waits until all have set themselves up */
        for (int job = 0; job < jobs; job++)
            if (!all_parked(l, job, 0)) return;
    } else if (!all_parked(l, l->turn, l->blocks[l->turn])) {
        return;
    }
    for (int i = 1; i <= jobs; i++) {
        int job = (l->turn + i) % jobs;
        if (l->jobs[job].alive == 0) continue;
        grant(l, job);
        return;
    }
}

bool launch_owes_progress(const launcher *l, int job, int rank, const rank_status *s)
{
    const launch_job *j = l->jobs[job].job;
    if (has_ended(l, job, rank) || rank >= j->world - j->servers) return false;
    return s->state != RANK_SLEEPING || l->turn == job;
}
