/* checkkern: every kernel tier of this build that runs on this CPU against the C reference, byte by byte, and the reference
 * against independent arithmetic.
 * Exit 0: all well; 1: a difference; 2: usage; 77: the reference is well, but there was no other tier to compare. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "proto/base/size.h"
#include "tests/checkkern/check.h"

static int usage(FILE *to, int status)
{
    fputs("Usage: checkkern [--seed N] [--rounds N] [--stop]\n"
          "Compares all kernel tiers with the C reference, with random shapes and values.\n"
          "  --seed N    repeat a run (it prints its seed)\n"
          "  --rounds N  as often, with seeds N, N + 1, ... (1)\n"
          "  --stop      end at the first difference\n",
          to);
    return status;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seed", required_argument, NULL, 's'},
        {"rounds", required_argument, NULL, 'r'},
        {"stop", no_argument, NULL, 'x'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    uint64_t seed = (uint64_t)time(NULL), rounds = 1;
    const struct tiers_variant *variant;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 's':
            if (!size_parse_u64(optarg, 0, UINT64_MAX, &seed))
                return usage(stderr, 2);
            break;
        case 'r':
            if (!size_parse_u64(optarg, 1, 1000000, &rounds))
                return usage(stderr, 2);
            break;
        case 'x':
            check_stop = true;
            break;
        case 'h':
            return usage(stdout, 0);
        default:
            return usage(stderr, 2);
        }
    if (optind != argc)
        return usage(stderr, 2);

    check_codes();
    for (uint64_t i = 0; i < rounds; i++, seed++) {
        struct check_random random = {seed};

        printf("seed %llu (again: checkkern --seed %llu)\n", (unsigned long long)seed, (unsigned long long)seed);
        fflush(stdout);
        check_company(&random);
        check_padding(&random);
        check_vectors(&random);
        check_forward(&random);
        check_special(&random);
        check_batch(&random);
        check_phases(&random);
    }
    printf("%u comparisons between tiers, %u failures\n", check_compared, check_failed);
    if (check_failed)
        return 1;
    if (!check_tier(0, &variant)) {
        puts("only the reference runs on this CPU: nothing to compare it with");
        return 77;
    }
    return 0;
}
