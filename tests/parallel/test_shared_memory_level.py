import world_jobs


@world_jobs.each_check_in_each_job("shared_memory_checks")
def test_shared_memory(backend, ranks, hosts, check):
    world_jobs.assert_check(backend, ranks, hosts, check)
