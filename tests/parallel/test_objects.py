import world_jobs


@world_jobs.each_check_in_each_job("objects_checks")
def test_objects(backend, ranks, hosts, check):
    world_jobs.assert_check(backend, ranks, hosts, check)
