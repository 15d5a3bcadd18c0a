/* A wall clock that can be made to jump: LD_PRELOAD=clock.so, and the file that FEDLOOM_CLOCK names
   holds the seconds by which it is wrong, which may change at any time. The monotonic clock is left
   alone, as by an administrator who sets the date. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *wrong_by;

static long long seconds_off(void) {
    static const long long nothing = 0;
    if (!wrong_by) {
        const char *name = getenv("FEDLOOM_CLOCK");
        int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof nothing, PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        wrong_by = page == MAP_FAILED ? &nothing : page;
    }
    return *wrong_by;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += seconds_off();
    return failed;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *place, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    place->tv_sec = now.tv_sec;
    place->tv_usec = now.tv_nsec / 1000;
    return 0;
}
