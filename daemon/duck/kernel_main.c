/* fp9-kernel: one step, then it ends. */
#include "daemon/duck/judge.h"

int main(int argc, char **argv)
{
    return judge_main(argc, argv);
}
