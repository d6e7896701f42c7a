"""Keys of Compose, Kubernetes, Slurm, torchrun and training scripts, and their equivalents in kit.

The names are in snake case: `shmSize` and `shm-size` are `shm_size` here.
"""

from __future__ import annotations

from typing import Any

Rows = tuple[tuple[dict[str, Any], str], ...]
"""Keys of kit with an example, and their other names. The first matching row is proposed."""
Reasons = tuple[tuple[str, str], ...]
"""Reasons why keys are left out, and the names of these keys."""

NOTIFY = {"notify": [{"url": {"env": "MAIL_URL"}}]}
GPUS = {"hosts": {"gpus_per_host": 1}}
HOSTS = {"hosts": {"names": ["pc1", "pc2"]}}
WORK: Rows = (
    ({"limits": {"shared_memory": "16GiB"}}, "shm_size shm dshm shared_memory shm_gb"),
    (
        {"limits": {"memory": "24GiB"}},
        "memory mem_limit mem memory_limit mem_reservation memory_reservation memswap_limit "
        "mem_per_node mem_per_cpu mem_per_gpu ram real_memory memory_gb",
    ),
    (
        {"limits": {"cpus": 8}},
        "cpu cpus cpu_limit cpu_limits cpu_count cpus_per_task cpus_per_gpu cpuset cpuset_cpus "
        "cores n_cpus num_cpus cpu_shares cpu_quota ncpus",
    ),
    ({"limits": {"memlock": "unlimited"}}, "ulimits ulimit rlimits"),
    (
        {"hosts": {"gpus_per_host": 1}, "limits": {"memory": "24GiB", "cpus": 8}},
        "resources resource deploy requests reservations resource_limits",
    ),
    (
        GPUS,
        "gpus gpu gpus_per_host num_gpus n_gpus n_gpu ngpus gpu_count gpus_per_node gpus_per_task "
        "gpus_per_replica nproc_per_node nproc nprocs num_processes num_proc processes "
        "ntasks_per_node tasks_per_node device_ids gpu_ids gpu_id devices device accelerator "
        "accelerators gres nvidia.com/gpu slots_per_worker cuda_visible_devices visible_devices "
        "nvidia_visible_devices generic_resources trainers_per_node tensor_parallel_size",
    ),
    (
        HOSTS,
        "nnodes nodes num_nodes n_nodes num_machines replicas workers ntasks scale nodelist "
        "node_list node nodename node_name node_selector placement constraints affinity machines "
        "partition hostfile host max_nodes max_hosts servers parallelism completions",
    ),
    ({"hosts": {"min": 1}}, "min min_nodes min_hosts min_replicas min_workers min_nnodes min_size"),
    (
        {"mounts": [{"bind": "/srv/data", "to": "/data"}]},
        "volumes volume volume_mounts volume_mount binds bind mount volumes_from configs config "
        "config_maps host_path persistent_volume_claim pvc tmpfs data_dir data_path data_root "
        "dataset_path dataset_dir root_dir container_mounts storage",
    ),
    ({"environment": {"NAME": "value"}}, "env environ envs variables env_vars vars envvars"),
    ({"environment": {"NAME": "value"}, "secrets": {"TOKEN": "env"}}, "env_file env_from envfile"),
    ({"secrets": {"HF_TOKEN": "env"}}, "secret secret_key_ref tokens"),
    (
        {"command": ["vllm", "serve", "/model", "--port", "8000"], "port": 8000},
        "entrypoint args cmd script run exec program arguments executable",
    ),
    (
        {"command": ["ddp.py", "50"]},
        "entrypoint args cmd script run exec program main arguments training_script executable "
        "python_file script_args entry_point wrap",
    ),
    ({"setup": ["pip install -r requirements.txt"]}, "pre_run before_script install pip packages"),
    ({"setup": ["pip install -r requirements.txt"]}, "requirements dependencies init_commands"),
    (
        {"working_dir": "/workspace"},
        "workdir working_directory work_dir workingdir cwd chdir container_workdir",
    ),
    ({"user": "1000:1000"}, "run_as_user uid security_context group_add username run_as_group"),
    (
        {"stop_grace_period": "60s"},
        "termination_grace_period_seconds grace_period stop_timeout stop_signal signal",
    ),
    (
        {"max_duration": "12h"},
        "time time_limit walltime active_deadline_seconds max_time max_run_duration "
        "max_run_time max_runtime",
    ),
    (
        {"queue": {"owner": "anna", "priority": 50}},
        "priority priority_class_name queue_name qos nice account",
    ),
    ({"idle": "30m"}, "idle_timeout idle_minutes_to_autostop autostop max_idle_time"),
    ({"image": "registry.lab:5000/trainer:0.2.0"}, "build container container_image docker_image"),
    ({"port": 8000}, "ports expose container_port target_port published_port"),
    ({"health": "/health"}, "healthcheck health_check liveness_probe readiness_probe"),
    (
        {"rendezvous": {"port": 29400}},
        "port master_port rdzv_port main_process_port rendezvous_port",
    ),
    ({"metrics": {"port": 9500}}, "metrics_port prometheus_port"),
    (NOTIFY, "mail_type mail_user notifications notification webhook webhooks on_failure"),
    ({"checkpoint": {"keep": 3}}, "save_total_limit keep_last max_checkpoints save_top_k"),
    ({"checkpoint": {"every_epochs": 1}}, "save_every save_freq save_interval checkpoint_every"),
    ({"checkpoint": {"files": ["snapshot.pt"]}}, "checkpoint_path checkpoint_file snapshot_path"),
    (
        {"batch_size": 256},
        "bs batch batchsize train_batch_size per_device_train_batch_size per_gpu_batch_size "
        "micro_batch_size train_micro_batch_size_per_gpu mini_batch_size samples_per_gpu",
    ),
)
"""Keys of a job or a server."""
TRAIN: Rows = (
    ({"train": {"learning_rate": 0.1}}, "lr base_lr max_lr init_lr initial_lr learningrate"),
    (
        {"train": {"batch_size": 256}},
        "bs batch batchsize train_batch_size per_device_train_batch_size per_gpu_batch_size "
        "micro_batch_size train_micro_batch_size_per_gpu mini_batch_size samples_per_gpu",
    ),
    (
        {"train": {"epochs": 10}},
        "num_epochs n_epochs max_epochs num_train_epochs epoch total_epochs nepochs max_epoch",
    ),
    (
        {"train": {"accumulation": 4}},
        "gradient_accumulation_steps accumulate_grad_batches grad_accum grad_accum_steps "
        "accumulation_steps update_freq gradient_accumulation",
    ),
    ({"train": {"global_batch": 768}}, "global_batch_size total_batch_size effective_batch_size"),
    ({"train": {"optimizer": "adamw"}}, "optim opt optimiser solver"),
    ({"train": {"schedule": "cosine"}}, "scheduler lr_scheduler lr_schedule lr_scheduler_type"),
    ({"train": {"warm_up": 0.05}}, "warmup warmup_steps num_warmup_steps warmup_ratio"),
    ({"train": {"weight_decay": 0.0005}}, "wd decay l2"),
    (
        {"train": {"clip_norm": 1.0}},
        "max_grad_norm clip_grad_norm grad_clip gradient_clip_val gradient_clipping clip_grad",
    ),
    (
        {"train": {"precision": "auto"}},
        "mixed_precision amp dtype fp16 bf16 fp32 half torch_dtype use_amp",
    ),
    ({"train": {"label_smoothing": 0.1}}, "smoothing labelsmoothing"),
    ({"train": {"model": "cnn"}}, "arch architecture model_name net backbone"),
    ({"train": {"dataset": "digits"}}, "data_set dataset_name"),
    ({"train": {"compile": True}}, "torch_compile use_compile"),
    ({"train": {"seed": 1}}, "random_seed manual_seed"),
    ({"train": {"image_size": 32}}, "img_size input_size resolution imgsz"),
    ({"train": {"context": 128}}, "block_size seq_len seq_length max_seq_length sequence_length"),
    ({"exchange": {"mode": "local_sgd"}}, "local_sgd sync_every"),
    ({"parallel": {"shard": 4}}, "fsdp zero zero_stage fsdp_size sharding"),
    ({"parallel": {"tensor": 2}}, "tp tp_size tensor_parallel tensor_model_parallel_size"),
    ({"parallel": {"pipeline": 2}}, "pp pp_size pipeline_parallel pipeline_model_parallel_size"),
    ({"faults": {"max_restarts": 3}}, "restart restart_policy max_restart backoff_limit retries"),
)
"""Keys of a job; a script gets these values as arguments."""
DECIDED: Reasons = (
    (
        "kit starts a container again that fails",
        "restart restart_policy backoff_limit requeue restart_count retries max_retries retry "
        "max_restarts restarts auto_restart autorestart",
    ),
    (
        "kit gives each container its GPUs; `hosts: {gpus_per_host: 1}` says how many",
        "runtime container_runtime runtime_class_name driver capabilities",
    ),
    (
        "kit gives each container the rights that it needs",
        "privileged cap_add cap_drop security_opt allow_privilege_escalation userns_mode "
        "device_cgroup_rules sysctls cgroup_parent cgroup read_only read_only_root_filesystem",
    ),
    (
        "each container has a /dev/shm of its own; `limits: {shared_memory: 16GiB}` is its size",
        "ipc host_ipc ipc_mode",
    ),
    (
        "kit connects the hosts; `network: {driver: host}` in inventory.yaml: that of the hosts",
        "network_mode networks network host_network net dns dns_search extra_hosts links expose "
        "host_aliases network_interface nic interface ports host_port",
    ),
    ("the name is that of the file", "name job_name container_name app service_name jobname"),
    ("each container has the name of its host", "hostname host_name domainname mac_address"),
    (
        "kit sets rank, world size and address of the group in each process",
        "master_addr master_address master_port node_rank rank local_rank world_size rdzv_backend "
        "rdzv_endpoint rdzv_id rdzv_conf rdzv_port machine_rank main_process_ip init_method "
        "dist_url standalone num_ranks global_rank master_host rdzv main_process_port dist_rank "
        "local_world_size max_nodes",
    ),
    ("NCCL connects GPUs, and gloo CPUs", "backend dist_backend distributed_backend ddp_backend"),
    (
        "kit starts one process for each GPU",
        "launcher distributed distributed_type strategy use_ddp ddp multi_gpu spawn start_method "
        "distributed_executor mpi torchrun",
    ),
    (
        "each host has one container of a job or a server: its keys are those of this file",
        "services service containers init_containers sidecars depends_on template pod pod_spec "
        "spec job_template tasks steps extends profiles hooks",
    ),
    (
        "kit logs prints and keeps them",
        "logging log_driver log_opt output error stdout stderr log_file log_dir logs log_level",
    ),
    ("a server runs until `kit stop`", "time time_limit walltime active_deadline_seconds max_time"),
    (
        "inventory.yaml says which GPUs train",
        "reservation exclusive constraint dependency array use gpu_type tolerations",
    ),
    (
        "kit chooses how many processes load the data; `limits: {cpus: 8}` limits them",
        "num_workers dataloader_num_workers n_workers num_data_workers workers prefetch_factor "
        "pin_memory persistent_workers num_threads omp_num_threads",
    ),
    ("docker login on this machine is enough", "image_pull_secrets registry_auth credentials"),
    ("the engine pulls an image that a host lacks", "pull_policy image_pull_policy pull"),
    ("the launcher checks its GPUs", "healthcheck health_check liveness_probe readiness_probe"),
    ("it is a key of inventory.yaml", "engine cluster registry monitoring swarm speed roles ssh"),
    (
        "each host keeps checkpoints in a volume at /checkpoints",
        "output_dir save_dir checkpoint_dir ckpt_dir logging_dir logdir default_root_dir",
    ),
    (
        "a training resumes from its newest checkpoint",
        "resume resume_from resume_from_checkpoint load_checkpoint ckpt_path auto_resume",
    ),
    (
        "kit status shows the progress",
        "log_every logging_steps print_freq log_interval log_every_n_steps report_to progress_bar",
    ),
    (
        "the image has Python and its packages",
        "conda conda_env venv virtualenv python python_version interpreter module modules",
    ),
    (
        "kit decides it by itself",
        "init tty stdin_open pid pid_mode host_pid platform annotations labels label metadata "
        "kind api_version version oom_kill_disable oom_score_adj pids_limit isolation ulimits "
        "ulimit rlimits stop_signal signal isolate update_config rollback_config attach "
        "dns_policy service_account service_account_name automount_service_account_token "
        "enable_service_links scheduler_name mode endpoint_mode cgroupns uts scheduler",
    ),
)
"""Reasons for a job or a server."""
OF_GPU: Rows = (
    ({"uuid": "GPU-5f3a"}, "gpu_uuid gpu id device_id serial"),
    ({"model": "TITAN RTX"}, "name type product gpu_type gpu_model product_name"),
    ({"memory": "24GiB"}, "vram mem memory_total gpu_memory size"),
    ({"index": 0}, "device number idx gpu_id gpu_index"),
    ({"use": "inference"}, "role purpose job mode"),
)
OF_HOST: Rows = (
    (
        {"address": "192.168.8.151"},
        "ip addr host ansible_host public_ip private_ip ip_address hostname host_name fqdn url "
        "internal_ip external_ip node_addr inet",
    ),
    (
        {"ssh": "user1@pc1"},
        "user username ssh_user ansible_user login remote_user ssh_login ssh_host",
    ),
    ({"ssh": "user1@pc1:2222"}, "port ssh_port ansible_port"),
    (
        {"gpus": 1},
        "gpu num_gpus gpu_count n_gpus ngpus slots gres devices device_ids nproc_per_node "
        "accelerators nvidia.com/gpu gpu_ids cuda_visible_devices resources max_slots",
    ),
    ({"roles": ["manager"]}, "role manager is_manager groups group"),
    ({"interface": "eth0"}, "iface ifname nic network_interface net_interface if_name"),
    ({"speed": "1Gbit"}, "bandwidth link_speed network_speed link net_speed"),
    ({"architecture": "arm64"}, "arch platform cpu_arch ansible_architecture machine"),
)
OF_INVENTORY: Rows = (
    (
        {"hosts": {"pc1": {"address": "192.168.8.151", "gpus": 1}}},
        "node machines servers workers nodelist node_list hostfile gpus gpu nnodes all "
        "replicas num_nodes nproc_per_node resources address ip ssh host inventory slots devices",
    ),
    (
        {"hosts": {"pc1": {"address": "192.168.8.151", "roles": ["manager"]}}},
        "master master_addr manager managers leader roles head head_node control_plane",
    ),
    (
        {"hosts": {"pc1": {"address": "192.168.8.151", "roles": ["manager", "storage"]}}},
        "storage nfs nfs_server",
    ),
    ({"cluster": "lab"}, "name cluster_name project partition"),
    ({"engine": "swarm"}, "orchestrator runtime backend target mode scheduler launcher"),
    ({"network": {"driver": "host"}}, "network_mode net host_network networks"),
    ({"network": {"interface": "auto"}}, "iface ifname nic network_interface nccl_socket_ifname"),
    ({"network": {"speed": "1Gbit"}}, "bandwidth link_speed"),
    ({"data": {"cache": "100GiB"}}, "datasets data_sets dataset cache_size"),
    ({"monitoring": {"retention": "30d"}}, "prometheus grafana metrics dcgm exporters"),
    (NOTIFY, "notifications notification webhook webhooks alerts alerting"),
)
OF_INVENTORY_DECIDED: Reasons = (
    (
        "kit asks the host itself",
        "cpus cpu memory ram mem cores os real_memory sockets disk gpu_memory "
        "driver_version cuda gpu_type gpu_model python ansible_python_interpreter threads",
    ),
    (
        "~/.ssh/config has keys and options of ssh",
        "ssh_key key private_key identity_file ssh_config password ssh_options key_file "
        "ansible_ssh_private_key_file ansible_ssh_common_args ssh_pass",
    ),
    ("kit decides it by itself", "labels label tags tag version kind api_version metadata vars"),
    ("kit chooses ranks and addresses of a group", "rank node_rank world_size master_port"),
)
