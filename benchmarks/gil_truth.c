/* The true time that each thread waits for the GIL: wraps pthread_cond_timedwait, which in CPython 3.10 to 3.13
 * only take_gil calls. Loaded with LD_PRELOAD; counts into the file that GIL_TRUTH names, for others to map.
 * With GIL_TRUTH_CPU set it also reads, before and after each wait, how long the thread was ready to run without
 * a CPU: that part of a wait came after the wake-up. Two system calls a wait, so not for convoys of microseconds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 256

struct slot { /* mirrored by gil_accuracy.py */
    uint64_t tid, calls, waited_ns, since_ns /* 0: not waiting */, without_cpu_ns;
};

typedef int (*timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

static timedwait real;
static struct slot *slots;
static atomic_int used;
static __thread struct slot *mine;
static __thread int schedule = -1; /* /proc/thread-self/schedstat */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t without_cpu_ns(void) {
    char text[96];
    unsigned long long ran = 0, ready = 0;
    ssize_t size = schedule < 0 ? -1 : pread(schedule, text, sizeof text - 1, 0);
    if (size <= 0) return 0;
    text[size] = 0;
    return sscanf(text, "%llu %llu", &ran, &ready) == 2 ? ready : 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("GIL_TRUTH");
    int file = path ? open(path, O_RDWR) : -1;
    /* The default version, by name: dlsym gives the oldest one where there are several. */
    real = (timedwait)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = (timedwait)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    if (file < 0) return;
    void *mapped = mmap(0, SLOTS * sizeof(struct slot), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) slots = mapped;
    close(file);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    if (!mine && slots) {
        int index = atomic_fetch_add(&used, 1);
        if (index < SLOTS) {
            mine = &slots[index];
            mine->tid = (uint64_t)syscall(SYS_gettid);
            if (getenv("GIL_TRUTH_CPU")) schedule = open("/proc/thread-self/schedstat", O_RDONLY);
        }
    }
    if (!mine) return real(condition, mutex, until);
    uint64_t ready_ns = without_cpu_ns();
    mine->since_ns = now_ns();
    int result = real(condition, mutex, until);
    mine->waited_ns += now_ns() - mine->since_ns;
    mine->since_ns = 0;
    mine->without_cpu_ns += without_cpu_ns() - ready_ns;
    mine->calls++;
    return result;
}
