/* The native core for a CPU: squared norms, the decision, and the fused update of a memory and its base.

   Plain C with POSIX threads; compiled by native.py at first use. A step is three calls: norms(), decide(), update(). Work is handed out in chunks by a shared counter, so a core that is busy elsewhere holds nobody up, and
   what is computed does not depend on who computes it. Letters as in the paper: g, theta (here p), decay is the host's. */

#include <math.h>
#include <pthread.h>
#include <stdint.h>

enum { SGD, MOMENTUM, RMSPROP, RMSPROP_MOMENTUM, ADAM };
enum { LANES = 32, MOST_THREADS = 64 };

/* One parameter. m and v are the base's buffers in the order of families.py. */
typedef struct {
    float *p, *m, *v, *slots, *sum, *step;
    int64_t length, row, weights, group, number, refresh_length, refresh_steps;
} Part;

/* One parameter group. */
typedef struct {
    int64_t family, nesterov, maximize, decoupled;
    double lr, weight_decay, beta1, beta2, eps, momentum;
} Group;

/* What the decision says of a row of the memory's tables. */
typedef struct {
    int64_t accept, slot, clock, finite, live; /* clock after the step, live entries before it */
} Row;

typedef struct {
    double scale, share;
} Weights;

typedef struct {
    int64_t part, start, stop;
} Chunk;

typedef struct {
    const Part *parts;
    const Group *groups;
    const float *const *grads; /* NULL: no gradient */
    const Chunk *chunks;
    int64_t count, topC;
    const Row *rows;
    const Weights *weights; /* [part.weights * (topC + 1) + live entries] */
    double *squares; /* of each chunk */
    int64_t next;
} Work;

/* -- norms ----------------------------------------------------------------------------------------------------------- */

static double square(const float *restrict g, int64_t n) {
    double total = 0;
    int64_t i = 0;
    while (i + LANES <= n) {
        float sum[LANES] = {0};
        int64_t stop = i + 256 * LANES < n ? i + 256 * LANES : n;
        for (; i + LANES <= stop; i += LANES)
            for (int j = 0; j < LANES; j++) sum[j] += g[i + j] * g[i + j];
        for (int j = 0; j < LANES; j++) total += sum[j];
    }
    for (; i < n; i++) total += (double)g[i] * g[i];
    return total;
}

