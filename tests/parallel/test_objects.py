import world_jobs


@world_jobs.each_check_in_each_job("objects_checks")
def test_objects(ranks, hosts, check):
    world_jobs.assert_check(ranks, hosts, check)
