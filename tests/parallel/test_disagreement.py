import world_jobs


@world_jobs.each_check_in_each_job("disagreement_checks")
def test_disagreement(backend, ranks, hosts, check):
    world_jobs.assert_check(backend, ranks, hosts, check)
