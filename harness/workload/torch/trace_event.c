#include "harness/workload/torch/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Most events that matter. A trace of 100 MB contains about 200,000. */
enum { MOST_EVENTS = 1000000 };

const char *const torch_collective_names[TORCH_COLLECTIVE_KINDS] = {
    "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "other"};

/* ---- lists ------------------------------------------------------------------------------------------- */

status torch_reserve(void **list, int count, int *capacity, size_t size)
{
    if (count < *capacity) return STATUS_OK;
    int wanted = *capacity ? 2 * *capacity : 64;
    void *grown = realloc(*list, (size_t)wanted * size);
    if (!grown) return fail(STATUS_SYSTEM, "no memory for %d entries of a trace", wanted);
    *list = grown;
    *capacity = wanted;
    return STATUS_OK;
}

status torch_pairs_add(torch_pairs *pairs, int64_t key, int64_t value)
{
    TRY(torch_reserve((void **)&pairs->list, pairs->count, &pairs->capacity, sizeof *pairs->list));
    pairs->list[pairs->count++] = (torch_pair){key, value};
    return STATUS_OK;
}

static int by_key(const void *a, const void *b)
{
    const torch_pair *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->value > y->value) - (x->value < y->value);
}

void torch_pairs_sort(torch_pairs *pairs)
{
    if (pairs->count > 0) qsort(pairs->list, (size_t)pairs->count, sizeof *pairs->list, by_key);
}

