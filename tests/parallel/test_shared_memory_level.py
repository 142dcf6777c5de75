import world_jobs


@world_jobs.each_check_in_each_job("shared_memory_checks")
def test_shared_memory(ranks, hosts, check):
    world_jobs.assert_check(ranks, hosts, check)
