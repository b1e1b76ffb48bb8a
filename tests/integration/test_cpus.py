"""Which CPUs the threads of local ducks have."""
import os

import pytest

CPUS = sorted(os.sched_getaffinity(0))


def affinities(daemon):
    """By duck, in the order of their names: the CPUs of each thread by its name."""
    found = {}
    for pid, _ in daemon.group_members(daemon.process.pid):
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
            words = file.read().split("\0")
        if os.path.basename(words[0]) != "fp9-duck":
            continue
        threads = found[words[words.index("--name") + 1]] = {}
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8") as file:
                threads[file.read().strip()] = os.sched_getaffinity(int(task))
    return [found[name] for name in sorted(found)]


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU is everybody's")
def test_ducks_that_share_cpus_are_spread(make_daemon):
    two = CPUS[:2]
    daemon = make_daemon(ducks=4, fleet=f"local_cores = {two[0]},{two[1]}")
    ducks = affinities(daemon)
    assert len(ducks) == 4
    for i, threads in enumerate(ducks):
        assert threads["member-0"] == {two[i % 2]}
        assert threads["pack"] == set(two) and threads["fp9-duck"] == set(two)


def test_a_duck_has_a_thread_for_each_of_its_cpus(make_daemon):
    threads = affinities(make_daemon(ducks=1))[0]
    members = sorted(cpu for name, cpus in threads.items() if name.startswith("member-") for cpu in cpus)
    assert members == CPUS or len(members) > len(CPUS)  # under a quota nobody is bound
