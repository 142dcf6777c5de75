"""The checks of the world's jobs. They are one file: each worker of pytest runs jobs anew."""

import world_jobs


@world_jobs.each_check_in_each_job("layout_checks")
def test_layout(backend, ranks, hosts, check):
    world_jobs.assert_check(backend, ranks, hosts, check)


@world_jobs.each_check_in_each_job("shared_memory_checks")
def test_shared_memory(backend, ranks, hosts, check):
    world_jobs.assert_check(backend, ranks, hosts, check)


@world_jobs.each_check_in_each_job("collectives_checks")
def test_collectives(backend, ranks, hosts, check):
    world_jobs.assert_check(backend, ranks, hosts, check)


@world_jobs.each_check_in_each_job("objects_checks")
def test_objects(backend, ranks, hosts, check):
    world_jobs.assert_check(backend, ranks, hosts, check)


@world_jobs.each_check_in_each_job("variables_checks")
def test_variables(backend, ranks, hosts, check):
    world_jobs.assert_check(backend, ranks, hosts, check)


@world_jobs.each_check_in_each_job("disagreement_checks")
def test_disagreement(backend, ranks, hosts, check):
    world_jobs.assert_check(backend, ranks, hosts, check)
