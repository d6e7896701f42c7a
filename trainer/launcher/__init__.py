"""The container's entry point: checks its environment, then becomes the agent of this host.

The agent of a script forks torchrun, or starts the process of TensorFlow, for each round. The agent
of the built-in training is elastic/agent.py.

    python3 launch.py               run the training of the job file, as one host of several
    python3 launch.py coordinator   decide which hosts of a built-in training train together
    python3 launch.py rendezvous    decide which hosts of a script run it together
    python3 launch.py health        the container's health check: are the GPUs still usable?
    python3 launch.py session …     in the container of a session: about, connect, jupyter, extend
    python3 launch.py notify KIND MESSAGE
                                    send a notification by the coordinator

kit joins the modules of this program to one file (trainer/contract/programs.py), and mounts it into
any image with torch 2.2 or newer (the built-in training needs 2.6) or with TensorFlow. So they use
only the standard library and Python 3.10, and all names are unique.

    KIT_JOB                  path of the job file (JSON) in the container
    KIT_RENDEZVOUS           host:port or [IPv6]:port where hosts meet; a name has one address
    KIT_NNODES               MIN:MAX hosts of the job, for the coordinator and for scripts; not for
                             hosts of a built-in training: a change must not start them again
    KIT_NPROC                processes on this host: its GPUs, or its CPU workers; with TensorFlow,
                             the GPUs of its single process
    KIT_SPARES               number of spares, where KIT_NNODES is set; default: 0
    KIT_SPARE                set on a spare: a host that takes part only while others are missing
    KIT_OWNER, KIT_PRIORITY  of a job of the queue: its owner, and its priority from 0 to 100
    KIT_SINCE, KIT_WAITED    set by the queue: when it allocated this host to the job, in seconds
                             since 1970, and the seconds for which the job had waited until then
    KIT_HOST                 this host's name in the log; default: its hostname
    KIT_CHECKPOINTS          folder of checkpoints; default: /checkpoints
    KIT_DATA                 folder of data sets; default: /data
    KIT_DATA_SETS            data sets to fetch first: [{"name": "cifar10", "version": 1}]; the
                             training finds their folders in KIT_DATA_PATHS: {"cifar10": "/…"}
    KIT_DATA_SOCKET          socket of the data agent; default: /datasets/agent.sock
    KIT_WORKSPACE            folder of the job's code; default: /workspace
    KIT_SECRETS              names of files in /run/secrets that become variables of the training
    KIT_METRICS_PORT         port of the metrics of this host; default: that of the job file, if any
    KIT_NOTIFY               for the coordinator: receivers and kinds of notifications (JSON)
    KIT_RENDEZVOUS_TIMEOUT   seconds to wait for the coordinator; default: 300
    KIT_GROUP_TIMEOUT        seconds after which processes of a script that are not connected with
                             each other are reported; default: 60
    KIT_ONE_RUN              set if nothing restarts a host: the end of one host then ends all

It prints lines for people and, unless standard output is a terminal, events for programs
(contract/events.py). Foreseeable errors are raised as LaunchError; its message says what to do.
The exit code is then 2 for a mistake in the input, 1 for work that failed.
"""

import json
import sys

if sys.version_info < (3, 10):  # noqa: UP036 - What follows would end with a traceback.
    OLD = f"this image has Python {sys.version_info[0]}.{sys.version_info[1]}, "
    OLD += "and kit's launcher needs 3.10; build it on a newer one, such as pytorch/pytorch"
    failed = {"v": 1, "event": "failed", "kind": "input", "message": OLD}
    sys.stdout.write("@kit " + json.dumps(failed) + "\n")
    sys.stderr.write(f"launch: error: {OLD}\n")
    sys.exit(2)
