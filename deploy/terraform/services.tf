# One service per partition.

resource "google_cloud_run_v2_service" "relayer" {
  for_each            = var.services ? toset([for p in range(var.partitions) : tostring(p)]) : toset([])
  name                = "${var.name}-${each.key}"
  location            = var.region
  ingress             = "INGRESS_TRAFFIC_INTERNAL_ONLY" # probes and operators inside the project's network: nothing else calls the relayer
  deletion_protection = var.deletion_protection
  labels              = { app = "escrow-relayer", chain-id = tostring(var.chain_id), partition = each.key }

  # One instance, always. Set for the service, not the revision: a revision without traffic must not keep one.
  scaling {
    min_instance_count = 1
  }

  template {
    service_account                  = contains(local.keyed, each.key) ? google_service_account.keys[0].email : google_service_account.relayer.email
    execution_environment            = "EXECUTION_ENVIRONMENT_GEN2" # a full Linux kernel: TCP keepalives and WebSockets behave as elsewhere
    max_instance_request_concurrency = 80
    timeout                          = "3600s" # no answer takes longer than half a minute
    labels                           = { app = "escrow-relayer", chain-id = tostring(var.chain_id) }

    dynamic "vpc_access" {
      for_each = var.private_network == "" ? [] : [1]
      content {
        egress = "PRIVATE_RANGES_ONLY" # the nodes and Google's services are reached as before
        network_interfaces {
          network    = var.private_network
          subnetwork = var.private_subnetwork
        }
      }
    }

    scaling {
      max_instance_count = 1
    }

    containers {
      name  = "relayer"
      image = var.image
      args  = ["run"]

      ports {
        name           = "http1"
        container_port = 8080
      }

      dynamic "env" {
        for_each = merge({
          INSTANCE_ID          = "${var.name}-${each.key}"
          PARTITION_NUMBER     = each.key
          TOTAL_PARTITIONS     = tostring(var.partitions)
          PARTITION_STRATEGY   = var.strategy
          FLEET                = var.name
          CHAIN_ID             = tostring(var.chain_id)
          FACTORY_ADDRESS      = var.factory_address
          START_BLOCK          = tostring(var.start_block)
          PUBSUB_PROJECT_ID    = var.project
          PUBSUB_TOPIC_ID      = var.topic
          RETRACTIONS_TOPIC_ID = var.retractions_topic
          CLOUDSQL_INSTANCE    = local.connection_name
          CLOUDSQL_IAM_AUTH    = "true"
          INSTANCE_LOCK_WAIT   = "20m" # Cloud Run may keep an instance without traffic for 15
          MIGRATE_ON_START     = "false"
          LOG_FORMAT           = "json"
          }, var.other_events_topic == "" ? {} : { OTHER_EVENTS_TOPIC_ID = var.other_events_topic }, var.env,
          contains(local.keyed, each.key) ? {
            SENDERS_FILE             = "/etc/escrow-relayer/senders/senders.json"
            COMMANDS_POLICY_FILE     = "/etc/escrow-relayer/policy/policy.json"
            COMMANDS_SUBSCRIPTION_ID = google_pubsub_subscription.commands[0].name
            REPLIES_TOPIC_ID         = google_pubsub_topic.replies[0].name
        } : {}, contains(local.keyed, each.key) && var.keeper_sender != "" ? { KEEPER_SENDER = var.keeper_sender } : {})
        content {
          name  = env.key
          value = env.value
        }
      }

      # Exact versions: with `latest`, a version that is disabled later takes down every instance that starts anew.
      dynamic "env" {
        for_each = { DATABASE_URL = contains(local.keyed, each.key) ? "keys-database-url" : "database-url", RPC_URLS = "rpc-urls" }
        content {
          name = env.key
          value_source {
            secret_key_ref {
              secret  = google_secret_manager_secret.this[env.value].secret_id
              version = local.secret_versions[env.value]
            }
          }
        }
      }

      resources {
        limits   = { cpu = var.cpu, memory = var.memory }
        cpu_idle = false # CPU always allocated: the work is in the background, and the server ends a session that is silent
      }

      # /healthz, not /readyz: a new revision has the INSTANCE_ID of the old one and waits for its lock, and Cloud Run stops the old
      # one only when the new one has started. Asking for readiness here would make each wait for the other.
      startup_probe {
        period_seconds    = 2
        timeout_seconds   = 2
        failure_threshold = 30
        http_get {
          path = "/healthz"
          port = 8080
        }
      }

      # /healthz depends on nothing but the process. A restart mends neither the database nor a node, so neither may cause one.
      liveness_probe {
        period_seconds    = 10
        timeout_seconds   = 5
        failure_threshold = 6
        http_get {
          path = "/healthz"
          port = 8080
        }
      }

      # One folder per secret: Cloud Run mounts them so. They hold no key: KMS has those.
      dynamic "volume_mounts" {
        for_each = contains(local.keyed, each.key) ? ["senders", "policy"] : []
        content {
          name       = volume_mounts.value
          mount_path = "/etc/escrow-relayer/${volume_mounts.value}"
        }
      }
    }

    containers {
      name       = "collector"
      image      = var.collector_image
      depends_on = ["relayer"]

      resources {
        limits   = { cpu = var.collector_cpu, memory = var.collector_memory }
        cpu_idle = false
      }

      volume_mounts {
        name       = "collector-config"
        mount_path = "/etc/rungmp"
      }
    }

    volumes {
      name = "collector-config"
      secret {
        secret = google_secret_manager_secret.this["monitoring"].secret_id
        items {
          version = local.secret_versions["monitoring"]
          path    = "config.yaml"
        }
      }
    }

    dynamic "volumes" {
      for_each = contains(local.keyed, each.key) ? ["senders", "policy"] : []
      content {
        name = volumes.value
        secret {
          secret = google_secret_manager_secret.this[volumes.value].secret_id
          items {
            version = local.secret_versions[volumes.value]
            path    = "${volumes.value}.json"
          }
        }
      }
    }
  }

  traffic {
    type    = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
    percent = 100
  }

  # A release and a restart go through gcloud, one instance after the other (runbooks/schema-upgrade.md). The next apply must take neither back, and
  # must not replace all instances at once.
  lifecycle {
    ignore_changes = [
      client,
      client_version,
      scaling,
      template[0].containers[0].image,
      template[0].labels["restarted"],
    ]
  }

  # A service starts only when it can log in, read its secrets and publish.
  depends_on = [
    google_project_iam_member.relayer,
    google_pubsub_topic_iam_member.relayer,
    google_secret_manager_secret_iam_member.relayer,
    google_secret_manager_secret_version.database_url,
    google_secret_manager_secret_version.monitoring,
    google_sql_database.this,
    google_sql_user.relayer,
    google_kms_crypto_key_iam_member.keys,
    google_project_iam_member.keys,
    google_pubsub_subscription_iam_member.commands,
    google_pubsub_topic_iam_member.keys,
    google_pubsub_topic_iam_member.replies,
    google_secret_manager_secret_iam_member.keys,
    google_sql_user.keys,
  ]
}