int torch_count_until(const void *list, int count, size_t size, int64_t key)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (*(const int64_t *)(const void *)((const char *)list + (size_t)middle * size) <= key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- names ------------------------------------------------------------------------------------------- */

typedef struct named_kind {
    const char *part; /* beginning of the name, or a part of a collective's name */
    int kind;
} named_kind;

#define EVALUATE "autograd::engine::evaluate_function: "
static const named_kind annotations[] = {{"ProfilerStep#", TORCH_STEP},
                                         {"Optimizer.step#", TORCH_OPTIMIZER_STEP},
                                         {"Optimizer.zero_grad#", TORCH_OPTIMIZER},
                                         {"enumerate(DataLoader)#", TORCH_LOADER},
                                         {"DistributedDataParallel.forward", TORCH_MODEL},
                                         {"FSDP::", TORCH_SHARDING},
                                         {"FullyShardedDataParallel._", TORCH_SHARDING},
                                         {"gloo:", TORCH_BACKEND},
                                         {"nccl:", TORCH_BACKEND},
                                         {NULL, -1}};
static const named_kind operations[] = {{EVALUATE "torch::autograd::AccumulateGrad", TORCH_ACCUMULATE},
                                        {EVALUATE, TORCH_NODE},
                                        {"torch::autograd::AccumulateGrad", TORCH_GRADIENT},
                                        {"c10d::", TORCH_CALL},
                                        {"record_param_comms", TORCH_COMMS},
                                        {"torch::distributed::reducer::", TORCH_REDUCER},
                                        {"torch.distributed.ddp.reducer::", TORCH_REDUCER},
                                        {NULL, -1}};
static const named_kind collectives[] = {{"scatter", TORCH_REDUCE_SCATTER}, {"gather", TORCH_ALL_GATHER},
                                         {"broadcast", TORCH_BROADCAST},    {"to_all", TORCH_ALL_TO_ALL},
                                         {"toall", TORCH_ALL_TO_ALL},       {"reduce", TORCH_ALL_REDUCE},
                                         {NULL, TORCH_OTHER_COLLECTIVE}};

/* Returns the kind of the first row whose text begins the name, or is a part of the name. */
static int find_kind(const named_kind *rows, const char *name, bool begins)
{
    for (; rows->part; rows++)
        if (begins ? strncmp(name, rows->part, strlen(rows->part)) == 0 : strstr(name, rows->part) != NULL)
            break;
    return rows->kind;
}

/* Returns true if the operation or the kernel multiplies matrices or convolves. */
static bool is_matrix(const char *name)
{
    static const char *const parts[] = {"gemm",      "cutlass",  "xmma",    "winograd", "fprop", "dgrad",
                                        "wgrad",     "implicit", "convolv", "flash",    "fmha",  "convolu",
                                        "attention", "Cijk_",    "::mm",    "bmm",      "addmm"};
    size_t i = 0;
    while (i < sizeof parts / sizeof parts[0] && !strstr(name, parts[i])) i++;
    return i < sizeof parts / sizeof parts[0];
}

int torch_type_bytes(const char *type)
{
    static const named_kind sizes[] = {{"BF", 2},  {"bf", 2}, {"alf", 2},  {"16", 2},  {"ouble", 8},
                                       {"ong", 8}, {"64", 8}, {"128", 16}, {"har", 1}, {"yte", 1},
                                       {"ool", 1}, {"8", 1},  {NULL, 4}};
    return find_kind(sizes, type, false) * (strstr(type, "complex<") ? 2 : 1);
}

static void set_type(torch_event *e, const char *type)
{
    e->half = !strstr(type, "BF") && !strstr(type, "bf") && (strstr(type, "alf") || strstr(type, "16"));
    e->element_bytes = (uint8_t)torch_type_bytes(type);
}

/* ---- arguments --------------------------------------------------------------------------------------- */

static int64_t integer_of(const json_t *arguments, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(arguments, key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : otherwise;
}

bool torch_read_shape(const json_t *dims, shape *out)
{
    int64_t elements = 1;
    *out = (shape){0};
    for (size_t i = 0; i < json_array_size(dims); i++) {
        int64_t n = (int64_t)json_integer_value(json_array_get(dims, i));
        if (n < 1 || elements > SHAPE_MOST_ELEMENTS / n) return false;
        elements *= n;
        if (out->rank < SHAPE_MAX_RANK)
            out->dims[out->rank++] = n;
        else
            out->dims[SHAPE_MAX_RANK - 1] *= n;
    }
    return true;
}

bool torch_is_empty(const json_t *dims)
{
    size_t i = 0;
    while (i < json_array_size(dims) && json_integer_value(json_array_get(dims, i)) != 0) i++;
    return i < json_array_size(dims);
}

/* Reads the shape of the gradient. A gradient that is empty or has no type is left out. */
static status read_gradient(torch_trace *t, const json_t *arguments, torch_event *e)
{
    const json_t *dims = json_array_get(json_object_get(arguments, "Input Dims"), 0);
    const char *type = json_string_value(json_array_get(json_object_get(arguments, "Input type"), 0));
    if (!json_is_array(dims) || !type || !*type || torch_is_empty(dims)) return STATUS_OK;
    TRY(torch_reserve((void **)&t->shapes, t->shape_count, &t->shape_capacity, sizeof *t->shapes));
    if (!torch_read_shape(dims, &t->shapes[t->shape_count]))
        return fail(STATUS_DATA, "expected a gradient of at most 2^44 elements");
    set_type(e, type);
    e->elements = shape_elements(t->shapes[t->shape_count]);
    e->shape = t->shape_count++;
    return STATUS_OK;
}

/* Returns the elements of a tensor, [2, 3], or of a list of tensors, [[2, 3], [4]], or -1 if unknown. */
static int64_t count_elements(const json_t *dims, int depth)
{
    int64_t sum = 0;
    shape s;
    if (json_array_size(dims) == 0) return -1;
    if (!json_is_array(json_array_get(dims, 0))) return torch_read_shape(dims, &s) ? shape_elements(s) : -1;
    for (size_t i = 0; i < json_array_size(dims) && sum >= 0; i++) {
        int64_t n = depth > 0 ? count_elements(json_array_get(dims, i), depth - 1) : -1;
        sum = n < 0 || sum + n > SHAPE_MOST_ELEMENTS ? -1 : sum + n;
    }
    return sum;
}

static void read_collective(const json_t *arguments, const char *name, torch_event *e)
{
    const char *field = json_string_value(json_object_get(arguments, "Collective name"));
    const char *type = json_string_value(json_object_get(arguments, "dtype"));
    const json_t *dims = json_object_get(arguments, "Input Dims");
    int64_t group = integer_of(arguments, "Group size", 0);
    e->collective = (uint8_t)find_kind(collectives, field ? field : name, false);
    e->group = group > 0 && group < (1 << 24) ? (int32_t)group : 0;
    /* The first tensor of a call is the output if output and input differ. */
    size_t input = e->kind == TORCH_CALL && e->collective >= TORCH_ALL_GATHER && json_array_size(dims) > 1;
    e->elements = integer_of(arguments, "In msg nelems", count_elements(json_array_get(dims, input), 3));
    if (e->elements > SHAPE_MOST_ELEMENTS) e->elements = -1;
    if (!type) type = json_string_value(json_array_get(json_object_get(arguments, "Input type"), input));
    set_type(e, type ? type : "float");
}

/* ---- events ------------------------------------------------------------------------------------------ */

/* Returns the kind of the event, or -1 if the event does not matter. */
static int classify(const char *category, const char *name, const json_t *arguments)
{
    if (strcmp(category, "user_annotation") == 0) return find_kind(annotations, name, true);
    bool communication = strncmp(name, "nccl", 4) == 0 || strncmp(name, "rccl", 4) == 0;
    if (strcmp(category, "kernel") == 0) return communication ? TORCH_COMMUNICATION_KERNEL : TORCH_KERNEL;
    if (strncmp(category, "gpu_mem", 7) == 0) return TORCH_KERNEL;
    if (text_ends_with(category, "_runtime") || text_ends_with(category, "_driver")) /* of CUDA, XPU, ... */
        return json_object_get(arguments, "correlation") ? TORCH_LAUNCH : -1;
    if (strcmp(category, "cpu_op") != 0) return -1;
    int kind = find_kind(operations, name, true);
    if (kind >= 0) return kind;
    bool numbered = integer_of(arguments, "Sequence number", -1) >= 0;
    if (numbered && integer_of(arguments, "Fwd thread id", 0) == 0) return TORCH_OP;
    return is_matrix(name) ? TORCH_MATRIX : -1;
}

/* Counts the event as one of the host, to find out whether events are missing. */
static void count_host_event(torch_trace *t, int64_t index)
{
    if (index < 0 || index >= INT64_MAX / 2) return;
    t->host_events++;
    if (index < t->first_index) t->first_index = index;
    if (index > t->last_index) t->last_index = index;
}

static bool read_times(const json_t *event, torch_event *e)
{
    const double most_us = 4e15; /* the year 2096 in microseconds since 1970 */
    double begin = json_number_value(json_object_get(event, "ts"));
    double duration = json_number_value(json_object_get(event, "dur"));
    if (!(fabs(begin) < most_us) || !(duration >= 0 && duration < most_us)) return false;
    e->begin_ns = llround(begin * 1e3);
    e->end_ns = e->begin_ns + llround(duration * 1e3);
    return true;
}

static status read_arguments(torch_trace *t, const json_t *arguments, const char *name, torch_event *e)
{
    e->id = integer_of(arguments, e->kind >= TORCH_LAUNCH ? "correlation" : "Sequence number", -1);
    e->matrix = (e->kind <= TORCH_MATRIX || e->kind == TORCH_KERNEL) && is_matrix(name);
    t->seen[e->kind] = true;
    t->has_gpu = t->seen[TORCH_KERNEL];
    t->compiled = t->compiled || (e->kind == TORCH_NODE && strstr(name, "CompiledFunctionBackward"));
    if (e->kind == TORCH_STEP) e->id = strtoll(name + strlen("ProfilerStep#"), NULL, 10);
    if (e->kind == TORCH_OPTIMIZER_STEP) {
        name += strlen("Optimizer.step#");
        snprintf(t->optimizer, sizeof t->optimizer, "%.*s", (int)strcspn(name, "."), name);
    }
    if (e->kind == TORCH_GRADIENT) return read_gradient(t, arguments, e);
    if ((e->kind >= TORCH_CALL && e->kind <= TORCH_BACKEND) || e->kind == TORCH_COMMUNICATION_KERNEL)
        read_collective(arguments, name, e);
    return STATUS_OK;
}

static status add_event(torch_trace *t, const json_t *event)
{
    const json_t *arguments = json_object_get(event, "args");
    const char *phase = json_string_value(json_object_get(event, "ph"));
    const char *category = json_string_value(json_object_get(event, "cat"));
    const char *name = json_string_value(json_object_get(event, "name"));
    torch_event e = {.elements = -1, .shape = -1};
    if (!phase || strcmp(phase, "X") != 0 || !category || !name) return STATUS_OK;
    count_host_event(t, integer_of(arguments, "Ev Idx", -1));
    int kind = classify(category, name, arguments);
    if (kind < 0) return STATUS_OK;
    e.kind = (uint8_t)kind;
    e.thread = (int32_t)json_integer_value(json_object_get(event, "tid"));
    if (!read_times(event, &e)) return fail(STATUS_DATA, "expected \"ts\" and \"dur\" in microseconds");
    TRY(read_arguments(t, arguments, name, &e));
    if (t->count == MOST_EVENTS)
        return fail(STATUS_DATA, "expected at most %d events; record fewer steps", MOST_EVENTS);
    TRY(torch_reserve((void **)&t->events, t->count, &t->capacity, sizeof *t->events));
    t->events[t->count++] = e;
    return STATUS_OK;
}

status torch_add_event(torch_trace *t, const char *text, size_t length, int64_t number)
{
    json_error_t error;
    json_t *event = json_loadb(text, length, 0, &error);
    status rc = event ? add_event(t, event) : fail(STATUS_DATA, "expected valid JSON: %s", error.text);
    if (rc != STATUS_OK) error_context("event %lld", (long long)number);
    json_decref(event);
    return rc;
}
