/* A network maker's tuner as the tests need it: version VERSION of NCCL's interface. It counts its calls, gives ring/ll128
 * the lowest cost with 7 channels, and fails in init where VENDOR_FAILS is set. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int begun, asked, ended, sized;
uint64_t told_id;
size_t told_ranks;
static int mark;

#if VERSION >= 5
static int begin(void **context, uint64_t id, size_t ranks, size_t nodes, void *log, void *links, void *constants) {
    (void)links, (void)constants;
    told_id = id;
#else
static int begin(size_t ranks, size_t nodes, void *log, void **context) {
#endif
    (void)nodes, (void)log;
    begun++;
    told_ranks = ranks;
    *context = &mark;
    return getenv("VENDOR_FAILS") ? 3 : 0;
}

static int answer(void *context, float *costs, int protocols, int *channels) {
    if (context != &mark) return 3;
    asked++;
    if (costs) costs[1 * protocols + 1] = 0.0f;
    if (getenv("VENDOR_RULES_OUT_TREES") && costs) costs[0] = costs[1] = costs[2] = -1.0f;
    *channels = 7;
    return 0;
}

#if VERSION == 2
static int choose(void *context, int collective, size_t bytes, int collnet, int nvls, int operations, int *algorithm,
                  int *protocol, int *channels) {
    (void)collective, (void)bytes, (void)operations;
    if (!collnet || !nvls) return 3;
    *algorithm = *protocol = 1;
    return answer(context, NULL, 3, channels);
}
#elif VERSION == 3
static int choose(void *context, int collective, size_t bytes, int operations, float **costs, int algorithms,
                  int protocols, int *channels) {
    (void)collective, (void)bytes, (void)operations, (void)algorithms;
    return answer(context, (float *)costs, protocols, channels);
}
#else
static int choose(void *context, int collective, size_t bytes, int operations, float **costs, int algorithms,
                  int protocols, int registered, int *channels) {
    (void)collective, (void)bytes, (void)operations, (void)algorithms, (void)registered;
    return answer(context, (float *)costs, protocols, channels);
}
#endif

static int end(void *context) {
    ended++;
    return context != &mark;
}

static int size_chunks(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                       size_t *size) {
    (void)collective, (void)bytes, (void)algorithm, (void)protocol, (void)channels;
    sized++;
    *size = 4242;
    return context != &mark;
}

struct {
    const char *name;
    void *functions[4];
} SYMBOL = {"stand-in", {(void *)begin, (void *)choose, (void *)end, (void *)size_chunks}};
