import world_jobs


@world_jobs.each_check_in_each_job("variables_checks")
def test_variables(ranks, hosts, check):
    world_jobs.assert_check(ranks, hosts, check)
