/* Reads the matrix that `nvidia-smi topo -m` prints:
 *
 *             GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
 *     GPU0     X      NV12    PXB     48-63,176-191   3               N/A
 *     GPU1    NV12     X      PXB     48-63,176-191   3               N/A
 *     NIC0    PXB     PXB      X
 *
 * Lines before the header and after the last row are ignored. Adapters have any names (mlx5_0). */
#include "common/base/input.h"
#include "common/sim/cluster.h"

#include <stdio.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20, DEVICES = SIM_DEVICES_MOST, MOST_NUMA = 999 };

static const char blanks[] = " \t\r";

/* Relations of two devices, from the nearest. SOC is the former name of SYS. NVLinks are FIRST_NVLINK +
 * their number. */
typedef enum relation { SELF, PIX, PXB, PHB, NODE, SYS, SOC, RELATIONS, FIRST_NVLINK = RELATIONS } relation;
static const char *const relation_names[] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC"};

typedef struct matrix {
    const char *path;
    char *rest; /* text that has not been read */
    int line;
    int count, gpus; /* devices, of which the GPUs are the first */
    const char *names[DEVICES + 1];
    int numa[DEVICES]; /* NUMA node of each GPU, or -1 */
    bool has_numa;
    int between[DEVICES][DEVICES];
} matrix;

static status bad(const matrix *m, const char *expected, const char *found)
{
    char text[48];
    const char *quote = found ? "'" : "";
    snprintf(text, sizeof text, "%s", found ? found : "the end");
    return fail(STATUS_DATA, "%s: line %d: expected %s, got %s%s%s", m->path, m->line, expected, quote,
                text_printable(text, false), quote);
}

/* ---- the text ------------------------------------------------------------------------------------- */

/* Replaces escape sequences such as ESC[4m, which nvidia-smi prints around the header, with blanks. */
static void blank_escapes(char *text)
{
    while ((text = strstr(text, "\x1b[")) != NULL) {
        size_t length = 2 + strspn(text + 2, "0123456789;");
        memset(text, ' ', length + (text[length] != '\0'));
    }
}

/* Returns the next line that is not empty, or NULL. */
static char *next_line(matrix *m)
{
    char *line;
    while ((line = strsep(&m->rest, "\n")) != NULL) {
        m->line++;
        if (line[strspn(line, blanks)]) break;
    }
    return line;
}

static status read_header(matrix *m)
{
    char *line, *rest = NULL, *word = NULL, name[16];
    while ((line = next_line(m)) != NULL) {
        word = strtok_r(line, blanks, &rest);
        if (strcmp(word, "GPU0") == 0) break;
    }
    if (!line) return bad(m, "a line that begins with GPU0", NULL);
    for (; word && strcmp(word, "CPU") != 0; word = strtok_r(NULL, blanks, &rest)) {
        snprintf(name, sizeof name, "GPU%d", m->count);
        bool is_gpu = strcmp(word, name) == 0;
        m->gpus += is_gpu;
        m->names[m->count++] = word;
        if (is_gpu != (strncmp(word, "GPU", 3) == 0) || (is_gpu && m->gpus < m->count) ||
            m->gpus > SIM_GPUS_MOST || m->count - m->gpus > SIM_NICS_MOST)
            return bad(m, "at most 16 GPUs, numbered from 0, then at most 32 adapters", word);
    }
    while ((word = strtok_r(NULL, blanks, &rest)) != NULL)
        m->has_numa = m->has_numa || strcmp(word, "NUMA") == 0;
    return STATUS_OK;
}

static status read_relation(const matrix *m, const char *word, int *out)
{
    int links = 0, length = 0;
    for (*out = SELF; word && *out < RELATIONS; ++*out)
        if (strcmp(word, relation_names[*out]) == 0) return STATUS_OK;
    bool nvlinks = word && sscanf(word, "NV%2d%n", &links, &length) == 1 && links > 0 && !word[length];
    *out = FIRST_NVLINK + links;
    return nvlinks ? STATUS_OK : bad(m, "X, NV#, PIX, PXB, PHB, NODE or SYS for each device", word);
}

static status read_row(matrix *m, int row)
{
    char *line = next_line(m), *rest = NULL, *word = line ? strtok_r(line, blanks, &rest) : NULL;
    char expected[80];
    snprintf(expected, sizeof expected, "the row of %.32s", m->names[row]);
    if (!word || strcmp(word, m->names[row]) != 0) return bad(m, text_printable(expected, false), word);
    for (int i = 0; i < m->count; i++) {
        int *r = &m->between[row][i];
        word = strtok_r(NULL, blanks, &rest);
        TRY(read_relation(m, word, r));
        if ((*r == SELF) != (i == row) || (i < row && *r != m->between[i][row]) ||
            (*r > FIRST_NVLINK && (row >= m->gpus || i >= m->gpus)))
            return bad(m, "X in the diagonal, NV# only between GPUs, and a symmetric matrix", word);
    }
    if (row >= m->gpus) return STATUS_OK;
    strtok_r(NULL, blanks, &rest); /* CPU affinity */
    const char *numa = m->has_numa ? strtok_r(NULL, blanks, &rest) : NULL;
    if (!numa || sscanf(numa, "%3d", &m->numa[row]) != 1) m->numa[row] = -1;
    return STATUS_OK;
}

