#include "harness/launch/environment.h"

#include "common/base/random.h"
#include "common/base/text.h"
#include "harness/launch/out_of_memory.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool launch_environment_is_rank(void)
{
    return getenv("HARNESS_TOKEN") != NULL;
}

typedef struct manager {
    const char *rank, *world, *local_rank, *local_world;
    const char *job; /* a name that all ranks of a job share */
} manager;

static const manager managers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID"},
};
enum { TORCHRUN, MPIRUN, SRUN, MANAGERS = sizeof managers / sizeof managers[0] };

bool launch_environment_is_of_node(void)
{
    return getenv("HARNESS_JOB") && !launch_environment_is_rank();
}

bool launch_environment_is_started(void)
{
    for (int i = 0; i < MANAGERS; i++) {
        const char *world = getenv(managers[i].world);
        if (world && atoi(world) > 1 && getenv(managers[i].rank) && getenv(managers[i].job)) return true;
    }
    return false;
}

static status read_number(const char *name, int64_t low, int64_t high, int *out)
{
    const char *text = getenv(name);
    int64_t value;
    if (!text) return fail(STATUS_CONFIG, "environment: %s is not set", name);
    if (text_parse_int(name, text, low, high, &value) != STATUS_OK) return STATUS_CONFIG;
    *out = (int)value;
    return STATUS_OK;
}

static status read_ranks(launch_environment *e, int most, const manager *m)
{
    TRY(read_number(m->world, 1, most, &e->world));
    TRY(read_number(m->rank, 0, e->world - 1, &e->rank));
    TRY(read_number(m->local_rank, 0, e->world - 1, &e->local_rank));
    e->local_world = e->world;
    return STATUS_OK;
}

status launch_environment_key(const char *name, char out[NET_KEY_TEXT])
{
    const char *text = getenv(name);
    if (!text) return STATUS_OK;
    if (!net_key_is_valid(text))
        return fail(
            STATUS_CONFIG,
            "environment: %s: expected %d hexadecimal digits (openssl rand -hex 32), got %zu characters",
            name, NET_KEY_TEXT - 1, strlen(text));
    snprintf(out, NET_KEY_TEXT, "%s", text);
    unsetenv(name);
    return STATUS_OK;
}

status launch_environment_read_key_file(void)
{
    const char *path = getenv("HARNESS_KEY_FILE");
    char text[NET_KEY_TEXT] = "";
    struct stat about;
    if (!path || getenv("HARNESS_KEY")) return STATUS_OK;
    /* Without O_NONBLOCK, open() would block on a FIFO. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return fail_errno(STATUS_CONFIG, "HARNESS_KEY_FILE: %s", path);
    bool shared = fstat(fd, &about) != 0 || about.st_mode & (S_IRWXG | S_IRWXO);
    ssize_t got = shared ? 0 : read(fd, text, sizeof text - 1);
    close(fd);
    if (shared)
        return fail(
            STATUS_PERMISSION,
            "HARNESS_KEY_FILE: expected a file that only its user can read, got mode %04o: chmod 600 %s",
            (unsigned)about.st_mode & 07777, path);
    if (got != NET_KEY_TEXT - 1 || !net_key_is_valid(text))
        return fail(STATUS_CONFIG,
                    "HARNESS_KEY_FILE: expected %d hexadecimal digits: openssl rand -hex 32 >%s",
                    NET_KEY_TEXT - 1, path);
    return setenv("HARNESS_KEY", text, 1) == 0 ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for a key");
}

static status from_harness(launch_environment *e)
{
    static const char *const names[] = {"HARNESS_JOB",       "HARNESS_TOKEN",     "HARNESS_RENDEZVOUS",
                                        "HARNESS_STATUS_FD", "HARNESS_NOTIFY_FD", "HARNESS_PROCESSORS"};
    const char *job = getenv("HARNESS_JOB"), *rendezvous = getenv("HARNESS_RENDEZVOUS"),
               *token = getenv("HARNESS_TOKEN");
    char *end;
    int memory_fd = -1, notify_fd = -1;
    e->origin = LAUNCH_BY_HARNESS;
    TRY(read_ranks(e, JOB_MOST_MEMBERS, &managers[TORCHRUN])); /* the launcher sets the same variables */
    if (getenv("HARNESS_PROCESSORS")) TRY(read_number("HARNESS_PROCESSORS", 1, CPU_SETSIZE, &e->processors));
    e->token = strtoull(token, &end, 16);
    if (end != token + 16 || *end)
        return fail(STATUS_CONFIG, "environment: HARNESS_TOKEN: expected 16 hexadecimal digits");
    TRY(launch_environment_key("HARNESS_KEY", e->key));
    TRY(launch_environment_key("HARNESS_STAGE_KEY", e->stage_key));
    TRY(read_number("HARNESS_STATUS_FD", 0, INT32_MAX, &memory_fd));
    TRY(read_number("HARNESS_NOTIFY_FD", 0, INT32_MAX, &notify_fd));
    fcntl(memory_fd, F_SETFD, FD_CLOEXEC);
    fcntl(notify_fd, F_SETFD, FD_CLOEXEC);
    TRY(status_table_attach(memory_fd, notify_fd, e->token, e->world, &e->table));
    out_of_memory_report_to(e->table, e->rank);
    snprintf(e->job, sizeof e->job, "%s", job ? job : "");
    snprintf(e->rendezvous, sizeof e->rendezvous, "%s", rendezvous ? rendezvous : "");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
    return STATUS_OK;
}