static void *norms_worker(void *argument) {
    Work *w = argument;
    int64_t c;
    while ((c = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < w->count) {
        Chunk k = w->chunks[c];
        const float *g = w->grads[k.part];
        w->squares[c] = g ? square(g + k.start, k.stop - k.start) : 0;
    }
    return 0;
}

/* -- the decision: the twin of policies.decide and policies.advance -------------------------------------------------- */

enum { KOTH, BOTTOMC, FIFO, RANDOM, MNDS, RR, NCPR, SPARSE };
enum { ADMISSION, EVICTION };

static uint32_t mix32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

static double uniform(int64_t seed, int64_t t, int64_t stream, int64_t purpose) {
    uint32_t h = mix32((uint32_t)t ^ (uint32_t)seed);
    h = mix32(h ^ (uint32_t)(t >> 32) ^ (uint32_t)(seed >> 32));
    h = mix32(h + (uint32_t)(stream * 2 + purpose));
    return h * 0x1p-32;
}

typedef struct {
    float *priority, *norm;
    int64_t *born;
    int64_t topC, live, t, stream;
    float g; /* the norm that asks for a place */
} Table;

/* By priority, of equal ones the oldest; or by age alone. Free slots are passed over. */
static int64_t first_to_go(const Table *m, int by_age) {
    int64_t best = -1;
    for (int64_t k = 0; k < m->topC; k++) {
        if (m->born[k] == 0) continue;
        if (best < 0 || (!by_age && m->priority[k] < m->priority[best]) ||
            ((by_age || m->priority[k] == m->priority[best]) && m->born[k] < m->born[best]))
            best = k;
    }
    return best;
}

static int admits(const Table *m, int64_t policy, int64_t seed, int64_t every) {
    int full = m->live == m->topC;
    if (policy == RANDOM) return uniform(seed, m->t, m->stream, ADMISSION) < 0.5;
    if (policy == SPARSE) return (m->t - 1) % every == 0;
    if (!full || policy == FIFO) return 1;
    if (policy == MNDS) {
        float mean = 0;
        for (int64_t k = 0; k < m->topC; k++) mean += m->norm[k];
        mean /= (float)m->live;
        return uniform(seed, m->t, m->stream, ADMISSION) * mean < fabsf(m->g - mean);
    }
    float lowest = m->priority[first_to_go(m, 0)];
    return (policy == BOTTOMC ? fminf(1 / m->g, 3.4028234663852886e38f) : m->g) > lowest;
}

static int64_t victim(const Table *m, int64_t policy, int64_t seed) {
    if (policy == FIFO || policy == SPARSE) return first_to_go(m, 1);
    if (policy != RR && policy != NCPR) return first_to_go(m, 0);
    double draw = uniform(seed, m->t, m->stream, EVICTION), total = 0, running = 0;
    int64_t k = 0;
    if (policy == RR) {
        k = (int64_t)(draw * (double)m->topC);
    } else {
        for (int64_t i = 0; i < m->topC; i++) total += m->norm[i];
        while (k < m->topC && (running += m->norm[k]) <= draw * total) k++;
    }
    return k < m->topC ? k : m->topC - 1;
}

void decide(float *priority, float *norm, int64_t *born, int64_t *clock, int64_t *inserted, const int64_t *stream,
            const double *squares, Row *rows, int64_t row_count, int64_t topC, int64_t policy, double decay, int64_t seed,
            int64_t every, int64_t max_age) {
    for (int64_t r = 0; r < row_count; r++) {
        Table m = {priority + r * topC, norm + r * topC, born + r * topC, topC, 0, clock[r] + 1, stream[r],
                   sqrtf((float)squares[r])};
        int64_t free_slot = -1;
        for (int64_t k = topC - 1; k >= 0; k--) {
            if (m.born[k] > 0) m.live++;
            else free_slot = k;
        }
        Row row = {.slot = 0, .clock = clock[r], .finite = isfinite(m.g), .live = m.live};
        if (row.finite) {
            int64_t oldest = first_to_go(&m, 1);
            int expired = max_age > 0 && oldest >= 0 && m.t - m.born[oldest] >= max_age;
            if (m.g > 0) row.accept = expired || admits(&m, policy, seed, every);
            if (row.accept) {
                row.slot = expired ? oldest : free_slot >= 0 ? free_slot : victim(&m, policy, seed);
                m.priority[row.slot] = policy == BOTTOMC ? fminf(1 / m.g, 3.4028234663852886e38f) : m.g;
                m.norm[row.slot] = m.g;
                m.born[row.slot] = m.t;
                inserted[r]++;
            }
            for (int64_t k = 0; k < topC; k++) m.priority[k] *= (float)decay;
            row.clock = clock[r] = m.t;
        }
        rows[r] = row;
    }
}

/* -- the update ------------------------------------------------------------------------------------------------------ */

typedef struct {
    float scale, share, weight_decay, shrink, lr, momentum, one_minus_beta1, beta2, one_minus_beta2, correction2, eps;
} Scalars;

/* d = scale * (g + share * sum), the base's update on d, and g into the slot, in one pass. family, accept, decays and
   nesterov are constants where this is inlined, so every variant is a loop without branches. */
static inline __attribute__((always_inline)) void span(
    const int family, const int accept, const int decays, const int nesterov, const Scalars c, int64_t n,
    const float *restrict g, float *restrict p, float *restrict m, float *restrict v, float *restrict slot,
    float *restrict sum) {
    for (int64_t i = 0; i < n; i++) {
        const float s = sum[i], x = g[i];
        float d = (x + c.share * s) * c.scale, theta = p[i];
        if (decays) d += c.weight_decay * theta;
        if (family == SGD) {
            theta -= c.lr * d;
        } else if (family == MOMENTUM) {
            const float b = c.momentum * m[i] + d;
            m[i] = b;
            theta -= c.lr * (nesterov ? d + c.momentum * b : b);
        } else if (family == RMSPROP || family == RMSPROP_MOMENTUM) {
            const float q = c.beta2 * m[i] + c.one_minus_beta2 * (d * d);
            m[i] = q;
            float u = d / (sqrtf(q) + c.eps);
            if (family == RMSPROP_MOMENTUM) v[i] = u = c.momentum * v[i] + u;
            theta -= c.lr * u;
        } else {
            const float a = m[i] + c.one_minus_beta1 * (d - m[i]);
            const float q = c.beta2 * v[i] + c.one_minus_beta2 * (d * d);
            m[i] = a;
            v[i] = q;
            theta = theta * c.shrink - c.lr * (a / (sqrtf(q) / c.correction2 + c.eps));
        }
        p[i] = theta;
        if (accept) {
            sum[i] = (s - slot[i]) + x;
            slot[i] = x;
        }
    }
}

#define SPAN(FAMILY, NESTEROV)                                                              \
    do {                                                                                    \
        if (accept && decays) span(FAMILY, 1, 1, NESTEROV, c, n, g, p, m, v, slot, sum);    \
        else if (accept) span(FAMILY, 1, 0, NESTEROV, c, n, g, p, m, v, slot, sum);         \
        else if (decays) span(FAMILY, 0, 1, NESTEROV, c, n, g, p, m, v, slot, sum);         \
        else span(FAMILY, 0, 0, NESTEROV, c, n, g, p, m, v, slot, sum);                     \
    } while (0)

static void update_span(const Group *group, int accept, Scalars c, int64_t n, const float *g, float *p, float *m,
                        float *v, float *slot, float *sum) {
    const int decays = group->weight_decay != 0 && !group->decoupled;
    switch (group->family) {
    case SGD: SPAN(SGD, 0); break;
    case MOMENTUM:
        if (group->nesterov) SPAN(MOMENTUM, 1);
        else SPAN(MOMENTUM, 0);
        break;
    case RMSPROP: SPAN(RMSPROP, 0); break;
    case RMSPROP_MOMENTUM: SPAN(RMSPROP_MOMENTUM, 0); break;
    default: SPAN(ADAM, 0);
    }
}

/* A missing gradient counts as zero: it takes its place in the slot and moves nothing. */
static void store_zero(int64_t n, float *restrict slot, float *restrict sum) {
    for (int64_t i = 0; i < n; i++) {
        sum[i] -= slot[i];
        slot[i] = 0;
    }
}

static Scalars scalars_of(const Part *part, const Group *group, Weights weights) {
    Scalars c;
    double lr = group->lr, correction2 = 1;
    if (group->family == ADAM) {
        double t = (double)*part->step; /* raised before the update */
        lr /= 1 - pow(group->beta1, t);
        correction2 = sqrt(1 - pow(group->beta2, t));
    }
    c.scale = (float)(group->maximize ? -weights.scale : weights.scale);
    c.share = (float)weights.share;
    c.weight_decay = (float)group->weight_decay;
    c.shrink = (float)(group->decoupled ? 1 - group->lr * group->weight_decay : 1);
    c.lr = (float)lr;
    c.momentum = (float)group->momentum;
    c.one_minus_beta1 = (float)(1 - group->beta1);
    c.beta2 = (float)group->beta2;
    c.one_minus_beta2 = (float)(1 - group->beta2);
    c.correction2 = (float)correction2;
    c.eps = (float)group->eps;
    return c;
}

/* NOTE [refresh] of plain.py: the slice of the running sum whose turn it is, as far as it lies in this chunk. */
static void refresh(const Part *part, Chunk k, int64_t clock, int64_t topC) {
    int64_t start = (clock + part->number) % part->refresh_steps * part->refresh_length;
    int64_t stop = start + part->refresh_length;
    if (start < k.start) start = k.start;
    if (stop > k.stop) stop = k.stop;
    if (start >= stop) return;
    float *restrict sum = part->sum;
    for (int64_t i = start; i < stop; i++) sum[i] = part->slots[i];
    for (int64_t s = 1; s < topC; s++) {
        const float *restrict slot = part->slots + s * part->length;
        for (int64_t i = start; i < stop; i++) sum[i] += slot[i];
    }
}

static void *update_worker(void *argument) {
    Work *w = argument;
    int64_t c;
    while ((c = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < w->count) {
        Chunk k = w->chunks[c];
        const Part *part = w->parts + k.part;
        const Row *row = w->rows + part->row;
        const float *g = w->grads[k.part];
        int64_t at = k.start, n = k.stop - k.start;
        float *slot = part->slots + row->slot * part->length + at, *sum = part->sum + at;
        if (g) {
            const Group *group = w->groups + part->group;
            int64_t live = row->finite ? row->live : 0; /* a gradient that is not finite is used as it is */
            Scalars scalars = scalars_of(part, group, w->weights[part->weights * (w->topC + 1) + live]);
            float *m = part->m ? part->m + at : 0, *v = part->v ? part->v + at : 0;
            update_span(group, row->accept != 0, scalars, n, g + at, part->p + at, m, v, slot, sum);
        } else if (row->accept) {
            store_zero(n, slot, sum);
        }
        if (row->finite) refresh(part, k, row->clock, w->topC);
    }
    return 0;
}

/* -- threads ----------------------------------------------------------------------------------------------------------- */

/* Threads live for one call: nothing of them is left for a fork to lose. */
static void spread(void *(*worker)(void *), Work *w, int64_t threads) {
    pthread_t others[MOST_THREADS];
    int64_t started = 0;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    while (started < threads - 1 && pthread_create(&others[started], 0, worker, w) == 0) started++;
    worker(w);
    for (int64_t i = 0; i < started; i++) pthread_join(others[i], 0);
}

/* |g|^2 of each row: chunk by chunk, added up in the chunks' order. */
void norms(const Part *parts, const float *const *grads, const Chunk *chunks, int64_t count, double *squares, double *rows,
           int64_t threads) {
    Work w = {.parts = parts, .grads = grads, .chunks = chunks, .count = count, .squares = squares};
    spread(norms_worker, &w, threads);
    for (int64_t c = 0; c < count; c++) rows[parts[chunks[c].part].row] += squares[c];
}

void update(const Part *parts, int64_t part_count, const Group *groups, const float *const *grads, const Chunk *chunks,
            int64_t count, const Row *rows, const Weights *weights, int64_t topC, int64_t threads) {
    for (int64_t i = 0; i < part_count; i++)
        if (grads[i] && parts[i].step) *parts[i].step += 1;
    Work w = {.parts = parts, .groups = groups, .grads = grads, .chunks = chunks, .count = count, .topC = topC,
              .rows = rows, .weights = weights};
    spread(update_worker, &w, threads);
}