/* ---- the host ------------------------------------------------------------------------------------- */

/* Returns the first device that is as near to device `i` as `farthest`, directly or over a device between
 * both, because NVLinks hide how GPUs are connected over PCIe. Returns at worst `i`. */
static int first_near(const matrix *m, int i, relation farthest)
{
    int first = i;
    for (int j = 0; j < m->count; j++)
        for (int k = 0; k < first && m->between[i][j] <= (int)farthest; k++)
            if (m->between[j][k] <= (int)farthest) first = k;
    return first;
}

/* Finds the socket of each device. GPUs are on one socket if they share a NUMA node or, if the file has no
 * NUMA nodes, if they are near. If there are more than two groups, the first half of them is on socket 0. An
 * adapter that is near no GPU is on socket 0, too. */
static void find_sockets(const matrix *m, sim_host *h)
{
    int group[DEVICES], number[MOST_NUMA + 1] = {0}, count = 0;
    for (int i = 0; i < m->gpus; i++) {
        group[i] = m->numa[i] >= 0 ? m->numa[i] : first_near(m, i, NODE);
        number[group[i]] = 1;
    }
    for (int g = 0; g <= MOST_NUMA; g++)
        if (number[g]) number[g] = count++;
    for (int i = 0; i < m->count; i++) {
        int gpu = i < m->gpus ? i : first_near(m, i, NODE);
        int socket = gpu < m->gpus ? number[group[gpu]] : 0;
        h->socket[i] = count > 2 ? 2 * socket / count : socket;
    }
}

/* Finds the PCIe switch of each device. Returns true if pairs of GPUs are a guess: the file shows no switch,
 * and NVLinks hide how GPUs are connected over PCIe. */
static bool find_switches(const matrix *m, sim_host *h)
{
    int count = 0;
    bool hidden = m->gpus > 2 && m->between[0][1] > FIRST_NVLINK;
    for (int i = 0; i < m->count; i++) {
        int first = first_near(m, i, PXB), members = 0;
        for (int j = 0; j < m->count; j++) members += first_near(m, j, PXB) == i;
        h->pcie_switch[i] = first >= m->gpus ? -1
                            : first < i      ? h->pcie_switch[first]
                            : members > 1    ? count++
                                             : -1;
    }
    for (int i = m->count; i < DEVICES; i++) h->pcie_switch[i] = -1;
    for (int i = 0; i < m->gpus && count == 0 && hidden; i++) h->pcie_switch[i] = i / 2;
    return count == 0 && hidden;
}

/* Sets the NVLinks. If every pair has the same number of links, and a GPU has too few links for so many
 * pairs, an NVSwitch connects the GPUs. */
static status find_nvlinks(const matrix *m, int nvlinks, sim_host *h)
{
    int sum = 0;
    bool equal = m->gpus > 1;
    for (int a = 0; a < m->gpus; a++)
        for (int b = 0; b < m->gpus; b++) {
            equal = equal && (a == b || m->between[a][b] == m->between[0][1]);
            if (m->between[a][b] > FIRST_NVLINK) h->nvlinks[a][b] = m->between[a][b] - FIRST_NVLINK;
            if (a == 0) sum += h->nvlinks[0][b];
        }
    if (equal && sum > nvlinks) {
        sum = h->to_nvswitch = h->nvlinks[0][1];
        memset(h->nvlinks, 0, sizeof h->nvlinks);
    }
    if (sum <= nvlinks) return STATUS_OK;
    return fail(STATUS_DATA, "%s: expected at most the %d NVLinks that the GPU of --gpu has, got %d", m->path,
                nvlinks, sum);
}

static status read_matrix(text_buffer *text, matrix *m)
{
    TRY(input_read(m->path, MOST_BYTES, text));
    if (!text->length || strlen(text->data) < text->length)
        return fail(STATUS_DATA, "%s: expected the output of nvidia-smi topo -m, got %s", m->path,
                    text->length ? "a zero byte" : "an empty file");
    blank_escapes(text->data);
    m->rest = text->data;
    TRY(read_header(m));
    for (int row = 0; row < m->count; row++) TRY(read_row(m, row));
    return STATUS_OK;
}

status sim_topology_file_read(const char *path, int nvlinks, sim_host *h, bool *paired)
{
    text_buffer text = {0};
    matrix m = {.path = path};
    status rc = read_matrix(&text, &m);
    text_free(&text);
    *h = (sim_host){.gpus = m.gpus, .adapters = m.count - m.gpus};
    if (rc == STATUS_OK) rc = find_nvlinks(&m, nvlinks, h);
    if (rc != STATUS_OK) return error_context("--topology"), rc;
    find_sockets(&m, h);
    *paired = find_switches(&m, h);
    return STATUS_OK;
}