/* Copies the first host of a list of Slurm, such as "rack[03-07,9]node[1-4],login". */
static void first_host(const char *list, char *out, size_t size)
{
    out[0] = '\0';
    while (*list && *list != ',') {
        bool is_range = *list == '[';
        size_t used = strlen(out), length = strcspn(list += is_range, is_range ? "-,]" : "[,");
        snprintf(out + used, size - used, "%.*s", (int)length, list);
        list += is_range ? strcspn(list, "]") : length;
        if (is_range && *list) list++;
    }
}

/* Sets the address of rank 0 of a job step of Slurm. The first task of a step runs on its first host. */
static void set_slurm_address(void)
{
    enum { FIRST_PORT = 10000, PORTS = 20000 }; /* below the ports that Linux gives to clients */
    const char *step = getenv("SLURM_STEP_NODELIST"), *job = getenv("SLURM_JOB_ID");
    const char *list = step ? step : getenv("SLURM_JOB_NODELIST");
    char host[256], port[16];
    if (!list || !job) return;
    first_host(list, host, sizeof host);
    snprintf(port, sizeof port, "%d", FIRST_PORT + atoi(job) % PORTS);
    setenv("MASTER_ADDR", host, 0);
    setenv("MASTER_PORT", port, 0);
}

/* Derives the token of a job. Every rank must compute the same token without communication. */
static uint64_t derive_token(const manager *m, const char *key)
{
    const char *job = getenv(m->job), *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    char text[512];
    snprintf(text, sizeof text, "%s %s %s", job ? job : "", host ? host : "", port ? port : "");
    return key[0] ? net_key_number(key, text) : random_mix(random_fnv1a64(text));
}

static status from_manager(launch_environment *e)
{
    for (int i = 0; i < MANAGERS; i++) {
        const manager *m = &managers[i];
        if (!getenv(m->rank)) continue;
        e->origin = LAUNCH_BY_MANAGER;
        TRY(read_ranks(e, JOB_MOST_RANKS, m));
        if (getenv(m->local_world)) TRY(read_number(m->local_world, 1, JOB_MOST_RANKS, &e->local_world));
        const char *nodes = i == SRUN ? getenv("SLURM_STEP_NUM_NODES") : NULL;
        e->several_hosts = e->local_world < e->world || (nodes && atoi(nodes) > 1);
        if (i == SRUN) set_slurm_address();
        unsetenv("HARNESS_JOB");
        TRY(launch_environment_key("HARNESS_KEY", e->key));
        memcpy(e->stage_key, e->key, sizeof e->stage_key);
        e->token = derive_token(m, e->key);
        snprintf(e->rendezvous, sizeof e->rendezvous, "env://");
        return status_table_create(e->token, e->world, &e->table);
    }
    return fail(STATUS_CONFIG, "environment: expected RANK, or the variables of mpirun or srun");
}

status launch_environment_open(bool manager_allowed, launch_environment *out)
{
    *out = (launch_environment){.world = 1};
    if (launch_environment_is_rank())
        TRY(from_harness(out));
    else if (manager_allowed)
        TRY(from_manager(out));
    else
        return STATUS_OK;
    out->slot = status_table_slot(out->table, out->rank);
    rank_slot_begin(out->slot, out->rank);
    return STATUS_OK;
}

void launch_environment_close(launch_environment *e)
{
    out_of_memory_report_to(NULL, 0);
    status_table_close(&e->table);
    e->slot = NULL;
}

void launch_environment_end_rank(const launch_environment *e, status rc)
{
    if (rc == STATUS_OK)
        rank_slot_finish(e->slot);
    else
        job_fail(e->table, e->rank, rc, error_message());
    if (e->origin == LAUNCH_BY_HARNESS) error_clear();
}

void launch_environment_count(int *world, int *local_world)
{
    *world = *local_world = 0;
    for (int i = 0; i < MANAGERS && *world == 0; i++) {
        const char *all = getenv(managers[i].world), *local = getenv(managers[i].local_world);
        if (!getenv(managers[i].rank) || !all) continue;
        *world = atoi(all);
        *local_world = local ? atoi(local) : *world;
    }
}
