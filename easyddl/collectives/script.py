"""The collectives as the script calls them.

Within a fit they have a communicator of their own: see `world.communicator`.
"""

from easyddl.collectives import arrays, objects, variables
from easyddl.runtime import world

allreduce = world.on_all_ranks("allreduce()", of_script=True)(arrays.allreduce)
allgather = world.on_all_ranks("allgather()", of_script=True)(arrays.allgather)
alltoall = world.on_all_ranks("alltoall()", of_script=True)(arrays.alltoall)
broadcast = world.on_all_ranks("broadcast()", of_script=True)(arrays.broadcast)
reduce_scatter = world.on_all_ranks("reduce_scatter()", of_script=True)(arrays.reduce_scatter)

allgather_object = world.on_all_ranks("allgather_object()", of_script=True)(
    objects.allgather_object
)
broadcast_object = world.on_all_ranks("broadcast_object()", of_script=True)(
    objects.broadcast_object
)

broadcast_variables = world.on_all_ranks("broadcast_variables()", of_script=True)(
    variables.broadcast_variables
)
