/* Writes how jobs exchange gradients: who sums them, by which algorithm, and over which transport. */
#include "harness/report/report_impl.h"

#include <string.h>

static bool moves_by_nccl(const json_t *job)
{
    return strcmp(report_text_at(job, "payload"), "nccl") == 0;
}

/* If the ranks of a parameter server use GPUs, writes whether GPUs or processors sum gradients and update
 * parameters. */
static void updates_line(const json_t *job, text_buffer *out)
{
    if (strcmp(report_text_at(job, "device"), "cuda") != 0 ||
        !json_is_string(json_object_get(job, "updates_on")))
        return;
    bool gpu = strcmp(report_text_at(job, "updates_on"), "gpu") == 0;
    bool own = json_array_size(json_object_get(job, "servers")) > 0;
    const char *who = gpu   ? "by the GPUs next to the servers"
                      : own ? "by the processors: servers in separate processes have no GPU"
                            : "by the processors";
    if (strcmp(report_text_at(job, "policy"), "dp") == 0) who = "by device 0";
    if (moves_by_nccl(job))
        text_append(out, "\nGradients of dp are summed by NCCL onto device 0, and its parameters broadcast; "
                         "ZeroMQ carries "
                         "control messages.\n");
    else
        text_append(out, "\nGradients of %s are summed, and parameters updated, %s.\n",
                    report_text_at(job, "policy"), who);
}

void report_algorithms(const json_t *job, bool counts, text_buffer *out)
{
    const json_t *rows = json_object_get(job, "algorithms"), *row;
    size_t i;
    if (json_array_size(rows) == 0) text_append(out, "%s", report_text_at(job, "algorithm"));
    json_array_foreach(rows, i, row)
    {
        text_append(out, "%s%s", i == 0 ? "" : counts ? ", " : " and ", report_text_at(row, "algorithm"));
        double calls = report_number_at(row, "calls_per_step");
        if (counts)
            text_append(out, " %.4g call%s of %s", calls, calls == 1 ? "" : "s",
                        report_value(CELL_BYTES, report_number_at(row, "bytes_per_step")).text);
    }
}

/* Writes the algorithm that reduces the ring's buckets, and the library that carries them. */
static void algorithm_line(const json_t *job, text_buffer *out)
{
    static const struct {
        const char *name, *shown;
    } libraries[] = {{"shm", "in shared memory"},
                     {"nccl", "through NCCL"},
                     {"mpi", "through Open MPI"},
                     {"sim", "in virtual time as by NCCL"}};
    const char *collective = report_text_at(job, "collective"), *algorithm = report_text_at(job, "algorithm");
    const char *shown = collective;
    if (!collective[0]) return;
    for (size_t i = 0; i < COUNT_OF(libraries); i++)
        if (strcmp(libraries[i].name, collective) == 0) shown = libraries[i].shown;
    bool own = strcmp(algorithm, "library") == 0, chosen = own && strcmp(collective, "sim") == 0;
    text_append(out, "\nGradients of %s are all-reduced %s; algorithm: %s", report_text_at(job, "policy"),
                shown,
                chosen ? "per call the faster"
                : own  ? "the library's choice"
                       : algorithm);
    if (chosen) {
        text_append(out, "; per step ");
        report_algorithms(job, true, out);
    }
    text_append(out, ".\n");
}

/* Writes the transports of a parameter server's tensors and messages. */
static void transport_line(const json_t *job, text_buffer *out)
{
    const char *transport = report_text_at(job, "transport"), *payload = report_text_at(job, "payload");
    const char *shown = strcmp(payload, "shm") == 0    ? "through shared memory"
                        : strcmp(payload, "nccl") == 0 ? "through NCCL"
                                                       : "in messages";
    if (!transport[0]) return;
    text_append(out, "\nGradients and parameters of %s go %s; messages: %s.\n", report_text_at(job, "policy"),
                shown, strcmp(transport, "sim") == 0 ? "in virtual time" : transport);
}

void report_transports(const json_t *job, text_buffer *out)
{
    updates_line(job, out);
    algorithm_line(job, out);
    transport_line(job, out);
}

void report_ways(const json_t *result, const char *between, text_buffer *out)
{
    const char *separator = "";
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        const char *algorithm = report_text_at(job, "algorithm"), *payload = report_text_at(job, "payload");
        if (!algorithm[0] && !payload[0]) continue;
        text_append(out, "%s%s: ", separator, report_job_name(job).text);
        if (algorithm[0]) {
            report_algorithms(job, false, out);
            text_append(out, " all-reduce, %s", report_text_at(job, "collective"));
        } else
            text_append(out, "%s, messages over %s", payload, report_text_at(job, "transport"));
        separator = between;
    }
}

void report_all_reduce(const json_t *result, text_buffer *out)
{
    size_t i;
    json_t *job;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        if (moves_by_nccl(job)) text_append(out, "; dp: nccl");
        if (!report_text_at(job, "collective")[0]) continue;
        text_append(out, "; all-reduce: ");
        report_algorithms(job, false, out);
        text_append(out, ", %s", report_text_at(job, "collective"));
    }
}
